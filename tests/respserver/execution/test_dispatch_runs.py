"""Runs: calls of one brief command that arrive together are timed as one; each is called, answered and counted."""

from __future__ import annotations

import pytest

from commands.context import Chunks, Context, Reply
from commands.declare import Command
from resp import reply
from resp.errors import CommandError
from respserver.execution.dispatch import BRIEF_AT_ONCE, BRIEF_BYTES, SOON
from tests.respserver.local import LocalServer, Peer


class Brief:
    """A brief command: ``BRIEF word``. What it does depends on the word."""

    def __init__(self, local: LocalServer) -> None:
        self.command: Command = local.declare("BRIEF", self.handle, "fast")
        self.words: list[bytes] = []
        self.queued: list[int] = []  # replies that the connection had when a call ran
        self._local = local
        self.batches = 0

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        self.words.append(argv[1])
        word = argv[1]
        if word == b"wrong":
            raise CommandError("WRONG it is")
        if word == b"bug":
            raise ValueError("a bug")
        if word == b"long":
            return b"+%b\r\n" % bytes(BRIEF_BYTES)
        if word == b"streamed":
            return Chunks(iter([b"+stre", b"amed\r\n"]), lambda: None)
        if word == b"news":
            ctx.ks.ready.append(b"nobody waits for it")
        if word == b"last":
            ctx.session.close_after_reply = True
        return b"+%b\r\n" % word

    def decline(self, ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
        self.batches += 1
        return None

    def refuse(self, ctx: Context, calls: list[list[bytes]]) -> list[bytes] | None:
        self.batches += 1
        raise CommandError("WRONG batch")


def send(local: LocalServer, peer: Peer, *words: str) -> list[bytes]:
    peer.pipeline(*[("BRIEF", word) for word in words])
    local.settle()
    return peer.taken().split(b"\r\n")[:-1]


def test_each_call_is_answered_in_order_and_counted(local: LocalServer, one: Peer) -> None:
    brief = Brief(local)
    assert send(local, one, "a", "b", "c") == [b"+a", b"+b", b"+c"]
    assert (brief.command.calls, brief.command.failed, one.session.total_commands) == (3, 0, 3)
    assert brief.command.usec > 0
    assert one.session.last_command == "brief"


def test_errors_within_a_run(local: LocalServer, one: Peer) -> None:
    brief = Brief(local)
    found = send(local, one, "a", "wrong", "b", "bug", "c")
    assert [line[:6] for line in found] == [b"+a", b"-WRONG", b"+b", b"-ERR i", b"+c"]
    assert (brief.command.calls, brief.command.failed) == (5, 2)
    assert local.server.counters.error_replies == 2


@pytest.mark.parametrize("word", ["long", "streamed", "news"])
def test_what_ends_a_run_is_in_order_with_what_follows(local: LocalServer, one: Peer, word: str) -> None:
    brief = Brief(local)
    found = send(local, one, "a", word, "b", "c")
    between = bytes(1) if word == "long" else word.encode()[:1]
    assert [line[:2] for line in found] == [b"+a", b"+" + between, b"+b", b"+c"]
    assert brief.command.calls == 4


def test_nothing_runs_after_a_call_that_closes(local: LocalServer, one: Peer) -> None:
    brief = Brief(local)
    assert send(local, one, "a", "last", "b") == [b"+a", b"+last"]
    assert brief.words == [b"a", b"last"]


def test_other_lengths_and_names_between(local: LocalServer, one: Peer) -> None:
    Brief(local)
    one.pipeline(("BRIEF", "a"), ("BRIEF", "b"), ("BRIEF",), ("PING",), ("PING",), ("brief", "c"), ("BRIEF", "d"))
    local.settle()
    lines = one.taken().split(b"\r\n")[:-1]
    assert [line[:4] for line in lines] == [b"+a", b"+b", b"-ERR", b"+PON", b"+PON", b"+c", b"+d"]


def test_long_pipelines(local: LocalServer, one: Peer) -> None:
    brief = Brief(local)
    words = [str(n) for n in range(2 * BRIEF_AT_ONCE + 7)]
    assert send(local, one, *words) == [b"+%d" % n for n in range(len(words))]
    assert brief.command.calls == len(words)


def test_no_run_where_each_call_is_timed(local: LocalServer, one: Peer) -> None:
    Brief(local)
    config, timings = local.server.config, local.server.timings
    config.slowlog_log_slower_than = 0
    timings.configure()
    send(local, one, "a", "b", "c")
    assert [entry[3][1] for entry in timings.slowlog.entries()] == [b"c", b"b", b"a"]
    config.slowlog_log_slower_than = -1
    config.latency_tracking = True
    timings.configure()
    send(local, one, "a", "b", "c")
    assert timings.histograms["brief"].calls == 3


def test_a_transaction_that_begins_in_a_pipeline_of_its_like(local: LocalServer, one: Peer) -> None:
    one.pipeline(("MULTI",), ("MULTI",), ("GET", "k"), ("GET", "k"), ("EXEC",))
    local.settle()
    assert one.taken().split(b"\r\n")[0] == b"+OK"
    assert not one.session.multi


@pytest.mark.parametrize("how", ["decline", "refuse"])
def test_a_batch_that_is_no_batch_is_not_looked_for_at_each_call(local: LocalServer, one: Peer, how: str) -> None:
    brief = Brief(local)
    brief.command.batch = getattr(brief, how)
    found = send(local, one, *["same"] * 1000)
    assert len(found) == 1000
    assert brief.command.calls == 1000
    assert 1 < brief.batches < 40


# -- when replies leave --------------------------------------------------------------------------------------------
def test_replies_to_reads_leave_when_all_were_read(local: LocalServer, one: Peer) -> None:
    two = local.connect()
    one.send("PING")
    two.send("PING")
    assert (one.taken(), two.taken()) == (b"", b"")
    local.turn()
    assert (one.taken(), two.taken()) == (b"+PONG\r\n", b"+PONG\r\n")


def test_a_large_reply_leaves_at_once_unless_something_is_not_durable(local: LocalServer, one: Peer) -> None:
    value = b"x" * (SOON + 1)
    one.ask("SET", "k", value)
    local.connect().send("PING")
    one.send("GET", "k")
    assert one.taken() == reply.bulk(value)
    local.settle()
    local.connect().send("SET", "other", "x")
    one.send("GET", "k")
    assert one.taken() == b""
    local.settle()
    assert one.taken() == reply.bulk(value)
