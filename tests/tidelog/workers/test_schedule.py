"""Timers and crons: declarations, moments across summer time, what is due after a silence. The time is an argument."""

from __future__ import annotations

import asyncio
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.workers import App, AppError
from tidelog.workers.declare.schedule import MOST, CronSchedule, IntervalSchedule, ScheduledFunction

OSLO = ZoneInfo("Europe/Oslo")
LATE = 30.0


async def nothing() -> None: ...


def at(text: str, fold: int = 0) -> float:
    """A moment from a time in Oslo."""
    return datetime.fromisoformat(text).replace(tzinfo=OSLO, fold=fold).timestamp()


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def scheduled(timing: IntervalSchedule | CronSchedule, catch_up: bool = False) -> ScheduledFunction:
    return ScheduledFunction("it", nothing, timing, on_leader=True, catch_up=catch_up, wants_time=False)


def days(cron: CronSchedule, start: float, number: int) -> list[float]:
    found = []
    for _ in range(number):
        start = cron.after(start)
        found.append(start)
    return found


# -- moments -------------------------------------------------------------------------------------------------
def test_a_cron_in_its_zone() -> None:
    cron = CronSchedule("0 3 * * *", "Europe/Oslo")
    assert cron.after(at("2026-07-01T02:59:59.5")) == at("2026-07-01T03:00")
    assert cron.after(at("2026-07-01T03:00")) == at("2026-07-02T03:00")
    assert cron.after(at("2026-07-01T03:00:00.5")) == at("2026-07-02T03:00")
    assert CronSchedule("0 3 * * *").after(at("2026-07-01T03:00")) == utc("2026-07-01T03:00")  # UTC is two hours behind
    assert CronSchedule("*/10 * * * * *").after(utc("2026-07-01T03:00:05")) == utc("2026-07-01T03:00:10")


def test_a_time_that_summer_time_leaves_out_runs_after_the_change() -> None:
    cron = CronSchedule("30 2 * * *", "Europe/Oslo")
    assert days(cron, at("2026-03-28T00:00"), 3) == [
        at("2026-03-28T02:30"), at("2026-03-29T03:00"), at("2026-03-30T02:30"),
    ]  # fmt: skip


def test_a_time_that_occurs_twice_runs_once() -> None:
    cron = CronSchedule("30 2 * * *", "Europe/Oslo")
    assert days(cron, at("2026-10-24T12:00"), 2) == [at("2026-10-25T02:30"), at("2026-10-26T02:30")]
    for now in (at("2026-10-25T02:10", fold=1), at("2026-10-25T02:45", fold=1)):  # the hour that comes again
        assert cron.after(now) == at("2026-10-26T02:30")
        assert cron.missed(at("2026-10-24T12:00"), now) == [at("2026-10-25T02:30")]


def test_what_follows_the_passing_of_time_counts_every_hour() -> None:
    cron = CronSchedule("*/30 * * * *", "Europe/Oslo")
    start = at("2026-10-25T01:30")
    assert days(cron, start, 6) == [start + 1800 * n for n in range(1, 7)]


def test_a_cron_that_comes_once_in_four_years() -> None:
    cron = CronSchedule("0 0 29 2 *")
    assert cron.after(utc("2024-03-01")) == utc("2028-02-29")


@settings(max_examples=60, deadline=None)
@given(
    expression=st.sampled_from(["30 2 * * *", "0 * * * *", "*/20 1-3 * * *", "15,45 2,3 * * *", "0 3 L * *"]),
    start=st.integers(int(at("2026-03-27T00:00")), int(at("2026-11-02T00:00"))),
    length=st.integers(0, 90_000),
    fraction=st.floats(0, 0.999),
)
def test_what_was_missed_is_what_would_have_come(expression: str, start: int, length: int, fraction: float) -> None:
    cron = CronSchedule(expression, "Europe/Oslo")
    now, moment, expected = start + length + fraction, float(start), []
    while (moment := cron.after(moment)) <= now:
        expected.append(moment)
    assert cron.missed(float(start), now) == expected[-MOST:]
    assert cron.after(now) == moment > now  # asked from anywhere, the next one is the same


# -- what is due ---------------------------------------------------------------------------------------------
def test_the_first_time_nothing_is_due() -> None:
    assert scheduled(IntervalSchedule(60)).due(None, 1000.0, LATE) == ([], 1060.0)
    noon = utc("2026-07-01T12:00")
    assert scheduled(CronSchedule("0 3 * * *")).due(None, noon, LATE) == ([], utc("2026-07-02T03:00"))


def test_a_cron_that_is_followed_misses_and_doubles_nothing() -> None:
    it = scheduled(CronSchedule("* * * * *"))
    ran: list[float] = []
    last, now = utc("2026-07-01T12:00"), utc("2026-07-01T12:00")
    while now < utc("2026-07-01T13:00"):
        due = it.due(last, now, LATE)
        ran += due.moments
        last = due.moments[-1] if due.moments else last
        assert due.next > now
        now += 7.3  # asked more often than needed
    assert ran == [utc("2026-07-01T12:00") + 60 * n for n in range(1, 60)]


def test_after_a_silence() -> None:
    three, now = utc("2026-07-01T03:00"), utc("2026-07-03T09:00")
    cron = CronSchedule("0 3 * * *")
    assert scheduled(cron).due(three, now, LATE) == ([], utc("2026-07-04T03:00"))
    missed = [utc("2026-07-02T03:00"), utc("2026-07-03T03:00")]
    assert scheduled(cron, catch_up=True).due(three, now, LATE) == (missed, utc("2026-07-04T03:00"))


