"""Timers and crons: what was declared, and which moments are due. Pure: the time is an argument.

Moments are seconds since 1970, as time.time() gives them. The runtime keeps the last moment for which a timer ran on
the server, asks ``due`` what is to run, and notes each moment with its run.

Rule 1: a moment runs at most once: only moments after the last one are due, also after the clock went back.
Rule 2: with ``catch_up``, each missed moment runs, oldest first; if they are more than MOST, the newest.
Rule 3: without it, at most the newest missed moment runs. That of a cron only if it is no older than ``late``, which
        is more than a change of leader takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.policy import is_number

MOST: Final = 1000  # missed moments that are made up for at once
LEAST_INTERVAL: Final = 0.01  # seconds
#: Seconds to look back for missed moments, one after another until MOST are found: so years of a cron that runs each
#: second cost no more than an hour of it.
_BACK: Final = (3600.0, 86400.0, 40 * 86400.0, 4 * 366 * 86400.0, math.inf)


@dataclass(frozen=True)
class Every:
    """Every so many seconds, counted from the first run."""

    interval: float

    def __post_init__(self) -> None:
        if not is_number(self.interval) or self.interval < LEAST_INTERVAL:
            raise AppError(f"interval is a number of seconds, {LEAST_INTERVAL} at least: {self.interval!r}")

    def after(self, moment: float) -> float:
        """The first moment after the moment ``moment``."""
        return moment + self.interval

    def missed(self, last: float, now: float) -> list[float]:
        """The moments after ``last``, up to ``now``, oldest first: the newest MOST of them."""
        number = math.floor((now - last) / self.interval)
        return [last + at * self.interval for at in range(max(1, number - MOST + 1), number + 1)]


@dataclass(frozen=True)
class Cron:
    """At the times of a cron expression, in a time zone.

    Five fields (minute, hour, day, month, weekday), or six with seconds in front, as Debian's cron reads them; ``L``
    is the last day of the month, ``MON#2`` the second Monday. A time that the change to summer time leaves out runs
    when the clocks have changed; one that occurs twice runs the first time. Where minute or hour begin with ``*``, or
    with six fields, every hour that passes counts.
    """

    expression: str
    timezone: str = "UTC"  # a name of the IANA database
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise AppError(f"a cron expression is text such as '0 3 * * *': {self.expression!r}")
        object.__setattr__(self, "_zone", _zone_of(self.timezone))
        sim, bad = _cronsim()
        try:
            next(sim(self.expression, datetime(2000, 1, 1, tzinfo=UTC)))
        except bad as error:
            raise AppError(f"cron expression {self.expression!r}: {error}. '0 3 * * *' is each day at 3:00") from None
        except StopIteration:
            raise AppError(f"cron expression {self.expression!r} never comes true") from None

    def after(self, moment: float) -> float:
        """The first moment after any moment; infinity if there is none in the next 50 years."""
        return next(self._from(moment), math.inf)

    def missed(self, last: float, now: float) -> list[float]:
        """The moments after ``last``, up to ``now``, oldest first: the newest MOST of them."""
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
        """A moment as a time in the cron's zone."""
        return datetime.fromtimestamp(moment, UTC).astimezone(self._zone)

    def _from(self, start: float) -> Iterator[float]:
        """All moments after ``start``, which may be any."""
        last = start
        for found in _cronsim()[0](self.expression, self.local(start)):
            moment: float = found.timestamp()
            if moment > last:  # of an hour that occurs twice, CronSim gives the first, also where that is over
                last = moment
                yield moment


class Due(NamedTuple):
    """What is to run."""

    moments: list[float]  # now, one after another, oldest first
    next: float  # when to ask again; infinity: never


@dataclass(frozen=True)
class Scheduled:
    """A timer or a cron, as it was declared."""

    name: str
    function: Callable[..., Awaitable[None]]
    timing: Every | Cron
    on_leader: bool  # in one worker, the leader; False: in each worker, and nothing is kept on the server
    catch_up: bool
    wants_time: bool  # the function takes the time for which it runs

    def due(self, last: float | None, now: float, late: float) -> Due:
        """What is to run ``now``, if it ran last for the moment ``last``; None: it never did.

        The first time nothing is due: note ``now`` as the last moment then. ``late``: see rule 3.
        """
        if last is None:
            return Due([], self.timing.after(now))
        start = last
        if not self.catch_up and isinstance(self.timing, Cron):
            start = max(last, now - late)
        moments = self.timing.missed(start, now) if now > start else []
        if not self.catch_up:
            moments = moments[-1:]
        base = moments[-1] if moments else last
        return Due(moments, self.timing.after(base if isinstance(self.timing, Every) else max(base, now)))

    async def invoke(self, moment: float) -> None:
        """Call the function for this moment. Raises what comes out of it."""
        if not self.wants_time:
            await self.function()
        elif isinstance(self.timing, Cron):
            await self.function(self.timing.local(moment))
        else:
            await self.function(datetime.fromtimestamp(moment, UTC))


def _zone_of(name: Any) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        raise AppError(
            f"there is no time zone {name!r} here: timezone is a name such as 'Europe/Oslo'. If the machine has no time"
            " zones at all: pip install tzdata"
        ) from None


def _cronsim() -> tuple[Any, type[Exception]]:
    try:
        import cronsim
    except ImportError:
        raise AppError("app.cron needs a parser of cron expressions: pip install 'tidelog[workers]'") from None
    return cronsim.CronSim, cronsim.CronSimError
