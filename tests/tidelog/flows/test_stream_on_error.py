"""``on_error`` of a ``stream`` with a group, on a real server: what each final action leaves there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.client.steps import run
from tidelog.flows import Flow
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.testing import Server
from tidelog.topics import deadletters

DEAD = "flow.orders.dead"


class Failing:
    """A sink that fails for the event 1 until it is repaired. ``seen``: (n, attempt) of each call."""

    def __init__(self, error: type[Exception] = OSError) -> None:
        self.broken = True
        self.seen: list[tuple[str, int]] = []
        self._error = error

    async def __call__(self, event: Event) -> None:
        self.seen.append((event.value["n"], event.attempt))
        if self.broken and event.value["n"] == "1":
            raise self._error("broken")


def flow_of(server: Server, sink: Any, action: str, attempts: int = 2, **options: Any) -> Flow:
    async def take(event: Event) -> None:
        await sink(event)

    flow = Flow("orders", server=server.url)
    on_error = [{"retry": {"attempts": attempts, "first": "10ms", "jitter": 0}}, action]
    flow.connector("in", "stream", **{"key": "orders", "group": "shop", "on_error": on_error, **options})
    flow.connector("out", take)
    flow.connect("in -> out")
    return flow


@asynccontextmanager
async def failing(flow: Flow) -> AsyncIterator[RunningFlow]:
    """The flow, which may fail."""
    made = RunningFlow(flow.spec(), FlowContext(flow.name, server=flow.server, debug=True))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def append(client: Client, *numbers: int, key: str = "orders") -> None:
    client.tmappend(key, ["n"], [[str(number)] for number in numbers])


def pending(client: Client, key: str = "orders") -> list[str]:
    """The n of each pending entry."""
    there = client.tpending_range(key, "shop")
    return [client.trange(key, each.id, each.id)[0].text()["n"] for each in there]


def letters(client: Client) -> list[deadletters.DeadLetterRecord]:
    entries, _ = run(client, deadletters.page(DEAD))
    return [deadletters.read(entry) for entry in entries]


@in_loop
async def test_retry_delivers_again_and_a_success_ends_it(tidelog_server: Server, client: Client) -> None:
    sink = Failing()
    append(client, 0, 1, 2)
    async with running(flow_of(tidelog_server, sink, "dead_letter", attempts=50)) as made:
        await until(lambda: ("1", 4) in sink.seen)
        assert pending(client) == ["1"]
        sink.broken = False
        await until(lambda: client.tpending("orders", "shop").count == 0)
        source = made.graph.sources["in"]
        await until(lambda: not source.unsettled)
        assert source.counts.get("dead", 0) == 0
    attempts = [attempt for n, attempt in sink.seen if n == "1"]
    assert attempts == list(range(1, len(attempts) + 1))
    assert [each for each in sink.seen if each[0] != "1"] == [("0", 1), ("2", 1)]
    assert not client.redis.exists(f"{DEAD}:0")


@in_loop
async def test_dead_letter_stores_the_entry_and_acknowledges_it(tidelog_server: Server, client: Client) -> None:
    sink = Failing()
    append(client, 0, 1, 2)
    async with running(flow_of(tidelog_server, sink, "dead_letter")) as made:
        await until(lambda: made.graph.sources["in"].counts.get("dead") == 1)
        assert pending(client) == []
    (letter,) = letters(client)
    assert (letter.entry.text(), letter.attempts, letter.stream) == ({"n": "1"}, 3, "orders")


@pytest.mark.parametrize(("error", "attempts"), [(OSError, [1, 2, 3]), (RejectError, [1])])
@in_loop
async def test_skip_acknowledges_without_a_dead_letter(
    tidelog_server: Server, client: Client, error: type[Exception], attempts: list[int]
) -> None:
    sink = Failing(error)
    append(client, 0, 1, 2)
    async with running(flow_of(tidelog_server, sink, "skip")) as made:
        counts = made.graph.sources["in"].counts
        await until(lambda: counts.get("skipped") == 1)
        await until(lambda: not made.graph.sources["in"].unsettled)
        assert pending(client) == []
        assert counts.get("dead", 0) == 0
        append(client, 3)
        await until(lambda: ("3", 1) in sink.seen)
    assert [attempt for n, attempt in sink.seen if n == "1"] == attempts
    assert not client.redis.exists(f"{DEAD}:0")


@in_loop
async def test_skip_is_of_what_ends_its_process_too(tidelog_server: Server, client: Client) -> None:
    sink = Failing()
    append(client, 1)
    for _ in range(4):  # readers that die with it
        assert client.tread("orders", "0", 10, group="shop", retry=1)
        await asyncio.sleep(0.01)
    async with running(flow_of(tidelog_server, sink, "skip")) as made:
        await until(lambda: made.graph.sources["in"].counts.get("skipped") == 1)
        assert pending(client) == []
    assert sink.seen == []
    assert not client.redis.exists(f"{DEAD}:0")


@pytest.mark.parametrize(("error", "attempts"), [(OSError, 3), (RejectError, 1)])
@in_loop
async def test_pause_returns_the_entry_until_the_source_is_resumed(
    tidelog_server: Server, client: Client, error: type[Exception], attempts: int
) -> None:
    sink = Failing(error)
    append(client, 1)
    async with running(flow_of(tidelog_server, sink, "pause", retry="1h")) as made:
        source = made.graph.sources["in"]
        await until(lambda: [each.reason for each in source.reasons()] == ["paused:in"])
        await until(lambda: not source.unsettled)
        (there,) = client.tpending_range("orders", "shop")
        assert (there.deliveries, there.due <= time.time() * 1000) == (attempts, True)  # any reader gets it now
        append(client, 2)
        await asyncio.sleep(0.2)
        assert [attempt for _, attempt in sink.seen] == list(range(1, attempts + 1))  # and this one reads nothing
        sink.broken = False
        await made.resume("in")
        await until(lambda: ("2", 1) in sink.seen)
        await until(lambda: client.tpending("orders", "shop").count == 0)
    assert sink.seen[-2:] == [("1", attempts + 1), ("2", 1)]
    assert not client.redis.exists(f"{DEAD}:0")


@in_loop
async def test_pause_again_if_it_is_resumed_too_early(tidelog_server: Server, client: Client) -> None:
    """It is delivered more often than there are attempts, and is not taken for one that ends its process."""
    sink = Failing()
    append(client, 1)
    async with running(flow_of(tidelog_server, sink, "pause", attempts=1)) as made:
        source = made.graph.sources["in"]
        for attempt in (2, 3, 4):
            await until(lambda attempt=attempt: ("1", attempt) in sink.seen)  # type: ignore[misc]
            await until(lambda: source.reasons() and not source.unsettled)
            await made.resume("in")
        await until(lambda: ("1", 5) in sink.seen)
        await until(lambda: source.reasons() and not source.unsettled)
        assert pending(client) == ["1"]


@pytest.mark.parametrize(("error", "attempts"), [(OSError, 3), (RejectError, 1)])
@in_loop
async def test_halt_ends_the_flow_and_leaves_the_entry_to_the_next(
    tidelog_server: Server, client: Client, error: type[Exception], attempts: int
) -> None:
    sink = Failing(error)
    append(client, 1)
    async with failing(flow_of(tidelog_server, sink, "halt", retry="10m")) as made:
        await until(lambda: made.status == "failed")
        assert "on_error: halt" in str(made.error)
    assert [attempt for _, attempt in sink.seen] == list(range(1, attempts + 1))
    assert pending(client) == ["1"]
    sink.broken = False
    async with running(flow_of(tidelog_server, sink, "halt", retry="10m")):  # at once, not after its retry time
        await until(lambda: client.tpending("orders", "shop").count == 0)
    n, attempt = sink.seen[-1]
    assert (n, attempt > attempts) == ("1", True)  # the source that was halted may have read it once more
    assert not client.redis.exists(f"{DEAD}:0")


@in_loop
async def test_several_streams_keep_their_failures_apart(tidelog_server: Server, client: Client) -> None:
    """One source of two streams: what fails in one is counted, and given up, there."""
    sink = Failing()
    append(client, 0, 1, key="a")
    append(client, 1, 2, key="b")
    async with running(flow_of(tidelog_server, sink, "dead_letter", key=["a", "b"])) as made:
        await until(lambda: made.graph.sources["in"].counts.get("dead") == 2)
        assert pending(client, "a") == pending(client, "b") == []
    assert sorted((each.stream, each.attempts) for each in letters(client)) == [("a", 3), ("b", 3)]
    assert sorted(sink.seen) == [("0", 1), ("1", 1), ("1", 1), ("1", 2), ("1", 2), ("1", 3), ("1", 3), ("2", 1)]
