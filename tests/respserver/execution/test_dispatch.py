"""The dispatcher: the order of its checks, CLIENT PAUSE, where a pipeline stops, and bugs in handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands.context import Await, Chunks, Context, Reply
from resp.errors import CorruptError
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE
from tests.respserver.local import LocalServer, Peer
from tests.respserver.probes import (
    BUG,
    CLOSE,
    LOADING,
    MASTERDOWN,
    MISCONF,
    NO_MULTI,
    NOAUTH,
    NOREPLICAS,
    OK,
    OOM,
    READONLY,
    SUBSCRIBED,
    out_of_memory,
    say_ok,
)


# -- the order of the checks -------------------------------------------------------------------------------------
def test_checks_come_in_the_order_of_redis(local: LocalServer, one: Peer) -> None:
    gates, session = local.server.gates, one.session
    local.declare("PROBE", say_ok, "write denyoom no_multi")
    session.authenticated = False
    session.channels.add(b"c")
    session.multi = True
    out_of_memory(local)
    gates.role(readonly=True, stale=True)
    gates.disk("MISCONF the test says so")
    gates.replicas(True)
    gates.load(True)
    steps: list[tuple[bytes, Callable[[], object]]] = [
        (NOAUTH, lambda: setattr(session, "authenticated", True)),
        (OOM, lambda: local.server.config.set([(b"maxmemory", b"0")])),
        (READONLY, lambda: gates.role(readonly=False, stale=True)),
        (MISCONF, lambda: gates.disk("")),
        (NOREPLICAS, lambda: gates.replicas(False)),
        (SUBSCRIBED, session.channels.clear),
        (MASTERDOWN, lambda: gates.role(readonly=False, stale=False)),
        (LOADING, lambda: gates.load(False)),
        (NO_MULTI, lambda: session.end_transaction(local.server.data.ks)),
    ]
    for error, remove in steps:
        session.refresh()
        assert one.ask("PROBE") == error
        remove()
    session.refresh()
    assert one.ask("PROBE") == OK


@pytest.mark.parametrize(
    ("condition", "flags", "traits", "reply"),
    [
        ("no password", "", "", NOAUTH),
        ("no password", "no_auth", "", OK),
        ("memory", "write denyoom", "", OOM),
        ("memory", "write", "", OK),
        ("replica", "write", "", READONLY),
        ("replica", "readonly", "", OK),
        ("disk", "write", "", MISCONF),
        ("disk", "readonly", "", OK),
        ("too few replicas", "write", "", NOREPLICAS),
        ("too few replicas", "readonly", "", OK),
        ("subscribed", "", "", SUBSCRIBED),
        ("subscribed", "", "subscribed", OK),
        ("stale", "readonly", "", MASTERDOWN),
        ("stale", "readonly stale", "", OK),
        ("loading", "readonly", "", LOADING),
        ("loading", "readonly loading", "", OK),
    ],
)
def test_a_check_concerns_the_commands_that_their_flags_and_traits_say(
    local: LocalServer, one: Peer, condition: str, flags: str, traits: str, reply: bytes
) -> None:
    local.declare("PROBE", say_ok, flags, traits)
    CLOSE[condition](local, one)
    one.session.refresh()
    assert one.ask("PROBE") == reply


def test_a_subscriber_that_speaks_resp3_may_call_everything(local: LocalServer, one: Peer) -> None:
    local.declare("PROBE", say_ok)
    one.ask("HELLO", 3)
    one.ask("SUBSCRIBE", "c")
    assert one.ask("PROBE") == OK


def test_a_call_of_a_write_command_that_changes_nothing_passes(local: LocalServer, one: Peer) -> None:
    local.declare("PROBE", say_ok, "write", writes=lambda argv: argv[1] == b"yes")
    local.server.gates.role(readonly=True, stale=False)
    assert one.ask("PROBE", "yes") == READONLY
    assert one.ask("PROBE", "no") == OK


def test_the_arity_is_checked_before_everything_else(local: LocalServer, one: Peer) -> None:
    local.declare("PROBE", say_ok, arity=2)
    one.session.authenticated = False
    one.session.refresh()
    assert one.ask("PROBE") == b"-ERR wrong number of arguments for 'probe' command\r\n"
    assert one.ask("PROBE", "x") == NOAUTH


def test_a_request_of_a_browser_closes_the_connection(local: LocalServer, one: Peer) -> None:
    one.conn.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nFLUSHALL\r\n")
    local.settle()
    assert one.wire.aborted
    assert "HTTP" in local.log()
    assert b"OK" not in one.taken()


# -- CLIENT PAUSE and FAILOVER -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("flags", "traits", "held_by_all", "held_by_writes"),
    [
        ("write", "", True, True),
        ("readonly", "", True, False),
        ("readonly", "reaches_replicas", True, True),
        ("write", "unpausable", False, False),
    ],
)
def test_commands_that_a_pause_holds_back(
    local: LocalServer, one: Peer, flags: str, traits: str, held_by_all: bool, held_by_writes: bool
) -> None:
    local.declare("PROBE", say_ok, flags, traits)
    pauses = local.server.pauses
    for writes_only, held in ((False, held_by_all), (True, held_by_writes)):
        pauses.pause(1000, writes_only)
        assert one.ask("PROBE") == (b"" if held else OK)
        pauses.unpause()
        local.settle()
        assert one.taken() == (OK if held else b"")
    pauses.hold_writes(True)
    assert one.ask("PROBE") == (b"" if held_by_writes else OK)
    pauses.hold_writes(False)
    local.settle()
    assert one.taken() == (OK if held_by_writes else b"")


def test_reads_continue_when_only_writes_are_still_held(local: LocalServer, one: Peer, writer: Peer) -> None:
    pauses = local.server.pauses
    pauses.hold_writes(True, reads=True)
    assert one.ask("GET", "k") == writer.ask("SET", "k", "v") == b""
    pauses.hold_writes(True)
    local.settle()
    assert (one.taken(), writer.taken()) == (b"$-1\r\n", b"")
    pauses.hold_writes(False)
    local.settle()
    assert writer.taken() == OK


@pytest.mark.parametrize(("queued", "held"), [(("SET", "k", "v"), True), (("GET", "k"), False)])
def test_a_pause_of_writes_holds_back_an_exec_that_writes(
    local: LocalServer, one: Peer, queued: tuple[str, ...], held: bool
) -> None:
    one.ask("MULTI")
    one.ask(*queued)
    local.server.pauses.pause(1000, True)
    assert (one.ask("EXEC") == b"") is held


def test_a_paused_client_goes_on_where_it_was_held(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def run(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[1])
        return OK

    local.declare("PROBE", run, "write")
    local.server.pauses.pause(1000, True)
    one.pipeline(("PING",), ("PROBE", "a"), ("PING",), ("PROBE", "b"))
    one.send("PROBE", "c")
    local.settle()
    assert (one.taken(), ran, one.conn.flow.paused) == (b"+PONG\r\n", [], True)
    local.advance(900)
    assert ran == []
    local.advance(200)
    assert (one.taken(), ran) == (OK + b"+PONG\r\n" + OK + OK, [b"a", b"b", b"c"])


def test_the_connection_of_a_replica_is_not_held_back(local: LocalServer, one: Peer) -> None:
    local.server.pauses.pause(1000, False)
    one.session.replica = "of the test"
    assert one.ask("PING") == b"+PONG\r\n"


# -- where a pipeline stops --------------------------------------------------------------------------------------
def test_a_pipeline_stops_when_its_replies_are_large_enough(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def large(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[1])
        return b"$%d\r\n%b\r\n" % (OUTPUT_AT_ONCE // 2, b"x" * (OUTPUT_AT_ONCE // 2))

    local.declare("LARGE", large)
    one.pipeline(*[("LARGE", n) for n in range(5)])
    assert ran in ([b"0"], [b"0", b"1"])  # the time limit of a turn may end it earlier
    assert len(one.conn.input.backlog) == 5 - len(ran)
    local.settle()
    assert ran == [b"%d" % n for n in range(5)]
    assert one.taken().count(b"$") == 5


def test_a_pipeline_waits_for_a_peer_that_reads_nothing(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def large(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[1])
        return b"+" + b"x" * OUTPUT_AT_ONCE + b"\r\n"

    local.declare("LARGE", large)
    one.wire.full = True
    one.pipeline(*[("LARGE", n) for n in range(5)])
    local.settle()
    assert ran == [b"0"]
    one.wire.drain()
    local.settle()
    assert len(ran) == 5


def test_a_streamed_reply_comes_before_the_next_command(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        yield b"$2\r\n"
        ran.append(b"piece")
        yield b"ab\r\n"

    def stream(ctx: Context, argv: list[bytes]) -> Reply:
        return Chunks(pieces(), lambda: ran.append(b"closed"))

    def run(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(b"next")
        return OK

    local.declare("STREAM", stream)
    local.declare("PROBE", run)
    one.pipeline(("PING",), ("STREAM",), ("PROBE",))
    assert ran == []
    local.settle()
    assert ran == [b"piece", b"closed", b"next"]
    assert one.taken() == b"+PONG\r\n$2\r\nab\r\n" + OK


def test_commands_after_quit_are_dropped(local: LocalServer, one: Peer) -> None:
    one.pipeline(("PING",), ("QUIT",), ("SET", "k", "v"))
    one.send("SET", "k", "v")
    local.settle()
    assert one.taken() == b"+PONG\r\n" + OK
    assert not one.conn.input.backlog
    assert one.wire.closing
    assert not one.wire.aborted
    assert local.connect().ask("GET", "k") == b"$-1\r\n"


def test_a_blocked_command_holds_the_rest_of_its_pipeline(local: LocalServer, one: Peer) -> None:
    results: list[bytes] = []

    def park(ctx: Context, argv: list[bytes]) -> Reply:
        return Await(0, lambda: results[0] if results else None, lambda: b"")

    local.declare("PARK", park)
    one.pipeline(("PING",), ("PARK",), ("PING",))
    local.settle()
    assert one.taken() == b"+PONG\r\n"
    assert one.session.blocked
    results.append(b":7\r\n")
    local.server.blocking.acknowledged()
    local.settle()
    assert one.taken() == b":7\r\n+PONG\r\n"


def test_commands_after_a_reload_use_the_new_data(tmp_path: Path) -> None:
    local = LocalServer(tmp_path, enable_debug_command="yes")
    try:
        one, before = local.connect(), local.server.data.ks
        one.pipeline(("SET", "a", 1), ("DEBUG", "RELOAD"), ("SET", "b", 2), ("GET", "a"))
        local.settle()
        assert one.taken() == OK * 3 + b"$1\r\n1\r\n"
        assert local.server.data.ks is not before
        assert set(local.server.data.ks.keys) == {b"a", b"b"}
    finally:
        local.close()


# -- bugs and damage ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gate", [False, True], ids=["usual", "checked"])
def test_a_bug_in_a_handler_is_answered_and_logged(local: LocalServer, one: Peer, gate: bool) -> None:
    def bug(ctx: Context, argv: list[bytes]) -> Reply:
        raise ValueError("the test says so")

    local.declare("BUG", bug)
    local.server.gates.hold(gate)
    one.pipeline(("PING",), ("BUG",), ("PING",))
    local.settle()
    assert one.taken() == b"+PONG\r\n" + BUG + b"+PONG\r\n"
    assert "Bug while running BUG" in local.log()
    assert "ValueError: the test says so" in local.log()
    assert local.server.counters.errors == {"ERR": 1}


def test_damaged_data_is_named_in_the_reply(local: LocalServer, one: Peer) -> None:
    def damaged(ctx: Context, argv: list[bytes]) -> Reply:
        raise CorruptError("node 7 is damaged")

    local.declare("PROBE", damaged)
    assert one.ask("PROBE") == b"-ERR damaged data: node 7 is damaged\r\n"
    assert "PROBE met damaged data: node 7 is damaged" in local.log()
