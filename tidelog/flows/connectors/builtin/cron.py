"""``cron``: an event at each time of a cron expression. It needs no server, and stores no state for a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from tidelog.flows.api.connector import Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.options.limits import AtLeastOne

LOOK: Final = 30.0  # s between two reads of the clock, to notice when it was set
LATE: Final = timedelta(seconds=5)  # a time that passed longer ago was missed


class CronOptions(ConnectorOptions, kw_only=True):
    """Options of ``cron``."""

    schedule: str  # Five fields, or six with seconds first.
    timezone: str = "UTC"  # A time zone, such as `Europe/Oslo`.
    value: Any = None  # The value of each event. `null`: `{"time": TIME}`.
    missed: Literal["skip", "once", "all"] = "once"
    # Handling of times that passed while the source was paused or stopped.
    max_missed: AtLeastOne = 1000  # For `all`: how many of the newest missed times produce events.

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"timezone is {self.timezone!r}: it must name a zone, such as Europe/Oslo") from None
        try:
            next(CronSim(self.schedule, datetime(2026, 1, 1, tzinfo=zone)))
        except CronSimError as error:
            raise ValueError(f"schedule is {self.schedule!r}: {error}") from None
        except StopIteration:
            raise ValueError(f"schedule is {self.schedule!r}: it never matches") from None


class CronSource(Source):
    """Produces events whose ``id`` is their time in ISO 8601."""

    type = "cron"
    Options = CronOptions

    def __init__(self, options: CronOptions, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__()
        self._options = options
        self._zone = ZoneInfo(options.timezone)
        self._now = now
        self._times: CronSim | None = None
        self._next: datetime | None = None

    async def connect(self) -> None:
        if self._times is None:
            self._times = CronSim(self._options.schedule, self._now().astimezone(self._zone))
            self._next = self._following()

    async def pull(self, limit: int) -> list[Event] | None:
        while self._next is not None:
            now = self._now()
            left = (self._next - now).total_seconds()
            if left <= 0:
                due = self._due(now, limit)
                if due:
                    return due
            elif await self.wait(asyncio.sleep(min(left, LOOK))) is False:
                return []
        return None

    def _due(self, now: datetime, limit: int) -> list[Event]:
        """Return events for the times that have passed."""
        times: list[datetime] = []
        most = min(self._options.max_missed, limit)
        while self._next is not None and self._next <= now:
            if len(times) == most and self._options.missed == "all" and limit < self._options.max_missed:
                break  # the next pull continues
            times.append(self._next)
            self._next = self._following()
            if self._options.missed != "all" or len(times) > self._options.max_missed:
                times = times[-self._options.max_missed :] if self._options.missed == "all" else times[-1:]
        if self._options.missed == "skip":
            times = [each for each in times if now - each <= LATE]
        return [self._event(each) for each in times]

    def _event(self, time: datetime) -> Event:
        text = time.isoformat()
        given = self._options.value
        return Event({"time": text} if given is None else given, {"time": text}, text)

    def _following(self) -> datetime | None:
        return next(self._times, None) if self._times is not None else None
