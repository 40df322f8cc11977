"""Connections: bytes in, protocol errors, limits before the login, the backlog, and CLIENT REPLY."""

from __future__ import annotations

import pytest

from respserver.clients.flowcontrol import BACKLOG_AT_ONCE, BACKLOG_BYTES, LOGIN_AT_ONCE, OUTPUT_AT_ONCE
from tests.respserver.local import LocalServer, Peer, pack
from tests.respserver.probes import (
    OK,
    Parked,
    Stream,
)

PONG = b"+PONG\r\n"


# -- bytes in -----------------------------------------------------------------------------------------------------
def test_a_command_in_pieces_runs_once_when_it_is_complete(local: LocalServer, one: Peer) -> None:
    for byte in pack("INCR", "n") + pack("PING")[:-1]:
        one.conn.data_received(bytes([byte]))
    local.settle()
    assert one.taken() == b":1\r\n"
    one.conn.data_received(b"\n")
    local.settle()
    assert one.taken() == PONG
    assert one.session.total_in == len(pack("INCR", "n") + pack("PING"))
    assert one.session.total_commands == 2


def test_an_incomplete_command_counts_as_activity(local: LocalServer, one: Peer) -> None:
    local.clock.move(5000)
    one.conn.data_received(b"*2\r\n$3\r\nGET")
    assert one.session.last_active == local.clock.now()
    assert one.conn.stats().query_buffered == len(b"*2\r\n$3\r\nGET")


def test_received_and_sent_bytes_are_counted(local: LocalServer, one: Peer) -> None:
    one.pipeline(("PING",), ("PING",))
    local.settle()
    traffic = local.server.counters.traffic
    assert traffic.bytes_out == one.session.total_out == 2 * len(PONG)
    assert traffic.bytes_in == one.session.total_in == 2 * len(pack("PING"))
    assert (traffic.reads, traffic.writes) == (1, 1)
    local.server.counters.reset()
    assert (traffic.bytes_in, traffic.bytes_out, traffic.reads, traffic.writes) == (0, 0, 0, 0)


def test_clients_that_exceed_the_query_buffer_limit_are_counted(local: LocalServer, one: Peer) -> None:
    local.server.config.client_query_buffer_limit = 1 << 20
    local.server.configure()
    one.conn.data_received(b"*2\r\n$3\r\nGET\r\n$%d\r\n" % (1 << 20))
    local.settle()
    assert one.taken() == b"-ERR Protocol error: query buffer limit exceeded\r\n"
    assert local.server.counters.query_buffer_cuts == 1
    queues = local.connect()
    queues.send("MULTI")
    for _ in range(5):
        queues.send("ECHO", "x" * (1 << 18))
    local.settle()
    assert queues.wire.aborted
    assert local.server.counters.query_buffer_cuts == 2


# -- protocol errors ----------------------------------------------------------------------------------------------
def test_a_protocol_error_is_reported_after_the_replies_before_it(local: LocalServer, one: Peer) -> None:
    one.conn.data_received(pack("PING") + pack("SET", "k", "v") + b"*1\r\n:5\r\n" + pack("PING"))
    local.settle()
    assert one.taken() == PONG + OK + b"-ERR Protocol error: expected '$', got ':'\r\n"
    assert one.wire.closing
    assert not one.wire.aborted
    assert local.server.counters.errors == {"ERR": 1}


def test_a_protocol_error_after_a_blocked_command_waits_for_its_reply(local: LocalServer, one: Peer) -> None:
    parked = Parked(local)
    one.conn.data_received(pack("PARK") + pack("PING") + b"*1\r\n:5\r\n")
    local.settle()
    assert one.taken() == b""
    parked.release()
    assert one.taken() == b"+released\r\n" + PONG + b"-ERR Protocol error: expected '$', got ':'\r\n"
    assert one.wire.closing


