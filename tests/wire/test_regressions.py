"""What went wrong once, through the wire, each with the moment that it takes. Numbers are docs/semantics.md's."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import RunningServer, start_in_thread
from storage.ids import MASK64
from tests.wire.rawclient import Raw, pack

Connect = Callable[..., Raw]
LONGEST = (1 << 63) - 1  # ms


def refuse(*_: Any) -> None:
    raise OSError(28, "no space left, says the test")


class Disk:
    """Switches one of the log's methods off and on."""

    def __init__(self, hand: RunningServer, owner: Callable[[], Any], method: str) -> None:
        self.hand, self.owner, self.method = hand, owner, method

    def breaks(self) -> None:
        self.hand.call(lambda: setattr(self.owner(), self.method, refuse))

    def heals(self) -> None:
        self.hand.call(lambda: delattr(self.owner(), self.method))


@pytest.fixture
def tail(hand: RunningServer) -> Disk:
    return Disk(hand, lambda: hand.server.disk, "append")


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- pending messages ----------------------------------------------------------------------------------------------
def test_a_message_leaves_in_time_though_an_earlier_one_was_acknowledged(hand: RunningServer, c: Raw) -> None:  # [23]
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
def test_a_dead_letter_that_can_not_be_written_keeps_nobody_busy(
    hand: RunningServer, connect: Connect, why: str
) -> None:
    c, reader = connect(), connect()
    c.pipeline(*[("TAPPEND", "s", "f", n) for n in range(5)])
    c("TREAD", "s", 0, 5, "GROUP", "g", 0, "RETRY", 100, 150, "DEADLETTER", "dead")
    if why == "holds a string":
        c("SET", "dead", "x")
    else:
        ks = hand.server.ks
        hand.call(lambda: ks.append(b"dead", ks.create_stream(b"dead"), MASK64, MASK64, b"*1\r\n$1\r\nx\r\n"))
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    server = hand.server
    for _ in range(30):
        hand.advance(100)
        wait = hand.call(lambda: server.blocking.next_wake(server.now_ms(), server.mono_ms()))
        assert wait is None or wait > 0
        due = hand.call(lambda: server.ks.timers.next())
        assert due is None or due > server.now_ms()
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
def test_moments_that_no_reply_could_tell(c: Raw, words: tuple[Any, ...]) -> None:
    c("TAPPEND", "s", "f", "v")
    assert c(*words) == "ERR value is not an integer or out of range"


def test_a_very_long_wait(server: RunningServer) -> None:
    with Raw(server.port) as reader, Raw(server.port) as c:
        reader.send("TREAD", "s", 0, 1, "BLOCK", LONGEST)
        until(lambda: server.server.blocking.count == 1)
        c("TAPPEND", "s", "f", "v")
        assert len(reader.read()) == 1


# -- blocked readers -----------------------------------------------------------------------------------------------
def blocked_reader(hand: RunningServer, connect: Connect) -> Raw:
    reader = connect()
    count = hand.server.blocking.count
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    until(lambda: hand.server.blocking.count == count + 1)
    return reader


