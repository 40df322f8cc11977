"""The dispatcher: the order of its checks, transactions, batches, stats, and when a pipeline stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands.context import Await, Block, Chunks, Context, Reply
from commands.declare import TABLE, Command
from resp.errors import CommandError, CorruptError
from respserver.clients.flow import OUTPUT_AT_ONCE
from respserver.execution.dispatch import BATCH_AT_ONCE
from tests.respserver.local import LocalServer, Peer, pack

OK = b"+OK\r\n"
NOAUTH = b"-NOAUTH Authentication required.\r\n"
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
MISCONF = b"-MISCONF the test says so\r\n"
NOREPLICAS = b"-NOREPLICAS Not enough good replicas to write.\r\n"
MASTERDOWN = b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
NO_MULTI = b"-ERR Command not allowed inside a transaction\r\n"
SUBSCRIBED = (
    b"-ERR Can't execute 'probe': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this"
    b" context\r\n"
)
BUG = b"-ERR internal error: the command failed because of a bug in the server, see its log\r\n"


@pytest.fixture
def one(local: LocalServer) -> Peer:
    return local.connect()


def say_ok(ctx: Context, argv: list[bytes]) -> Reply:
    return OK


def fail(ctx: Context, argv: list[bytes]) -> Reply:
    raise CommandError("WRONG the test says so")


@pytest.fixture
def reset_stats() -> None:
    """The stats of commands belong to the process: begin at zero."""
    for command in set(TABLE.values()):
        for each in (command, *command.subcommands.values()):
            each.calls = each.usec = each.rejected = each.failed = 0


# -- the order of the checks -------------------------------------------------------------------------------------
def test_checks_come_in_the_order_of_redis(local: LocalServer, one: Peer) -> None:
    gates, session = local.server.gates, one.session
    local.declare("PROBE", say_ok, "write denyoom no_multi")
    session.authenticated = False
    session.channels.add(b"c")
    session.multi = True
    gates.memory(True)
    gates.role(readonly=True, stale=True)
    gates.disk("MISCONF the test says so")
    gates.replicas(True)
    gates.load(True)
    steps: list[tuple[bytes, Callable[[], object]]] = [
        (NOAUTH, lambda: setattr(session, "authenticated", True)),
        (OOM, lambda: gates.memory(False)),
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


CLOSE: dict[str, Callable[[LocalServer, Peer], object]] = {
    "no password": lambda local, one: setattr(one.session, "authenticated", False),
    "memory": lambda local, one: local.server.gates.memory(True),
    "replica": lambda local, one: local.server.gates.role(readonly=True, stale=False),
    "disk": lambda local, one: local.server.gates.disk("MISCONF the test says so"),
    "too few replicas": lambda local, one: local.server.gates.replicas(True),
    "subscribed": lambda local, one: one.session.channels.add(b"c"),
    "stale": lambda local, one: local.server.gates.role(readonly=True, stale=True),
    "loading": lambda local, one: local.server.gates.load(True),
}


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


# -- transactions ------------------------------------------------------------------------------------------------
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
        ("loading", LOADING),
        pytest.param("memory", OOM, marks=pytest.mark.xfail(reason="EXEC is not checked for commands that add data")),
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


@pytest.mark.parametrize("condition", ["replica", "disk", "too few replicas"])
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
        return Block(b"k", None, 0, b"*-1\r\n")

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
    assert one.conn.streaming
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
    pauses, now = local.server.pauses, local.clock.now()
    for writes_only, held in ((False, held_by_all), (True, held_by_writes)):
        pauses.pause(now + 1000, writes_only)
        assert one.ask("PROBE") == (b"" if held else OK)
        pauses.unpause()
        local.settle()
        assert one.taken() == (OK if held else b"")
    pauses.hold_writes(True)
    assert one.ask("PROBE") == (b"" if held_by_writes else OK)
    pauses.hold_writes(False)
    local.settle()
    assert one.taken() == (OK if held_by_writes else b"")


@pytest.mark.parametrize(("queued", "held"), [(("SET", "k", "v"), True), (("GET", "k"), False)])
def test_a_pause_of_writes_holds_back_an_exec_that_writes(
    local: LocalServer, one: Peer, queued: tuple[str, ...], held: bool
) -> None:
    one.ask("MULTI")
    one.ask(*queued)
    local.server.pauses.pause(local.clock.now() + 1000, True)
    assert (one.ask("EXEC") == b"") is held


def test_a_paused_client_goes_on_where_it_was_held(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def run(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[1])
        return OK

    local.declare("PROBE", run, "write")
    local.server.pauses.pause(local.clock.now() + 1000, True)
    one.pipeline(("PING",), ("PROBE", "a"), ("PING",), ("PROBE", "b"))
    one.send("PROBE", "c")
    local.settle()
    assert (one.taken(), ran, one.conn.paused) == (b"+PONG\r\n", [], True)
    local.advance(900)
    assert ran == []
    local.advance(200)
    assert (one.taken(), ran) == (OK + b"+PONG\r\n" + OK + OK, [b"a", b"b", b"c"])


def test_the_connection_of_a_replica_is_not_held_back(local: LocalServer, one: Peer) -> None:
    local.server.pauses.pause(local.clock.now() + 1000, False)
    one.session.replica = "of the test"
    assert one.ask("PING") == b"+PONG\r\n"


# -- batches -----------------------------------------------------------------------------------------------------
class Probe:
    """A command with a batch handler. ``calls``: the arguments of each call; a batch is one tuple of several."""

    def __init__(self, local: LocalServer, name: str = "PROBE", flags: str = "write") -> None:
        self.calls: list[tuple[bytes, ...]] = []
        self.pieces: list[list[bytes]] = []  # the bytes of each command of a batch, as raw and borders say
        self.answers = 1 << 62  # of how many calls of a batch
        self.command: Command = local.declare(name, self.handle, flags)
        self.command.batch = self.handle_batch

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        self.calls.append((argv[-1],))
        return b"+%b\r\n" % argv[-1]

    def handle_batch(
        self, ctx: Context, calls: list[list[bytes]], raw: bytes, borders: list[int]
    ) -> list[bytes] | None:  # fmt: skip
        if not self.answers:
            return None
        taken = calls[: self.answers]
        self.calls.append(tuple(argv[-1] for argv in taken))
        self.pieces.append([raw[borders[at] : borders[at + 1]] for at in range(len(calls))] if borders else [])
        return [b"+%b\r\n" % argv[-1] for argv in taken]


def replies(*values: int) -> bytes:
    return b"".join([b"+%d\r\n" % value for value in values])


def test_calls_that_arrive_together_are_one_batch(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(*[("PROBE", "k", n) for n in range(4)])
    local.settle()
    assert probe.calls == [(b"0", b"1", b"2", b"3")]
    assert probe.pieces == [[pack("PROBE", "k", n) for n in range(4)]]
    assert one.taken() == replies(0, 1, 2, 3)
    assert (probe.command.calls, one.session.total_commands) == (4, 4)
    assert local.server.counters.commands_processed == 4


def test_a_batch_after_other_commands_gets_its_own_bytes(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(("PING",), ("PROBE", "k", 1), ("PROBE", "k", 2), ("PING",))
    local.settle()
    assert probe.pieces == [[pack("PROBE", "k", 1), pack("PROBE", "k", 2)]]


def test_a_single_call_is_no_batch(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(("PROBE", "k", 1), ("PING",), ("PROBE", "k", 2))
    local.settle()
    assert probe.calls == [(b"1",), (b"2",)]
    assert probe.pieces == []


@pytest.mark.parametrize(
    "third", [("PROBE", "other", 3), ("PROBE", "k", "word", 3), ("OTHER", "k", 3)], ids=["key", "length", "name"]
)
def test_a_batch_ends_where_key_length_or_name_differs(
    local: LocalServer, one: Peer, third: tuple[str | int, ...]
) -> None:
    probe, other = Probe(local), Probe(local, "OTHER")
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2), third, ("PROBE", "k", 4), ("PROBE", "k", 5))
    local.settle()
    assert [len(calls) for calls in probe.calls if len(calls) > 1] == [2, 2]
    assert sum(map(len, probe.calls + other.calls)) == 5
    assert one.taken() == replies(1, 2, 3, 4, 5)


def test_a_batch_has_a_limit(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    count = 2 * BATCH_AT_ONCE + 500
    one.pipeline(*[("PROBE", "k", n) for n in range(count)])
    local.settle()
    assert max(map(len, probe.calls)) <= BATCH_AT_ONCE + 1
    assert len(probe.calls) == 3
    assert one.taken() == replies(*range(count))


def test_calls_are_handled_alone_while_a_reader_waits_for_the_key(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    local.server.data.ks.waiting[b"k"] = 1
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2), ("PROBE", "free", 3), ("PROBE", "free", 4))
    local.settle()
    assert probe.calls == [(b"1",), (b"2",), (b"3", b"4")]


def test_a_batch_handler_that_answers_the_first_calls_only(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    probe.answers = 2
    one.pipeline(*[("PROBE", "k", n) for n in range(5)])
    local.settle()
    assert probe.calls == [(b"0", b"1"), (b"2", b"3"), (b"4",)]
    assert one.taken() == replies(0, 1, 2, 3, 4)
    assert probe.command.calls == 5


def test_a_batch_handler_that_declines(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    probe.answers = 0
    one.pipeline(*[("PROBE", "k", n) for n in range(3)])
    local.settle()
    assert probe.calls == [(b"0",), (b"1",), (b"2",)]
    assert one.taken() == replies(0, 1, 2)


def test_no_batches_in_a_transaction_nor_while_a_gate_is_closed(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(("MULTI",), ("PROBE", "k", 1), ("PROBE", "k", 2), ("EXEC",))
    local.server.gates.memory(True)
    one.pipeline(("PROBE", "k", 3), ("PROBE", "k", 4))
    local.settle()
    assert probe.calls == [(b"1",), (b"2",), (b"3",), (b"4",)]


def test_batches_of_reads_where_only_writes_are_refused(local: LocalServer, one: Peer) -> None:
    probe = Probe(local, flags="readonly")
    local.server.gates.role(readonly=True, stale=False)
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2))
    local.settle()
    assert probe.calls == [(b"1", b"2")]


def test_a_batch_from_the_backlog_has_no_bytes(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    local.server.pauses.pause(local.clock.now() + 1000, False)
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2))
    local.server.pauses.unpause()
    local.settle()
    assert probe.calls == [(b"1", b"2")]
    assert probe.pieces == [[]]


# -- stats -------------------------------------------------------------------------------------------------------
def stats(command: Command) -> tuple[int, int, int]:
    return command.calls, command.rejected, command.failed


@pytest.mark.usefixtures("reset_stats")
def test_stats_of_calls(local: LocalServer, one: Peer) -> None:
    good, wrong = local.declare("GOOD", say_ok, arity=1), local.declare("WRONG", fail)
    for words in (("GOOD",), ("GOOD",), ("GOOD", "x"), ("WRONG",), ("NOSUCH",)):
        one.ask(*words)
    assert stats(good) == (2, 1, 0)
    assert stats(wrong) == (1, 0, 1)
    assert good.usec > 0
    counters = local.server.counters
    assert counters.errors == {"ERR": 2, "WRONG": 1}
    assert counters.commands_processed == one.session.total_commands == 5


@pytest.mark.usefixtures("reset_stats")
def test_stats_of_calls_that_pass_all_checks(local: LocalServer, one: Peer) -> None:
    """The same where a closed gate makes the dispatcher check everything."""
    good, wrong = local.declare("GOOD", say_ok), local.declare("WRONG", fail)
    local.declare("WRITE", say_ok, "write")
    local.server.gates.role(readonly=True, stale=False)
    local.server.gates.memory(True)
    local.server.gates.hold(True)
    for words in (("GOOD",), ("GOOD",), ("WRONG",), ("WRITE",)):
        one.ask(*words)
    assert (stats(good), stats(wrong)) == ((2, 0, 0), (1, 0, 1))
    assert stats(TABLE[b"write"]) == (0, 1, 0)
    assert good.usec > 0
    assert local.server.counters.errors == {"WRONG": 1, "READONLY": 1}


@pytest.mark.usefixtures("reset_stats")
def test_stats_of_subcommands(local: LocalServer, one: Peer) -> None:
    one.ask("CLIENT", "ID")
    one.ask("CLIENT", "ID", "x")
    client = TABLE[b"client"]
    assert stats(client) == (0, 0, 0)
    assert stats(client.subcommands[b"id"]) == (1, 1, 0)


@pytest.mark.usefixtures("reset_stats")
def test_stats_of_a_transaction(local: LocalServer, one: Peer) -> None:
    good, wrong = local.declare("GOOD", say_ok), local.declare("WRONG", fail)
    one.pipeline(("MULTI",), ("GOOD",), ("WRONG",))
    assert (stats(good), stats(wrong)) == ((0, 0, 0), (0, 0, 0))
    one.ask("EXEC")
    assert (stats(good), stats(wrong)) == ((1, 0, 0), (1, 0, 1))
    assert stats(TABLE[b"exec"]) == (1, 0, 0)
    assert local.server.counters.errors == {"WRONG": 1}


def test_the_last_command_of_a_session(local: LocalServer, one: Peer) -> None:
    assert one.session.last_command == "NULL"
    one.ask("PING")
    assert one.session.last_command == "ping"
    one.pipeline(("GET", "k"), ("CLIENT", "ID"))
    assert one.session.last_command == "client|id"
    one.ask("NOSUCH")
    assert one.session.last_command == "client|id"
    one.ask("MULTI")
    one.ask("SET", "k", "v")
    assert one.session.last_command == "set", "a queued command counts"
    one.ask("MULTI")
    assert one.session.last_command == "multi", "one that fails, too"


def test_one_reading_of_the_clock_for_a_pipeline(local: LocalServer, one: Peer) -> None:
    seen: list[int] = []

    def look(ctx: Context, argv: list[bytes]) -> Reply:
        seen.append(ctx.now)
        local.clock.move(1)
        return OK

    local.declare("LOOK", look)
    now = local.clock.now()
    one.pipeline(("LOOK",), ("LOOK",))
    one.send("LOOK")
    assert seen == [now, now, now + 2]
    assert one.session.last_active == now + 2


# -- slow log, histograms, monitors ------------------------------------------------------------------------------
def slow_everything(local: LocalServer) -> None:
    local.server.config.slowlog_log_slower_than = 0
    local.server.timings.configure()


def slow_commands(local: LocalServer) -> list[list[bytes]]:
    return [entry[3] for entry in reversed(local.server.timings.slowlog.entries())]


def test_the_slow_log_gets_calls_without_passwords(local: LocalServer, one: Peer) -> None:
    one.session.name = b"me"
    slow_everything(local)
    one.pipeline(("GET", "k"), ("AUTH", "secret"), ("NOSUCH", "x"))
    assert slow_commands(local) == [[b"GET", b"k"], [b"AUTH", b"(redacted)"], [b"NOSUCH", b"x"]]
    (_, seconds, _, _, addr, name), *_ = local.server.timings.slowlog.entries()
    assert (seconds, addr, name) == (local.clock.now() // 1000, one.session.addr, "me")


def test_the_slow_log_of_a_transaction_has_its_commands_but_not_exec(local: LocalServer, one: Peer) -> None:
    one.pipeline(("MULTI",), ("GET", "k"), ("AUTH", "secret"))
    slow_everything(local)
    one.send("EXEC")
    assert slow_commands(local) == [[b"GET", b"k"], [b"AUTH", b"(redacted)"]]


def test_a_fast_call_is_not_in_the_slow_log(local: LocalServer, one: Peer) -> None:
    local.server.config.slowlog_log_slower_than = 60_000_000
    local.server.timings.configure()
    one.send("PING")
    assert slow_commands(local) == []


def test_histograms_if_they_are_wanted(local: LocalServer, one: Peer) -> None:
    timings = local.server.timings
    one.send("PING")
    assert timings.histograms == {}
    local.server.config.latency_tracking = True
    timings.configure()
    one.pipeline(("PING",), ("PING",), ("CLIENT", "ID"))
    assert {name: histogram.calls for name, histogram in timings.histograms.items()} == {"ping": 2, "client|id": 1}


def test_monitors_see_the_calls_that_ran(local: LocalServer, one: Peer) -> None:
    watcher = local.connect()
    watcher.ask("MONITOR")
    local.declare("WRONG", fail)
    one.pipeline(("SET", "k", "v"), ("NOSUCH",), ("WRONG",), ("AUTH", "secret"), ("CONFIG", "GET", "port"))
    local.settle()
    lines = watcher.taken().decode().splitlines()
    shown = [line.split("] ", 1)[1] for line in lines if line.startswith("+17")]
    assert shown == ['"SET" "k" "v"', '"WRONG"', '"AUTH" "(redacted)"']
    assert all(f"[0 {one.session.addr}]" in line for line in lines if line.startswith("+17"))


def test_monitors_see_a_transaction_when_it_runs(local: LocalServer, one: Peer) -> None:
    watcher = local.connect()
    assert watcher.ask("MONITOR") == OK
    one.pipeline(("MULTI",), ("SET", "k", "v"))
    local.settle()
    assert watcher.taken().count(b"\r\n") == 1
    one.ask("EXEC")
    shown = [line.split("] ", 1)[1] for line in watcher.taken().decode().splitlines()]
    assert shown == ['"SET" "k" "v"', '"EXEC"']


# -- where a pipeline stops --------------------------------------------------------------------------------------
def test_a_pipeline_stops_when_its_replies_are_large_enough(local: LocalServer, one: Peer) -> None:
    ran: list[bytes] = []

    def large(ctx: Context, argv: list[bytes]) -> Reply:
        ran.append(argv[1])
        return b"$%d\r\n%b\r\n" % (OUTPUT_AT_ONCE // 2, b"x" * (OUTPUT_AT_ONCE // 2))

    local.declare("LARGE", large)
    one.pipeline(*[("LARGE", n) for n in range(5)])
    assert ran == [b"0", b"1"]
    assert len(one.conn.backlog) == 3
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
    assert not one.conn.backlog
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
