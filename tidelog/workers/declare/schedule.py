"""Timers and crons as declared, and the times at which they are due. Pure functions: the time is an argument.

A scheduled time is a number of seconds since 1970. The runtime stores the last scheduled time of a timer on the server,
calls ``due``, and records each scheduled time together with its execution.

Rule 1: a scheduled time is executed at most once: only times after the last one are due, even if the clock was set
        back.
Rule 2: with ``catch_up``, each missed time is executed, oldest first; at most the newest MOST of them.
Rule 3: without it, at most the newest missed time is executed. For a cron, only if it is not older than ``late``, which
        is longer than a change of leader takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidelog.topics.failureactions import is_number
from tidelog.workers.declare.errors import AppError

MOST: Final = 1000  # maximum number of missed times that are executed
LEAST_INTERVAL: Final = 0.01  # seconds
#: How far to search for missed times, in seconds. The ranges are tried in this order until MOST times are found: a cron
#: that runs every second then costs one hour of iterations and not years.
_BACK: Final = (3600.0, 86400.0, 40 * 86400.0, 4 * 366 * 86400.0, math.inf)


@dataclass(frozen=True)
class IntervalSchedule:
    """A fixed interval in seconds, counted from the first execution."""

    interval: float

    def __post_init__(self) -> None:
        if not is_number(self.interval) or self.interval < LEAST_INTERVAL:
            raise AppError(f"interval must be a number of seconds, at least {LEAST_INTERVAL}: {self.interval!r}")

    def after(self, moment: float) -> float:
        """Return the first scheduled time after the scheduled time ``moment``."""
        return moment + self.interval

    def missed(self, last: float, now: float) -> list[float]:
        """Return the scheduled times after ``last``, up to ``now``, oldest first: the newest MOST of them."""
        number = math.floor((now - last) / self.interval)
        return [last + at * self.interval for at in range(max(1, number - MOST + 1), number + 1)]


@dataclass(frozen=True)
class CronSchedule:
    """The times of a cron expression in a time zone.

    Five fields (minute, hour, day, month, weekday), or six with seconds first, as in Debian's cron. ``L`` is the last
    day of the month, ``MON#2`` the second Monday. A time skipped by the change to summer time is executed after the
    change; a time that occurs twice is executed the first time. If minute or hour begin with ``*``, or with six fields,
    the expression counts every hour that passes.
    """

    expression: str
    timezone: str = "UTC"  # a name in the IANA database
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise AppError(f"a cron expression must be text such as '0 3 * * *': {self.expression!r}")
        object.__setattr__(self, "_zone", _zone_of(self.timezone))
        sim, bad = _cronsim()
        try:
            next(sim(self.expression, datetime(2000, 1, 1, tzinfo=UTC)))
        except bad as error:
            raise AppError(
                f"cron expression {self.expression!r}: {error}. '0 3 * * *' means every day at 3:00"
            ) from None
        except StopIteration:
            raise AppError(f"cron expression {self.expression!r} never matches") from None

    def after(self, moment: float) -> float:
        """Return the first scheduled time after any time; infinity if there is none in the next 50 years."""
        return next(self._from(moment), math.inf)

    def missed(self, last: float, now: float) -> list[float]:
        """Return the scheduled times after ``last``, up to ``now``, oldest first: the newest MOST of them."""
        found: deque[float] = deque(maxlen=MOST)
        for back in _BACK:
            start = max(last, now - back)
            found.clear()
            for moment in self._from(start):
                if moment > now:
                    break
                found.append(moment)
            if len(found) == MOST or start == last:
                break
        return list(found)

    def local(self, moment: float) -> datetime:
        """Return a time in the cron's zone."""
        return datetime.fromtimestamp(moment, UTC).astimezone(self._zone)

    def _from(self, start: float) -> Iterator[float]:
        """Iterate over all scheduled times after ``start``, which can be any time."""
        last = start
        for found in _cronsim()[0](self.expression, self.local(start)):
            moment: float = found.timestamp()
            if moment > last:  # in an hour that occurs twice, CronSim returns the first one even if it has passed
                last = moment
                yield moment


class DueTimes(NamedTuple):
    """The scheduled times to execute."""

    moments: list[float]  # to execute now, in this order
    next: float  # when to call ``due`` again; infinity: never


@dataclass(frozen=True)
class ScheduledFunction:
    """A timer or a cron as declared."""

    name: str
    function: Callable[..., Awaitable[None]]
    timing: IntervalSchedule | CronSchedule
    on_leader: bool  # on the leader only; False: in each worker, and nothing is stored on the server
    catch_up: bool
    wants_time: bool  # the function takes the scheduled time

    def due(self, last: float | None, now: float, late: float) -> DueTimes:
        """Return what to execute ``now`` if the last scheduled time was ``last``; None: there was none.

        The first time nothing is due: the caller records ``now`` as the last time. ``late``: see Rule 3.
        """
        if last is None:
            return DueTimes([], self.timing.after(now))
        start = last
        if not self.catch_up and isinstance(self.timing, CronSchedule):
            start = max(last, now - late)
        moments = self.timing.missed(start, now) if now > start else []
        if not self.catch_up:
            moments = moments[-1:]
        base = moments[-1] if moments else last
        return DueTimes(
            moments, self.timing.after(base if isinstance(self.timing, IntervalSchedule) else max(base, now))
        )

    async def invoke(self, moment: float) -> None:
        """Call the function for this scheduled time. Raises its errors."""
        if not self.wants_time:
            await self.function()
        elif isinstance(self.timing, CronSchedule):
            await self.function(self.timing.local(moment))
        else:
            await self.function(datetime.fromtimestamp(moment, UTC))


def _zone_of(name: Any) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise AppError(
            f"unknown time zone {name!r}: timezone is a name such as 'Europe/Oslo'. If this machine has no time zone"
            " data: pip install tzdata"
        ) from None


def _cronsim() -> tuple[Any, type[Exception]]:
    try:
        import cronsim
    except ImportError:
        raise AppError("app.cron needs a parser for cron expressions: pip install 'tidelog[workers]'") from None
    return cronsim.CronSim, cronsim.CronSimError
