"""Batches: calls of one command that arrive together are handled together."""

from __future__ import annotations

import pytest

from commands.context import Context, Reply
from commands.declare import Command
from respserver.execution.dispatch import BATCH_AT_ONCE
from tests.respserver.local import LocalServer, Peer
from tests.respserver.probes import out_of_memory


class Probe:
    """A command with a batch handler. ``calls``: the arguments of each call; a batch is one tuple of several."""

    def __init__(self, local: LocalServer, name: str = "PROBE", flags: str = "write") -> None:
        self.calls: list[tuple[bytes, ...]] = []
        self.answers = 1 << 62  # of how many calls of a batch
        self.command: Command = local.declare(name, self.handle, flags)
        self.command.batch = self.handle_batch

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        self.calls.append((argv[-1],))
        return b"+%b\r\n" % argv[-1]

    def handle_batch(self, ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
        if not self.answers:
            return None
        taken = calls[: self.answers]
        self.calls.append(tuple(argv[-1] for argv in taken))
        return [b"+%b\r\n" % argv[-1] for argv in taken]


def replies(*values: int) -> bytes:
    return b"".join([b"+%d\r\n" % value for value in values])


def test_calls_that_arrive_together_are_one_batch(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(*[("PROBE", "k", n) for n in range(4)])
    local.settle()
    assert probe.calls == [(b"0", b"1", b"2", b"3")]
    assert one.taken() == replies(0, 1, 2, 3)
    assert (probe.command.calls, one.session.total_commands) == (4, 4)
    assert local.server.counters.traffic.commands == 4


def test_a_batch_after_other_commands(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(("PING",), ("PROBE", "k", 1), ("PROBE", "k", 2), ("PING",))
    local.settle()
    assert probe.calls == [(b"1", b"2")]


def test_a_single_call_is_no_batch(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    one.pipeline(("PROBE", "k", 1), ("PING",), ("PROBE", "k", 2))
    local.settle()
    assert probe.calls == [(b"1",), (b"2",)]


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
    out_of_memory(local)
    one.pipeline(("PROBE", "k", 3), ("PROBE", "k", 4))
    local.settle()
    assert probe.calls == [(b"1",), (b"2",), (b"3",), (b"4",)]


def test_batches_of_reads_where_only_writes_are_refused(local: LocalServer, one: Peer) -> None:
    probe = Probe(local, flags="readonly")
    local.server.gates.role(readonly=True, stale=False)
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2))
    local.settle()
    assert probe.calls == [(b"1", b"2")]


def test_a_batch_from_the_backlog(local: LocalServer, one: Peer) -> None:
    probe = Probe(local)
    local.server.pauses.pause(1000, False)
    one.pipeline(("PROBE", "k", 1), ("PROBE", "k", 2))
    local.server.pauses.unpause()
    local.settle()
    assert probe.calls == [(b"1", b"2")]
