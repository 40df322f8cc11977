"""Connections: streamed replies, output limits, and every way to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from respserver.clients.connection import connection_of
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE
from respserver.config.valuetypes import Limits
from tests.respserver.local import LocalServer, Peer
from tests.respserver.probes import (
    OK,
    Parked,
    Stream,
)

PONG = b"+PONG\r\n"


# -- streamed replies ---------------------------------------------------------------------------------------------
def test_a_streamed_reply_follows_the_socket(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    one.wire.full = True
    one.send("STREAM", 4, OUTPUT_AT_ONCE // 2 + 1)
    local.settle()
    assert stream.events == [0, 1], "one piece more than the buffer takes"
    assert (one.conn.busy, one.conn.output.streams, one.conn.stats().output_pieces) == (True, 1, 2)
    one.wire.drain()
    local.settle()
    assert stream.events == [0, 1, 2, 3, "closed"]
    assert (one.conn.busy, one.conn.output.streams, one.conn.stats().output_pieces) == (False, 0, 0)


def test_messages_and_streamed_replies_keep_their_order(local: LocalServer, one: Peer) -> None:
    Stream(local)
    one.wire.full = True
    one.send("STREAM", 2, OUTPUT_AT_ONCE)
    local.settle()
    one.conn.push(b"+message\r\n")
    local.settle()
    one.wire.drain()
    local.settle()
    data = one.taken()
    assert data.endswith(b"1\r\n+message\r\n")
    assert data.count(b"\r\n") == 3


def test_a_streamed_reply_that_cannot_be_finished_closes_the_connection(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    stream.error = ValueError("the test says so")
    one.pipeline(("STREAM", 2, 1), ("PING",))
    local.settle()
    assert one.taken() == b"+0\r\n"
    assert one.wire.aborted
    assert stream.events == [0, "closed"]
    assert "A streamed reply can't be finished" in local.log()


def test_a_streamed_reply_that_the_client_does_not_take_is_given_up(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    one.wire.full = True
    one.send("STREAM", 4, OUTPUT_AT_ONCE)
    local.advance(59_000)
    assert not one.wire.aborted
    local.advance(2_000)
    assert one.wire.aborted
    assert stream.events[-1] == "closed"
    assert "accepted nothing of a streamed reply for 60 seconds" in local.log()


def test_a_client_that_takes_a_piece_has_time_for_the_next(local: LocalServer, one: Peer) -> None:
    Stream(local)
    one.wire.full = True
    one.send("STREAM", 9, OUTPUT_AT_ONCE)
    for _ in range(3):
        local.advance(50_000)
        one.wire.drain()
        one.wire.full = True
        local.settle()
        assert one.conn.flow.throttled
    assert one.conn.output.streaming
    assert not one.wire.aborted


# -- output limits ------------------------------------------------------------------------------------------------
def limit(local: LocalServer, hard: int, soft: int = 0, seconds: int = 0, kind: str = "normal") -> None:
    local.server.config.client_output_buffer_limit[kind] = Limits(hard, soft, seconds)
    local.server.configure()


def fill(local: LocalServer, peer: Peer, size: int) -> None:
    """So many bytes of replies wait for the peer's socket, in a tick each."""
    peer.wire.full = True
    peer.conn.answer(b"x" * size)
    local.server.ticks.queue_flush(peer.conn)
    local.settle()


def test_a_client_beyond_the_hard_limit_is_closed(local: LocalServer, one: Peer) -> None:
    limit(local, hard=3 * OUTPUT_AT_ONCE)
    fill(local, one, 2 * OUTPUT_AT_ONCE)
    assert not one.wire.aborted
    fill(local, one, 2 * OUTPUT_AT_ONCE)
    assert one.wire.aborted
    assert local.server.counters.output_buffer_cuts == 1
    assert "output buffer limit (hard) exceeded" in local.log()


def test_a_client_beyond_the_soft_limit_for_too_long_is_closed(local: LocalServer, one: Peer) -> None:
    limit(local, hard=0, soft=OUTPUT_AT_ONCE, seconds=5)
    fill(local, one, 2 * OUTPUT_AT_ONCE)
    assert one.conn.output.soft_since
    local.advance(5_000)
    assert not one.wire.aborted
    local.advance(200)
    assert one.wire.aborted
    assert local.server.counters.output_buffer_cuts == 1
    assert "output buffer limit (soft) exceeded" in local.log()


def test_the_time_beyond_the_soft_limit_begins_anew(local: LocalServer, one: Peer) -> None:
    limit(local, hard=0, soft=OUTPUT_AT_ONCE, seconds=5)
    fill(local, one, 2 * OUTPUT_AT_ONCE)
    local.advance(4_000)
    one.wire.drain()
    local.advance(1_000)
    assert not one.conn.output.soft_since
    fill(local, one, 2 * OUTPUT_AT_ONCE)
    local.advance(4_000)
    assert not one.wire.aborted


def test_a_push_checks_the_limit_of_subscribers(local: LocalServer, one: Peer) -> None:
    limit(local, hard=1000, kind="pubsub")
    one.ask("SUBSCRIBE", "c")
    one.wire.full = True
    one.conn.push(b"x" * 1000)
    assert not one.wire.aborted
    one.conn.push(b"x")
    assert one.wire.aborted