def test_a_change_of_leader_misses_nothing() -> None:
    three, next_three = utc("2026-07-01T03:00"), utc("2026-07-02T03:00")
    it = scheduled(CronSchedule("0 3 * * *"))
    assert it.due(three, next_three + LATE, LATE).moments == []  # as late as that is too late
    assert it.due(three, next_three + LATE - 1, LATE) == ([next_three], utc("2026-07-03T03:00"))
    assert it.due(next_three, next_three + LATE - 1, LATE).moments == []


def test_an_overdue_timer_runs_once_and_keeps_its_step() -> None:
    assert scheduled(IntervalSchedule(60)).due(1000.0, 1059.9, LATE) == ([], 1060.0)
    assert scheduled(IntervalSchedule(60)).due(1000.0, 1060.0, LATE) == ([1060.0], 1120.0)
    assert scheduled(IntervalSchedule(60)).due(1000.0, 1205.0, LATE) == ([1180.0], 1240.0)
    assert scheduled(IntervalSchedule(60), catch_up=True).due(1000.0, 1205.0, LATE) == (
        [1060.0, 1120.0, 1180.0],
        1240.0,
    )


def test_a_clock_that_went_back_doubles_nothing() -> None:
    last = utc("2026-07-01T12:30")
    for it in (
        scheduled(CronSchedule("* * * * *"), True),
        scheduled(CronSchedule("* * * * *")),
        scheduled(IntervalSchedule(60), True),
    ):
        due = it.due(last, last - 3600, LATE)
        assert due == ([], last + 60)


@pytest.mark.parametrize("timing", [IntervalSchedule(1), CronSchedule("* * * * * *")])
def test_years_of_seconds_are_not_made_up_for_one_by_one(timing: IntervalSchedule | CronSchedule) -> None:
    now = utc("2026-07-01T12:00")
    due = scheduled(timing, catch_up=True).due(now - timedelta(days=3650).total_seconds(), now, LATE)
    assert due == ([now - n for n in range(MOST - 1, -1, -1)], now + 1)


# -- declarations --------------------------------------------------------------------------------------------
def test_declarations() -> None:
    app = App("shop")

    @app.timer(interval=60, on_leader=True)
    async def sweep() -> None: ...

    @app.timer(0.5, name="tick")
    async def other(due: datetime) -> None: ...

    @app.cron("0 3 * * *", timezone="Europe/Oslo")
    async def nightly() -> None: ...

    assert app.timers == {
        "sweep": ScheduledFunction(
            "sweep", sweep, IntervalSchedule(60), on_leader=True, catch_up=False, wants_time=False
        ),
        "tick": ScheduledFunction(
            "tick", other, IntervalSchedule(0.5), on_leader=False, catch_up=False, wants_time=True
        ),
        "nightly": ScheduledFunction("nightly", nightly, CronSchedule("0 3 * * *", "Europe/Oslo"), True, False, False),
    }
    assert math.isfinite(app.timers["nightly"].due(None, 0.0, LATE).next)


def test_what_a_function_is_called_with() -> None:
    app = App("shop")
    seen: list[Any] = []

    @app.cron("0 3 * * *", timezone="Europe/Oslo")
    async def local(due: datetime) -> None:
        seen.append(due.isoformat())

    @app.timer(60)
    async def timed(due: datetime) -> None:
        seen.append(due.isoformat())

    @app.timer(60)
    async def bare() -> None:
        seen.append(None)

    @app.timer(60)
    async def default(rate: float = 2.0) -> None:
        seen.append(rate)

    for it in app.timers.values():
        asyncio.run(it.invoke(utc("2026-07-01T01:00")))
    assert seen == ["2026-07-01T03:00:00+02:00", "2026-07-01T01:00:00+00:00", None, 2.0]


async def takes_number(number: int) -> None: ...


async def takes_two(due: datetime, number: int) -> None: ...


def not_async() -> None: ...


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda app: app.timer(0), "app.timer: interval must be a number of seconds, at least 0.01: 0"),
        (lambda app: app.timer("60"), "app.timer: interval must be a number of seconds"),
        (lambda app: app.timer(60, on_leader=1), "app.timer: on_leader must be True or False: 1"),
        (lambda app: app.timer(60, name="a b"), "a timer can't have the name 'a b'"),
        (lambda app: app.cron("0 3 * *"), r"app\.cron: cron expression '0 3 \* \*': Wrong number of fields"),
        (lambda app: app.cron("61 3 * * *"), "Bad minute"),
        (lambda app: app.cron("0 0 31 4 *"), "Bad day-of-month"),
        (lambda app: app.cron(5), "a cron expression must be text such as"),
        (lambda app: app.cron("0 3 * * *", timezone="Oslo"), "unknown time zone 'Oslo': .* 'Europe/Oslo'"),
        (lambda app: app.cron("0 3 * * *", timezone=None), "unknown time zone None"),
        (lambda app: app.cron("0 3 * * *", catch_up="all"), "app.cron: catch_up must be True or False: 'all'"),
        (lambda app: app.timer(60)(takes_number), r"timer 'takes_number' takes int: async def takes_number\(\)"),
        (lambda app: app.timer(60)(takes_two), "timer 'takes_two' needs due, number"),
        (lambda app: app.timer(60)(not_async), "timer 'not_async' is not async"),
        (lambda app: app.cron("0 3 * * *")(nothing), "app 'shop' has a timer 'nothing' already"),
    ],
)
def test_declarations_that_make_no_sense(declare: Any, message: str) -> None:
    app = App("shop")
    app.timer(60)(nothing)
    with pytest.raises(AppError, match=message):
        declare(app)
    assert list(app.timers) == ["nothing"]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(AppError, match=r"pip install 'tidelog\[workers\]'"):
        App("shop").cron("0 3 * * *")
