"""``percentile``: the share that is let through follows what the sink can do in time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import GONE, OwnFeed, lab, on_seeds
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, RETRY
from tidelog.flows.declare import Flow, op
from tidelog.flows.testing.virtualloop import VirtualLoop

WAYS = {"a": "out", "over": "overflow"}


def test_what_is_in_time_is_all_let_through() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("percentile", "200ms"), sinks=WAYS, source=OwnFeed) as it:
            it.sink("a").delay = 0.1
            it.feed.feed(*range(1000))
            await it.until(lambda: len(it.feed.told) == 1000)
            assert len(it.sink("a").got) == 1000

    on_seeds(story)


def test_a_share_is_spread_evenly() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("percentile", timeout="200ms", step_down=0.75), sinks=WAYS, source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.answer = lambda event: RETRY
            it.feed.feed("bad")
            await it.until(lambda: it.feed.told)
            assert it.operator.share == 0.25
            sink.answer = lambda event: None  # the share stays while nothing is settled
            it.feed.feed(*range(40))
            await it.until(lambda: len(it.sink("over").got) + len(sink.held) == 40)
            values = [value for _, value in sink.got[1:]]
            assert len(values) in (10, 11)
            assert {later - first for first, later in pairwise(values)} <= {3, 4}
            assert it.node.counts["overflow"] == len(it.sink("over").got)

    on_seeds(story)


def test_a_sink_that_can_do_half_gets_about_half_and_in_time() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("percentile", timeout="100ms"), sinks=WAYS, source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.concurrency = 1
            free = 0.0
            late = 0

            def answer(event: Event) -> int | None:
                nonlocal free, late
                begun = loop.time()
                free = max(free, begun) + 0.02  # 50 events a second
                late += free - begun > 0.1
                loop.call_at(free, lambda: sink.context.answer(event, OK))
                return None

            sink.answer = answer
            for number in range(3000):
                it.feed.feed(number)
                await asyncio.sleep(0.01)
            await it.until(lambda: len(it.feed.told) == 3000)
            assert 1000 <= len(sink.got) <= 1600
            assert late < 0.2 * len(sink.got)

    on_seeds(story)


def test_at_a_share_of_nothing_single_events_find_out_that_all_is_well() -> None:
    async def story(loop: VirtualLoop) -> None:
        operator = op("percentile", timeout="100ms", step_down=1, step_up=0.1)
        async with lab(operator, sinks=WAYS, source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.answer = lambda event: RETRY
            it.feed.feed("bad")
            await it.until(lambda: it.feed.told)
            assert it.operator.share == 0
            sink.answer = lambda event: OK
            for number in range(30):
                it.feed.feed(number)
                await asyncio.sleep(0.05)
            assert it.operator.share == 1

    on_seeds(story)


def test_a_sink_that_hangs_makes_the_share_smaller() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("percentile", timeout="100ms", step_down=0.5), sinks=WAYS) as it:
            await it.connected()
            it.sink("a").answer = lambda event: None
            it.feed.feed(*range(100))
            await asyncio.sleep(1)
            assert it.operator.share == 0.5  # once: nothing was sent since

    on_seeds(story)


def test_trigger_from_below_makes_it_smaller_and_goes_up() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("percentile", "100ms"), sinks=WAYS) as it:
            await it.connected()
            it.sink("a").down()
            await it.until(lambda: GONE in it.reasons)
            assert it.operator.share == 0.95

    on_seeds(story)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": 0}, "timeout: it is 0"),
        ({"timeout": 1, "step_up": 0}, "step_up: Expected `float` > 0.0"),
        ({"timeout": 1, "step_down": 2}, "step_down: Expected `float` <= 1.0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("line", op("percentile", **options))
