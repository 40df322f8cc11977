"""TREAD without groups: reading, waiting, WITHINFO, missing entries. Numbers are docs/semantics.md's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw, pack

NOW = 1_700_000_000_000
Connect = Callable[..., Raw]


def ident(ms: int, seq: int = 0) -> bytes:
    return b"%d.%d" % (ms, seq)


def blocked(hand: RunningServer, count: int) -> None:
    """Wait until that many clients are parked."""
    for _ in range(2000):
        if hand.call(lambda: hand.server.blocking.count) == count:
            return
    raise AssertionError(f"not {count} blocked clients")


@pytest.mark.parametrize("proto", [2, 3])
def test_entries_after_an_id(connect: Connect, proto: int) -> None:  # [8]
    c = connect(proto)
    assert c("TREAD", "s", 0, 10) == []
    c.pipeline(*[("TAPPEND", "s", "i", i) for i in range(4)])
    rows = [[ident(NOW, i), b"i", b"%d" % i] for i in range(4)]
    assert c("TREAD", "s", 0, 10) == rows
    assert c("TREAD", "s", "0.0", 2) == rows[:2]
    assert c("TREAD", "s", ident(NOW, 1), 10) == rows[2:]
    assert c("TREAD", "s", NOW, 10) == rows[1:]  # a plain number of ms is ms.0 here [2]
    assert c("TREAD", "s", ident(NOW, 3), 10) == []
    assert c("TREAD", "s", "", 10) == []  # [9]
    assert c("TREAD", "s", 0, 0) == []  # [11]
    assert c("EXISTS", "missing") == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((0, -1), "ERR value is out of range, must be positive"),
        ((0, "x"), "ERR value is not an integer or out of range"),
        (("x", 1), "ERR Invalid stream ID specified as stream command argument"),
        ((0, 1, "BLOCK"), "ERR syntax error"),
        ((0, 1, "BLOCK", -1), "ERR timeout is negative"),
        ((0, 1, "BLOCK", "x"), "ERR timeout is not an integer or out of range"),
        ((0, 1, "BLOCK", 1, "BLOCK", 1), "ERR syntax error"),
        ((0, 1, "WITHINFO", "WITHINFO"), "ERR syntax error"),
        ((0, 1, "NONSENSE"), "ERR syntax error"),
        ((0, 1, "GROUP", "g"), "ERR syntax error"),
        ((0, 1, "GROUP", "", 0), "ERR the group's name must not be empty"),
        ((0, 1, "GROUP", "g", -1), "ERR value is out of range, must be positive"),
        ((0, 1, "RETRY", 1, 1), "ERR RETRY requires GROUP"),
        ((0, 1, "GROUP", "g", 0, "RETRY", 0, 1), "ERR retry-ms must be at least 1"),
        ((0, 1, "GROUP", "g", 0, "RETRY", 1, -1), "ERR value is out of range, must be positive"),
        ((0, 1, "GROUP", "g", 0, "MAXDELIVERIES", 1), "ERR MAXDELIVERIES and DEADLETTER require RETRY"),
        ((0, 1, "GROUP", "g", 0, "RETRY", 1, 1, "MAXDELIVERIES", 0), "ERR MAXDELIVERIES must be between"),
        ((0, 1, "GROUP", "g", 0, "RETRY", 1, 1, "DEADLETTER", "s"), "ERR DEADLETTER must name a key other"),
    ],
)
def test_refusals_change_nothing(c: Raw, words: tuple[str | int, ...], error: str) -> None:
    assert c("TREAD", "s", *words).startswith(error)
    assert c("EXISTS", "s") == 0


@pytest.mark.parametrize("proto", [2, 3])
def test_withinfo(connect: Connect, proto: int) -> None:  # [12]
    c = connect(proto)
    assert c("TREAD", "s", 0, 0, "WITHINFO") == [[None, b"0.0"]]
    c("TAPPEND", "s", "f", "v")
    c("TAPPEND", "s", "f", "v")
    row = [ident(NOW, 1), b"f", b"v"]
    assert c("TREAD", "s", ident(NOW, 0), 5, "withinfo") == [[ident(NOW, 0), ident(NOW, 1)], row]
    c("TAPPEV", "s", "COUNT", 0)
    assert c("TREAD", "s", ident(NOW, 1), 5, "WITHINFO") == [[None, ident(NOW, 1)]]


def test_missing_entries_show_once_in_front(c: Raw) -> None:  # [17] (a)
    c.pipeline(*[("TAPPEND", "s", "i", i) for i in range(6)])
    c("TAPPEV", "s", "COUNT", 2)
    rows = [[ident(NOW, i), b"i", b"%d" % i] for i in (4, 5)]
    assert c("TREAD", "s", ident(NOW, 1), 10) == [None, *rows]
    assert c("TREAD", "s", ident(NOW, 1), 1) == [None, rows[0]]  # not counted
    assert c("TREAD", "s", ident(NOW, 3), 10) == rows  # the newest evicted one was seen
    assert c("TREAD", "s", 0, 10) == rows
    assert c("TREAD", "s", "0.0", 10) == rows
    assert c("TRANGE", "s", ident(NOW, 1), "+") == rows
    c("TAPPEV", "s", "COUNT", 0)
    assert c("TREAD", "s", ident(NOW, 1), 10) == [None]
    assert c("TREAD", "s", ident(NOW, 1), 10, "WITHINFO") == [[None, ident(NOW, 5)], None]


def test_block_waits_for_the_first_entry(connect: Connect, hand: RunningServer) -> None:  # [10]
    reader, writer = connect(), connect()
    reader.send("TREAD", "s", 0, 10, "BLOCK", 0)
    blocked(hand, 1)
    writer("TAPPEND", "s", "f", "v")
    assert reader.read() == [[ident(NOW, 0), b"f", b"v"]]
    assert reader("TREAD", "s", 0, 10, "BLOCK", 1) == [[ident(NOW, 0), b"f", b"v"]]  # there is something: no wait
    reader.send("TREAD", "s", "", 10, "BLOCK", 0)  # only what arrives from now on [9]
    blocked(hand, 1)
    writer("TAPPEND", "s", "f", "w")
    assert reader.read() == [[ident(NOW, 1), b"f", b"w"]]


@pytest.mark.parametrize("proto", [2, 3])
def test_block_times_out_with_null(connect: Connect, hand: RunningServer, proto: int) -> None:
    reader = connect(proto)
    reader.send("TREAD", "s", "", 10, "BLOCK", 1000)
    blocked(hand, 1)
    hand.advance(900)
    assert hand.call(lambda: hand.server.blocking.count) == 1
    hand.advance(200)
    assert reader.read() is None
    assert reader("PING") == b"PONG"


def test_a_wake_without_data_keeps_the_timeout(connect: Connect, hand: RunningServer) -> None:
    reader, writer = connect(), connect()
    reader.send("TREAD", "s", ident(NOW * 2), 10, "BLOCK", 1000)
    blocked(hand, 1)
    hand.advance(600)
    writer("TAPPEND", "s", "f", "v")  # its ID is below what the reader waits for
    hand.advance(500)
    assert reader.read() is None


def test_a_clock_set_back_does_not_prolong_the_wait(connect: Connect, hand: RunningServer) -> None:
    reader = connect()
    reader.send("TREAD", "s", 0, 10, "BLOCK", 1000)
    blocked(hand, 1)
    hand.advance(-3600_000)
    hand.advance(1100)
    assert reader.read() is None


def test_all_plain_readers_are_served(connect: Connect, hand: RunningServer) -> None:  # [18]
    readers = [connect() for _ in range(5)]
    for reader in readers:
        reader.send("TREAD", "s", "", 10, "BLOCK", 0)
    blocked(hand, 5)
    connect()("TAPPEND", "s", "f", "v")
    assert [reader.read() for reader in readers] == [[[ident(NOW, 0), b"f", b"v"]]] * 5


def test_inside_multi_nothing_waits(c: Raw) -> None:  # [10]
    c("MULTI")
    c("TREAD", "s", 0, 10, "BLOCK", 0)
    c("TAPPEND", "s", "f", "v")
    c("TREAD", "s", 0, 10, "BLOCK", 0)
    row = [ident(NOW, 0), b"f", b"v"]
    assert c("EXEC") == [None, row[0], [row]]


def test_multi_wakes_after_exec_only(connect: Connect, hand: RunningServer) -> None:
    reader, writer = connect(), connect()
    reader.send("TREAD", "s", 0, 10, "BLOCK", 0)
    blocked(hand, 1)
    writer("MULTI")
    writer("TAPPEND", "s", "i", 0)
    writer("TAPPEND", "s", "i", 1)
    writer("EXEC")
    assert [row[2] for row in reader.read()] == [b"0", b"1"]


def test_commands_behind_a_blocking_read_wait_their_turn(connect: Connect, hand: RunningServer) -> None:
    reader, writer = connect(), connect()
    reader.sock.sendall(pack("TREAD", "s", "", 1, "BLOCK", 0) + pack("ECHO", "later") + pack("TLEN", "s"))
    blocked(hand, 1)
    writer("TAPPEND", "s", "f", "v")
    assert reader.read() == [[ident(NOW, 0), b"f", b"v"]]
    assert reader.read() == b"later"
    assert reader.read() == 1


def test_a_blocked_client_that_leaves_is_forgotten(connect: Connect, hand: RunningServer) -> None:
    reader = connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    blocked(hand, 1)
    reader.close()
    blocked(hand, 0)
    assert hand.call(lambda: dict(hand.server.data.ks.waiting)) == {}


def test_client_unblock(connect: Connect, hand: RunningServer) -> None:
    reader, admin = connect(), connect()
    number = reader("CLIENT", "ID")
    for mode, expected in (("TIMEOUT", None), ("ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK")):
        reader.send("TREAD", "s", "", 1, "BLOCK", 0)
        blocked(hand, 1)
        assert admin("CLIENT", "UNBLOCK", number, mode) == 1
        assert reader.read() == expected
    assert admin("CLIENT", "UNBLOCK", number) == 0


def test_deleting_the_key_lets_a_plain_reader_wait_on(connect: Connect, hand: RunningServer) -> None:
    reader, writer = connect(), connect()
    writer("TAPPEND", "s", "f", "v")
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    blocked(hand, 1)
    writer("DEL", "s")
    hand.advance(10)
    writer("TAPPEND", "s", "f", "w")
    assert reader.read() == [[ident(NOW + 10, 0), b"f", b"w"]]


def test_a_key_of_another_type_ends_the_wait(connect: Connect, hand: RunningServer) -> None:
    reader, writer = connect(), connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0)
    blocked(hand, 1)
    writer("SET", "s", "string")
    assert reader.read().startswith("WRONGTYPE")
