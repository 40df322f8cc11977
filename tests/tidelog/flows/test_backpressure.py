"""``backpressure``: steps by latency, failures and TRIGGER; back by time with a probe; nothing lost, all counted."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import GONE, OwnFeed, lab, on_seeds
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.tokens import OK, RETRY
from tidelog.flows.declare import Flow, op
from tidelog.flows.operators import backpressure
from tidelog.flows.operators.hops import SentBatch
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

REASON = "backpressure:line.0"


def pressure(**options: Any) -> Any:
    return op("backpressure", **({"timeout": "200ms", "steps": ["1s", "4s", "10s"]} | options))


def test_what_is_in_time_is_left_alone() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure()) as it:
            it.sink("a").delay = 0.1
            it.feed.feed(*range(2000))
            it.feed.end()
            await it.running.finished()
            assert sorted(it.sink("a").values) == list(range(2000))
            assert "steps" not in it.node.counts

    on_seeds(story)


def test_latency_steps_up_and_pauses_the_source_for_the_step_from_now_on() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure()) as it:
            await it.connected()
            it.sink("a").delay = 0.5
            it.feed.feed(1)
            await it.until(lambda: REASON in it.reasons)
            stepped = loop.time()  # before the settlement: what is under way for too long is late
            assert stepped == pytest.approx(it.sink("a").got[0][0] + 0.2, abs=0.01)
            it.feed.feed(2, 3)
            it.sink("a").delay = 0.1
            await it.until(lambda: REASON not in it.reasons)
            assert loop.time() - stepped == pytest.approx(1.0, abs=0.01)
            await it.until(lambda: len(it.feed.told) == 3)
            (_, first), (probe, second), (rest, third) = it.sink("a").got
            assert (first, second, third) == (1, 2, 3)
            assert probe > stepped + 0.99
            assert rest > probe + 0.09  # one event, and the next when that one was settled

    on_seeds(story)


def test_each_bad_probe_is_a_step_up_and_good_ones_are_the_way_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(restore_after=3), source=OwnFeed) as it:
            sink = it.sink("a")
            sink.answer = lambda event: (RETRY, "busy")
            lengths = []
            for number in range(4):
                it.feed.feed(number)
                await it.until(lambda: REASON in it.reasons)
                since = loop.time()
                await it.until(lambda: REASON not in it.reasons)
                lengths.append(round(loop.time() - since, 1))
            assert lengths == [1, 4, 10, 10]
            sink.answer = lambda event: OK
            for number in range(3):
                it.feed.feed(f"good {number}")
                await it.until(lambda: len(it.feed.told) == 5 + number)  # noqa: B023 - awaited at once
            sink.answer = lambda event: (RETRY, "busy")
            it.feed.feed("bad")
            await it.until(lambda: REASON in it.reasons)
            since = loop.time()
            await it.until(lambda: REASON not in it.reasons)
            assert round(loop.time() - since, 1) == 1

    on_seeds(story)


def test_a_thousand_failures_of_one_moment_are_one_step() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(), source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.delay = 0.1
            sink.answer = lambda event: RETRY
            it.feed.feed(*range(1000))
            await it.until(lambda: REASON in it.reasons)
            sink.answer = lambda event: OK
            await it.until(lambda: len(it.feed.told) == 1000)
            assert it.node.counts["steps"] == 1
            assert {each for each, _ in it.feed.told} == set(range(1000))

    on_seeds(story)


def test_a_sink_that_hangs_is_late_though_nothing_is_ever_settled() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(), source=OwnFeed) as it:
            sink = it.sink("a")
            sink.answer = lambda event: None
            it.feed.feed(1)
            await it.until(lambda: REASON in it.reasons)
            assert not it.feed.told
            sink.context.answer(sink.held[0], OK)
            sink.answer = lambda event: OK
            it.feed.feed(2)
            await it.until(lambda: len(it.feed.told) == 2)
            assert it.node.counts["steps"] == 1

    on_seeds(story)


class NoWatch:
    """In place of the watch for events that are not settled at all, which has tests of its own."""

    def __init__(self, *_: object) -> None: ...
    def watch(self, _: object) -> None: ...


def test_the_95th_percentile_counts_not_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "OverdueWatch", NoWatch)

    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(), source=OwnFeed) as it:
            sink = it.sink("a")
            for number in range(100):
                it.feed.feed(number)
                await it.until(lambda: len(it.feed.told) == number + 1)  # noqa: B023 - awaited at once
            sink.answer = lambda event: None
            late = 0
            for number in range(8):  # held answers are given before they are overdue by themselves
                it.feed.feed(f"late {number}")
                await it.until(lambda: sink.held)
                await asyncio.sleep(0.3)
                sink.context.answer(sink.held.pop(), OK)
                await it.until(lambda: len(it.feed.told) == 101 + number)  # noqa: B023 - awaited at once
                late += 1
                if it.node.counts.get("steps"):
                    break
            assert late == 6  # more than 5 of the latest 100

    on_seeds(story)


def test_trigger_from_below_is_a_step_and_goes_further_up() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure()) as it:
            await it.connected()
            it.sink("a").down()
            await it.until(lambda: {GONE, REASON} <= it.reasons)
            it.feed.feed(1)
            await it.until(lambda: REASON not in it.reasons)
            assert GONE in it.reasons
            it.sink("a").up = True
            await it.until(lambda: it.feed.told)
            assert it.feed.told == [(0, "ok")]

    on_seeds(story)


def test_a_pause_of_the_sink_by_somebody_is_no_step() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure()) as it:
            await it.connected()
            await it.running.pause("a")
            await it.until(lambda: "paused:a" in it.reasons)
            assert REASON not in it.reasons

    on_seeds(story)


def test_a_flapping_sink_loses_nothing() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(steps=["50ms", "100ms", "1s"])) as it:
            sink = it.sink("a")
            sink.delay = 0.01
            sink.answer = lambda event: (RETRY, "sometimes") if loop.random.random() < 0.2 else OK
            it.feed.feed(*range(300))
            for _ in range(5):
                await asyncio.sleep(0.3)
                sink.down()
                await asyncio.sleep(0.3)
                sink.up = True
            sink.answer = lambda event: OK
            it.feed.end()
            await it.running.finished()
            assert sorted(it.feed.told) == [(number, "ok") for number in range(300)]
            assert set(sink.values) == set(range(300))

    on_seeds(story)


def test_discard_sends_to_overflow_while_a_step_lasts_and_counts_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(method="discard"), sinks={"a": "out", "over": "overflow"}, source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.answer = lambda event: RETRY
            it.feed.feed("fails")
            await it.until(lambda: it.node.counts.get("steps"))
            assert not it.reasons  # the source goes on
            it.feed.feed(*range(10))
            await it.until(lambda: len(it.feed.told) == 11)
            assert sorted(it.sink("over").values) == list(range(10))
            assert it.node.counts["overflow"] == 10
            sink.answer = lambda event: OK
            await asyncio.sleep(1.1)
            it.feed.feed(*range(10, 20))
            await it.until(lambda: len(it.feed.told) == 21)
            assert len(sink.values) == 2  # a probe among ten
            it.feed.feed(20, 21)
            await it.until(lambda: len(it.feed.told) == 23)
            assert sink.values[2:] == [20, 21]

    on_seeds(story)


def test_discard_without_overflow_settles_as_discarded() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(method="discard"), source=OwnFeed) as it:
            await it.connected()
            it.sink("a").answer = lambda event: RETRY
            it.feed.feed("fails")
            await it.until(lambda: it.node.counts.get("steps"))
            it.feed.feed(1)
            await it.until(lambda: len(it.feed.told) == 2)
            assert it.feed.told == [(0, "retry"), (1, "discard")]

    on_seeds(story)


def test_discard_sheds_as_long_as_a_reason_from_below_stands_and_stops_no_source() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(method="discard"), sinks={"a": "out", "over": "overflow"}) as it:
            await it.connected()
            it.sink("a").down()
            await it.until(lambda: it.node.counts.get("steps"))
            await asyncio.sleep(30)  # any step is over
            it.feed.feed(1, 2)
            await it.until(lambda: len(it.sink("over").got) == 2)
            assert not it.reasons
            it.sink("a").up = True
            await it.until(lambda: it.running.graph.connections["a"].connected)
            it.feed.feed(3)
            await it.until(lambda: it.sink("a").values == [3])

    on_seeds(story)


@pytest.mark.parametrize("operator", ["backpressure", "percentile"])
def test_one_event_that_hangs_does_not_make_it_remember_all_others(operator: str) -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op(operator, timeout="10h")) as it:
            await it.connected()
            it.sink("a").answer = lambda event: None if event.value == "hangs" else OK
            it.feed.feed("hangs")
            await it.until(lambda: it.sink("a").held)
            before = sum(isinstance(each, SentBatch) for each in gc.get_objects())
            for number in range(1000):
                it.feed.feed(number)
                await it.until(lambda: len(it.feed.told) == number + 1)  # noqa: B023 - awaited at once
            assert sum(isinstance(each, SentBatch) for each in gc.get_objects()) < before + 100

    simulate(story)


def test_an_hour_of_a_sink_that_hangs_is_a_probe_now_and_then() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure()) as it:
            await it.connected()
            it.sink("a").answer = lambda event: None
            it.feed.feed(*range(100))
            await it.until(lambda: it.node.counts.get("steps"))
            it.feed.feed(*range(100, 5000))
            await asyncio.sleep(3600)
            assert len(it.sink("a").held) < 100 + 400  # one for each 10 s
            held = len(it.sink("a").held)
            it.sink("a").answer = lambda event: OK
            for event in it.sink("a").held:
                it.sink("a").context.answer(event, OK)
            await it.until(lambda: len(it.feed.told) == 5000)
            assert held == len(it.sink("a").held)

    simulate(story)


def test_a_drain_gets_all_through() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(pressure(), queue=1) as it:
            sink = it.sink("a")
            sink.delay = 0.3
            it.feed.feed(*range(2000))
            await it.until(lambda: it.node.counts.get("steps"))
            sink.delay = 0.0
            report = await it.running.drain(60)
            assert report.complete
            assert len(set(sink.values)) == sum(count for _, count in it.feed.pulled)

    on_seeds(story)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "'timeout' is missing"),
        ({"timeout": 0}, "timeout: it is 0"),
        ({"timeout": "1s", "steps": []}, "steps: Expected `array` of length >= 1"),
        ({"timeout": "1s", "steps": ["2s", "1s"]}, "must not decrease"),
        ({"timeout": "1s", "restore_after": 0}, "restore_after: Expected `int` >= 1"),
        ({"timeout": "1s", "method": "stop"}, "method"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("line", op("backpressure", **options) if options else op("backpressure", {}))
