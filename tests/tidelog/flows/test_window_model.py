"""window: random events give the same results as a naive reference, and each event is settled with its last window."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows import Event, op
from tidelog.flows.testing import PipelineTest

AGGREGATES = {"sum": {"sum": "v"}, "ids": {"collect": "id"}, "last": {"last": "id"}}
SHAPES: list[dict[str, int]] = [
    {"time": 10}, {"time": 10, "slide": 5}, {"time": 10, "slide": 3}, {"time": 7, "slide": 6}, {"time": 4, "slide": 1},
    {"gap": 4},
]  # fmt: skip

EVENTS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=25)


@dataclass
class Window:
    key: str
    start: int
    end: int
    events: list[tuple[int, int]] = field(default_factory=list)  # (id, v)

    def result(self, *, partial: bool) -> tuple[Any, ...]:
        ids = [each[0] for each in sorted(self.events)]
        return self.key, self.start, self.end, sum(each[1] for each in self.events), ids, ids[-1], partial


class Reference:
    """All windows of each event, without panes: every window has a list of its events."""

    def __init__(self, shape: dict[str, int], lateness: int) -> None:
        self.shape, self.lateness = shape, lateness
        self.open: list[Window] = []
        self.results: list[tuple[Any, ...]] = []
        self.late: list[int] = []
        self.watermark = -1_000
        self.since = 1_000

    def starts(self, time: int) -> list[int]:
        slide = self.shape.get("slide", self.shape["time"])
        return [each * slide for each in range(-20, 60) if each * slide <= time < each * slide + self.shape["time"]]

    def windows(self, key: str, time: int) -> list[Window]:
        """Return the open windows of an event."""
        if "gap" in self.shape:
            one = Window(key, time, time + self.shape["gap"])
            near = [each for each in self.open if each.key == key and each.start < one.end and one.start < each.end]
            for each in near:
                one = Window(key, min(one.start, each.start), max(one.end, each.end), one.events + each.events)
            if not near and one.end <= self.watermark:
                return []
            self.open = [each for each in self.open if each not in near] + [one]
            return [one]
        found = []
        for start in self.starts(time):
            if start + self.shape["time"] > self.watermark:
                known = [each for each in self.open if (each.key, each.start) == (key, start)]
                found += known or [Window(key, start, start + self.shape["time"])]
                self.open += [] if known else found[-1:]
        return found

    def add(self, number: int, time: int, key: str, value: int) -> None:
        found = self.windows(key, time)
        if not found:
            self.late.append(number)
        for each in found:
            each.events.append((number, value))
        if found and "slide" in self.shape:
            slide, size = self.shape["slide"], self.shape["time"]
            starts = [each * slide for each in range(-20, 60)]
            limits = starts + [each + size for each in starts]
            self.since = min(self.since, max(each for each in limits if each <= time))
        if found:
            self.watermark = max(self.watermark, time - self.lateness)
            self.end(self.watermark)

    def end(self, time: float, *, partial: bool = False) -> None:
        ended = sorted((each for each in self.open if each.end <= time), key=lambda each: each.end)
        self.open = [each for each in self.open if each.end > time]
        begun_before = "slide" in self.shape
        self.results += [each.result(partial=partial or (begun_before and each.start < self.since)) for each in ended]

    def settled(self, numbers: int) -> set[int]:
        waiting = {number for each in self.open for number, _ in each.events}
        return set(range(numbers)) - waiting


def results(test: PipelineTest) -> list[tuple[Any, ...]]:
    found = []
    for each in test.outputs():
        some = each["aggregates"]
        found.append((each["key"], each["start"], each["end"], some["sum"], some["ids"], some["last"], each["partial"]))
    return found


def in_order(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Windows of different keys that end together are in any order."""
    return sorted(found, key=lambda each: (each[2], each[1], each[0], each[4]))


def operator(shape: dict[str, int], **options: Any) -> Any:
    return op("window", key="k", aggregates=AGGREGATES, **shape, **options)


def value(number: int, time: int, key: str, amount: int) -> dict[str, Any]:
    return {"id": number, "at": time, "k": key, "v": amount}


@settings(max_examples=60)
@given(shape=st.sampled_from(SHAPES), events=EVENTS, lateness=st.integers(0, 12), batch=st.integers(1, 30))
def test_windows_by_event_time(
    shape: dict[str, int], events: list[tuple[int, str, int]], lateness: int, batch: int
) -> None:
    reference = Reference(shape, lateness)
    with PipelineTest(operator(shape, at="at", lateness=lateness)) as test:
        for begin in range(0, len(events), batch):
            some = list(enumerate(events[begin : begin + batch], begin))
            test.feed(*(value(number, *each) for number, each in some))
            for number, each in some:
                reference.add(number, *each)
            assert in_order(results(test)) == in_order(reference.results)
            assert [each[2] for each in results(test)] == sorted(each[2] for each in results(test)) or "gap" in shape
            assert [each["id"] for each in test.outputs("late")] == reference.late
            assert {number for _, number in test.settled} == reference.settled(begin + len(some))
        test.drain()
        reference.end(1_000, partial=True)
        assert in_order(results(test)) == in_order(reference.results)
        assert sorted(test.settled) == [("ok", number) for number in range(len(events))]


