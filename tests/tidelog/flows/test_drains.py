"""Drains that have nothing to wait for, and what is let go of when a flow has ended."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow, hangs
from tests.tidelog.flows.qoskit import OwnFeed, lab
from tidelog.flows import Event, Flow, op
from tidelog.flows.api.connector import DEFERRED, Deferred
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY
from tidelog.flows.operators.passthrough import PassthroughOperator
from tidelog.flows.operators.roundrobin import RoundrobinOperator, RoundrobinOptions
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate


class Unreachable(Taking):
    async def connect(self) -> None:
        raise ConnectionError("refused")


@pytest.mark.parametrize("line", [PassthroughOperator, lambda: RoundrobinOperator(RoundrobinOptions(outputs=["a"]))])
def test_a_drain_does_not_wait_for_a_sink_that_was_never_there(line: Callable[[], Operator]) -> None:
    async def story(loop: VirtualLoop) -> None:
        port = "a" if line is not PassthroughOperator else "out"
        running = flow(loop, {"in": Numbers(10), "out": Unreachable()}, {"p": [line()]}, "in p", f"p.{port} out")
        await running.start()
        await asyncio.sleep(60)
        report = await running.drain()
        assert report.seconds < 1
        assert report.complete

    simulate(story)


def test_a_drain_does_not_wait_for_a_paused_sink_that_has_nothing() -> None:
    async def story(loop: VirtualLoop) -> None:
        sink = Taking()
        running = flow(
            loop, {"in": Numbers(10, ends=False), "out": sink}, {"p": [PassthroughOperator()]}, "in p", "p out"
        )
        await running.start()
        await asyncio.sleep(1)
        await running.pause("out")
        await asyncio.sleep(1)
        report = await running.drain()
        assert report.seconds < 1
        assert report.complete

    simulate(story)


def test_a_drain_of_a_paused_flow_ends_when_the_last_event_is_given_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def slowly(events: list[Event]) -> list[int]:
            await asyncio.sleep(5)
            return [RETRY] * len(events)

        running = flow(loop, {"in": Numbers(1, ends=False, owns_policy=False), "out": Taking(slowly)}, {}, "in out")
        await running.start()
        await asyncio.sleep(1)
        await running.pause()
        report = await running.drain()
        assert report.seconds < 6
        assert report.abandoned == {"in": 1}

    simulate(story)


def test_a_pause_during_a_drain_ends_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def no(events: list[Event]) -> list[int]:
            return [RETRY] * len(events)

        options = {"in": {"on_error": {"retry": {"first": 20.0}}}}
        source = Numbers(1, ends=False, owns_policy=False)
        running = flow(loop, {"in": source, "out": Taking(no)}, {}, "in out", options=options)
        await running.start()
        await asyncio.sleep(1)
        draining = asyncio.ensure_future(running.drain())
        await asyncio.sleep(1)
        await running.pause()
        assert (await draining).seconds < 2

    simulate(story)


def test_a_drain_of_a_paused_source_does_not_wait_for_its_backlog() -> None:
    class Backlog(Numbers):
        backlog = 3

    async def story(loop: VirtualLoop) -> None:
        running = flow(loop, {"in": Backlog(10, ends=False), "out": Taking()}, {}, "in out")
        await running.pause()
        await running.start()
        await asyncio.sleep(1)
        assert (await running.drain()).seconds < 1

    simulate(story)


def test_a_drain_does_not_wait_for_a_source_that_has_failed() -> None:
    class Slow(Numbers):
        async def pull(self, limit: int) -> list[Event] | None:
            await asyncio.sleep(1)
            return await super().pull(limit)

    async def story(loop: VirtualLoop) -> None:
        source = Slow(10, ends=False)
        running = flow(loop, {"in": source, "out": Taking()}, {}, "in out", options={"in": {"reconnect": "none"}})
        await running.start()
        await asyncio.sleep(0.5)
        running.graph.connections["in"].lost(ConnectionError("gone"))
        await asyncio.sleep(5)
        report = await running.drain()
        assert report.seconds < 1
        assert report.abandoned == {"in": 10}

    simulate(story)


def test_what_a_batch_gives_back_in_a_drain_is_not_tried_again_for_ever() -> None:
    async def story(loop: VirtualLoop) -> None:
        from tidelog.flows.operators.batch import BatchOperator, BatchOperatorOptions

        source = Numbers(3, ends=False, owns_policy=False)
        batch = BatchOperator(BatchOperatorOptions(count=10, flush_on_drain=False))
        running = flow(loop, {"in": source, "out": Taking()}, {"p": [batch]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(1)
        report = await running.drain()
        assert report.seconds < 1
        assert report.abandoned == {"in": 3}

    simulate(story)


@pytest.mark.parametrize("retry", [False, True])
def test_a_batch_below_outputs_that_take_no_more_goes_on(retry: bool) -> None:
    """Roundrobin waits for what is under way, the batch waits for more."""

    async def story(loop: VirtualLoop) -> None:
        options: dict[str, Any] = {"outputs": ["a"], "most": 10}
        flow = Flow("f", debug=True)
        flow.connector("in", OwnFeed)
        flow.connector("out", Taking)
        flow.pipeline("deal", op("roundrobin", **options))
        if retry:
            flow.pipeline("gather", op("retry"), op("batch", 100))
        else:
            flow.pipeline("gather", op("batch", 100))
        flow.connect("in -> deal", "deal.a -> gather -> out")
        running = RunningFlow(flow.spec(), FlowContext("f", debug=True))
        await running.start()
        feed: Any = running.graph.connectors["in"]
        feed.feed(*range(25))
        await asyncio.sleep(60)
        assert {key for key, _ in feed.told} >= set(range(20))
        report = await running.drain()
        assert report.complete
        assert report.seconds < 20

    simulate(story)


def test_a_batch_below_backpressure_goes_on_in_a_drain() -> None:
    async def story(loop: VirtualLoop) -> None:
        steps = ["10s"]
        async with lab(op("backpressure", timeout="1000s", steps=steps), op("batch", 100), source=OwnFeed) as it:
            await it.connected()
            it.feed.feed(*range(50))
            await asyncio.sleep(1)
            it.sink("a").context.trigger("busy")  # begins a step
            await it.until(lambda: it.node.counts.get("steps"))
            it.sink("a").context.restore("busy")
            it.feed.feed(*range(50))
            await asyncio.sleep(30)
            report = await it.running.drain()
            assert report.complete

    simulate(story)


# -- what is let go of -----------------------------------------------------------------------------------------
class Holding(Taking):
    async def write(self, events: list[Event]) -> Deferred:
        return DEFERRED


@pytest.mark.parametrize(
    "line",
    [
        [],
        [op("batch", 3)],
        [op("batch", 1000)],
        [op("window", count=1000, aggregates={"n": "count"})],
        [op("window", time="1h", key="@", aggregates={"n": "count"})],
        [op("delay", "1h")],
        [op("backpressure", "1h")],
        [op("percentile", "1h")],
        [op("retry"), op("batch", 2)],
        [op("ratelimit", 1, per="1h")],
        [op("python", call=hangs)],
        [op("python", call=hangs, concurrency=5)],
    ],
    ids=lambda line: "-".join(each.type for each in line) or "none",
)
@pytest.mark.parametrize("write", [None, hangs, "later"])
def test_a_flow_that_was_stopped_with_unsettled_events_is_collected(line: list[Any], write: Any) -> None:
    class Value:
        pass

    async def story(loop: VirtualLoop) -> None:
        def begin() -> RunningFlow:
            made = Flow("f", queue=1)
            made.connector("in", lambda_source)
            sinks = {None: Taking, "later": Holding}
            made.connector("out", sinks.get(write, Hangs))
            made.pipeline("p", *line)
            made.connect("in -> p -> out")
            return RunningFlow(made.spec(), FlowContext("f"))

        class lambda_source(Numbers):  # noqa: N801
            def __init__(self) -> None:
                super().__init__(3000, ends=False, owns_policy=False)

        class Hangs(Taking):
            def __init__(self) -> None:
                super().__init__(hangs)

        running = begin()
        await running.start()
        await asyncio.sleep(10)
        await running.stop()
        left = [weakref.ref(each) for each in running.graph.nodes]
        names = [each.name for each in running.graph.nodes]
        del running
        await asyncio.sleep(10_000)  # timers end
        gc.collect()
        assert [name for name, each in zip(names, left, strict=True) if each() is not None] == []

    simulate(story)
