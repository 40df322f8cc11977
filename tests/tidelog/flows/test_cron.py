"""``cron``: an event at each time, and what becomes of times that were missed. The clock is moved by hand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.connectors.builtin.cron import CronOptions, CronSource

NOON = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


async def made(**options: Any) -> tuple[CronSource, Clock]:
    clock = Clock()
    cron = CronSource(CronOptions(schedule="* * * * *", **options), clock)
    await cron.connect()
    return cron, clock


async def pulled(cron: CronSource, limit: int = 512) -> list[str]:
    """IDs of the events that are due."""
    async with asyncio.timeout(10):
        events = await cron.pull(limit)
    assert events is not None
    return [event.id[11:16] for event in events]


@in_loop
async def test_an_event_for_each_time() -> None:
    cron, clock = await made()
    clock.now += timedelta(seconds=30)
    async with asyncio.timeout(10):
        (event,) = await cron.pull(10) or []
    assert event.value == {"time": "2026-03-01T12:01:00+00:00"}
    assert event.id == "2026-03-01T12:01:00+00:00"
    clock.now += timedelta(seconds=60)
    assert await pulled(cron) == ["12:02"]


@in_loop
async def test_an_interruption_ends_a_wait_and_loses_nothing() -> None:
    cron, clock = await made()
    pull = asyncio.ensure_future(cron.pull(10))
    await asyncio.sleep(0)
    cron.interrupt()
    assert await pull == []
    clock.now += timedelta(seconds=30)
    assert await pulled(cron) == ["12:01"]


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("once", ["12:05"]), ("all", ["12:01", "12:02", "12:03", "12:04", "12:05"]), ("skip", ["12:06"])],
)
@in_loop
async def test_times_that_were_missed(missed: str, expected: list[str]) -> None:
    cron, clock = await made(missed=missed)
    clock.now += timedelta(minutes=5)  # 12:05:30
    if missed == "skip":
        pull = asyncio.ensure_future(pulled(cron))
        await asyncio.sleep(0.01)
        assert not pull.done()
        cron.interrupt()
        assert await pull == []
        clock.now += timedelta(seconds=31)
        assert await pulled(cron) == expected
    else:
        assert await pulled(cron) == expected


@in_loop
async def test_of_all_missed_times_the_newest_are_kept() -> None:
    cron, clock = await made(missed="all", max_missed=3)
    clock.now += timedelta(minutes=100)
    assert await pulled(cron) == ["13:38", "13:39", "13:40"]


@in_loop
async def test_missed_times_come_in_pulls_of_any_size() -> None:
    cron, clock = await made(missed="all")
    clock.now += timedelta(minutes=5)
    found = [each for _ in range(5) for each in await pulled(cron, 1)]
    assert found == ["12:01", "12:02", "12:03", "12:04", "12:05"]


@in_loop
async def test_in_a_zone() -> None:
    clock = Clock()
    cron = CronSource(CronOptions(schedule="0 14 * * *", timezone="Europe/Oslo"), clock)
    await cron.connect()
    clock.now += timedelta(hours=1)
    assert await pulled(cron) == ["14:00"]


@in_loop
async def test_in_a_flow() -> None:
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    flow = Flow("ticks")
    flow.connector("in", "cron", schedule="* * * * * *", value={"go": True})
    flow.connector("out", sink)
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: len(seen) >= 2)
    assert seen[:2] == [{"go": True}] * 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"schedule": "* * *"}, "schedule"),
        ({"schedule": "0 0 31 2 *"}, "schedule"),
        ({"schedule": "* * * * *", "timezone": "Mars/Base"}, "timezone"),
        ({"schedule": "* * * * *", "missed": "most"}, "missed"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("ticks").connector("in", "cron", **options)