def test_nothing_is_read_after_a_protocol_error(local: LocalServer, one: Peer) -> None:
    one.conn.data_received(b"*1\r\n:5\r\n")
    one.send("SET", "k", "v")
    local.settle()
    assert not one.wire.reading
    assert local.connect().ask("GET", "k") == b"$-1\r\n"


# -- before the login ---------------------------------------------------------------------------------------------
@pytest.fixture
def stranger(local: LocalServer) -> Peer:
    """A client of a server with a password, before it logs in."""
    local.server.config.requirepass = "pw"
    local.server.users.configure()
    return local.connect()


def test_a_client_that_has_not_logged_in_may_not_send_much(local: LocalServer, stranger: Peer) -> None:
    stranger.conn.data_received(b"*11\r\n")
    local.settle()
    assert stranger.taken() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    assert stranger.wire.closing
    large = local.connect()
    large.conn.data_received(b"*2\r\n$3\r\nGET\r\n$16385\r\n")
    local.settle()
    assert large.taken() == b"-ERR Protocol error: unauthenticated bulk length\r\n"


def test_auth_lifts_the_limits_for_what_follows_in_the_same_chunk(local: LocalServer, stranger: Peer) -> None:
    value = "v" * (3 * LOGIN_AT_ONCE)
    stranger.pipeline(("GET", "k"), ("AUTH", "pw"), ("MSET", *["k", value] * 6), ("STRLEN", "k"))
    local.settle()
    assert stranger.taken() == b"-NOAUTH Authentication required.\r\n" + OK + OK + b":%d\r\n" % len(value)


def test_limits_come_back_after_reset(local: LocalServer, stranger: Peer) -> None:
    assert stranger.ask("AUTH", "pw") == OK
    assert stranger.ask("RESET") == b"+RESET\r\n"
    stranger.conn.data_received(b"*11\r\n")
    local.settle()
    assert stranger.taken() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"


def test_quit_before_the_login_ends_the_chunk(local: LocalServer, stranger: Peer) -> None:
    stranger.pipeline(("QUIT",), ("AUTH", "pw"), ("SET", "k", "v"))
    local.settle()
    assert stranger.taken() == OK
    assert stranger.wire.closing


# -- the backlog --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", ["blocked", "streaming", "throttled", "paused"])
def test_commands_wait_in_the_backlog_and_then_run_in_order(local: LocalServer, one: Peer, reason: str) -> None:
    parked, _ = Parked(local), Stream(local)
    one.wire.full = True
    if reason == "blocked":
        one.send("PARK")
    elif reason == "streaming":
        one.send("STREAM", 2, OUTPUT_AT_ONCE)
    elif reason == "throttled":
        one.send("ECHO", "x" * OUTPUT_AT_ONCE)
    else:
        local.server.pauses.pause(1000, False)
        one.send("ECHO", "held")
    local.settle()
    conn = one.conn
    assert conn.busy
    assert (conn.flow.wait is not None, conn.flow.paused) == (reason == "blocked", reason == "paused")
    assert (conn.output.streaming is not None) == (reason == "streaming")
    assert conn.flow.throttled == (reason in ("streaming", "throttled"))
    one.taken()
    one.pipeline(("ECHO", "a"), ("ECHO", "b"))
    one.send("ECHO", "c")
    local.settle()
    assert one.taken() == b""
    held = [[b"ECHO", b"held"]] if reason == "paused" else []
    assert list(conn.input.backlog) == [*held, [b"ECHO", b"a"], [b"ECHO", b"b"], [b"ECHO", b"c"]]
    assert conn.stats().query_buffered == sum(len(b"".join(argv)) for argv in conn.input.backlog)
    if reason == "blocked":
        parked.release()
    local.server.pauses.unpause()
    one.wire.drain()
    local.settle()
    assert one.taken().endswith(b"$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n")
    assert not conn.busy
    assert not conn.input.backlog


