"""Ticks: a reply leaves when the batch of its tick is durable, also if the disk takes no writes for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from persistence.log import Log
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from tests.respserver.local import LocalServer, Peer

MISCONF = b"-MISCONF Errors writing to disk: the last write could not be made durable\r\n"


@pytest.fixture
def peers(local: LocalServer) -> tuple[Peer, Peer]:
    return local.connect(), local.connect()


def kinds(local: LocalServer) -> list[object]:
    """What happened, in order: ``append`` to the log, ``write`` to a transport."""
    return [event[0] for event in local.events]


# -- log, then reply ---------------------------------------------------------------------------------------------
def test_a_reply_to_a_write_leaves_with_its_tick_after_the_append(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    one.send("SET", "k", "v")
    assert local.events == []
    assert local.server.data.disk.offset == 0
    local.turn()
    assert kinds(local) == ["append", "write"]
    assert one.taken() == b"+OK\r\n"


def test_all_writes_of_a_tick_are_one_batch(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    one.pipeline(("SET", "a", 1), ("SET", "b", 2))
    other.send("SET", "c", 3)
    local.turn()
    assert kinds(local) == ["append", "write", "write"]
    assert (one.taken(), other.taken()) == (b"+OK\r\n+OK\r\n", b"+OK\r\n")


def test_writes_of_two_ticks_are_two_batches(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
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
    assert local.events[1:] == [("write", other.session.id, b"+OK\r\n:3\r\n"), ("write", one.session.id, b"+OK\r\n")]


def test_a_read_alone_waits_for_the_end_of_the_tick_and_not_for_the_disk(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    peers[0].send("GET", "k")
    assert peers[0].taken() == b""
    local.turn()
    assert peers[0].taken() == b"$-1\r\n"
    local.settle()
    assert kinds(local) == ["write"]


def test_a_read_of_another_clients_write_waits_for_its_batch(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
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


def test_on_batch_gets_offset_and_bytes_of_each_durable_batch(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, told = local.server.data.disk, []

    def on_batch(offset: int, batch: bytes) -> None:
        assert (disk.offset, disk.synced) == (offset + len(batch), offset + len(batch))
        assert peers[0].taken() == b""
        told.append((offset, batch))

    local.server.ticks.on_batch = on_batch
    assert peers[0].ask("SET", "a", 1) == b"+OK\r\n"
    assert peers[0].ask("SET", "b", 1) == b"+OK\r\n"
    (first, batch), (second, _) = told
    assert (first, second) == (0, len(batch))
    ks = Keyspace(local.server.data.ks.pool)
    replay(ks, batch)
    assert ks.string(b"a", 0) == b"1"


def test_calls_after_the_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
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


# -- a turn of the sockets ----------------------------------------------------------------------------------------
@contextmanager
def turn(local: LocalServer) -> Iterator[None]:
    """What happens in it arrived together on sockets that the server reads."""
    ticks = local.server.ticks
    ticks.begin_turn()
    yield
    ticks.end_turn()


def test_a_tick_that_is_queued_in_a_turn_ends_with_it(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    with turn(local):
        one.send("SET", "k", "v")
        other.pipeline(("GET", "k"), ("INCR", "n"))
        assert local.events == []
    assert kinds(local) == ["append", "write", "write"]
    assert (one.taken(), other.taken()) == (b"+OK\r\n", b"$1\r\nv\r\n:1\r\n")
    with turn(local):
        one.send("GET", "k")
        assert one.taken() == b""
    assert one.taken() == b"$1\r\nv\r\n"
    local.settle()
    assert kinds(local) == ["append", "write", "write", "write"]


def test_a_turn_without_commands_has_no_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, ticks, ran = peers[0], local.server.ticks, list[int]()
    ticks.run = lambda: ran.append(1)
    with turn(local):
        one.conn.data_received(b"*1\r\n$4\r\nPI")
    local.settle()
    assert not ran
    with turn(local):
        one.conn.data_received(b"NG\r\n")
    assert ran


def test_a_tick_that_was_queued_before_is_one_for_both(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    other.send("SET", "k", "v")
    with turn(local):
        one.send("GET", "k")
    assert local.events == []
    local.turn()
    assert kinds(local) == ["append", "write", "write"]
    assert (one.taken(), other.taken()) == (b"$1\r\nv\r\n", b"+OK\r\n")
    with turn(local):
        one.send("PING")
    assert one.taken() == b"+PONG\r\n"


def test_a_reader_that_waits_is_served_in_the_tick_of_the_turn(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    other.send("TREAD", "s", 0, 10, "BLOCK", 0)
    local.settle()
    local.events.clear()
    with turn(local):
        one.send("TAPPEND", "s", "a", "b")
    assert kinds(local) == ["append", "write", "write"]
    assert other.taken().endswith(b"$1\r\na\r\n$1\r\nb\r\n")


def test_a_failed_append_holds_the_replies_of_the_turn(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    local.disk.breaks()
    with turn(local):
        one.send("SET", "k", "v")
    local.settle()
    with turn(local):
        one.send("GET", "k")
    local.settle()
    assert local.events == []
    local.disk.heals()
    local.advance(100)
    assert kinds(local) == ["append", "write"]
    assert one.taken() == b"+OK\r\n$1\r\nv\r\n"


def test_what_is_left_after_a_turn_comes_in_later_ticks(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    one.ask("SET", "large", "x" * 100_000)
    with turn(local):
        one.pipeline(*[("GET", "large")] * 40)
    local.settle()
    assert one.taken() == (b"$100000\r\n" + b"x" * 100_000 + b"\r\n") * 40


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
    disk, ticks = local.server.data.disk, local.server.ticks
    local.disk.breaks()
    peers[0].send("SET", "a", 1)
    local.settle()
    assert disk.offset == 0
    assert ticks.log_end() > 0
    assert 0 < ticks.written(peers[0].session) <= ticks.log_end()
    before = ticks.log_end()
    local.disk.heals()
    ticks.retry()
    assert disk.offset == ticks.log_end() == before


# -- a disk that takes no writes ---------------------------------------------------------------------------------
def test_a_failed_append_holds_the_replies_of_its_tick(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    ticks, (one, other) = local.server.ticks, peers
    local.disk.breaks()
    one.send("SET", "k", "v")
    other.send("GET", "k")
    local.settle()
    assert local.events == []
    assert ticks.stalled
    assert not ticks.writable
    assert not ticks.settle()
    assert "A write can't be made durable, its clients wait: [Errno 9]" in local.log()
    local.disk.heals()
    local.advance(100)
    assert kinds(local) == ["append", "write", "write"]
    assert (one.taken(), other.taken()) == (b"+OK\r\n", b"$1\r\nv\r\n")
    assert not ticks.stalled
    assert ticks.writable
    assert "Writes are durable again" in local.log()


@pytest.mark.interpreted
def test_an_append_that_meets_damage_holds_replies_too(
    local: LocalServer, peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(log: Log, batch: bytes, written: object) -> None:
        raise CorruptError("the journal is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", damaged)
        peers[0].send("SET", "k", "v")
        local.settle()
        assert local.server.ticks.stalled
    assert local.events == []
    local.advance(100)
    assert peers[0].taken() == b"+OK\r\n"


def test_writes_are_refused_while_a_batch_is_stalled(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one, other = peers
    local.disk.breaks()
    one.ask("SET", "k", "v")
    assert other.ask("SET", "k", "w") == MISCONF
    assert other.ask("GET", "missing") == b"$-1\r\n"
    local.disk.heals()
    local.advance(100)
    assert one.taken() == b"+OK\r\n"
    assert other.ask("GET", "k") == b"$1\r\nv\r\n"
    assert other.ask("SET", "k", "w") == b"+OK\r\n"


def test_later_replies_of_a_held_client_wait_too(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    local.disk.breaks()
    one.ask("SET", "k", "v")
    assert one.ask("PING") == b""
    local.disk.heals()
    local.advance(100)
    assert one.taken() == b"+OK\r\n+PONG\r\n"


def stall(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    """Two batches of two ticks stall, each with the reply of one peer: the key ``k`` becomes 0, then 1."""
    ticks, ks = local.server.ticks, local.server.data.ks
    local.disk.breaks()
    for number, peer in enumerate(peers):
        before = ticks.log_end()
        ks.set_string(b"k", b"%d" % number)  # not by a command: those are refused after the first
        peer.conn.push(b"+%d\r\n" % number)
        local.turn()
        assert ticks.log_end() > before
    local.settle()
    assert local.events == []


def test_stalled_batches_are_retried_in_order(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    stall(local, peers)
    local.disk.heals()
    local.server.ticks.retry()
    assert kinds(local) == ["append", "append", "write", "write"]
    (_, first, batch), (_, second, later) = (cast(tuple[str, int, bytes], event) for event in local.events[:2])
    assert (first, second) == (0, len(batch))
    assert [peer.taken() for peer in peers] == [b"+0\r\n", b"+1\r\n"]
    ks = Keyspace(local.server.data.ks.pool)
    replay(ks, batch)
    replay(ks, later)
    assert ks.string(b"k", 0) == b"1"


def test_a_retry_that_fails_half_way_keeps_the_rest_and_all_replies(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    stall(local, peers)
    ticks, told = local.server.ticks, []

    def on_batch(offset: int, batch: bytes) -> None:
        told.append(offset)
        local.disk.breaks()

    ticks.on_batch = on_batch
    for retries in (1, 2):
        assert [peer.taken() for peer in peers] == [b"", b""]
        assert ticks.stalled
        local.disk.heals()
        ticks.retry()
        assert len(told) == retries
    assert not ticks.stalled
    assert [peer.taken() for peer in peers] == [b"+0\r\n", b"+1\r\n"]


def test_a_new_batch_does_not_overtake_a_stalled_one(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    ticks, ks = local.server.ticks, local.server.data.ks
    local.disk.breaks()
    peers[0].ask("SET", "k", "v")
    local.disk.heals()
    ks.set_string(b"k", b"w")
    assert not ticks.commit()
    assert kinds(local) == []
    assert not ks.log
    ticks.retry()
    assert kinds(local) == ["append", "append", "write"]


def test_a_disk_with_a_known_problem_refuses_writes_before_they_are_tried(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    disk, ticks, one = local.server.data.disk, local.server.ticks, peers[0]
    disk._problem = "the test says so"
    ticks.on_time()
    assert not ticks.writable
    assert not ticks.stalled
    assert one.ask("SET", "k", "v") == b"-MISCONF Errors writing to disk: the test says so\r\n"
    assert one.ask("GET", "k") == b"$-1\r\n"
    assert kinds(local) == ["write", "write"]
    disk._problem = None
    ticks.on_time()
    assert ticks.writable
    assert one.ask("SET", "k", "v") == b"+OK\r\n"


def test_a_problem_that_comes_up_in_a_tick_is_noticed_at_its_end(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    peers[0].send("SET", "k", "v")
    local.server.data.disk._problem = "the test says so"
    local.turn()
    assert peers[0].taken() == b"+OK\r\n"
    assert local.server.gates.unwritable == "MISCONF Errors writing to disk: the test says so"


def test_a_read_notices_that_the_disk_is_well_again(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    disk, ticks, one = local.server.data.disk, local.server.ticks, peers[0]
    disk._problem = "the test says so"
    ticks.check_disk()
    disk._problem = None
    assert one.ask("PING") == b"+PONG\r\n"
    assert one.ask("SET", "k", "v") == b"+OK\r\n"


def test_dropped_batches_are_forgotten_and_their_replies_leave_with_the_new_data(
    local: LocalServer, peers: tuple[Peer, Peer]
) -> None:
    ticks = local.server.ticks
    local.disk.breaks()
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
    one = peers[0]
    local.disk.breaks()
    one.ask("SET", "k", "v")
    one.conn.kill()
    local.settle()
    local.disk.heals()
    local.advance(100)
    assert one.taken() == b""
    assert not local.server.ticks.stalled


# -- backlogs ----------------------------------------------------------------------------------------------------
def test_a_backlog_goes_on_after_the_tick_of_its_first_commands(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    one = peers[0]
    one.send("CLIENT", "PAUSE", 10**6, "WRITE")
    one.pipeline(("SET", "k", "v"), ("PING",))
    local.settle()
    assert one.taken() == b"+OK\r\n"
    peers[1].send("CLIENT", "UNPAUSE")
    assert kinds(local) == ["write"]
    local.settle()
    assert one.taken() == b"+OK\r\n+PONG\r\n"


def test_a_command_waits_until_its_reply_has_left(local: LocalServer, peers: tuple[Peer, Peer]) -> None:
    ticks = local.server.ticks
    assert not ticks.waiting
    peers[0].send("SET", "k", "v")
    assert ticks.waiting
    local.turn()
    assert not ticks.waiting
    local.disk.breaks()
    peers[0].ask("SET", "k", "w")
    assert ticks.waiting
    local.disk.heals()
    local.advance(100)
    assert not ticks.waiting
