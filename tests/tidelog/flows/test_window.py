"""window: what belongs to which window, when it ends, what it computes, and what becomes of its members."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from tests.tidelog.flows.opskit import Feed, Kit, Remembering, flow_of, passed
from tidelog.flows import Event, FlowFileError, op
from tidelog.flows.api.tokens import OK, REJECT, RETRY

ALL = {
    "n": "count", "with_v": {"count": "v"}, "sum": {"sum": "v"}, "mean": {"mean": "v"}, "min": {"min": "v"},
    "max": {"max": "v"}, "first": {"first": "v"}, "last": {"last": "v"}, "distinct": {"distinct": "v"},
}  # fmt: skip


class Clock:
    """ns since 1970."""

    def __init__(self, seconds: float = 1_000_000) -> None:
        self.seconds = seconds

    def __call__(self) -> int:
        return round(self.seconds * 1e9)


def results(kit: Kit) -> list[tuple[Any, float, float, dict[str, Any], bool]]:
    return [(each["key"], each["start"], each["end"], each["aggregates"], each["partial"]) for each in kit.out.values]


def found(kit: Kit) -> list[Any]:
    """Of windows whose one aggregate is called all."""
    return [each["aggregates"]["all"] for each in kit.out.values]


def at(seconds: float, **more: Any) -> dict[str, Any]:
    return {"at": seconds, **more}


# -- what is computed ------------------------------------------------------------------------------------------
def computed(*values: Any, **aggregates: Any) -> dict[str, Any]:
    kit = asyncio.run(passed(op("window", count=len(values), aggregates=aggregates), values=[{"v": v} for v in values]))
    (window,) = kit.out.values
    assert not window["partial"]
    return dict(window["aggregates"])


def test_all_aggregates() -> None:
    assert computed(3, None, 1, 2, 1, **ALL) == {
        "n": 5, "with_v": 4, "sum": 7, "mean": 1.75, "min": 1, "max": 3, "first": 3, "last": 1, "distinct": 3,
    }  # fmt: skip
    assert computed(None, **ALL) == {
        "n": 1, "with_v": 0, "sum": 0, "mean": None, "min": None, "max": None, "first": None, "last": None,
        "distinct": 0,
    }  # fmt: skip
    assert computed("b", "a", "c", low={"min": "v"}, high={"max": "v"}) == {"low": "a", "high": "c"}
    assert computed([1], {"a": 1}, [1], True, 1, 1.0, "1", distinct={"distinct": "v"}) == {"distinct": 5}
    assert computed({"x": 1}, first={"first": "v.x"}) == {"first": 1}


def test_distinct_is_near_for_many() -> None:
    assert computed(*range(9_000), distinct={"distinct": "v"})["distinct"] == pytest.approx(9_000, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("sum", "x"), ("sum", True), ("sum", float("nan")), ("mean", [1]), ("mean", 10**400), ("min", "x"), ("max", {}),
        ("max", True),
    ],
)  # fmt: skip
def test_an_event_that_cannot_be_aggregated_fails_and_changes_nothing(kind: str, bad: Any) -> None:
    aggregates = {"d": {"distinct": "w"}, "n": "count", "all": {kind: "v"}}
    values = [{"v": 2.0, "w": 1}, {"v": bad, "w": 2}, {"v": 4.0, "w": 1}]
    kit = asyncio.run(passed(op("window", count=2, aggregates=aggregates), values=values, ports=["err"]))
    (window,) = kit.out.values
    assert window["aggregates"]["n"] == 2
    assert window["aggregates"]["d"] == 1
    assert not window["partial"]
    assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "ok"}
    assert [each.value["w"] for each in kit.sinks["err"].events] == [2]


def test_the_first_event_of_a_window_that_fails_opens_none() -> None:
    kit = asyncio.run(passed(op("window", count=2, aggregates={"all": {"sum": "v"}}), values=[{"v": "x"}]))
    assert kit.out.values == []
    assert kit.feed.statuses == {0: "reject"}


# -- by count --------------------------------------------------------------------------------------------------
def test_windows_by_count_of_each_key() -> None:
    clock = Clock(50)
    values = [("a", 1), ("b", 10), ("a", 2), (1, 5), ("1", 6), (True, 7), ([1], 8), ("b", 20), ([1], 9), ("a", 3)]
    one = op("window", count=2, key="[0]", aggregates={"all": {"sum": "[1]"}})
    kit = asyncio.run(passed(one, values=[list(each) for each in values], clock=clock))
    full = [(key, total) for key, _, _, got, partial in results(kit) if not partial for total in got.values()]
    assert full == [("a", 3), ("b", 30), ([1], 17)]
    rest = [(key, got["all"]) for key, _, _, got, partial in results(kit) if partial]  # by the drain at the end
    assert rest == [(1, 5), ("1", 6), (True, 7), ("a", 3)]
    assert kit.out.values[0]["start"] == kit.out.values[0]["end"] == 50
    assert set(kit.feed.statuses.values()) == {"ok"}


def test_members_of_a_window_share_what_becomes_of_it() -> None:
    async def body() -> None:
        async with flow_of(op("window", count=2, key="k", aggregates={"all": {"sum": "v"}})) as kit:
            kit.out.answer = lambda event: REJECT if event.value["key"] == "b" else OK
            kit.feed.put(*({"k": key, "v": 1} for key in "abba"))
            await kit.until(lambda: kit.feed.outcomes)
            await kit.finished()
            assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "reject", 3: "ok"}
            assert kit.out.events[0].meta == {"window": {"count": 2}}

    asyncio.run(body())


# -- by the clock ----------------------------------------------------------------------------------------------
def test_windows_by_the_clock_end_with_it() -> None:
    async def body() -> None:
        async with flow_of(op("window", time="100ms", aggregates={"all": "count"})) as kit:
            kit.feed.put(1)
            await kit.until(lambda: kit.out.values)
            kit.feed.put(2)
            await kit.until(lambda: len(kit.out.values) == 2)
            first, second = kit.out.values
            assert first["end"] <= second["start"]
            assert first["end"] - first["start"] == pytest.approx(0.1, abs=1e-5)
            assert not first["partial"]
            await kit.finished()

    asyncio.run(body())


def test_windows_by_the_clock_begin_at_multiples_and_their_ends_are_not_theirs() -> None:
    async def body() -> None:
        clock = Clock(1003)
        async with flow_of(op("window", time="10s", key="k", aggregates={"all": "count"}), clock=clock) as kit:
            for moment, key in ((1003, "a"), (1009.999, "a"), (1009.999, "b"), (1010, "a"), (1035, "a")):
                clock.seconds = moment
                kit.feed.put({"k": key})
                await kit.until(lambda: kit.counts().get("in", 0) == len(kit.feed.outcomes) + kit.operator().kept())
                await kit.until(lambda: not kit.feed.waiting and kit.feed.number == kit.counts().get("in", 0))
            await kit.until(lambda: len(kit.out.values) == 3)
            assert [(key, start, end, got["all"]) for key, start, end, got, _ in results(kit)] == [
                ("a", 1000, 1010, 2), ("b", 1000, 1010, 1), ("a", 1010, 1020, 1),
            ]  # fmt: skip
            await kit.finished()

    asyncio.run(body())


def test_a_clock_that_is_set_back_makes_nothing_late() -> None:
    async def body() -> None:
        clock = Clock(1003)
        async with flow_of(op("window", time="10s", aggregates={"all": "count"}), clock=clock, ports=["late"]) as kit:
            for number, moment in enumerate((1003, 1013, 903)):
                clock.seconds = moment
                kit.feed.put(1)
                await kit.until(lambda number=number: kit.counts().get("in", 0) == number + 1)  # type: ignore[misc]
            await kit.finished()
            assert sorted(start for _, start, _, _, _ in results(kit)) == [900, 1000, 1010]
            assert found(kit) == [1, 1, 1]
            assert kit.sinks["late"].values == []

    asyncio.run(body())


# -- by event time ---------------------------------------------------------------------------------------------
def by_time(**options: Any) -> Any:
    return op("window", time="10s", at="at", aggregates={"all": {"sum": "v"}}, **options)


def test_windows_by_event_time_end_with_the_watermark() -> None:
    values = [at(1, v=1), at(12, v=2), at(9, v=4), at(14.9, v=8), at(15, v=16), at(8, v=32), at(25.5, v=64)]
    kit = asyncio.run(passed(by_time(lateness="5s"), values=values, ports=["late"]))
    assert [(start, end, got["all"], partial) for _, start, end, got, partial in results(kit)] == [
        (0, 10, 5, False), (10, 20, 26, False), (20, 30, 64, True),
    ]  # fmt: skip
    assert kit.sinks["late"].values == [at(8, v=32)]
    assert kit.counts()["late"] == 1
    assert set(kit.feed.statuses.values()) == {"ok"}


def test_late_events_that_nobody_wants_are_discarded() -> None:
    kit = asyncio.run(passed(by_time(), values=[at(1, v=1), at(12, v=2), at(9, v=4)]))
    assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "discard"}


def test_times_are_numbers_or_texts() -> None:
    texts = ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "2026-01-02T04:04:05.5+01:00", "2026-01-02"]
    kit = asyncio.run(passed(by_time(lateness="1d"), values=[at(each, v=1) for each in texts]))  # type: ignore[arg-type]
    assert [(start, got["all"]) for _, start, _, got, _ in results(kit)] == [(1767323040, 3), (1767312000, 1)]
    for unit, factor in (("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)):
        kit = asyncio.run(passed(by_time(unit=unit), values=[at(1767323049 * factor, v=1)]))
        assert [(start, end) for _, start, end, _, _ in results(kit)] == [(1767323040, 1767323050)]


@pytest.mark.parametrize("bad", [None, "yesterday", True, float("inf"), [1], "2026-13-01"])
def test_an_event_without_a_time_fails(bad: Any) -> None:
    kit = asyncio.run(passed(by_time(), values=[at(bad, v=1), at(1, v=2)], ports=["err"]))
    assert found(kit) == [2]
    assert len(kit.sinks["err"].events) == 1


def test_an_event_far_ahead_of_the_clock_fails_and_makes_nothing_late() -> None:
    values = [at(100, v=1), at(100_000, v=2), at(101, v=4)]
    kit = asyncio.run(passed(by_time(ahead="1m"), values=values, ports=["err", "late"], clock=Clock(100)))
    assert found(kit) == [5]
    assert "more than 60 s ahead of the clock" in kit.sinks["err"].events[0].meta["error"]
    assert kit.sinks["late"].values == []


def test_when_nothing_comes_all_windows_end() -> None:
    async def body() -> None:
        async with flow_of(by_time(idle="60ms", lateness="1h", key="k"), ports=["late"]) as kit:
            kit.feed.put(at(1, v=1, k="a"), at(11, v=2, k="b"))
            await kit.until(lambda: len(kit.out.values) == 2)
            assert [(key, partial) for key, _, _, _, partial in results(kit)] == [("a", False), ("b", False)]
            kit.feed.put(at(5, v=4, k="a"), at(30, v=8, k="a"))
            await kit.until(lambda: len(kit.out.values) == 3)
            assert kit.sinks["late"].values == [at(5, v=4, k="a")]
            await kit.finished()

    asyncio.run(body())


def test_what_is_tried_again_is_not_late() -> None:
    """The result did not arrive: its members come again when their window has long ended."""

    async def body() -> None:
        one = by_time()
        async with flow_of(one, source=Remembering, on_error={"retry": {"first": "1ms"}}, ports=["late"]) as kit:
            answers = iter([RETRY, RETRY])
            kit.out.answer = lambda event: next(answers, OK)
            kit.feed.put(at(1, v=1), at(2, v=2), at(25, v=100))
            await kit.until(lambda: len(kit.out.values) == 3)
            assert [(start, got["all"], partial) for _, start, _, got, partial in results(kit)] == [
                (0, 3, False), (0, 3, True), (0, 3, True),
            ]  # fmt: skip
            kit.feed.put(at(3, v=7))  # this one is
            await kit.finished()
            assert kit.sinks["late"].values == [at(3, v=7)]
            assert found(kit)[3:] == [100]

    asyncio.run(body())


# -- bounds, drain, pause --------------------------------------------------------------------------------------
def test_open_windows_are_bounded() -> None:
    async def body() -> None:
        async with flow_of(by_time(key="k", max_open=3, lateness="1h")) as kit:
            kit.feed.put(*(at(10 * (5 - number), v=number, k=number) for number in range(5)))
            await kit.until(lambda: len(kit.out.values) == 2)
            assert [(start, got["all"], partial) for _, start, _, got, partial in results(kit)] == [
                (30, 2, True), (20, 3, True),
            ]  # fmt: skip
            assert kit.counts()["overflowed"] == 2
            assert kit.operator().kept() == 3
            await kit.finished()
            assert sorted(found(kit)) == [0, 1, 2, 3, 4]

    asyncio.run(body())


def test_open_windows_by_count_are_bounded() -> None:
    one = op("window", count=10, key="@", max_open=2, aggregates={"all": "count"})
    kit = asyncio.run(passed(one, values=["a", "b", "c", "a"]))
    assert [(key, got["all"]) for key, _, _, got, _ in results(kit)] == [("a", 1), ("b", 1), ("c", 1), ("a", 1)]


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("kind", [{"count": 100}, {"time": "1h"}, {"time": "1h", "at": "at"}])
def test_a_drain_ends_windows_or_gives_their_events_back(flush: bool, kind: dict[str, Any]) -> None:
    async def body() -> None:
        one = op("window", key="k", aggregates={"all": {"sum": "v"}}, flush_on_drain=flush, **kind)
        async with flow_of(one) as kit:
            kit.feed.put(*(at(number, v=1, k=number % 2) for number in range(5)))
            await kit.until(lambda: kit.operator().kept() == 5)
            assert kit.running.unsettled().where == {"p.0": 5}
            await kit.running.pause()
            assert (await kit.running.drain(15)).complete
            if flush:
                assert [(key, partial) for key, _, _, _, partial in results(kit)] == [(0, True), (1, True)]
                assert found(kit) == [3, 2]
            else:
                assert kit.out.values == []
                assert "the flow drained before the end of the window" in kit.feed.outcomes[0][0][1]
            assert set(kit.feed.statuses.values()) == {"ok" if flush else "retry"}
            assert len(kit.feed.statuses) == 5
            assert kit.operator().kept() == 0

    asyncio.run(body())


def test_a_window_ends_by_time_while_its_source_is_paused() -> None:
    async def body() -> None:
        async with flow_of(op("window", time="80ms", aggregates={"all": "count"})) as kit:
            kit.feed.put(1)
            await kit.until(lambda: kit.counts().get("in"))
            await kit.running.pause()
            await kit.until(lambda: kit.feed.statuses == {0: "ok"})
            assert found(kit) == [1]

    asyncio.run(body())


@pytest.mark.parametrize("kind", [{"count": 100}, {"time": "1h"}, {"time": "1h", "at": "at"}])
def test_a_window_larger_than_its_source_may_have_under_way_comes_in_parts(kind: dict[str, Any]) -> None:
    async def body() -> None:
        one = op("window", aggregates={"all": {"sum": "v"}}, **kind)
        async with flow_of(one, max_unsettled=10, clock=Clock(5000)) as kit:
            kit.feed.put(*(at(number, v=1) for number in range(25)))
            await kit.until(lambda: len(kit.feed.outcomes) == 20)
            await kit.finished()
            assert found(kit) == [10, 10, 5]
            assert {(each["start"], each["partial"]) for each in kit.out.values} == {(kit.out.values[0]["start"], True)}

    asyncio.run(body())


def test_the_sum_over_all_windows_is_that_of_all_events_whatever_their_order() -> None:
    import random

    chance = random.Random(7)
    values = [at(chance.randrange(200), v=1, k=chance.randrange(3)) for _ in range(3000)]

    async def body() -> None:
        one = by_time(key="k", lateness="30s", max_open=20)
        async with flow_of(one, ports=["late"], max_unsettled=100, source=Feed) as kit:
            kit.feed.put(*values)
            await kit.finished()
            assert sum(found(kit)) + len(kit.sinks["late"].values) == 3000
            assert len(kit.feed.statuses) == 3000

    asyncio.run(body())


def test_what_it_says_of_an_event_of_its_own() -> None:
    async def body() -> None:
        async with flow_of(op("window", count=2, aggregates={"all": "count"})) as kit:
            kit.feed.put_event(Event(1, id="a", ingest_ns=500, attempt=3))
            kit.feed.put_event(Event(2, id="b", ingest_ns=400))
            await kit.until(lambda: kit.out.events)
            (event,) = kit.out.events
            assert (event.ingest_ns, event.attempt, event.path) == (400, 3, "in.out")
            await kit.finished()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the option 'aggregates' is missing"),
        ({"count": 1, "aggregates": {}}, "aggregates is empty"),
        ({"aggregates": {"n": "count"}}, "a window requires either count, time or gap"),
        ({"aggregates": {"n": "count"}, "count": 1, "time": "1s"}, "requires either"),
        ({"aggregates": {"n": "count"}, "count": 0}, "p[0].count: Expected `int` >= 1"),
        ({"aggregates": {"n": "count"}, "time": 0}, "p[0].time: 0 is too short: it must be at least 1ms"),
        ({"aggregates": {"n": "count"}, "count": 1, "at": "t"}, "at requires time"),
        ({"aggregates": {"n": "count"}, "time": 1, "idle": "1s"}, "require at"),
        ({"aggregates": {"n": "count"}, "time": 1, "at": "t", "idle": 0}, "p[0].idle: it is 0"),
        ({"aggregates": {"n": "count"}, "count": 1, "max_open": 0}, "p[0].max_open: Expected `int` >= 1"),
        ({"aggregates": {"n": "count"}, "count": 1, "key": "["}, "key '['"),
        ({"aggregates": {"n": "median"}, "count": 1}, "there is no aggregate 'median'; known are collect, count, "),
        ({"aggregates": {"n": "sum"}, "count": 1}, "sum requires an expression"),
        ({"aggregates": {"n": {"sum": "["}}, "count": 1}, "aggregates.n '['"),
        ({"aggregates": {"n": {"sum": "a", "min": "b"}}, "count": 1}, "use one kind"),
    ],
)
def test_wrong_options_are_said_at_declaration(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FlowFileError) as raised:
        asyncio.run(passed(op("window", **options), values=[]))
    assert said in str(raised.value)


def test_distinct_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(FlowFileError, match=r"needs the package datasketches: pip install 'tidelog\[flows-all\]'"):
        asyncio.run(passed(op("window", count=1, aggregates={"n": {"distinct": "a"}}), values=[]))
    assert computed(1, n="count") == {"n": 1}
