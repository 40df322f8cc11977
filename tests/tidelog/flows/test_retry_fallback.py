"""``retry`` tries again below the source, ``fallback`` sends what failed another way; both do so item by item."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import GONE, OwnFeed, lab, on_seeds
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import OK, REJECT, RETRY, TokenGroup
from tidelog.flows.declare import Flow, op
from tidelog.flows.testing.virtualloop import VirtualLoop

WAYS = {"a": "out", "b": "fallback"}


class Four(Operator):
    """One event of four, with the tokens of all of them."""

    def process(self, events: list[Event]) -> None:
        for place in range(0, len(events), 4):
            some = events[place : place + 4]
            tokens = [each.token for each in some if each.token is not None]
            self.emit([Event([each.value for each in some], token=TokenGroup(tokens))])


class Spoils(Operator):
    """Does with values what it wants."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.value["list"].append("spoilt")
            event.meta["spoilt"] = True
        self.emit(events)


def fails(times: int, status: int = RETRY) -> Any:
    """An answer: each value fails so many times."""
    seen: dict[Any, int] = {}

    def answer(event: Event) -> Any:
        key = str(event.value)
        seen[key] = seen.get(key, 0) + 1
        return (status, "busy") if seen[key] <= times else OK

    return answer


def test_what_fails_is_tried_again_without_the_source_hearing_of_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", attempts=3, first="1s", jitter=0), source=OwnFeed) as it:
            it.sink("a").answer = fails(3)
            it.feed.feed("x")
            await it.until(lambda: it.feed.told)
            assert it.feed.told == [(0, "ok")]
            whens = [round(when) for when, _ in it.sink("a").got]
            assert [later - first for first, later in pairwise(whens)] == [1, 2, 4]
            assert it.operator.copies.count == 0

    on_seeds(story)


def test_after_its_tries_the_source_hears_the_last_reason() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", 2), source=OwnFeed) as it:
            it.sink("a").answer = lambda event: (RETRY, f"attempt {event.attempt}")
            it.feed.feed("x", "y")
            await it.until(lambda: len(it.feed.told) == 2)
            assert {status for _, status in it.feed.told} == {"retry"}
            assert it.sink("a").values.count("x") == 3
            assert it.operator.copies.count == 0

    on_seeds(story)


def test_a_reject_is_not_tried_again() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry"), source=OwnFeed) as it:
            it.sink("a").answer = lambda event: (REJECT, "no")
            it.feed.feed("x")
            await it.until(lambda: it.feed.told)
            assert it.feed.told == [(0, "reject")]
            assert it.sink("a").values == ["x"]

    on_seeds(story)


def test_an_outage_costs_no_tries() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", attempts=1, first="10ms"), source=OwnFeed) as it:
            await it.connected()
            sink = it.sink("a")
            sink.delay = 1.0
            it.feed.feed("x")
            await it.until(lambda: sink.got)
            sink.down()
            await it.until(lambda: GONE in it.reasons)
            await asyncio.sleep(300)
            assert len(sink.got) == 1
            assert not it.feed.told
            sink.up = True
            await it.until(lambda: it.feed.told)
            assert it.feed.told == [(0, "ok")]

    on_seeds(story)


def test_the_copy_is_as_the_event_was() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", first="10ms"), Spoils, source=OwnFeed) as it:
            it.sink("a").answer = fails(1)
            it.feed.feed({"list": []})
            await it.until(lambda: it.feed.told)
            assert it.sink("a").values == [{"list": ["spoilt"]}, {"list": ["spoilt"]}]

    on_seeds(story)


def test_of_a_batch_only_what_failed_is_tried_again() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(Four, op("retry", attempts=2, first="10ms"), source=OwnFeed, sinks={"a": "out"}) as it:
            sink = it.sink("a")

            def answer(event: Event) -> Any:
                kinds = {"good": (OK, ""), "bad": (REJECT, "no"), "busy": (RETRY, "busy")}
                outcomes = [kinds[each] for each in event.value]
                return outcomes if len(sink.got) < 3 else [(OK, "") for _ in outcomes]

            sink.answer = answer
            it.feed.feed("good", "busy", "bad", "busy")
            await it.until(lambda: len(it.feed.told) == 4)
            assert sink.values == [["good", "busy", "bad", "busy"], ["busy", "busy"], ["busy", "busy"]]
            assert sorted(it.feed.told) == [(0, "ok"), (1, "ok"), (2, "reject"), (3, "ok")]

    on_seeds(story)


def test_what_comes_when_there_are_enough_copies_goes_without() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", max_copies=2, first="10ms"), source=OwnFeed) as it:
            it.sink("a").answer = fails(1)
            it.feed.feed(*range(5))
            await it.until(lambda: len(it.feed.told) == 5)
            assert sorted(status for _, status in it.feed.told) == ["ok", "ok", "retry", "retry", "retry"]

    on_seeds(story)