@pytest.mark.parametrize(
    ("chunk", "most"),
    [
        (pack("PING") * 1000, BACKLOG_AT_ONCE // 1000 + 1),
        (pack("ECHO", "x" * 100_000), BACKLOG_BYTES // 100_000 + 1),
    ],
    ids=["commands", "bytes"],
)
def test_reading_stops_when_the_backlog_is_full(local: LocalServer, one: Peer, chunk: bytes, most: int) -> None:
    parked = Parked(local)
    one.ask("PARK")
    chunks = 0
    while one.wire.reading:
        one.conn.data_received(chunk)
        chunks += 1
    assert most - 1 <= chunks <= most
    assert not one.conn.stats().reading
    parked.release()
    for _ in range(20):
        local.settle()
    assert one.wire.reading
    assert not one.conn.input.backlog
    assert len(one.taken()) > chunks


def test_a_client_that_only_blocks_is_still_read(local: LocalServer, one: Peer) -> None:
    """Else its end would go unnoticed."""
    Parked(local)
    one.pipeline(("PARK",), ("PING",))
    local.settle()
    assert one.wire.reading


def test_reading_stops_while_the_socket_is_full(local: LocalServer, one: Peer) -> None:
    one.wire.full = True
    one.send("ECHO", "x" * (OUTPUT_AT_ONCE + 1))
    local.settle()
    assert (one.conn.flow.throttled, one.wire.reading, one.conn.stats().writing) == (True, False, True)
    one.wire.drain()
    local.settle()
    assert (one.conn.flow.throttled, one.wire.reading, one.conn.stats().writing) == (False, True, False)


def test_the_backlog_waits_while_the_disk_holds_replies_back(local: LocalServer, one: Peer) -> None:
    local.disk.breaks()
    one.ask("SET", "k", "v")
    one.pipeline(*[("ECHO", "x" * (OUTPUT_AT_ONCE + 1)) for _ in range(3)], ("ECHO", "last"))
    local.settle()
    assert one.conn.output.bytes < 2 * OUTPUT_AT_ONCE
    assert len(one.conn.input.backlog) == 3
    assert one.taken() == b""
    local.disk.heals()
    local.advance(100)
    assert one.taken().endswith(b"$4\r\nlast\r\n")


# -- CLIENT REPLY -------------------------------------------------------------------------------------------------
def test_client_reply_off_and_on(local: LocalServer, one: Peer) -> None:
    assert one.ask("CLIENT", "REPLY", "OFF") == b""
    assert one.ask("INCR", "n") == b""
    assert one.ask("NOSUCH") == b""
    assert one.ask("CLIENT", "REPLY", "SKIP") == b""
    assert one.ask("CLIENT", "REPLY", "ON") == OK
    assert one.ask("INCR", "n") == b":2\r\n"


def test_client_reply_skip_leaves_out_one_reply(local: LocalServer, one: Peer) -> None:
    one.pipeline(("CLIENT", "REPLY", "SKIP"), ("INCR", "n"), ("INCR", "n"), ("INCR", "n"))
    local.settle()
    assert one.taken() == b":2\r\n:3\r\n"
    assert one.session.plain


def test_a_streamed_reply_that_is_left_out_is_closed(local: LocalServer, one: Peer) -> None:
    stream = Stream(local)
    one.pipeline(("CLIENT", "REPLY", "SKIP"), ("STREAM", 2, 1), ("PING",))
    local.settle()
    assert one.taken() == PONG
    assert stream.events == ["closed"]


def test_the_reply_of_a_wait_is_left_out_too(local: LocalServer, one: Peer) -> None:
    parked = Parked(local)
    one.pipeline(("CLIENT", "REPLY", "SKIP"), ("PARK",), ("PING",))
    local.settle()
    parked.release()
    assert one.taken() == PONG


def test_messages_are_pushed_while_replies_are_off(local: LocalServer, one: Peer) -> None:
    one.ask("HELLO", 3)
    one.ask("SUBSCRIBE", "c")
    one.ask("CLIENT", "REPLY", "OFF")
    local.connect().ask("PUBLISH", "c", "m")
    assert one.taken() == b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n"