@settings(max_examples=30)
@given(shape=st.sampled_from(SHAPES), events=EVENTS)
def test_windows_by_the_clock(shape: dict[str, int], events: list[tuple[int, str, int]]) -> None:
    """The first number of an event is the time since the previous one."""
    reference = Reference(shape, 0)
    with PipelineTest(operator(shape)) as test:
        origin = test.loop.now_ns() // 10**9 // 60 * 60  # a multiple of all slides
        test.advance(60 + origin - test.loop.now_ns() / 1e9)
        origin, time = origin + 60, 0
        for number, (pause, key, amount) in enumerate(events):
            time += pause % 7
            test.advance(pause % 7)
            reference.end(time)
            test.feed(value(number, 0, key, amount))
            reference.watermark = -1_000  # no event is late
            reference.add(number, time, key, amount)
            found = [(each[0], each[1] - origin, each[2] - origin, *each[3:]) for each in results(test)]
            assert in_order(found) == in_order(reference.results)
            assert {number for _, number in test.settled} == reference.settled(number + 1)


@settings(max_examples=40)
@given(shape=st.sampled_from(SHAPES), events=EVENTS, most=st.integers(1, 4))
def test_windows_that_end_early_lose_and_repeat_nothing(
    shape: dict[str, int], events: list[tuple[int, str, int]], most: int
) -> None:
    with PipelineTest(operator(shape, at="at", lateness=100, max_open=most)) as test:
        for number, each in enumerate(events):
            test.feed(value(number, *each))
        test.drain()
        reference = Reference(shape, 100)
        counted: Counter[Any] = Counter()
        for number, (time, key, _) in enumerate(events):
            counted.update((key, start, number) for start in (reference.starts(time) if "time" in shape else [0]))
        found = [((key, start if "time" in shape else 0), ids) for key, start, _, _, ids, _, _ in results(test)]
        assert Counter((*window, number) for window, ids in found for number in ids) == counted
        assert sorted(test.settled) == [("ok", number) for number in range(len(events))]


@settings(max_examples=40)
@given(shape=st.sampled_from(SHAPES), events=EVENTS, failures=st.lists(st.booleans(), min_size=1, max_size=30))
def test_each_event_is_delivered_in_all_its_windows_whatever_fails(
    shape: dict[str, int], events: list[tuple[int, str, int]], failures: list[bool]
) -> None:
    delivered: set[tuple[str, int, int]] = set()
    answers = iter(failures)

    def answer(event: Event) -> Any:
        if next(answers, False):
            return "retry"
        one = event.value
        start = one["start"] if "time" in shape else 0
        delivered.update((one["key"], start, each) for each in one["aggregates"]["ids"])
        return "ok"

    with PipelineTest(operator(shape, at="at", lateness=100, idle=5)) as test:
        test.answers(answer)
        test.feed(*(value(number, *each) for number, each in enumerate(events)))
        known = 0
        for attempt in range(2, 40):
            test.advance(10)
            again = [number for status, number in test.settled[known:] if status == "retry"]
            known = len(test.settled)
            test.feed(*(Event(value(each, *events[each]), None, each, attempt=attempt) for each in again))
        reference = Reference(shape, 100)
        wanted = {
            (key, start, number) for number, (time, key, _) in enumerate(events)
            for start in (reference.starts(time) if "time" in shape else [0])
        }  # fmt: skip
        assert delivered == wanted
        assert {number for status, number in test.settled if status == "ok"} == set(range(len(events)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tokens_of_an_event_are_stored_once(shape: dict[str, int]) -> None:
    """Also if it belongs to many windows whose results are in flight."""
    with PipelineTest(operator(shape, at="at", lateness=5)) as test:
        test.answers(lambda _: None)
        test.feed(*(value(number, number, "a", 1) for number in range(40)))
        made: Any = test.running.graph.operators["pipeline"][0].operator
        assert made.kept() == len(list(made.gathered())) <= 5 + shape.get("time", 40) + shape.get("slide", 0) + 5
        for event in test.output_events():
            test.settle(event)
        test.answers(lambda _: "ok")
        test.drain()
        assert sorted(test.settled) == [("ok", number) for number in range(40)]
