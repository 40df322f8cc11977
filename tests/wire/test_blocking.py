"""Blocked readers: what ends their wait, what does not, and what they leave behind. Numbers are docs/semantics.md's."""

from __future__ import annotations

from collections.abc import Callable

from commands.parse import LONGEST_TIMEOUT
from respserver.testing import RunningServer, retained_deadlines
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def blocked_reader(hand: RunningServer, connect: Connect) -> Raw:
    reader = connect()
    count = hand.server.blocking.count
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    eventually(lambda: hand.server.blocking.count == count + 1)
    return reader


def test_a_new_group_does_not_keep_readers_of_one_of_the_same_name(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    reader = blocked_reader(hand, connect)
    c.pipeline(("MULTI",), ("DEL", "s"), ("TREAD", "s", "", 0, "GROUP", "g", 700), ("EXEC",))
    assert reader.read().startswith("NOGROUP")  # [16]
    assert c("TGROUP", "LIST", "s")[0][9] == 0  # readers
    hand.advance(1000)
    assert c("TGROUP", "LIST", "s") == []  # nobody kept the new one


def test_a_key_found_expired_by_another_reader_ends_the_wait(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    reader = blocked_reader(hand, connect)
    c("PEXPIRE", "s", 1000)
    hand.call(lambda: hand.server.clock.move(2000))  # type: ignore[attr-defined]
    newer = connect()
    newer.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    assert reader.read().startswith("NOGROUP")
    assert c("TGROUP", "LIST", "s")[0][9] == 1
    c("TAPPEND", "s", "f", "v")
    assert len(newer.read()) == 1


def test_a_blocked_reader_keeps_its_group_across_a_reload(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    reader = connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 500)
    eventually(lambda: hand.server.blocking.count == 1)
    assert c("DEBUG", "RELOAD") == b"OK"
    hand.advance(2000)  # a blocked reader keeps its group [15]
    c("TAPPEND", "s", "f", "v")
    assert len(reader.read()) == 1
    hand.advance(2000)
    assert c("TGROUP", "LIST", "s") == []


def test_the_longest_timeout_is_accepted(server: RunningServer) -> None:
    with Raw(server.port) as reader, Raw(server.port) as c:
        reader.send("TREAD", "s", 0, 1, "BLOCK", LONGEST_TIMEOUT)
        eventually(lambda: server.server.blocking.count == 1)
        c("TAPPEND", "s", "f", "v")
        assert len(reader.read()) == 1
        assert c("TREAD", "s", 0, 1, "BLOCK", LONGEST_TIMEOUT + 1) == "ERR timeout is out of range"


def test_waits_that_ended_leave_nothing_behind(hand: RunningServer, connect: Connect) -> None:
    c, reader = connect(), connect()
    for n in range(200):
        reader.send("TREAD", "s", "", 1, "BLOCK", 10**9)
        eventually(lambda: hand.server.blocking.count == 1)
        c("TAPPEND", "s", "f", n)
        assert len(reader.read()) == 1
    assert retained_deadlines(hand.server) <= 100
    assert not hand.server.data.ks.waiting
    assert not hand.server.data.ks.ready
