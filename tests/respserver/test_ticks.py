"""The write path: a reply leaves when the batch of its tick is durable, and what happens while the disk takes no writes."""

from __future__ import annotations

import pytest

from resp.errors import CorruptError
from storage.keyspace import Keyspace
from tests.respserver.local import LocalServer, Peer

FULL = OSError(28, "No space left on device")
MISCONF = b"-MISCONF Errors writing to disk: the last write could not be made durable\r\n"


@pytest.fixture
def peers(local: LocalServer) -> tuple[Peer, Peer]:
    return local.connect(), local.connect()


def kinds(local: LocalServer) -> list[object]:
    """What happened, in order: ``append`` of the disk, ``write`` of a transport."""
    return [event[0] for event in local.events]


# -- log, then reply ---------------------------------------------------------------------------------------------
def test_a_reply_to_a_write_leaves_with_its_tick_after_the_append(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, (one, _) = local.disk(), peers
    one.send("SET", "k", "v")
    assert local.events == []
    assert disk.offset == 0
    local.turn()
    assert kinds(local) == ["append", "write"]
    assert one.taken() == b"+OK\r\n"


def test_all_writes_of_a_tick_are_one_batch(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    one, other = peers
    one.pipeline(("SET", "a", 1), ("SET", "b", 2))
    other.send("SET", "c", 3)
    local.turn()
    assert kinds(local) == ["append", "write", "write"]
    assert (one.taken(), other.taken()) == (b"+OK\r\n+OK\r\n", b"+OK\r\n")


def test_writes_of_two_ticks_are_two_batches(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    for peer in peers:
        peer.ask("SET", "k", peer.session.id)
    assert kinds(local) == ["append", "write", "append", "write"]


def test_a_client_is_flushed_once_a_tick_in_the_order_of_first_replies(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    one, other = peers
    other.send("SET", "a", 1)
    one.send("SET", "a", 2)
    other.send("INCR", "a")
    local.turn()
    assert local.events == [("write", other.session.id, b"+OK\r\n:3\r\n"), ("write", one.session.id, b"+OK\r\n")]


def test_a_read_alone_does_not_wait_for_a_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    peers[0].send("GET", "k")
    assert peers[0].taken() == b"$-1\r\n"
    local.settle()
    assert kinds(local) == ["write"]


def test_a_read_of_another_clients_write_waits_for_its_batch(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    one, other = peers
    one.send("SET", "k", "v")
    other.send("GET", "k")
    assert local.events == []
    local.turn()
    assert kinds(local) == ["append", "write", "write"]
    assert other.taken() == b"$1\r\nv\r\n"


def test_a_read_waits_if_its_client_has_a_write_in_the_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    one.send("SET", "k", "v")
    one.send("PING")
    assert one.taken() == b""
    local.turn()
    assert one.taken() == b"+OK\r\n+PONG\r\n"


def test_on_batch_gets_offset_and_bytes_after_the_append(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk = local.disk()
    local.server.ticks.on_batch = lambda offset, batch: local.events.append(("told", offset, batch))
    peers[0].ask("SET", "a", 1)
    first = disk.offset
    peers[0].ask("SET", "b", 1)
    assert kinds(local) == ["append", "told", "write", "append", "told", "write"]
    told = [event[1:] for event in local.events if event[0] == "told"]
    appended = [event[1] for event in local.events if event[0] == "append"]
    assert told == [(0, appended[0]), (first, appended[1])]
    assert [len(batch) for _, batch in told] == [first, disk.offset - first]


def test_calls_after_the_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    ticks = local.server.ticks

    def again() -> None:
        local.events.append(("after",))
        if kinds(local).count("after") == 1:
            ticks.after(again)

    peers[0].send("SET", "k", "v")
    ticks.after(again)
    local.turn()
    assert kinds(local) == ["append", "write", "after"]
    local.turn()
    assert kinds(local) == ["append", "write", "after", "after"], "a call from a call runs after the next tick"
    local.settle()
    assert kinds(local).count("after") == 2


def test_an_error_while_sending_closes_that_client_alone(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers

    def broken(data: object) -> None:
        raise RuntimeError("the test says so")

    one.wire.write = broken  # type: ignore[method-assign]
    one.send("SET", "a", 1)
    other.send("SET", "b", 1)
    local.settle()
    assert one.wire.aborted
    assert other.taken() == b"+OK\r\n"
    assert "Bug while sending replies" in local.log()
    assert "its replies can't be sent" in local.log()


# -- log offsets -------------------------------------------------------------------------------------------------
def test_a_session_remembers_an_offset_inside_the_batch_of_its_last_write(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    ticks, (one, other) = local.server.ticks, peers
    assert ticks.written(one.session) == 0
    one.ask("SET", "a", 1)
    end = local.server.data.disk.offset
    assert 0 < ticks.written(one.session) <= end
    other.ask("SET", "b", 1)
    assert end < ticks.written(other.session) <= local.server.data.disk.offset
    assert ticks.synced(ticks.written(other.session))
    assert not ticks.synced(local.server.data.disk.offset + 1)
    assert ticks.written(one.session) <= end


def test_the_log_end_counts_stalled_batches(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, ticks = local.disk(), local.server.ticks
    disk.error = FULL
    peers[0].send("SET", "a", 1)
    local.settle()
    assert disk.offset == 0
    assert ticks.log_end() > 0
    assert 0 < ticks.written(peers[0].session) <= ticks.log_end()
    before = ticks.log_end()
    disk.error = None
    ticks.retry()
    assert disk.offset == ticks.log_end() == before


# -- a disk that takes no writes ---------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [FULL, CorruptError("the journal is damaged")], ids=["full", "damaged"])
def test_a_failed_append_holds_the_replies_of_its_tick(
    local: LocalServer, peers: tuple[Peer, Peer], error: Exception
) -> None:
    disk, ticks, (one, other) = local.disk(), local.server.ticks, peers
    disk.error = error
    one.send("SET", "k", "v")
    other.send("GET", "k")
    local.settle()
    assert (one.taken(), other.taken()) == (b"", b"")
    assert ticks.stalled
    assert not ticks.writable
    assert not ticks.settle()
    assert str(error) in local.log()
    disk.error = None
    local.advance(100)
    assert (one.taken(), other.taken()) == (b"+OK\r\n", b"$1\r\nv\r\n")
    assert not ticks.stalled
    assert ticks.writable
    assert "Writes are durable again" in local.log()
    assert kinds(local) == ["append", "write", "write"]


def test_writes_are_refused_while_a_batch_is_stalled(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, (one, other) = local.disk(), peers
    disk.error = FULL
    one.ask("SET", "k", "v")
    assert other.ask("SET", "k", "w") == MISCONF
    assert other.ask("GET", "missing") == b"$-1\r\n"
    disk.error = None
    local.advance(100)
    assert one.taken() == b"+OK\r\n"
    assert other.ask("GET", "k") == b"$1\r\nv\r\n"
    assert other.ask("SET", "k", "w") == b"+OK\r\n"


def test_later_replies_of_a_held_client_wait_behind_the_first(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, one = local.disk(), peers[0]
    disk.error = FULL
    one.ask("SET", "k", "v")
    assert one.ask("PING") == b""
    disk.error = None
    local.advance(100)
    assert one.taken() == b"+OK\r\n+PONG\r\n"


def two_stalled(local: LocalServer, peers: tuple[Peer, Peer]) -> tuple[list[bytes], list[tuple[int, bytes]]]:
    """Two stalled batches, of one peer each; and the list that on_batch fills."""
    told: list[tuple[int, bytes]] = []
    ticks, ks = local.server.ticks, local.server.data.ks
    ticks.on_batch = lambda offset, batch: told.append((offset, batch))
    expected: list[bytes] = []
    for number, peer in enumerate(peers):
        before = ticks.log_end()
        ks.set_string(b"k", b"%d" % number)  # not by a command: those are refused after the first
        ticks.queue_flush(peer.conn)
        peer.conn.send(b"+%d\r\n" % number)
        local.turn()
        assert ticks.log_end() > before
        expected.append(b"+%d\r\n" % number)
    assert told == []
    return expected, told


def test_stalled_batches_are_retried_in_order(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk = local.disk()
    disk.error = FULL
    expected, told = two_stalled(local, peers)
    assert [peer.taken() for peer in peers] == [b"", b""]
    disk.error = None
    local.events.clear()
    local.server.ticks.retry()
    assert kinds(local) == ["append", "append", "write", "write"]
    batches = [event[1] for event in local.events[:2]]
    assert [batch for _, batch in told] == batches
    assert [offset for offset, _ in told] == [0, len(told[0][1])]
    assert [peer.taken() for peer in peers] == expected
    ks = Keyspace(local.server.data.ks.nodes)
    for _, batch in told:
        ks.apply(batch)
    assert ks.string(b"k", 0) == b"1"


def test_a_retry_that_fails_half_way_keeps_the_rest_and_all_replies(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    disk, ticks = local.disk(), local.server.ticks
    disk.error = FULL
    expected, told = two_stalled(local, peers)

    def fail_again(offset: int, batch: bytes) -> None:
        told.append((offset, batch))
        disk.error = FULL

    ticks.on_batch = fail_again
    disk.error = None
    ticks.retry()
    assert len(told) == 1
    assert ticks.stalled
    assert [peer.taken() for peer in peers] == [b"", b""]
    disk.error = None
    ticks.retry()
    assert len(told) == 2
    assert [peer.taken() for peer in peers] == expected


def test_a_new_batch_does_not_overtake_a_stalled_one(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, ticks, ks = local.disk(), local.server.ticks, local.server.data.ks
    disk.error = FULL
    peers[0].ask("SET", "k", "v")
    disk.error = None
    ks.set_string(b"k", b"w")
    assert not ticks.commit()
    assert kinds(local) == []
    assert not ks.log
    ticks.retry()
    assert kinds(local) == ["append", "append", "write"]


def test_a_disk_that_says_no_closes_the_gate_before_a_write_is_tried(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    disk, ticks, one = local.disk(), local.server.ticks, peers[0]
    disk.writable = lambda: "says the test"  # type: ignore[attr-defined]
    ticks.on_time()
    assert not ticks.writable
    assert not ticks.stalled
    assert one.ask("SET", "k", "v") == b"-MISCONF Errors writing to disk: says the test\r\n"
    assert one.ask("GET", "k") == b"$-1\r\n"
    assert kinds(local) == ["write", "write"]
    del disk.writable  # type: ignore[attr-defined]
    ticks.on_time()
    assert ticks.writable
    assert one.ask("SET", "k", "v") == b"+OK\r\n"


def test_a_disk_that_says_no_after_a_tick_is_noticed_at_its_end(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk = local.disk()
    peers[0].send("SET", "k", "v")
    disk.writable = lambda: "says the test"  # type: ignore[attr-defined]
    local.turn()
    assert peers[0].taken() == b"+OK\r\n"
    assert local.server.gates.unwritable == "MISCONF Errors writing to disk: says the test"


def test_dropped_batches_are_forgotten_and_their_replies_leave_with_the_new_data(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    disk, ticks = local.disk(), local.server.ticks
    disk.error = FULL
    peers[0].ask("SET", "k", "v")
    ticks.drop_stalled()
    assert not ticks.stalled
    assert peers[0].taken() == b""
    ticks.data_replaced()
    assert peers[0].taken() == b"+OK\r\n"
    assert local.server.gates.unwritable == ""


def test_a_client_that_is_closed_while_its_replies_are_held_gets_nothing(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    disk, one = local.disk(), peers[0]
    disk.error = FULL
    one.ask("SET", "k", "v")
    one.conn.kill()
    local.settle()
    disk.error = None
    local.advance(100)
    assert one.taken() == b""
    assert not local.server.ticks.stalled


# -- backlogs ----------------------------------------------------------------------------------------------------
def test_a_backlog_goes_on_after_the_tick_of_its_first_commands(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    local.disk()
    one = peers[0]
    one.send("CLIENT", "PAUSE", 10**6, "WRITE")
    one.pipeline(("SET", "k", "v"), ("PING",))
    local.settle()
    assert one.taken() == b"+OK\r\n"
    peers[1].send("CLIENT", "UNPAUSE")
    assert kinds(local) == ["write"]
    local.settle()
    assert one.taken() == b"+OK\r\n+PONG\r\n"