def test_without_limits_nobody_is_closed(local: LocalServer, one: Peer) -> None:
    for kind in ("normal", "pubsub"):
        limit(local, hard=0, kind=kind)
    fill(local, one, 4 * OUTPUT_AT_ONCE)
    assert one.conn.buffered_output() == 4 * OUTPUT_AT_ONCE == one.conn.stats().output_buffered
    assert not one.wire.aborted


# -- the end ------------------------------------------------------------------------------------------------------
def gone(local: LocalServer, peer: Peer) -> bool:
    return peer.session not in local.server.clients.all() and connection_of(peer.session) is None


def test_a_lost_connection_is_forgotten(local: LocalServer, one: Peer) -> None:
    one.ask("SUBSCRIBE", "c")
    one.ask("UNSUBSCRIBE", "c")
    one.ask("SUBSCRIBE", "d")
    assert connection_of(one.session) is one.conn
    one.conn.connection_lost(None)
    assert gone(local, one)
    assert local.connect().ask("PUBLISH", "d", "x") == b":0\r\n"


def test_replies_of_a_lost_connection_are_dropped(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    one.pipeline(("SET", "k", "v"), ("STREAM", 2, 1))
    one.conn.connection_lost(None)
    local.settle()
    assert one.taken() == b""
    assert stream.events == ["closed"]
    assert one.conn.output.streams == one.conn.output.bytes == 0
    assert local.connect().ask("GET", "k") == b"$1\r\nv\r\n"


def test_kill_drops_replies_and_waiting_commands(local: LocalServer, one: Peer) -> None:
    one.send("SET", "k", "v")
    one.conn.kill()
    one.send("SET", "k", "w")
    local.settle()
    assert one.taken() == b""
    assert one.wire.aborted
    assert gone(local, one)
    assert local.connect().ask("GET", "k") == b"$1\r\nv\r\n"
    assert local.log().count("closed:") == 0


def test_kill_of_a_waiting_client_ends_its_wait(local: LocalServer, one: Peer) -> None:
    Parked(local)
    one.pipeline(("PARK",), ("SET", "k", "v"))
    local.settle()
    one.conn.kill()
    assert local.server.blocking.count == 0
    assert not one.session.blocked
    local.settle()
    assert local.connect().ask("GET", "k") == b"$-1\r\n"


def test_cut_says_why_once(local: LocalServer, one: Peer) -> None:
    one.conn.cut("the test says so")
    one.conn.cut("the test says so")
    assert local.log().count(f"Client id={one.session.id} addr={one.session.addr} closed: the test says so") == 1
    assert one.wire.aborted


def test_close_sends_what_the_socket_has(local: LocalServer, one: Peer) -> None:
    one.send("PING")
    local.settle()
    one.conn.close()
    one.conn.close()
    local.settle()
    assert one.taken() == PONG
    assert not one.wire.aborted
    assert gone(local, one)


def test_a_connection_that_is_handed_over_writes_nothing_more(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    one.pipeline(("SET", "k", "v"), ("STREAM", 1, 1), ("PING",))
    one.conn.hand_over()
    local.settle()
    one.conn.run_backlog()
    assert one.taken() == b""
    assert stream.events == ["closed"]
    assert not one.conn.input.backlog
    assert not one.wire.closing


def test_a_peer_that_sends_no_more_still_gets_its_replies(local: LocalServer, one: Peer) -> None:
    one.pipeline(("SET", "k", "v"), ("GET", "k"))
    assert one.conn.eof_received() is True, "the socket stays open for the replies"
    local.settle()
    assert one.taken() == OK + b"$1\r\nv\r\n"
    assert one.wire.closing
    assert not one.wire.aborted


def test_a_peer_that_sends_no_more_gets_its_backlog_answered(local: LocalServer, one: Peer) -> None:
    local.server.pauses.pause(1000, False)
    one.pipeline(("PING",), ("PING",))
    one.conn.eof_received()
    local.settle()
    assert not one.wire.closing
    local.server.pauses.unpause()
    local.settle()
    assert one.taken() == PONG + PONG
    assert one.wire.closing


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("commands", [[("PARK",)], [("PARK",), ("PING",)]], ids=["alone", "with-backlog"])
def test_a_peer_that_sends_no_more_does_not_wait(
    local: LocalServer, one: Peer, early: bool, commands: list[tuple[str]]
) -> None:
    Parked(local)
    one.pipeline(*commands)
    if not early:
        local.settle()
    one.conn.eof_received()
    local.settle()
    assert one.wire.closing
    assert local.server.blocking.count == 0


def test_the_end_of_a_tls_connection_runs_the_tick_at_once(local: LocalServer) -> None:
    """TLS ends both ways together: replies leave now or never."""
    one = local.connect()
    one.session.tls = True
    one.send("SET", "k", "v")
    assert one.taken() == b""
    assert one.conn.eof_received() is False
    assert one.taken() == OK


# -- admission ----------------------------------------------------------------------------------------------------
def test_a_client_too_many_is_turned_away(tmp_path: Path) -> None:
    local = LocalServer(tmp_path, maxclients="1")
    try:
        first, second = local.connect(), local.connect()
        assert second.taken() == b"-ERR max number of clients reached\r\n"
        assert second.wire.closing
        assert first.ask("PING") == PONG
        local.settle()
        counters = local.server.counters
        assert (counters.connections_received, counters.connections_rejected) == (2, 1)
        assert local.server.clients.all() == [first.session]
    finally:
        local.close()
