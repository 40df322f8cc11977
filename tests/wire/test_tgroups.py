"""Groups: sharing, TTL, RETRY, pending messages, dead letters, fairness. Numbers are docs/semantics.md's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from respserver.testing import RunningServer
from storage.model.ids import MASK64
from tests.wire.rawclient import Raw, pack
from tests.wire.test_tread import blocked

NOW = 1_700_000_000_000
LONGEST = (1 << 63) - 1  # ms
Connect = Callable[..., Raw]


def ident(ms: int, seq: int = 0) -> bytes:
    return b"%d.%d" % (ms, seq)


def got(rows: Any) -> list[Any]:
    """Second words of entries: what test streams number their entries by; None stays."""
    return [None if row is None else int(row[2]) for row in rows]


def fill(c: Raw, count: int, start: int = 0) -> list[bytes]:
    return c.pipeline(*[("TAPPEND", "s", "i", i) for i in range(start, start + count)])


def read(c: Raw, count: int, *options: Any, group: str = "g", last_id: Any = "", ttl: int = 0) -> Any:
    rows = c("TREAD", "s", last_id, count, "GROUP", group, ttl, *options)
    return got(rows) if isinstance(rows, list) else rows


def names(c: Raw) -> list[bytes]:
    return [dict(zip(g[::2], g[1::2], strict=True))[b"name"] for g in c("TGROUP", "LIST", "s")]


def test_members_share_the_stream(connect: Connect) -> None:
    a, b = connect(), connect(3)
    assert read(a, 10) == []  # starts at what arrives from now on [9]
    fill(a, 5)
    assert read(a, 2) == [0, 1]
    assert read(b, 2) == [2, 3]
    assert read(a, 2) == [4]
    assert read(b, 2) == []
    assert read(b, 9, group="other", last_id=0) == [0, 1, 2, 3, 4]


def test_first_offset(c: Raw) -> None:  # [14]
    ids = fill(c, 4)
    assert read(c, 9, group="new") == []
    assert read(c, 9, group="old", last_id=ids[1]) == [2, 3]
    assert read(c, 9, group="old", last_id=0) == []  # exists: the ID is ignored
    assert c("TREAD", "s", "x", 9, "GROUP", "old", 0).startswith("ERR Invalid stream ID")


def test_count_0_declares(c: Raw) -> None:  # [11] [14]
    assert read(c, 0) == []
    assert c("TYPE", "s") == b"stream"
    assert c("TLEN", "s") == 0
    assert c("TGROUP", "DESTROY", "s", "g") == 1
    assert c("EXISTS", "s") == 0  # it existed for its group only
    fill(c, 1)
    read(c, 0)
    c("TGROUP", "DESTROY", "s", "g")
    assert c("EXISTS", "s") == 1
    assert c("TGROUP", "DESTROY", "s", "g") == 0


def test_ttl_ends_a_silent_group(connect: Connect, hand: RunningServer) -> None:  # [15] [16]
    c = connect()
    ids = fill(c, 3)
    read(c, 1, "RETRY", 100, 0, ttl=1000, last_id=0)
    for call in (
        lambda: read(c, 0, ttl=1000),
        lambda: c("TACK", "s", "g", "1.1"),
        lambda: c("TNACK", "s", "g", "1.1"),
        lambda: c("TTOUCH", "s", "g", 5, "1.1"),
        lambda: c("TGROUP", "SETID", "s", "g", ids[0]),
    ):
        hand.advance(900)
        call()
        assert names(c) == [b"g"]
    hand.advance(900)
    assert names(c) == [b"g"]
    hand.advance(200)
    assert names(c) == []
    assert c("TACK", "s", "g", ids[0]) == 0
    assert read(c, 9, ttl=5, last_id=0) == [0, 1, 2]
    assert read(c, 9, ttl=0) == []  # another value replaces the old one
    hand.advance(10_000)
    assert names(c) == [b"g"]


def test_a_group_with_a_blocked_reader_does_not_expire(connect: Connect, hand: RunningServer) -> None:  # [15]
    c, reader = connect(), connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 5000, "GROUP", "g", 1000)
    blocked(hand, 1)
    hand.advance(4900)
    assert names(c) == [b"g"]
    hand.advance(200)
    assert reader.read() is None
    hand.advance(800)
    assert names(c) == [b"g"]  # the timeout refreshed it
    hand.advance(300)
    assert names(c) == []
    assert c("EXISTS", "s") == 0


@pytest.mark.parametrize("how", [("TGROUP", "DESTROY", "s", "g"), ("DEL", "s"), ("FLUSHALL",)])
def test_blocked_readers_learn_that_their_group_is_gone(
    connect: Connect, hand: RunningServer, how: tuple[str, ...]
) -> None:  # [16]
    reader, plain, c = connect(), connect(), connect()
    fill(c, 1)
    plain.send("TREAD", "s", "", 1, "BLOCK", 0)
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    blocked(hand, 2)
    c(*how)
    assert reader.read().startswith("NOGROUP ")
    assert hand.call(lambda: hand.server.blocking.count) == 1


def test_k_appends_in_one_pipeline_feed_k_readers(connect: Connect, hand: RunningServer) -> None:  # [18]
    readers = [connect() for _ in range(4)]
    for number, reader in enumerate(readers):
        reader.send("TREAD", "s", "", 10, "BLOCK", 0, "GROUP", "g", 0)
        blocked(hand, number + 1)
    c = connect()
    fill(c, 4)
    assert [got(reader.read()) for reader in readers] == [[0], [1], [2], [3]]
    # whoever was served queues at the end
    for number, reader in enumerate([readers[2], readers[0], readers[1]]):
        reader.send("TREAD", "s", "", 10, "BLOCK", 0, "GROUP", "g", 0)
        blocked(hand, number + 1)
    fill(c, 2, 4)
    assert got(readers[2].read()) == [4]
    assert got(readers[0].read()) == [5]
    assert hand.call(lambda: hand.server.blocking.count) == 1


def test_retry_redelivers_until_acknowledged(c: Raw, hand: RunningServer) -> None:  # [20] [21] [22]
    ids = fill(c, 3)
    assert read(c, 9, "RETRY", 1000, 0, last_id=0) == [0, 1, 2]
    assert read(c, 9, "RETRY", 1000, 0) == []
    assert c("TACK", "s", "g", ids[1], ids[1], "5.5") == 1
    hand.advance(1000)
    fill(c, 1, 3)
    assert read(c, 9, "RETRY", 500, 0) == [0, 2, 3]  # due ones first, then new ones
    hand.advance(500)
    assert read(c, 1) == [0]  # a reader without RETRY gets due ones too, and they keep their 500 ms
    assert read(c, 9) == [2, 3]
    hand.advance(500)
    assert read(c, 9) == [0, 2, 3]
    rows = c("TPENDING", "s", "g", "-", "+", 10)
    assert rows[0] == [ids[0], 4, NOW, NOW + 2500, 0]
    assert c("TPENDING", "s", "g") == [3, ids[0], ident(NOW + 1000), NOW + 2500]
    assert c("TACK", "s", "g", *[row[0] for row in rows]) == 3
    hand.advance(10_000)
    assert read(c, 9) == []
    assert c("TPENDING", "s", "g") == [0, None, None, None]


def test_tack_is_all_or_nothing_about_its_ids(c: Raw) -> None:  # [22]
    ids = fill(c, 2)
    read(c, 9, "RETRY", 1000, 0, last_id=0)
    assert c("TACK", "s", "g", ids[0], "nonsense") == "ERR Invalid stream ID specified as stream command argument"
    assert c("TPENDING", "s", "g")[0] == 2
    assert c("TACK", "missing", "g", ids[0]) == 0
    assert c("TACK", "s", "missing", ids[0]) == 0


def test_due_messages_wake_a_blocked_reader(connect: Connect, hand: RunningServer) -> None:  # [21]
    a, b = connect(), connect()
    fill(a, 2)
    read(a, 1, "RETRY", 1000, 0, last_id=0)
    hand.advance(300)
    read(a, 1, "RETRY", 100, 0)
    b.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 5000, 0)
    blocked(hand, 1)
    hand.advance(200)
    assert got(b.read()) == [1]
    b.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 5000, 0)
    blocked(hand, 1)
    hand.advance(600)
    assert got(b.read()) == [0]


def test_order_of_due_messages_is_due_time_then_id(c: Raw, hand: RunningServer) -> None:  # [21]
    ids = fill(c, 3)
    read(c, 3, "RETRY", 1000, 0, last_id=0)
    c("TTOUCH", "s", "g", 300, ids[2])
    c("TTOUCH", "s", "g", 400, ids[0], ids[1])
    hand.advance(2000)
    assert read(c, 9, "RETRY", 1000, 0) == [2, 0, 1]


def test_expire_ends_a_message(c: Raw, hand: RunningServer) -> None:  # [19] [20] [23]
    fill(c, 2)
    read(c, 1, "RETRY", 100, 250, last_id=0)
    read(c, 1, "RETRY", 500, 250)  # expire < retry: delivered once, then dropped
    hand.advance(100)
    assert read(c, 9, "RETRY", 100, 1_000_000) == [0]  # no redelivery extends it
    hand.advance(100)
    assert read(c, 9, "RETRY", 100, 0) == [0]
    hand.advance(100)
    assert read(c, 9) == []
    assert c("TPENDING", "s", "g")[0] == 0
    info = c("TINFO", "s")
    assert dict(zip(info[::2], info[1::2], strict=True))[b"expired"] == 2


def test_dead_letters(c: Raw, hand: RunningServer) -> None:  # [23]
    ids = fill(c, 2)
    options = ("RETRY", 100, 0, "MAXDELIVERIES", 2, "DEADLETTER", "dead")
    assert read(c, 9, *options, last_id=0) == [0, 1]
    hand.advance(100)
    assert read(c, 9, *options) == [0, 1]
    c("TACK", "s", "g", ids[1])
    hand.advance(200)
    assert read(c, 9, *options) == []
    (letter,) = c("TRANGE", "dead", "-", "+")
    assert letter[1:] == [
        b"i", b"0", b"__stream", b"s", b"__group", b"g", b"__id", ids[0], b"__deliveries", b"2",
        b"__reason", b"maxdeliveries",
    ]  # fmt: skip
    read(c, 9, "RETRY", 100, 150, "DEADLETTER", "dead", group="h", last_id=0)
    hand.advance(200)
    letters = c("TRANGE", "dead", "-", "+")
    assert [(row[-7], row[-1]) for row in letters[1:]] == [(b"h", b"expired"), (b"h", b"expired")]
    assert c("TPENDING", "s", "h")[0] == 0


def test_a_dead_letter_of_an_evicted_message_says_what_is_known(c: Raw, hand: RunningServer) -> None:
    ids = fill(c, 1)
    read(c, 1, "RETRY", 100, 150, "DEADLETTER", "dead", last_id=0)
    c("TAPPEV", "s", "COUNT", 0)
    hand.advance(300)
    (letter,) = c("TRANGE", "dead", "-", "+")
    assert letter[1:3] == [b"__stream", b"s"]
    assert letter[5:7] == [b"__id", ids[0]]


def test_a_dead_letter_key_of_another_type_loses_nothing(c: Raw, hand: RunningServer) -> None:
    fill(c, 1)
    read(c, 1, "RETRY", 100, 150, "DEADLETTER", "dead", last_id=0)
    c("SET", "dead", "a string")
    assert c("TREAD", "s", "", 1, "GROUP", "g", 0, "RETRY", 1, 1, "DEADLETTER", "dead").startswith("WRONGTYPE")
    hand.advance(1000)
    assert c("TPENDING", "s", "g")[0] == 1
    c("DEL", "dead")
    hand.advance(2000)
    assert c("TPENDING", "s", "g")[0] == 0
    assert c("TLEN", "dead") == 1


@pytest.mark.parametrize("proto", [2, 3])
def test_nulls_for_evicted_messages(connect: Connect, hand: RunningServer, proto: int) -> None:  # [7] [17] (b)
    c = connect(proto)
    ids = fill(c, 4)
    read(c, 3, "RETRY", 100, 0, last_id=0)
    c("TAPPEV", "s", "COUNT", 2)
    hand.advance(100)
    assert c("TPENDING", "s", "g")[0] == 3
    assert read(c, 2, "RETRY", 100, 0) == [None, None]  # counted
    assert read(c, 9, "RETRY", 100, 0) == [2, 3]
    assert [row[0] for row in c("TPENDING", "s", "g", "-", "+", 9)] == ids[2:]  # they left the list


def test_a_group_overtaken_by_eviction_sees_one_null(c: Raw) -> None:  # [17] (a)
    fill(c, 2)
    read(c, 1, last_id=0)
    fill(c, 8, 2)
    c("TAPPEV", "s", "COUNT", 3)
    assert read(c, 2) == [None, 7, 8]  # not counted
    assert read(c, 2) == [9]
    fill(c, 2, 10)
    c("TAPPEV", "s", "COUNT", 0)
    assert read(c, 2) == [None]
    assert read(c, 2) == []
    fill(c, 1, 12)
    assert read(c, 2) == [12]
    assert read(c, 9, group="later", last_id=0) == [12]  # 0 asks for what there is: nothing is missing


def test_tnack_and_ttouch(connect: Connect, hand: RunningServer) -> None:  # [29]
    c, reader = connect(), connect()
    ids = fill(c, 2)
    read(c, 2, "RETRY", 1000, 0, last_id=0)
    assert c("TTOUCH", "s", "g", 5000, ids[0], "9.9") == 1
    hand.advance(1000)
    assert read(c, 9, "RETRY", 1000, 0) == [1]
    assert c("TNACK", "s", "g", "DELAY", 200, ids[0], ids[0]) == 1
    hand.advance(200)
    assert read(c, 9, "RETRY", 1000, 0) == [0]
    reader.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0)
    blocked(hand, 1)
    assert c("TNACK", "s", "g", ids[1]) == 1
    assert got(reader.read()) == [1]  # at once
    assert c("TNACK", "missing", "g", ids[1]) == 0
    assert c("TNACK", "s", "g", "DELAY", 5) == "ERR wrong number of arguments for 'tnack' command"


def test_setid(c: Raw, hand: RunningServer) -> None:  # [30]
    ids = fill(c, 4)
    read(c, 9, "RETRY", 1000, 0, last_id=0)
    assert c("TGROUP", "SETID", "s", "g", ids[1]) == b"OK"
    assert read(c, 9, "RETRY", 1000, 0) == [2, 3]
    assert c("TPENDING", "s", "g")[0] == 4
    c("TGROUP", "SETID", "s", "g", 0)
    assert read(c, 9) == [0, 1, 2, 3]
    assert c("TGROUP", "SETID", "s", "missing", 0).startswith("NOGROUP ")
    assert c("TPENDING", "s", "missing").startswith("NOGROUP ")


def test_a_rewound_group_delivers_a_due_message_once(c: Raw, hand: RunningServer) -> None:  # [30]
    ids = fill(c, 3)
    read(c, 9, "RETRY", 100, 0, last_id=0)
    hand.advance(100)
    c("TGROUP", "SETID", "s", "g", ids[0])
    assert read(c, 9, "RETRY", 100, 0) == [0, 1, 2]
    assert [row[1] for row in c("TPENDING", "s", "g", "-", "+", 9)] == [2, 1, 1]  # what is read anew starts over


def test_setid_wakes_blocked_readers(connect: Connect, hand: RunningServer) -> None:
    reader, c = connect(), connect()
    fill(c, 2)
    reader.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0)
    blocked(hand, 1)
    c("TGROUP", "SETID", "s", "g", 0)
    assert got(reader.read()) == [0, 1]


def test_restart_keeps_groups_and_pending(c: Raw, hand: RunningServer) -> None:  # [24] [15]
    fill(c, 5)
    read(c, 3, "RETRY", 1000, 5000, "MAXDELIVERIES", 3, "DEADLETTER", "dead", last_id=0, ttl=60_000)
    read(c, 1, group="h", last_id=0)
    rows = c("TPENDING", "s", "g", "-", "+", 10)
    for how in ("LOADAOF", "RELOAD", "LOADAOF"):
        digest = c("DEBUG", "DIGEST")
        assert c("DEBUG", how) == b"OK"
        assert c("DEBUG", "DIGEST") == digest
        assert c("TPENDING", "s", "g", "-", "+", 10) == rows
    hand.advance(1000)
    assert read(c, 9, "RETRY", 1000, 5000, "MAXDELIVERIES", 3, "DEADLETTER", "dead", ttl=60_000) == [0, 1, 2, 3, 4]
    assert read(c, 1, group="h") == [1]
    hand.advance(10_000)
    assert c("TLEN", "dead") == 5


def test_blocked_reader_survives_reload(connect: Connect, hand: RunningServer) -> None:
    reader, c = connect(), connect()
    fill(c, 1)
    reader.send("TREAD", "s", "", 9, "BLOCK", 0, "GROUP", "g", 0)
    blocked(hand, 1)
    c("DEBUG", "RELOAD")
    fill(c, 1, 1)
    assert got(reader.read()) == [1]


def test_pipelined_group_reads(c: Raw) -> None:
    fill(c, 10)
    c("TREAD", "s", 0, 0, "GROUP", "g", 0)
    c.sock.sendall(b"".join(pack("TREAD", "s", "", 2, "GROUP", "g", 0) for _ in range(5)))
    assert [got(c.read()) for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_message_expires_in_time_after_an_earlier_one_was_acknowledged(hand: RunningServer, c: Raw) -> None:  # [23]
    first, _ = c.pipeline(("TAPPEND", "s", "f", 1), ("TAPPEND", "s", "f", 2))
    group = ("GROUP", "g", 0, "RETRY", 60_000)
    c("TREAD", "s", 0, 1, *group, 500, "DEADLETTER", "dead")
    c("TREAD", "s", 0, 1, *group, 5000, "DEADLETTER", "dead")
    assert c("TACK", "s", "g", first) == 1
    hand.advance(1000)  # the moment of the first: nothing is left to do
    assert c("TLEN", "dead") == 0
    hand.advance(5000)
    assert c("TPENDING", "s", "g")[0] == 0
    assert c("TLEN", "dead") == 1


@pytest.mark.parametrize("why", ["holds a string", "is full"])
def test_a_dead_letter_that_can_not_be_written_is_retried_without_spinning(
    hand: RunningServer, connect: Connect, why: str
) -> None:
    c, reader = connect(), connect()
    c.pipeline(*[("TAPPEND", "s", "f", n) for n in range(5)])
    c("TREAD", "s", 0, 5, "GROUP", "g", 0, "RETRY", 100, 150, "DEADLETTER", "dead")
    if why == "holds a string":
        c("SET", "dead", "x")
    else:
        ks = hand.server.data.ks
        hand.call(lambda: ks.append(b"dead", ks.create_stream(b"dead"), MASK64, MASK64, b"*1\r\n$1\r\nx\r\n"))
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    server = hand.server
    for _ in range(30):
        hand.advance(100)
        wait = hand.call(lambda: server.blocking.next_wake(server.clock.now(), server.clock.mono()))
        assert wait is None or wait > 0
        due = hand.call(lambda: server.data.ks.timers.next())
        assert due is None or due > server.clock.now()
    c("DEL", "dead")
    hand.advance(1100)
    assert c("TPENDING", "s", "g")[0] == 0
    assert c("TLEN", "dead") > 0


@pytest.mark.parametrize(
    "words",
    [
        ("TREAD", "s", 0, 1, "GROUP", "g", LONGEST),
        ("TREAD", "s", 0, 1, "GROUP", "g", 0, "RETRY", LONGEST, 0),
        ("TREAD", "s", 0, 1, "GROUP", "g", 0, "RETRY", 1, LONGEST),
        ("TTOUCH", "s", "g", LONGEST, 1),
        ("TNACK", "s", "g", "DELAY", LONGEST, 1),
    ],
)
def test_times_that_are_too_long_are_refused(c: Raw, words: tuple[Any, ...]) -> None:
    c("TAPPEND", "s", "f", "v")
    assert c(*words) == "ERR value is not an integer or out of range"
