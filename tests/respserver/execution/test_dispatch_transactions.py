"""MULTI and EXEC in the dispatcher: queueing, EXECABORT, and the reply of EXEC."""

from __future__ import annotations

import pytest

from commands.context import Block, Chunks, Context, Reply
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE
from tests.respserver.local import LocalServer, Peer
from tests.respserver.probes import (
    BUG,
    CLOSE,
    LOADING,
    MASTERDOWN,
    MISCONF,
    NO_MULTI,
    NOREPLICAS,
    OK,
    OOM,
    READONLY,
    fail,
    say_ok,
)


def test_commands_are_queued_and_immediate_ones_are_not(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def run(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[0])
        return OK

    local.declare("PROBE", run)
    local.declare("NOW", run, traits="immediate")
    one.ask("MULTI")
    assert one.ask("PROBE") == b"+QUEUED\r\n"
    assert one.ask("NOW") == OK
    assert ran == [b"NOW"]
    assert one.ask("EXEC") == b"*1\r\n" + OK
    assert ran == [b"NOW", b"PROBE"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (("NOSUCH",), b"-ERR unknown command 'NOSUCH'"),
        (("GET",), b"-ERR wrong number of arguments for 'get' command"),
        (("SAVE",), NO_MULTI),
    ],
)
def test_a_command_that_is_refused_aborts_its_transaction(
    local: LocalServer, one: Peer, command: tuple[str, ...], error: bytes
) -> None:
    one.ask("MULTI")
    assert one.ask(*command).startswith(error)
    assert one.ask("SET", "k", "v") == b"+QUEUED\r\n"
    assert one.ask("EXEC") == b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    assert one.ask("GET", "k") == b"$-1\r\n"


def test_an_immediate_command_that_fails_does_not_abort_the_transaction(local: LocalServer, one: Peer) -> None:
    local.declare("NOW", say_ok, "write", "immediate")
    local.server.gates.role(readonly=True, stale=False)
    one.ask("MULTI")
    assert one.ask("WATCH", "k").startswith(b"-ERR WATCH inside MULTI")
    assert one.ask("NOW") == READONLY
    assert one.ask("EXEC") == b"*0\r\n"


def test_exec_with_wrong_arity_ends_the_transaction(local: LocalServer, one: Peer) -> None:
    one.ask("MULTI")
    assert one.ask("EXEC", "x") == (
        b"-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n"
    )
    assert one.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("replica", READONLY), ("disk", MISCONF), ("too few replicas", NOREPLICAS), ("stale", READONLY),
        ("loading", LOADING), ("memory", OOM),
    ],
)  # fmt: skip
def test_exec_is_refused_for_the_commands_that_it_would_run(
    local: LocalServer, one: Peer, condition: str, error: bytes
) -> None:
    one.ask("MULTI")
    one.ask("SET", "k", "v")
    CLOSE[condition](local, one)
    assert one.ask("EXEC") == b"-EXECABORT Transaction discarded because of: " + error[1:]
    assert one.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"
    local.server.gates.role(False, False)
    local.server.gates.load(False)
    assert one.ask("GET", "k") == b"$-1\r\n"


@pytest.mark.parametrize("condition", ["replica", "disk", "too few replicas", "memory"])
def test_exec_of_reads_passes_where_writes_are_refused(local: LocalServer, one: Peer, condition: str) -> None:
    one.ask("MULTI")
    one.ask("GET", "k")
    CLOSE[condition](local, one)
    assert one.ask("EXEC") == b"*1\r\n$-1\r\n"


def test_exec_of_reads_is_refused_by_a_stale_replica(local: LocalServer, one: Peer) -> None:
    one.ask("MULTI")
    one.ask("GET", "k")
    CLOSE["stale"](local, one)
    assert one.ask("EXEC") == b"-EXECABORT Transaction discarded because of: " + MASTERDOWN[1:]


def test_every_queued_command_has_its_own_reply(local: LocalServer, one: Peer) -> None:
    def bug(ctx: Context, argv: list[bytes]) -> Reply:
        raise ValueError("the test says so")

    def block(ctx: Context, argv: list[bytes]) -> Reply:
        return Block((b"k",), None, False, 0, b"*-1\r\n")

    def silent(ctx: Context, argv: list[bytes]) -> Reply:
        return b""

    local.declare("BUG", bug)
    local.declare("PARK", block)
    local.declare("FAILS", fail)
    local.declare("SILENT", silent)
    one.ask("MULTI")
    for word in ("PING", "FAILS", "BUG", "PARK", "SILENT", "PING"):
        assert one.ask(word) == b"+QUEUED\r\n"
    replies = [b"+PONG\r\n", b"-WRONG the test says so\r\n", BUG, BUG, OK, b"+PONG\r\n"]
    assert one.ask("EXEC") == b"*6\r\n" + b"".join(replies)
    assert "ValueError: the test says so" in local.log()
    assert "a handler blocks inside EXEC" in local.log()


def test_exec_with_a_streamed_part_is_streamed(local: LocalServer, one: Peer) -> None:
    closed: list[bool] = []

    def stream(ctx: Context, argv: list[bytes]) -> Reply:
        return Chunks(iter([b"*2\r\n", b":1\r\n", b":2\r\n"]), lambda: closed.append(True))

    local.declare("STREAM", stream)
    one.ask("MULTI")
    for word in ("PING", "STREAM", "PING"):
        one.ask(word)
    one.pipeline(("EXEC",), ("PING",))
    local.settle()
    assert one.taken() == b"*3\r\n+PONG\r\n*2\r\n:1\r\n:2\r\n+PONG\r\n" + b"+PONG\r\n"
    assert closed == [True]


def test_a_streamed_exec_is_closed_with_its_connection(local: LocalServer, one: Peer) -> None:
    closed: list[bytes] = []

    def stream(ctx: Context, argv: list[bytes]) -> Reply:
        return Chunks(iter([b"$%d\r\n" % OUTPUT_AT_ONCE, b"x" * OUTPUT_AT_ONCE, b"y" * 10, b"\r\n"]),
                      lambda: closed.append(argv[1]))  # fmt: skip

    local.declare("STREAM", stream)
    one.ask("MULTI")
    one.ask("STREAM", "a")
    one.ask("STREAM", "b")
    one.wire.full = True
    one.send("EXEC")
    local.settle()
    assert one.conn.output.streaming
    assert closed == []
    one.conn.kill()
    local.settle()
    assert closed == [b"a", b"b"]


def test_a_transaction_that_takes_too_much_memory_closes_the_connection(local: LocalServer, one: Peer) -> None:
    local.server.config.client_query_buffer_limit = 1000
    one.ask("MULTI")
    for _ in range(2):
        assert one.ask("SET", "k", "v" * 200) == b"+QUEUED\r\n"
    assert one.ask("SET", "k", "v" * 200) == b""
    assert one.wire.aborted
