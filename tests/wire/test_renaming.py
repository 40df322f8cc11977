"""RENAME of streams: entries, groups, expiry and those who wait, across checkpoints and restarts; what COPY refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def test_a_stream_keeps_everything_but_its_name(c: Raw, hand: RunningServer) -> None:
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(10))
    c("TREAD", "s", 0, 4, "GROUP", "g", 5000, "RETRY", 1000, 0)
    c("TAPPEV", "s", "COUNT", 8)
    c("PEXPIRE", "s", 60_000)

    def seen(key: str) -> tuple[Any, ...]:
        pending = c("TPENDING", key, "g", "-", "+", 10)
        return c("TINFO", key), pending, c("TGROUP", "LIST", key), c("TRANGE", key, "-", "+")

    before = seen("s")
    assert c("RENAME", "s", "t") == b"OK"
    after = seen("t")
    assert after == before
    assert (c("TTL", "t"), c("EXISTS", "s"), c("DBSIZE")) == (60, 0, 1)
    c("TAPPEND", "s", "f", "another stream")
    assert c("TACK", "t", "g", *[row[0] for row in after[1]]) == 4
    assert c("TGROUP", "LIST", "s") == []
    hand.advance(5000)  # the group's time to live, under its new key
    assert c("TGROUP", "LIST", "t") == []
    hand.advance(60_000)
    assert (c("EXISTS", "t"), c("TLEN", "s")) == (0, 1)


def test_pending_messages_leave_by_their_time_under_the_new_name(c: Raw, hand: RunningServer) -> None:
    c("TAPPEND", "s", "f", "v")
    c("TREAD", "s", 0, 1, "GROUP", "g", 0, "RETRY", 1000, 3000, "DEADLETTER", "dead")
    c("RENAME", "s", "t")
    hand.advance(3000)
    assert c("TPENDING", "t", "g")[0] == 0
    assert c("TRANGE", "dead", "-", "+")[0][4] == b"t"


def test_readers_of_the_old_name(c: Raw, hand: RunningServer, connect: Connect) -> None:
    plain, grouped = connect(), connect()
    c("TREAD", "s", "", 0, "GROUP", "g", 700)
    plain.send("TREAD", "s", "", 1, "BLOCK", 0)
    grouped.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 700)
    eventually(lambda: hand.server.blocking.count == 2)
    hand.advance(2000)
    c("RENAME", "s", "t")
    assert grouped.read().startswith("NOGROUP")  # as after a DEL [16]
    assert hand.server.blocking.count == 1
    hand.advance(500)
    assert len(c("TGROUP", "LIST", "t")) == 1  # its time to live began when its reader was told
    hand.advance(500)
    assert c("TGROUP", "LIST", "t") == []
    c("TAPPEND", "s", "f", "v")
    assert plain.read()[0][1:] == [b"f", b"v"]


def test_readers_of_the_new_name(c: Raw, hand: RunningServer, connect: Connect) -> None:
    plain, waiting, grouped = connect(), connect(), connect()
    first = c("TAPPEND", "s", "f", "v")
    c("TREAD", "s", 0, 0, "GROUP", "g", 0)
    grouped.send("TREAD", "t", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    eventually(lambda: hand.server.blocking.count == 1)
    plain.send("TREAD", "t", "", 1, "BLOCK", 0)
    waiting.send("TWAIT", 0, "t", 0)
    eventually(lambda: hand.server.blocking.count == 3)
    c("RENAME", "s", "t")
    assert plain.read() == [[first, b"f", b"v"]]  # what was there had no entries
    assert waiting.read() == [b"t"]
    assert grouped.read().startswith("NOGROUP")  # of the stream that is gone
    assert c("TREAD", "t", "", 1, "GROUP", "g", 0) == [[first, b"f", b"v"]]


def test_a_reader_of_a_name_that_becomes_a_string(c: Raw, hand: RunningServer, connect: Connect) -> None:
    reader = connect()
    reader.send("TREAD", "t", "", 1, "BLOCK", 0)
    eventually(lambda: hand.server.blocking.count == 1)
    c("SET", "a", "v")
    c("RENAME", "a", "t")
    assert reader.read().startswith("WRONGTYPE")


def test_copy_refuses_streams_only(c: Raw) -> None:
    c("TAPPEND", "s", "f", "v")
    assert c("COPY", "s", "t").startswith("ERR COPY copies strings, not streams")
    c("SET", "t", "v")
    assert c("COPY", "s", "t") == 0
    assert c("COPY", "s", "t", "REPLACE").startswith("ERR COPY copies strings, not streams")
    assert c("GET", "t") == b"v"


@pytest.mark.parametrize("stop", ["SAVE", "nothing"])
def test_new_names_and_parts_outlive_a_restart(tmp_path: Path, stop: str) -> None:
    with start_in_thread(clock=HandClock(), dir=str(tmp_path)) as server, Raw(server.port) as c:
        c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(2000))
        c("TREAD", "s", 0, 4, "GROUP", "g", 0, "RETRY", 1000, 0)
        c("MSET", "a", "hello", "b", "v")
        assert c("SAVE") == b"OK"
        c("RENAME", "s", "b")
        c("APPEND", "a", " world")
        c("SETRANGE", "a", 20, "!")
        c("RENAME", "a", "s")
        c("TAPPEND", "b", "f", "last")
        entries = c("TRANGE", "b", "-", "+")
        if stop == "SAVE":
            assert c("SAVE") == b"OK"
    with start_in_thread(clock=HandClock(), dir=str(tmp_path)) as server, Raw(server.port) as c:
        assert c("TRANGE", "b", "-", "+") == entries
        assert c("TPENDING", "b", "g")[0] == 4
        assert (c("GET", "s"), c("DBSIZE")) == (b"hello world".ljust(20, b"\0") + b"!", 2)


def test_a_stream_that_is_renamed_while_it_is_stored(hand: RunningServer, c: Raw) -> None:
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(5000))
    ks = hand.server.data.ks

    def rename_between() -> None:
        capture = ks.begin_capture()
        while not ks.changes.more(1):
            pass
        ks.rename(b"s", b"t")
        hand.server.data.disk.store.write(capture, hand.server.data.disk.offset)
        hand.server.data.disk.store.renew_view()
        while not ks.changes.stored(capture, 1):
            pass

    unstored = ks.pool.unstored
    assert unstored
    hand.call(rename_between)
    assert ks.pool.unstored < unstored, "its nodes are on disk: they leave memory under the new name"
    assert len(c("TRANGE", "t", "-", "+")) == 5000
