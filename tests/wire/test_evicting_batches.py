"""Pipelines of calls that add and evict: replies, state, log and events are those of the same calls one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from respserver.testing import HandClock, RunningServer, start_in_thread
from storage.model import records
from storage.streams.stream import Stream
from tests.wire.rawclient import Raw

NOW = 1_700_000_000_000
Call = tuple[Any, ...]


class Twins:
    """Two servers whose clocks stand still: one gets pipelines, the other one calls."""

    def __init__(self, servers: list[RunningServer]) -> None:
        self.servers = servers
        self.batched, self.single = [Raw(server.port) for server in servers]

    def each(self) -> tuple[Raw, Raw]:
        return self.batched, self.single

    def start_again(self, node: int, base: int) -> None:
        for c in self.each():
            assert c("FLUSHALL") == b"OK"
            assert c("CONFIG", "SET", "stream-node-max-entries", node, "notify-keyspace-events", "") == b"OK"
            for n in range(base):
                c("TAPPEND", "s", "n", n)
        for server in self.servers:
            server.advance(1)

    def now(self) -> int:
        return self.servers[0].server.clock.now()

    def state(self, c: Raw) -> list[Any]:
        return [c("DEBUG", "DIGEST"), c("TRANGE", "s", "-", "+"), c("TLEN", "s"), c("XINFO", "STREAM", "s")]


@pytest.fixture(scope="module")
def twins() -> Iterator[Twins]:
    with ExitStack() as stack:
        started = [stack.enter_context(start_in_thread(clock=HandClock(), enable_debug_command="yes")) for _ in "ab"]
        made = Twins(started)
        for c in made.each():
            stack.callback(c.close)
        yield made


# a threshold of MINID: how far from the first ID that the pipeline gives, or milliseconds back from it
FROM_FIRST = st.integers(-6, 12)
STRATEGIES = st.one_of(
    st.tuples(st.sampled_from(["TAPPEV"]), st.sampled_from(["COUNT", "count"]), st.integers(0, 25)),
    st.tuples(st.sampled_from(["TAPPEV"]), st.sampled_from(["TIME"]), st.sampled_from([0, 1, 2, 3, 1000])),
    st.tuples(st.sampled_from(["TAPPEV"]), st.sampled_from(["MINID"]), FROM_FIRST.map(lambda n: ("from", n))),
    st.tuples(st.sampled_from(["XADD"]), st.sampled_from([("MAXLEN",), ("MAXLEN", "="), ("maxlen", "~")]),
              st.integers(0, 25)),
    st.tuples(st.sampled_from(["XADD"]), st.sampled_from([("MINID",), ("MINID", "="), ("MINID", "~")]),
              FROM_FIRST.map(lambda n: ("from", n))),
)  # fmt: skip
WHOLE = st.one_of(
    st.tuples(STRATEGIES, st.integers(1, 20)),
    st.sampled_from([
        ("TAPPEND", "s", "f", "v"), ("XADD", "s", "*", "f", "v"), ("TAPPEV", "s", "COUNT", 3), ("TAPPEV", "s", "COUNT"),
        ("TAPPEV", "s", "COUNT", "x", "f", "v"), ("XADD", "s", "MAXLEN", "-1", "*", "f", "v"), ("DEL", "s"),
        ("XADD", "s", "MAXLEN", "~", 5, "LIMIT", 2, "*", "f", "v"), ("XADD", "s", "MAXLEN", 3, "1-1", "f", "v"),
        ("XTRIM", "s", "MAXLEN", "~", 4), ("SET", "s", "v"), ("XADD", "s", "NOMKSTREAM", "MAXLEN", "5", "*", "f", "v"),
        ("NOSUCH",), ("DEL2", 4), ("DEL2", 7),
    ]),
)  # fmt: skip


def calls_of(program: list[Any], now: int, seq: int) -> list[Call]:
    """``seq``: how many entries the last millisecond has."""
    calls: list[Call] = []
    for step in program:
        if not isinstance(step[0], tuple):
            calls.append(("XDEL", "s", f"{now - 1}-{step[1]}") if step[0] == "DEL2" else step)
            continue
        (command, how, kept), times = step
        if isinstance(kept, tuple):
            at = kept[1]
            kept = f"{now}-{at}" if at >= 0 else f"{now - 1}-{max(0, seq + at)}"
        words = how if isinstance(how, tuple) else (how,)
        star = ("*",) if command == "XADD" else ()
        calls += [(command, "s", *words, kept, *star, "n", n) for n in range(times)]
    return calls


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    node=st.sampled_from([1, 4, 512]), base=st.integers(0, 12), program=st.lists(WHOLE, max_size=6),
    events=st.booleans(),
)  # fmt: skip
@example(node=4, base=9, program=[(("XADD", ("MINID", "~"), ("from", 5)), 12)], events=False)
@example(node=4, base=9, program=[(("TAPPEV", "COUNT", 3), 12), (("TAPPEV", "COUNT", 0), 5)], events=True)
@example(node=1, base=0, program=[(("XADD", ("MAXLEN", "~"), 2), 120)], events=False)
def test_a_pipeline_does_what_single_calls_do(
    twins: Twins, node: int, base: int, program: list[Any], events: bool
) -> None:
    twins.start_again(node, base)
    batched, single = twins.each()
    calls = calls_of(program, twins.now(), base)
    heard = [Raw(server.port) for server in twins.servers] if events else []
    for c, listener in zip(twins.each(), heard, strict=False):
        c("CONFIG", "SET", "notify-keyspace-events", "KEA")
        listener("PSUBSCRIBE", "__keyevent*")
    assert (batched.pipeline(*calls) if calls else []) == [single(*call) for call in calls]
    told: list[list[Any]] = []
    for c, listener in zip(twins.each(), heard, strict=False):
        c("PUBLISH", "__keyevent_end", "end")
        told.append([])
        while (message := listener.read())[-1] != b"end":
            told[-1].append(message)
        listener.close()
    assert told[:1] == told[1:]
    before = twins.state(batched)
    assert before == twins.state(single)
    length = before[2] if isinstance(before[2], int) else 0
    # where nodes end decides what ~ evicts
    assert len({c("XTRIM", "s", "MAXLEN", "~", length // 2) for c in twins.each()}) == 1
    before = twins.state(batched)
    assert before == twins.state(single)
    assert batched("DEBUG", "LOADAOF") == b"OK"
    assert twins.state(batched)[:3] == before[:3]


def changes(c: Raw) -> int:
    (line,) = [line for line in c("INFO", "persistence").split() if line.startswith(b"rdb_changes_since_last_save:")]
    return int(line.partition(b":")[2])


@pytest.mark.parametrize(
    "words",
    [
        ("TAPPEV", "s", "COUNT", 3), ("TAPPEV", "s", "TIME", 1), ("TAPPEV", "s", "MINID", NOW),
        ("XADD", "s", "MAXLEN", 3, "*"), ("XADD", "s", "MAXLEN", "~", 3, "*"), ("XADD", "s", "MINID", NOW, "*"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)  # fmt: skip
def test_one_eviction_is_logged(c: Raw, hand: RunningServer, words: Call) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 2)
    for n in range(5):
        c("TAPPEND", "s", "n", n)
    hand.advance(100)
    stream = hand.call(lambda: hand.server.data.ks.keys[b"s"])
    assert isinstance(stream, Stream)
    before, logged = changes(c), hand.server.data.disk.offset
    c.pipeline(*[("TAPPEND", "t", "n", n) for n in range(10)])
    appends, logged = hand.server.data.disk.offset - logged, hand.server.data.disk.offset
    replies = c.pipeline(*[(*words, "n", n) for n in range(10)])
    assert [reply.replace(b"-", b".") for reply in replies] == [b"%d.%d" % (NOW + 100, n) for n in range(10)]
    eviction = len(records.evict(b"s", stream.first_ord, stream.evicted_to)) if words[2] != "MINID" else 0
    assert hand.server.data.disk.offset - logged == appends + eviction
    assert changes(c) - before == 20


CHANGES: dict[str, list[Call]] = {
    "an append that evicts": [("XADD", "s", "MAXLEN", 4, "*", "n", 1)],
    "several": [("XADD", "s", "MAXLEN", 4, "*", "n", 1)] * 5,
    "other forms": [("XADD", "s", "MAXLEN", "=", 2, "2-*", "n", 1), ("XADD", "s", "MINID", 10**15, "*", "n", 1)],
    "an eviction alone": [("XTRIM", "s", "MAXLEN", 3)],
    "none": [("XTRIM", "s", "MAXLEN", 100)],
    "deletions": [("XDEL", "s", "1-1", "1-3", "1-3", "9-9")],
}


@pytest.mark.parametrize("what", CHANGES)
def test_changes_are_counted_as_redis_does(c: Raw, redis_server: Any, what: str) -> None:
    counted = []
    theirs = Raw(redis_server.port)
    for client in (c, theirs):
        client("FLUSHALL")
        client.pipeline(*[("XADD", "s", f"1-{n}", "n", n) for n in range(1, 9)])
        before = changes(client)
        client.pipeline(*CHANGES[what])
        counted.append(changes(client) - before)
    theirs.close()
    assert counted[0] == counted[1]


def test_each_append_has_its_reader(c: Raw, connect: Callable[..., Raw]) -> None:  # [18]
    """A reader that waits is served by the first call, before a later one evicts what it was to get."""
    waits = connect()
    waits.send("TREAD", "s", 0, 10, "BLOCK", 0)
    while c("INFO", "clients").count(b"blocked_clients:1") != 1:
        pass
    first, *_ = c.pipeline(*[("TAPPEV", "s", "COUNT", 1, "n", n) for n in range(5)])
    assert waits.read() == [[first, b"n", b"0"]]
    waits.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    while c("INFO", "clients").count(b"blocked_clients:1") != 1:
        pass
    first, *_ = c.pipeline(*[("XADD", "s", "MAXLEN", 1, "*", "n", n) for n in range(5)])
    assert waits.read() == [[b"s", [[first, [b"n", b"0"]]]]]


@pytest.mark.parametrize("words", [("TAPPEV", "s", "COUNT", 3), ("XADD", "s", "MAXLEN", 3, "*")], ids=lambda w: w[0])
def test_without_memory_a_batch_is_refused(c: Raw, words: Call) -> None:
    c.pipeline(*[(*words, "n", n) for n in range(5)])
    c("CONFIG", "SET", "maxmemory", 1)
    assert all(reply.startswith("OOM ") for reply in c.pipeline(*[(*words, "n", n) for n in range(5)]))
    if words[0] == "TAPPEV":
        assert c.pipeline(("TAPPEV", "s", "COUNT", 2), ("TAPPEV", "s", "COUNT", 1)) == [1, 1]
