"""A disk that refuses: what is not durable is not answered, later writes are refused, and everything heals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resp.errors import CorruptError
from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.faults import Fault
from tests.wire.rawclient import Raw, pack

Connect = Callable[..., Raw]


@pytest.fixture
def disk(hand: RunningServer) -> Fault:
    """The log takes no batches while this breaks."""
    return Fault(hand, lambda: hand.server.data.disk, "append")


@pytest.mark.interpreted
def test_a_write_that_is_not_durable_is_not_answered_nor_stored(
    hand: RunningServer, connect: Connect, disk: Fault
) -> None:
    c, writer = connect(), connect()
    c("SET", "before", 1)
    disk.breaks()
    writer.send("SET", "k", "v")
    eventually(lambda: hand.server.ticks.stalled)
    assert c("GET", "before") == b"1"  # reads go on
    assert c("SET", "other", 1).startswith("MISCONF")
    for command in (["SAVE"], ["BGSAVE"], ["DEBUG", "RELOAD"], ["DEBUG", "LOADAOF"]):
        assert isinstance(c(*command), str), command
    assert hand.server.data.disk.store.offset == 0
    assert writer.nothing_yet()
    disk.heals()
    hand.advance(100)
    assert writer.read() == b"OK"
    digest = c("DEBUG", "DIGEST")
    assert c("DEBUG", "LOADAOF") == b"OK"
    assert c("DEBUG", "DIGEST") == digest
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("DEBUG", "DIGEST") == digest


@pytest.mark.interpreted
@pytest.mark.parametrize("size", [200_000, 5_000_000])
def test_replies_that_wait_for_the_disk_are_limited(
    hand: RunningServer, connect: Connect, disk: Fault, size: int
) -> None:
    """A client whose replies are held goes on asking: its commands wait beyond 1 MB, its output limit holds."""
    c, writer, other = connect(), connect(), connect()
    c("SET", "large", b"x" * size)
    c("CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0")
    disk.breaks()
    writer.send("SET", "k", "v")
    eventually(lambda: hand.server.ticks.stalled)
    for _ in range(50):
        try:
            writer.send("GET", "large")
        except OSError:
            assert size > 4 << 20
            break
        other("PING")
        held = max(int(line.split(b"omem=")[1].split()[0]) for line in other("CLIENT", "LIST").splitlines())
        assert held <= 1_300_000
    disk.heals()
    hand.advance(100)
    if size > 4 << 20:
        with pytest.raises((EOFError, ConnectionError)):
            writer.read()
        assert b"client_output_buffer_limit_disconnections:1\r" in other("INFO", "stats")
    else:
        assert writer.read() == b"OK"
        for _ in range(50):
            assert writer.read() == b"x" * size


@pytest.mark.interpreted
def test_a_reply_that_waits_for_the_disk_may_be_too_large_itself(
    hand: RunningServer, connect: Connect, disk: Fault
) -> None:
    """It belongs to the tick whose batch is not durable."""
    c, writer = connect(), connect()
    c("SET", "large", b"x" * 5_000_000)
    c("CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0")
    disk.breaks()
    writer.sock.sendall(pack("SET", "k", "v") + pack("GET", "large"))
    with pytest.raises((EOFError, ConnectionError)):
        writer.read()
    assert b"connected_clients:1\r" in c("INFO", "clients")
    disk.heals()
    hand.advance(100)


@pytest.mark.interpreted
def test_a_checkpoint_that_meets_the_error_does_not_release_replies(
    hand: RunningServer, connect: Connect, disk: Fault
) -> None:
    c, writer = connect(), connect()
    disk.breaks()
    writer.sock.sendall(pack("SET", "k", "v") + pack("SAVE") + pack("GET", "k"))
    eventually(lambda: hand.server.ticks.stalled)
    assert c("PING") == b"PONG"
    assert writer.nothing_yet()
    disk.heals()
    hand.advance(100)
    assert writer.read() == b"OK"
    assert isinstance(writer.read(), str)
    assert writer.read() == b"v"


@pytest.mark.interpreted
def test_a_write_that_meets_damage_waits_too(hand: RunningServer, connect: Connect) -> None:
    def damaged(*_: Any) -> None:
        raise CorruptError("the journal is damaged, says the test")

    c, writer = connect(), connect()
    disk = hand.server.data.disk
    hand.call(lambda: setattr(disk, "append", damaged))
    writer.send("SET", "k", "v")
    eventually(lambda: hand.server.ticks.stalled)
    assert writer.nothing_yet()
    assert c("SET", "k", 2).startswith("MISCONF")
    hand.call(lambda: delattr(disk, "append"))
    hand.advance(100)
    assert writer.read() == b"OK"


@pytest.mark.interpreted
def test_a_shutdown_retries_the_write(hand: RunningServer, connect: Connect, disk: Fault) -> None:
    writer = connect()
    disk.breaks()
    writer.send("SET", "k", "v")
    eventually(lambda: hand.server.ticks.stalled)
    disk.heals()
    hand.stop()
    assert writer.read() == b"OK"


def test_a_failed_save_is_retried_without_further_changes(hand: RunningServer, c: Raw) -> None:
    store = Fault(hand, lambda: hand.server.data.disk.store, "write")
    c("SET", "k", "v")
    store.breaks()
    assert "no space left" in c("SAVE")
    assert c("SET", "k", 2).startswith("MISCONF")
    hand.call(lambda: setattr(hand.server.data.ks.changes, "count", 0))  # as if all that changed had been counted
    store.heals()
    hand.advance(6000)
    eventually(lambda: c("SET", "k", 3) == b"OK")


def test_a_failed_save_is_retried_when_the_clock_was_set_back(hand: RunningServer, c: Raw) -> None:
    store = Fault(hand, lambda: hand.server.data.disk.store, "write")
    c("SET", "k", "v")
    store.breaks()
    c("SAVE")
    store.heals()
    hand.advance(-3_600_000)
    hand.advance(6000)
    eventually(lambda: c("SET", "k", 3) == b"OK")


def test_the_first_write_after_healing_succeeds(hand: RunningServer, c: Raw) -> None:
    disk = hand.server.data.disk
    hand.call(lambda: setattr(disk, "_problem", "says the test"))
    c("PING")
    assert c("SET", "k", 1).startswith("MISCONF")
    hand.call(lambda: setattr(disk, "_problem", None))
    hand.call(hand.server.on_time)
    assert c("SET", "k", 2) == b"OK"


@pytest.mark.interpreted
def test_nobody_hears_of_a_change_that_is_not_durable(hand: RunningServer, connect: Connect, disk: Fault) -> None:
    """Keyspace events and invalidations wait for the disk with the reply."""
    c, writer, subscriber, reader, broad = connect(), connect(), connect(), connect(3), connect(3)
    c("CONFIG", "SET", "notify-keyspace-events", "KEA")
    subscriber("SUBSCRIBE", "__keyevent@0__:set")
    reader("CLIENT", "TRACKING", "ON")
    assert reader("GET", "k") is None
    broad("CLIENT", "TRACKING", "ON", "BCAST")
    disk.breaks()
    writer.send("SET", "k", "v")
    eventually(lambda: hand.server.ticks.stalled)
    c("PING")
    assert [client.nothing_yet() for client in (writer, subscriber, reader, broad)] == [True] * 4
    disk.heals()
    hand.advance(100)
    assert writer.read() == b"OK"
    assert subscriber.read() == [b"message", b"__keyevent@0__:set", b"k"]
    assert reader.read() == broad.read() == [b"invalidate", [b"k"]]
