"""Stats of commands, the slow log, histograms and MONITOR, as the dispatcher feeds them."""

from __future__ import annotations

import pytest

from commands.context import Context, Reply
from commands.declare import TABLE, Command
from tests.respserver.local import LocalServer, Peer
from tests.respserver.probes import (
    BUG,
    OK,
    fail,
    out_of_memory,
    say_ok,
)


@pytest.fixture
def reset_stats() -> None:
    """The stats of commands belong to the process: begin at zero."""
    for command in set(TABLE.values()):
        for each in (command, *command.subcommands.values()):
            each.calls = each.usec = each.rejected = each.failed = 0


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
    assert counters.traffic.commands == one.session.total_commands == 5


@pytest.mark.usefixtures("reset_stats")
def test_stats_of_calls_that_pass_all_checks(local: LocalServer, one: Peer) -> None:
    """The same where a closed gate makes the dispatcher check everything."""
    good, wrong = local.declare("GOOD", say_ok), local.declare("WRONG", fail)
    local.declare("WRITE", say_ok, "write")
    local.server.gates.role(readonly=True, stale=False)
    out_of_memory(local)
    local.server.gates.hold(True)
    for words in (("GOOD",), ("GOOD",), ("WRONG",), ("WRITE",)):
        one.ask(*words)
    assert (stats(good), stats(wrong)) == ((2, 0, 0), (1, 0, 1))
    assert stats(TABLE[b"write"]) == (0, 1, 0)
    assert good.usec > 0
    assert local.server.counters.errors == {"WRONG": 1, "READONLY": 1}


def crash(ctx: Context, argv: list[bytes]) -> Reply:
    raise RuntimeError("the test says so")


@pytest.mark.usefixtures("reset_stats")
def test_a_handler_that_crashes_has_failed(local: LocalServer, one: Peer) -> None:
    broken = local.declare("CRASH", crash)
    assert one.ask("CRASH") == BUG
    assert stats(broken) == (1, 0, 1)
    watcher = local.connect()
    watcher.ask("MONITOR")  # closes a gate: the way with all checks
    assert one.ask("CRASH") == BUG
    assert stats(broken) == (2, 0, 2)
    one.pipeline(("MULTI",), ("CRASH",), ("EXEC",))
    assert stats(broken) == (3, 0, 3)
    assert local.server.counters.errors == {"ERR": 3}


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
    one.pipeline(("GET", "k"), ("AUTH", "secret"), ("GETRANGE", "k", "x", "y"), ("AUHT", "secret"))
    assert slow_commands(local) == [
        [b"GET", b"k"], [b"AUTH", b"(redacted)"], [b"GETRANGE", b"k", b"x", b"y"], [b"AUHT", b"(redacted)"],
    ]  # fmt: skip
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