def test_a_drain_sends_what_waits_at_once_and_gives_back_what_fails_then() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("retry", first="1h", most="1h")) as it:
            it.sink("a").answer = fails(2)
            it.feed.feed(*range(20))
            await it.until(lambda: it.operator.kept() == 20)
            begun = loop.time()
            report = await it.running.drain(60)
            assert report.complete
            assert loop.time() - begun < 10
            assert sorted(it.feed.told) == [(number, "ok") for number in range(20)]

    on_seeds(story)


def test_what_fails_goes_to_fallback_with_the_reason() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback"), source=OwnFeed, sinks=WAYS) as it:
            await it.connected()
            bad = {2: (RETRY, "busy"), 3: (REJECT, "no")}
            it.sink("a").answer = lambda event: bad.get(event.value, OK)
            it.feed.feed(1, 2, 3, 4)
            await it.until(lambda: len(it.feed.told) == 4)
            assert {status for _, status in it.feed.told} == {"ok"}
            assert sorted(it.sink("b").values) == [2, 3]
            assert sorted(it.sink("b").errors) == ["a: busy", "a: no"]
            assert it.operator.copies.count == 0

    on_seeds(story)


def test_the_source_hears_what_fallback_made_of_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback", on=["reject"]), source=OwnFeed, sinks=WAYS) as it:
            await it.connected()
            it.sink("a").answer = lambda event: {1: RETRY, 2: REJECT}[event.value]
            it.sink("b").answer = lambda event: (REJECT, "not here either")
            it.feed.feed(1, 2)
            await it.until(lambda: len(it.feed.told) == 2)
            assert sorted(it.feed.told) == [(0, "retry"), (1, "reject")]
            assert it.sink("b").values == [2]

    on_seeds(story)


def test_of_a_batch_only_what_failed_goes_to_fallback() -> None:
    async def story(loop: VirtualLoop) -> None:
        ways = {"a": "out", "b": "fallback"}
        async with lab(Four, op("fallback"), source=OwnFeed, sinks=ways) as it:
            await it.connected()
            it.sink("a").answer = lambda event: [(OK, ""), (RETRY, "busy"), (OK, ""), (REJECT, "no")]
            it.feed.feed(*"good")
            await it.until(lambda: len(it.feed.told) == 4)
            assert it.sink("b").values == [["o", "d"]]
            assert {status for _, status in it.feed.told} == {"ok"}

    on_seeds(story)


def test_an_outage_of_out_sends_everything_to_fallback_and_stops_no_source() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback"), sinks=WAYS) as it:
            await it.connected()
            it.sink("a").down()
            await it.until(lambda: it.operator.out)
            it.feed.feed(1, 2)
            await it.until(lambda: len(it.feed.told) == 2)
            assert it.sink("b").values == [1, 2]
            assert it.sink("b").errors == [GONE, GONE]
            it.sink("a").up = True
            await it.until(lambda: not it.operator.out)
            it.feed.feed(3)
            await it.until(lambda: it.sink("a").values == [3])

    on_seeds(story)


def test_with_wait_an_outage_stops_the_source() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(op("fallback", outage="wait"), sinks=WAYS) as it:
            await it.connected()
            it.sink("a").down()
            await it.until(lambda: GONE in it.reasons)
            it.feed.feed(1)
            await asyncio.sleep(100)
            assert not it.sink("b").got
            it.sink("a").up = True
            await it.until(lambda: it.sink("a").values == [1])

    on_seeds(story)


def test_a_storm_loses_nothing() -> None:
    async def story(loop: VirtualLoop) -> None:
        line = (op("retry", attempts=2, first="20ms"), op("backpressure", timeout="1s"), op("fallback"))
        async with lab(*line, sinks=WAYS, queue=1, options={"on_error": {"retry": {"first": "10ms"}}}) as it:
            await it.connected()
            sinks = [it.sink(name) for name in WAYS]
            for sink in sinks:
                sink.delay = 0.002
                sink.answer = lambda event: loop.random.choice([RETRY, OK, OK])
            it.feed.feed(*range(400))
            for _ in range(20):
                await asyncio.sleep(0.2)
                sink = loop.random.choice(sinks)
                if sink.up:
                    sink.down()
                else:
                    sink.up = True
            for sink in sinks:
                sink.up = True
                sink.answer = lambda event: OK
            it.feed.end()
            await it.running.finished()
            assert sorted(it.feed.told) == [(number, "ok") for number in range(400)]
            assert {value for sink in sinks for value in sink.values} == set(range(400))

    on_seeds(story)


def test_fallback_that_leads_nowhere_is_an_error() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("a", "null")
    flow.pipeline("line", op("fallback"))
    flow.connect("in -> line -> a")
    with pytest.raises(FlowFileError, match="the port 'fallback' of fallback is not connected"):
        flow.spec()


@pytest.mark.parametrize(
    ("operator", "options", "text"),
    [
        ("retry", {"attempts": 0}, "attempts: Expected `int` >= 1"),
        ("retry", {"growth": 0.5}, "growth: Expected `float` >= 1"),
        ("retry", {"jitter": 2}, "jitter: Expected `float` <= 1"),
        ("fallback", {"on": []}, "on: Expected `array` of length >= 1"),
        ("fallback", {"outage": "stop"}, "outage"),
    ],
)
def test_options_that_make_no_sense(operator: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("line", op(operator, **options))
