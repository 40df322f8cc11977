"""``roundrobin`` in flows of other shapes: one behind another, two outputs to one sink, several sources."""

from __future__ import annotations

import random

from tests.tidelog.flows.qoskit import Feed, Lab, Target, on_seeds
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.declare import Flow, op
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop


def made(flow: Flow) -> Lab:
    return Lab(RunningFlow(flow.spec(), FlowContext("f", None, debug=True, random=random.Random(1))))


def test_outputs_that_lead_to_the_same_sink_wait_for_it_both() -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f", debug=True)
        flow.connector("in", Feed)
        flow.connector("a", Target)
        flow.pipeline("line", op("roundrobin", ["x", "y"]))
        flow.pipeline("same")
        flow.connect("in -> line", "line.x -> same", "line.y -> same", "same -> a")
        it = made(flow)
        it.sink("a").up = False
        await it.running.start()
        it.feed.feed(*range(10))
        for _ in range(3):
            await it.until(lambda: it.running.graph.connections["a"].error)
            assert it.reasons == {"starting:line.0"}
            assert not it.feed.pulled
        it.sink("a").up = True
        await it.until(lambda: len(it.feed.told) == 10)
        assert sorted(it.sink("a").values) == list(range(10))
        it.sink("a").down()
        await it.until(lambda: it.reasons == {"roundrobin:line.0"})
        await it.running.stop()

    on_seeds(story)


def test_one_behind_another() -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f", debug=True)
        flow.connector("in", Feed)
        for name in "abc":
            flow.connector(name, Target)
        flow.pipeline("line", op("roundrobin", ["one", "two"]))
        flow.pipeline("behind", op("roundrobin", ["a", "b"]))
        flow.connect("in -> line", "line.one -> behind", "line.two -> c", "behind.a -> a", "behind.b -> b")
        it = made(flow)
        for name in "abc":
            it.sink(name).up = False
        await it.running.start()
        assert it.reasons == {"starting:line.0"}
        it.sink("b").up = True
        await it.connected()
        it.feed.feed(*range(4))
        await it.until(lambda: len(it.feed.told) == 4)
        assert it.sink("b").values == list(range(4))
        it.sink("b").down()
        await it.until(lambda: it.reasons == {"roundrobin:line.0"})
        it.sink("c").up = True
        await it.until(lambda: not it.reasons)
        it.feed.feed(*range(4))
        await it.until(lambda: len(it.feed.told) == 8)
        assert it.sink("c").values == list(range(4))
        await it.running.stop()

    on_seeds(story)


def test_all_sources_above_hear_of_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f", debug=True)
        for name in ("in", "other"):
            flow.connector(name, Feed)
        flow.connector("a", Target)
        flow.pipeline("line", op("roundrobin", ["a"]))
        flow.connect("in -> line", "other -> line", "line.a -> a")
        it = made(flow)
        await it.running.start()
        await it.connected()
        sources = it.running.graph.sources.values()
        it.sink("a").down()
        await it.until(lambda: all("roundrobin:line.0" in each.breaker for each in sources))
        it.sink("a").up = True
        await it.until(lambda: not any(each.breaker for each in sources))
        await it.running.stop()

    on_seeds(story)