def test_another_group_of_the_same_name_is_not_what_a_reader_waits_for(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    reader = blocked_reader(hand, connect)
    c.pipeline(("MULTI",), ("DEL", "s"), ("TREAD", "s", "", 0, "GROUP", "g", 700), ("EXEC",))
    assert reader.read().startswith("NOGROUP")  # [16]
    assert c("TGROUP", "LIST", "s")[0][9] == 0  # readers
    hand.advance(1000)
    assert c("TGROUP", "LIST", "s") == []  # nobody kept the new one


def test_a_key_that_expired_unnoticed_ends_its_readers_too(hand: RunningServer, connect: Connect) -> None:
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


def test_group_readers_survive_a_reload(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    reader = connect()
    reader.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 500)
    until(lambda: hand.server.blocking.count == 1)
    assert c("DEBUG", "RELOAD") == b"OK"
    hand.advance(2000)  # a blocked reader keeps its group [15]
    c("TAPPEND", "s", "f", "v")
    assert len(reader.read()) == 1
    hand.advance(2000)
    assert c("TGROUP", "LIST", "s") == []


def test_waits_that_ended_leave_nothing_behind(hand: RunningServer, connect: Connect) -> None:
    c, reader = connect(), connect()
    for n in range(200):
        reader.send("TREAD", "s", "", 1, "BLOCK", 10**9)
        until(lambda: hand.server.blocking.count == 1)
        c("TAPPEND", "s", "f", n)
        assert len(reader.read()) == 1
    assert len(hand.server.blocking._deadlines) <= 100
    assert not hand.server.ks.waiting
    assert not hand.server.ks.ready


# -- a disk that takes nothing -------------------------------------------------------------------------------------
@pytest.mark.interpreted
def test_a_write_that_is_not_durable_is_not_answered_nor_stored(
    hand: RunningServer, connect: Connect, tail: Disk
) -> None:
    c, writer = connect(), connect()
    c("SET", "before", 1)
    tail.breaks()
    writer.send("SET", "k", "v")
    until(lambda: bool(hand.server._stalled))
    assert c("GET", "before") == b"1"  # reads go on
    assert c("SET", "other", 1).startswith("MISCONF")
    for command in (["SAVE"], ["BGSAVE"], ["DEBUG", "RELOAD"], ["DEBUG", "LOADAOF"]):
        assert isinstance(c(*command), str), command
    assert hand.server.disk.store.offset == 0
    assert writer.nothing_yet()
    tail.heals()
    hand.advance(100)
    assert writer.read() == b"OK"
    digest = c("DEBUG", "DIGEST")
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert c("DEBUG", "DIGEST") == digest
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == digest


@pytest.mark.interpreted
def test_a_checkpoint_that_finds_out_does_not_let_the_replies_go(
    hand: RunningServer, connect: Connect, tail: Disk
) -> None:
    c, writer = connect(), connect()
    tail.breaks()
    writer.sock.sendall(pack("SET", "k", "v") + pack("SAVE") + pack("GET", "k"))
    until(lambda: bool(hand.server._stalled))
    assert c("PING") == b"PONG"
    assert writer.nothing_yet()
    tail.heals()
    hand.advance(100)
    assert writer.read() == b"OK"
    assert isinstance(writer.read(), str)
    assert writer.read() == b"v"


@pytest.mark.interpreted
def test_damage_met_while_writing_is_a_write_that_waits(hand: RunningServer, connect: Connect) -> None:
    from resp.errors import CorruptError

    def damaged(*_: Any) -> None:
        raise CorruptError("the journal is damaged, says the test")

    c, writer = connect(), connect()
    disk = hand.server.disk
    hand.call(lambda: setattr(disk, "append", damaged))
    writer.send("SET", "k", "v")
    until(lambda: bool(hand.server._stalled))
    assert writer.nothing_yet()
    assert c("SET", "k", 2).startswith("MISCONF")
    hand.call(lambda: delattr(disk, "append"))
    hand.advance(100)
    assert writer.read() == b"OK"


@pytest.mark.interpreted
def test_shutdown_tries_once_more(hand: RunningServer, connect: Connect, tail: Disk) -> None:
    writer = connect()
    tail.breaks()
    writer.send("SET", "k", "v")
    until(lambda: bool(hand.server._stalled))
    tail.heals()
    hand._loop.call_soon_threadsafe(hand.server.stop)
    assert writer.read() == b"OK"


def test_a_failed_save_without_changes_heals(hand: RunningServer, c: Raw) -> None:
    store = Disk(hand, lambda: hand.server.disk.store, "write")
    c("SET", "k", "v")
    store.breaks()
    assert "no space left" in c("SAVE")
    assert c("SET", "k", 2).startswith("MISCONF")
    hand.call(lambda: setattr(hand.server.ks.changes, "count", 0))  # as if all that is dirty had been counted before
    store.heals()
    hand.advance(6000)
    until(lambda: c("SET", "k", 3) == b"OK")


def test_retries_do_not_wait_for_a_clock_that_was_set_back(hand: RunningServer, c: Raw) -> None:
    store = Disk(hand, lambda: hand.server.disk.store, "write")
    c("SET", "k", "v")
    store.breaks()
    c("SAVE")
    store.heals()
    hand.advance(-3_600_000)
    hand.advance(6000)
    until(lambda: c("SET", "k", 3) == b"OK")


def test_the_first_write_after_healing_is_welcome(hand: RunningServer, c: Raw) -> None:
    disk = hand.server.disk
    hand.call(lambda: setattr(disk, "_problem", "says the test"))
    c("PING")
    assert c("SET", "k", 1).startswith("MISCONF")
    hand.call(lambda: setattr(disk, "_problem", None))
    hand.call(hand.server.on_time)
    assert c("SET", "k", 2) == b"OK"


# -- transactions and the log --------------------------------------------------------------------------------------
@pytest.mark.parametrize("save", ["BGSAVE", "BGREWRITEAOF"])
@pytest.mark.interpreted
def test_a_transaction_is_one_batch_even_around_a_checkpoint(hand: RunningServer, c: Raw, save: str) -> None:
    disk = hand.server.disk
    batches: list[bytes] = []
    append = disk.append

    def noted(batch: bytes) -> None:
        batches.append(batch)
        append(batch)

    hand.call(lambda: setattr(disk, "append", noted))
    saves = hand.server.checkpoints.saves
    answers = c.pipeline(("MULTI",), ("SET", "a", 1), (save,), ("SET", "b", 2), ("EXEC",))
    assert answers[-1][1].endswith(b"scheduled")
    assert len(batches) == 1
    hand.advance(100)
    until(lambda: saves.count == 1)


@pytest.mark.parametrize("words", [("DEBUG", "RELOAD"), ("DEBUG", "LOADAOF")])
def test_no_reload_inside_a_transaction(c: Raw, words: tuple[str, ...]) -> None:
    c("MULTI")
    assert c(*words) == "ERR Command not allowed inside a transaction"
    assert c("EXEC").startswith("EXECABORT")


# -- sizes ---------------------------------------------------------------------------------------------------------
def test_entries_of_one_command_are_bounded(c: Raw) -> None:
    answer = c("TMAPPEND", "s", "FIELDS", 1, b"f" * (1 << 20), "VALUES", *(["v"] * 600))
    assert answer == "ERR the entries of one command may take 512 MiB together"
    assert c("EXISTS", "s") == 0


def test_a_very_large_entry(hand: RunningServer, c: Raw) -> None:
    ident = c("TAPPEND", "s", "f", bytes(40 << 20))
    c("TAPPEND", "s", "f", "small")
    digest = c("DEBUG", "DIGEST")
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == digest
    [[found, _, value]] = c("TRANGE", "s", ident, ident)
    assert found == ident
    assert len(value) == 40 << 20


# -- the end, and what goes on meanwhile ---------------------------------------------------------------------------
def test_a_shutdown_waits_for_the_checkpoint_that_runs(tmp_path: Path) -> None:
    running, go_on = threading.Event(), threading.Event()
    with start_in_thread(tmp_path) as server, Raw(server.port) as c, Raw(server.port) as late:
        c("SET", "k", "v")
        store = server.server.disk.store
        write = store.write

        def slow(*args: Any) -> None:
            running.set()
            assert go_on.wait(10)
            write(*args)

        server.call(lambda: setattr(store, "write", slow))
        assert c("BGSAVE") == b"Background saving started"
        assert running.wait(10)
        server._loop.call_soon_threadsafe(server.server.stop)
        assert c("SET", "k", "v2") == b"OK"
        go_on.set()
        late.send("BGSAVE")
    with start_in_thread(tmp_path) as server, Raw(server.port) as c:
        assert c("GET", "k") == b"v2"


def test_a_reload_under_a_streamed_reply(hand: RunningServer, connect: Connect) -> None:
    c, slow = connect(), connect()
    for _ in range(8):
        c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[bytes(8000)] * 500)
    c("SAVE")
    slow.send("TRANGE", "s", "-", "+")
    time.sleep(0.1)
    assert c("DEBUG", "RELOAD") == b"OK"
    with contextlib.suppress(EOFError, ConnectionError):
        assert len(slow.read()) == 4000
    assert c("TLEN", "s") == 4000
    assert c("DEBUG", "RELOAD") == b"OK"


def test_many_keys_that_end_at_once(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    c.pipeline(*[("SET", f"k{n}", "v", "PX", 1000) for n in range(20_000)])
    c("SET", "stays", "v")
    hand.advance(3000)
    assert c("DBSIZE") == 1
    assert len(hand.server.ks.timers) == 0


def test_locks_that_are_given_back_leave_no_timers(hand: RunningServer, c: Raw) -> None:
    for n in range(100):
        c.pipeline(("SET", f"lock{n}", "v", "PX", 10**9), ("DEL", f"lock{n}"))
        c.pipeline(("SET", "again", "v", "PX", 10**9), ("SET", "again", "v"))
        c.pipeline(("PEXPIRE", "again", 10**9), ("PERSIST", "again"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("DEL", f"s{n}"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("TGROUP", "DESTROY", f"s{n}", "g"))
    assert len(hand.server.ks.timers) == 0
