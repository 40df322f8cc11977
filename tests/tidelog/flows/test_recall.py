"""What an output has not begun when it leaves the rotation goes to the others: ``roundrobin`` and ``fallback``."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import GONE, Lab, OwnFeed, Target, down, lab, on_seeds
from tidelog.flows import RejectError
from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.builtin.python import FunctionSink
from tidelog.flows.declare import Flow, op
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop

WAYS = {"a": "a", "b": "b"}
BACK = {"a": "out", "b": "fallback"}


def robin(**options: Any) -> Any:
    return op("roundrobin", **({"outputs": ["a", "b"]} | options))


class Slow(Target):
    """The sink ``a`` takes one batch at a time, and has not answered any."""

    concurrency = 1

    async def write(self, events: list[Event]) -> Any:
        if self.context.name != "a":
            return await super().write(events)
        self.got += [(0.0, each.value) for each in events]
        return await asyncio.get_running_loop().create_future()


class OneByOne(Target):
    """The sink ``a`` begins one event after the other, and hangs at the third."""

    concurrency = 1

    def __init__(self) -> None:
        super().__init__()
        self.left: deque[Event] = deque()

    async def write(self, events: list[Event]) -> Any:
        if self.context.name != "a":
            return await super().write(events)
        self.left = deque(events)
        outcomes: list[Outcome] = []
        while self.left:
            event = self.left.popleft()
            self.got.append((0.0, event.value))
            if len(self.got) > 2:
                while self.up:  # noqa: ASYNC110 - a test's
                    await asyncio.sleep(0.01)
            outcomes.append(OK if self.up else RETRY)
        return outcomes + [OK] * (len(events) - len(outcomes))  # those that were taken back: nobody looks

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        found: list[Event] = []
        self.left = deque(extract(list(self.left), wanted, found))
        return found


async def all_connected(it: Lab) -> None:
    await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))


@pytest.mark.parametrize("how", ["down", "paused"])
def test_what_waits_before_a_sink_goes_to_the_other_output(how: str) -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS, sink=Slow, source=OwnFeed) as it:
            await all_connected(it)
            it.feed.feed(0, 1)
            await it.until(lambda: len(it.feed.told) == 1)
            it.feed.feed(*range(2, 100))
            await it.until(lambda: len(it.sink("b").got) == 50)
            assert it.sink("a").values == [0]
            if how == "down":
                it.sink("a").down()
            else:
                await it.running.pause("a")
            await it.until(lambda: len(it.feed.told) == 99)
            assert sorted(it.sink("b").values) == list(range(1, 100))
            assert {status for _, status in it.feed.told} == {"ok"}
            assert it.node.counts["recalled"] == 49

    on_seeds(story)


def test_what_a_write_has_not_begun_is_taken_back_from_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS, sink=OneByOne, source=OwnFeed) as it:
            await all_connected(it)
            it.feed.feed(*range(100))
            await it.until(lambda: len(it.sink("b").got) == 50)
            assert it.sink("a").values == [0, 2, 4]
            it.sink("a").down()
            await it.until(lambda: len(it.feed.told) == 100)
            assert sorted(it.sink("b").values) == sorted(set(range(100)) - {0, 2, 4})
            assert sorted(it.feed.told) == [(each, "retry" if each == 4 else "ok") for each in range(100)]
            sink = it.running.graph.sinks["a"]
            assert "late_answers" not in sink.counts
            assert not sink.withdrawn

    on_seeds(story)


@pytest.mark.parametrize(
    "line",
    [
        [op("passthrough")],
        [op("select", "{was: @}")],
        [op("batch", count=1000)],
        [op("batch", count=3, timeout="1s"), op("unbatch")],
        [op("batch", bytes=100_000)],
        [op("delay", "1h")],
        [op("retry", attempts=5, first="1h", most="1h")],
        [op("ratelimit", rate=1, per="1h")],
        [op("backpressure", "1s")],
        [op("split", path="[@, @]")],
    ],
    ids=str,
)  # fmt: skip
def test_what_operators_behind_the_output_hold_goes_as_it_came(line: list[Any]) -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f", debug=True)
        flow.connector("in", OwnFeed)
        for name in "ab":
            flow.connector(name, Slow)
        flow.pipeline("line", robin())
        flow.pipeline("behind", *line)
        flow.connect("in -> line", "line.a -> behind -> a", "line.b -> b")
        it = Lab(RunningFlow(flow.spec(), FlowContext("f", None, debug=True, random=loop.random)))
        it.sink("a").answer = lambda event: (RETRY, "not yet")
        await it.running.start()
        await all_connected(it)
        it.feed.feed(*range(6))
        await asyncio.sleep(3)
        it.feed.feed(*range(6, 40))
        await it.until(lambda: len(it.sink("b").got) >= 20)
        await asyncio.sleep(1)
        it.sink("a").down()
        await it.until(lambda: len(it.feed.told) >= 37)  # a has begun the first
        assert set(it.sink("b").values) <= set(range(40))  # the values as they came
        assert len(it.feed.told) == len({each for each, _ in it.feed.told})
        await it.running.stop()
        assert it.running.status != "failed", it.running.error

    on_seeds(story)


def test_what_waits_to_be_tried_again_is_not_tried_at_the_broken_output() -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f", debug=True)
        flow.connector("in", OwnFeed)
        for name in "ab":
            flow.connector(name, Target)
        flow.pipeline("line", robin())
        flow.pipeline("behind", op("retry", attempts=5, first="1h", most="1h"))
        flow.connect("in -> line", "line.a -> behind -> a", "line.b -> b")
        it = Lab(RunningFlow(flow.spec(), FlowContext("f", None, debug=True, random=loop.random)))
        it.sink("a").answer = lambda event: (RETRY, "not yet")
        await it.running.start()
        await all_connected(it)
        it.feed.feed(*range(40))
        await it.until(lambda: len(it.sink("a").got) == 20)
        it.sink("a").down()
        await it.until(lambda: len(it.feed.told) == 40, 10)
        assert {status for _, status in it.feed.told} == {"ok"}
        assert len(it.sink("a").got) == 20
        await it.running.stop()

    on_seeds(story)


def test_it_counts_as_no_try() -> None:
    """An event with one try is no dead letter because its output left the rotation before its turn."""

    async def story(loop: VirtualLoop) -> None:
        options = {"on_error": "dead_letter"}
        async with lab(robin(), sinks=WAYS, sink=Slow, options=options) as it:
            await all_connected(it)
            it.feed.feed(0, 1)
            await it.until(lambda: len(it.feed.told) == 1)
            it.feed.feed(*range(2, 60))
            for _ in range(5):
                await asyncio.sleep(0.3)
                it.sink("a").down()
                await asyncio.sleep(0.3)
                it.sink("a").up = True
            it.sink("a").down()
            await it.until(lambda: len(it.feed.told) == 59)
            assert "dead" not in it.running.graph.sources["in"].counts

    on_seeds(story)


def test_when_all_outputs_are_gone_what_waits_goes_to_the_first_that_is_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS, sink=Slow, source=OwnFeed) as it:
            await all_connected(it)
            it.feed.feed(0, 1)
            await it.until(lambda: len(it.feed.told) == 1)
            await it.running.pause("b")
            it.feed.feed(*range(2, 40))
            await it.until(lambda: it.running.graph.channels[-1].events + it.running.graph.channels[-2].events == 38)
            it.sink("a").down()
            await it.until(lambda: it.reasons == {"roundrobin:line.0"})
            assert len(it.sink("b").got) == 1
            await it.running.resume("b")
            await it.until(lambda: len(it.feed.told) == 39)
            assert sorted(it.sink("b").values) == list(range(1, 40))

    on_seeds(story)


# -- fallback --------------------------------------------------------------------------------------------------
def test_fallback_works_if_its_primary_is_down_at_start() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback"), sinks=BACK, before=down("a")) as it:
            await it.connected()
            it.feed.feed(1, 2)
            await it.until(lambda: len(it.feed.told) == 2)
            assert it.sink("b").values == [1, 2]
            assert it.sink("b").errors == ["starting:a"] * 2
            it.sink("a").up = True
            await it.until(lambda: not it.operator.out)
            it.feed.feed(3)
            await it.until(lambda: it.sink("a").values == [3])

    on_seeds(story)


def test_with_wait_it_starts_with_its_primary_and_not_before() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback", outage="wait"), sinks=BACK, before=down("a", "b")) as it:
            await asyncio.sleep(100)
            assert it.reasons == {"starting:a"}
            it.sink("a").up = True
            await it.connected()
            it.feed.feed(1)
            await it.until(lambda: it.sink("a").values == [1])

    on_seeds(story)


def test_a_flow_does_not_stop_because_its_fallback_is_down() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(
            op("fallback"), sinks=BACK, before=down("b"), options={"on_error": {"retry": {"first": "1s"}}}
        ) as it:
            await it.connected()
            it.feed.feed(1)
            await it.until(lambda: it.sink("a").values == [1])
            it.sink("a").answer = lambda event: (REJECT, "no")
            it.feed.feed(2)
            await it.until(lambda: len(it.sink("a").got) == 3)  # given back, and tried again
            assert len(it.feed.told) == 1
            it.sink("b").up = True
            await it.until(lambda: it.sink("b").values == [2])
            it.sink("a").down()
            it.sink("b").down()
            await it.until(lambda: it.reasons == {"fallback:line.0"})
            it.sink("b").up = True
            await it.until(lambda: not it.reasons)

    on_seeds(story)


def test_what_waits_at_a_primary_that_is_gone_goes_to_fallback() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback"), sinks=BACK, sink=Slow, source=OwnFeed) as it:
            await all_connected(it)
            it.feed.feed(0)
            await it.until(lambda: it.sink("a").got)
            it.feed.feed(*range(1, 50))
            await asyncio.sleep(1)
            it.sink("a").down()
            await it.until(lambda: len(it.feed.told) == 49)
            assert sorted(it.sink("b").values) == list(range(1, 50))
            assert set(it.sink("b").errors) == {GONE}

    on_seeds(story)


def test_a_function_that_is_a_sink_gives_back_what_it_has_not_begun() -> None:
    async def story(loop: VirtualLoop) -> None:
        begun: list[Any] = []

        async def keep(value: Any) -> None:
            begun.append(value)
            await asyncio.sleep(1)
            if value == 1:
                raise RejectError("no")

        for calls in (1, 3):
            begun.clear()
            sink = FunctionSink(keep, calls)
            events = [Event(number) for number in range(10)]
            write = asyncio.ensure_future(sink.write(events))
            await asyncio.sleep(0.5)
            assert sink.withdraw(lambda event: event.value > 6) == events[7:]
            outcomes = await write
            assert begun == list(range(7))
            assert [status for status, _ in outcomes[:7]] == [OK, REJECT, OK, OK, OK, OK, OK]

    on_seeds(story)
