"""``window``: tumbling windows by count, by the clock, or by event time, separately for each key.

Rule 1: A window has the tokens of exactly its members, and so has its result: its outcome is the outcome of all
        members.
Rule 2: Windows by the clock end with the clock. Windows by event time end when the watermark has passed their end. The
        watermark is the latest event time minus ``lateness``. If no event arrives for ``idle``, all of them end.
Rule 3: An event of a window that has ended is late, and is sent to the port ``late``. However, an event that is retried
        belongs to a result that was not delivered, so the window is opened again for such events, until none has
        arrived for AGAIN.
Rule 4: At most ``max_open`` windows are open. Beyond that, the window that would end first ends early.
Rule 5: A result has ``partial: true`` if it may not cover the whole window: after Rule 3 or Rule 4, after a drain, or
        because the source waits for the settlement of its members.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, TokenGroup, Withheld
from tidelog.flows.operators.aggregates import Aggregates
from tidelog.flows.operators.jmescompiler import expression
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import Duration, Interval, PositiveDuration

AGAIN: Final = 1.0  # s without an event after which a window that was opened again ends

_UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class WindowOptions(Struct):
    """The options of ``window``. Either ``count`` or ``time`` is required."""

    aggregates: dict[str, str | dict[str, Any]]
    # Aggregates by name: `count`, or a kind with a JMESPath expression, such as `{sum: amount}`.
    count: AtLeastOne | None = None  # Number of events in a window.
    time: Interval | None = None  # Duration of a window. Windows start at multiples of it since 1970, in UTC.
    key: str | None = None  # A JMESPath expression; each of its values has its own windows. `null`: a single key, null.
    at: str | None = None
    # A JMESPath expression for the event time: a number, or an ISO 8601 string (UTC unless it names a zone). `null`:
    # the time of the clock.
    unit: Literal["s", "ms", "us", "ns"] = "s"
    # Unit of an event time that is a number, counted from 1970: `s`, `ms`, `us`, `ns`.
    lateness: Duration = Duration(0.0)
    # How much older than the newest event an event may be. Windows stay open for this much longer.
    ahead: Duration | None = None
    # An event whose time is further ahead of the clock fails. `null`: any time is accepted.
    idle: PositiveDuration | None = None
    # After this time without an event, windows by event time end. `null`: they wait for the next event.
    max_open: AtLeastOne = 10_000
    # Maximum number of open windows. When it is exceeded, the window that would end first ends.
    flush_on_drain: bool = True
    # Whether a drain ends open windows. `false`: their events are returned to their source.

    def __post_init__(self) -> None:
        if (self.count is None) == (self.time is None):
            raise ValueError("a window requires either count or time")
        if self.at is not None and self.time is None:
            raise ValueError("at requires time, and not count")
        if self.at is None and (self.lateness or self.idle is not None or self.ahead is not None):
            raise ValueError("lateness, ahead and idle require at")


@dataclass(slots=True, eq=False)
class _Open:
    """An open window."""

    key: Any
    place: tuple[Any, int]  # its key in the open windows
    start: int  # ns since 1970; in windows by count: the arrival of the first event
    end: int  # in windows by count: the arrival of the last event
    states: list[Any]
    tokens: list[Settleable] = field(default_factory=list)
    count: int = 0
    ingest_ns: int = 0  # the minimum of its events
    attempt: int = 1  # the maximum of its events
    path: str = ""
    again: bool = False  # opened again (Rule 3)
    touched: float = 0.0  # event loop time of the last event


class WindowOperator(Operator):
    """Implements ``window``."""

    type = "window"
    gathers = True
    Options = WindowOptions

    def __init__(self, options: WindowOptions) -> None:
        self._options = options
        self._aggregates = Aggregates(options.aggregates)
        self._key = None if options.key is None else expression(options.key, "key")
        self._at = None if options.at is None else expression(options.at, "at")
        self._size = 0 if options.time is None else round(options.time * 1e9)  # ns
        self._lateness = round(options.lateness * 1e9)
        self._open: dict[tuple[Any, int], _Open] = {}
        self._ends: list[tuple[int, int, _Open]] = []  # a heap of windows except Rule 3's; may contain ended ones
        self._numbers = itertools.count()
        self._again: dict[tuple[Any, int], _Open] = {}  # open windows of Rule 3, in the order of their last events
        self._watermark: float = -math.inf  # ns since 1970: windows that end by this event time have ended
        self._came = 0.0  # event loop time of the last event
        self._members = 0
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # event loop time of the timer

    def ports(self) -> tuple[str, ...]:
        return ("late",)

    # -- events ----------------------------------------------------------------------------------------------
    def process(self, events: list[Event]) -> None:
        now_ns = self.node.context.now_ns()
        self._came = now()
        out: list[Event] = []
        late: list[Event] = []
        if self._size and self._at is None:
            self._pass(now_ns, out)
        for event in events:
            try:
                self._add(event, now_ns, out, late)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
        self.emit(out)
        if late:
            self.node.count("late", len(late))
            self.emit(late, "late")
        if self._draining:
            self._end_all()
        else:
            self._set_timer()

    def _add(self, event: Event, now_ns: int, out: list[Event], late: list[Event]) -> None:
        key = None if self._key is None else self._key(event.value)
        bucket = key if type(key) is str else msgspec.json.encode(key, order="sorted")
        again = False
        start = end = now_ns
        if self._size:
            time = now_ns if self._at is None else self._time(self._at(event.value), now_ns)
            start = time // self._size * self._size
            end = start + self._size
            if self._at is not None and end <= self._watermark:
                again = event.attempt > 1
                if not again:
                    late.append(event)
                    return
        place = (bucket, start if self._size else 0)
        window = self._open.get(place)
        known = window is not None
        if window is None:
            window = _Open(key, place, start, end, self._aggregates.first())
        window.states = self._aggregates.folded(window.states, event.value)
        if not known:
            self._begin(window, again, out)
        self._join(window, event)
        if not self._size:
            window.end = now_ns
            if window.count == self._options.count:
                out.append(self._result(window, partial=False))
        elif self._at is not None and time - self._lateness > self._watermark:
            self._pass(time - self._lateness, out)

    def _time(self, found: Any, now_ns: int) -> int:
        """Return the time of an event in ns since 1970."""
        if isinstance(found, str):
            moment = datetime.fromisoformat(found)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            time = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
        elif isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found):
            time = round(found * _UNITS[self._options.unit])
        else:
            raise TypeError(f"at is {found!r:.100}: a time is a number of {self._options.unit} or a string of ISO 8601")
        ahead = self._options.ahead
        if ahead is not None and time > now_ns + ahead * 1e9:
            raise ValueError(f"at is {found!r:.100}: more than {ahead:g} s ahead of the clock")
        return time

    def _begin(self, window: _Open, again: bool, out: list[Event]) -> None:
        if len(self._open) >= self._options.max_open:
            self.node.count("overflowed")
            out.append(self._result(self._next_to_end(), partial=True))
        self._open[window.place] = window
        window.again = again
        if again:
            self._again[window.place] = window
        elif self._size:
            heapq.heappush(self._ends, (window.end, next(self._numbers), window))

    def _join(self, window: _Open, event: Event) -> None:
        if event.token is not None:
            window.tokens.append(event.token)
        if not window.count:
            window.ingest_ns, window.path = event.ingest_ns, event.path
        window.count += 1
        window.ingest_ns = min(window.ingest_ns, event.ingest_ns)
        window.attempt = max(window.attempt, event.attempt)
        window.touched = self._came
        if window.again:
            self._again[window.place] = self._again.pop(window.place)
        self._members += 1

    def _next_to_end(self) -> _Open:
        while self._ends:
            window = heapq.heappop(self._ends)[2]
            if self._open.get(window.place) is window:
                return window
        return next(iter(self._open.values()))

    # -- ends ------------------------------------------------------------------------------------------------
    def _pass(self, time_ns: int, out: list[Event]) -> None:
        """End the windows up to this time."""
        self._watermark = max(self._watermark, time_ns)
        while self._ends and self._ends[0][0] <= time_ns:
            window = heapq.heappop(self._ends)[2]
            if self._open.get(window.place) is window:
                out.append(self._result(window, partial=False))

    def _result(self, window: _Open, *, partial: bool) -> Event:
        del self._open[window.place]
        self._again.pop(window.place, None)
        self._members -= window.count
        value = {
            "key": window.key,
            "start": window.start / 1e9,
            "end": window.end / 1e9,
            "aggregates": self._aggregates.results(window.states),
            "partial": partial,
        }
        return Event(
            value, {"window": {"count": window.count}}, ingest_ns=window.ingest_ns, attempt=window.attempt,
            path=window.path, token=TokenGroup(window.tokens) if window.tokens else None,
        )  # fmt: skip

    def release(self) -> None:
        self.emit([self._result(each, partial=True) for each in tuple(self._open.values())])
        self._ends.clear()

    # -- time: one timer, for what is due first ----------------------------------------------------------------
    def _set_timer(self) -> None:
        clock = now()
        due = math.inf
        if self._ends and self._at is None:
            due = clock + (self._ends[0][0] - self.node.context.now_ns()) / 1e9
        if self._options.idle is not None and len(self._open) > len(self._again):
            due = self._came + self._options.idle
        if self._again:
            due = min(due, next(iter(self._again.values())).touched + AGAIN)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self.node.after(max(0.0, due - clock), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._due = None, math.inf
        clock = now()
        out: list[Event] = []
        if self._at is None:
            self._pass(self.node.context.now_ns(), out)
        elif self._options.idle is not None and clock >= self._came + self._options.idle and self._ends:
            self._pass(max(end for end, _, _ in self._ends), out)
        due = [each for each in self._again.values() if clock >= each.touched + AGAIN]
        self.emit(out + [self._result(each, partial=True) for each in due])
        self._set_timer()

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        self._draining = True
        self._end_all()

    def _end_all(self) -> None:
        if self._options.flush_on_drain:
            self.release()
            return
        for window in tuple(self._open.values()):
            token = self._result(window, partial=True).token
            if token is not None:
                token.settle(RETRY, Withheld(f"{self.node.name}: the flow drained before the end of the window"))
        self._ends.clear()

    def gathered(self) -> Iterable[Settleable | None]:
        for window in self._open.values():
            yield from window.tokens

    def kept(self) -> int:
        return self._members

    def forget(self) -> None:
        self._open.clear()
        self._ends.clear()
        self._again.clear()
