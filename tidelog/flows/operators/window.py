"""``window``: windows by count, by the clock, or by event time, separately for each key. Windows by time are tumbling,
sliding, or sessions.

Rule 1: A window has the tokens of exactly its members, and so has its result: its outcome is the outcome of all
        members. An event of several windows has the worst outcome of their results (``slidingwindows``).
Rule 2: Windows by the clock end with the clock. Windows by event time end when the watermark has passed their end. The
        watermark is the latest event time minus ``lateness``. If no event arrives for ``idle``, all of them end.
Rule 3: An event is late if all of its windows have ended, and is sent to the port ``late``. However, an event that is
        retried belongs to a result that was not delivered, so its windows are opened again for such events, until none
        has arrived for AGAIN.
Rule 4: At most ``max_open`` windows are open. Beyond that, the window that would end first ends early.
Rule 5: A result has ``partial: true`` if it may not cover the whole window: after Rule 3 or Rule 4, after a drain, or
        because the source waits for the settlement of its members, and for the rest of a window that ended early.
Rule 6: The end of many windows is work in steps (``slices``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import RETRY, Settleable, Token, Withheld
from tidelog.flows.operators.aggregates import Aggregates
from tidelog.flows.operators.jmescompiler import expression
from tidelog.flows.operators.openwindows import NEVER, CountWindows, OpenWindows, Result, TumblingWindows
from tidelog.flows.operators.sessionwindows import SessionWindows
from tidelog.flows.operators.slices import SlicedWork
from tidelog.flows.operators.slidingwindows import SlidingWindows
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import Duration, Interval, PositiveDuration

AGAIN: Final = 1.0  # s without an event after which a window that was opened again ends
MOST_WINDOWS: Final = 1_000  # of an event
SLICE: Final = 1_000  # merged parts in a step: 2 to 10 ms

_UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class WindowOptions(Struct):
    """The options of ``window``. One of ``count``, ``time`` and ``gap`` is required."""

    aggregates: dict[str, str | dict[str, Any]]
    # Aggregates by name: `count`, or a kind with a JMESPath expression, such as `{sum: amount}`.
    count: AtLeastOne | None = None  # Number of events in a window.
    time: Interval | None = None  # Duration of a window. Windows start at multiples of it since 1970, in UTC.
    slide: Interval | None = None
    # For sliding windows: the time between the starts of two windows, which must be less than `time`. Windows start at
    # multiples of it. An event belongs to each window that contains its time, at most 1,000.
    gap: Interval | None = None  # For session windows: a session ends when no event has arrived for this time.
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
    # Maximum number of open windows or sessions. When it is exceeded, the one that would end first ends. Of sliding
    # windows, the intervals between the starts and ends of windows count, for each key with events in them.
    flush_on_drain: bool = True
    # Whether a drain ends open windows. `false`: their events are returned to their source.

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.count, self.time, self.gap)) != 1:
            raise ValueError("a window requires either count, time or gap")
        if self.slide is not None and (self.time is None or self.slide >= self.time):
            raise ValueError("slide requires time, and must be less than it")
        if self.slide is not None and self.time is not None and self.time > MOST_WINDOWS * self.slide:
            number = self.time / self.slide
            raise ValueError(f"an event would belong to {number:,.0f} windows, of at most 1,000: increase slide")
        if self.at is not None and self.count is not None:
            raise ValueError("at requires time or gap, and not count")
        if self.at is None and (self.lateness or self.idle is not None or self.ahead is not None):
            raise ValueError("lateness, ahead and idle require at")


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
        self._lateness = round(options.lateness * 1e9)
        self._windows = self._kind()
        self._again = self._kind()  # open windows of Rule 3
        self._touched: dict[Hashable, float] = {}  # their places by the event loop time of their last events
        self._watermark: float = NEVER  # ns since 1970: windows that end by this event time have ended
        self._came = 0.0  # event loop time of the last event
        self._work = SlicedWork()
        self._current = 0  # events that are being processed
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # event loop time of the timer

    def _kind(self) -> OpenWindows:
        options, most = self._options, self._options.max_open
        if options.count is not None:
            return CountWindows(self._aggregates, most, options.count)
        if options.gap is not None:
            return SessionWindows(self._aggregates, most, _ns(options.gap))
        if options.slide is not None:
            return SlidingWindows(self._aggregates, most, _ns(options.time or 0.0), _ns(options.slide))
        return TumblingWindows(self._aggregates, most, _ns(options.time or 0.0))

    def ports(self) -> tuple[str, ...]:
        return ("late",)

    def start(self) -> None:
        self._windows.node = self._again.node = self.node

    # -- events ----------------------------------------------------------------------------------------------
    def process(self, events: list[Event]) -> None:
        self._work.add(self.node, self._batch(events))

    def _batch(self, events: list[Event]) -> Iterator[None]:
        now_ns = self.node.context.now_ns()
        self._came = now()
        self._current = len(events)
        results = _Results(self)
        late: list[Event] = []
        if self._at is None:
            yield from self._pass(now_ns, results)
        for event in events:
            self._current -= 1
            if self._windows.size + self._again.size >= self._options.max_open:
                yield from self._make_room(event, now_ns, results)
            try:
                watermark = self._add(event, now_ns, results, late)
            except Exception as error:  # noqa: BLE001 - values of codecs and user functions can be of any type
                self.fail(event, error)
                continue
            if watermark > self._watermark:
                if watermark < self._windows.next_end():
                    self._watermark = self._windows.passed = watermark
                else:
                    yield from self._pass(watermark, results)
        results.emit()
        if late:
            self.node.count("late", len(late))
            self.emit(late, "late")
        if self._draining:
            yield from self._end_all()
        else:
            self._set_timer()

    def _add(self, event: Event, now_ns: int, results: _Results, late: list[Event]) -> float:
        """Add an event to its windows. Return the watermark that follows from it."""
        value = event.value
        key = None if self._key is None else self._key(value)
        bucket = key if type(key) is str else msgspec.json.encode(key, order="sorted")
        time = now_ns if self._at is None else self._time(self._at(value), now_ns)
        windows = self._windows
        if time < self._watermark and self._at is not None:
            some, every = windows.late(bucket, time, self._watermark)
            if some and event.attempt > 1:
                windows = self._again
            elif every:
                late.append(event)
                return NEVER
        part = windows.find(bucket, time)
        states = self._aggregates.folded(self._aggregates.first() if part is None else part.states, value)
        if part is None:
            part = windows.create(key, bucket, time)
        part.join(event, states)
        windows.members += 1
        if windows.changes:
            complete = windows.joined(part, time)
            if complete is not None:
                results.add(complete)
        if windows is self._again:
            self._touched.pop(part.place, None)
            self._touched[part.place] = self._came
        return NEVER if self._at is None else time - self._lateness

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

    def _make_room(self, event: Event, now_ns: int, results: _Results) -> Iterator[None]:
        """End the window that would end first, unless the event belongs to an open window, is late, or fails."""
        try:
            key = None if self._key is None else self._key(event.value)
            bucket = key if type(key) is str else msgspec.json.encode(key, order="sorted")
            time = now_ns if self._at is None else self._time(self._at(event.value), now_ns)
        except Exception:  # noqa: BLE001 - the event fails when it is added
            return
        if self._at is not None and self._windows.late(bucket, time, self._watermark)[1] and event.attempt == 1:
            return
        if self._windows.find(bucket, time) is None and self._again.find(bucket, time) is None:
            self.node.count("overflowed")
            place = self._windows.first_place()
            if place is not None:
                yield from results.take(self._windows.end_early(place))
            else:
                yield from self._end_again(next(iter(self._touched)), results)

    # -- ends ------------------------------------------------------------------------------------------------
    def _pass(self, time_ns: float, results: _Results) -> Iterator[None]:
        """End the windows up to this time."""
        self._watermark = max(self._watermark, time_ns)
        if self._windows.next_end() <= time_ns:
            yield from results.take(self._windows.due(time_ns))
        self._windows.passed = max(self._windows.passed, time_ns)

    def _end_again(self, place: Hashable, results: _Results) -> Iterator[None]:
        del self._touched[place]
        yield from results.take(self._again.end_early(place))

    def release(self) -> None:
        self._work.add(self.node, self._release())

    def _release(self) -> Iterator[None]:
        results = _Results(self)
        for place in self._windows.places():
            yield from results.take(self._windows.end_early(place))
        for place in tuple(self._touched):
            yield from self._end_again(place, results)
        results.emit()

    # -- time: one timer, for what is due first ----------------------------------------------------------------
    def _set_timer(self) -> None:
        clock = now()
        due = math.inf
        if self._at is None:
            due = clock + (self._windows.next_end() - self.node.context.now_ns()) / 1e9
        elif self._options.idle is not None and self._windows.size:
            due = self._came + self._options.idle
        if self._touched:
            due = min(due, next(iter(self._touched.values())) + AGAIN)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self.node.after(max(0.0, due - clock), self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._due = None, math.inf
        self._work.add(self.node, self._expire())

    def _expire(self) -> Iterator[None]:
        clock = now()
        results = _Results(self)
        if self._at is None:
            yield from self._pass(self.node.context.now_ns(), results)
        elif self._options.idle is not None and clock >= self._came + self._options.idle and self._windows.size:
            yield from self._pass(self._windows.last_end(), results)
        for place in [each for each, touched in self._touched.items() if clock >= touched + AGAIN]:
            yield from self._end_again(place, results)
        results.emit()
        self._set_timer()

    # -- the end ---------------------------------------------------------------------------------------------
    def drain(self) -> None:
        self._draining = True
        self._work.add(self.node, self._end_all())

    def drained(self) -> bool:
        return not self._work and not self.kept()

    def busy(self) -> bool:
        return bool(self._work)

    def _end_all(self) -> Iterator[None]:
        if self._options.flush_on_drain:
            yield from self._release()
            return
        reason = Withheld(f"{self.node.name}: the flow drained before the end of the window")
        for windows in (self._windows, self._again):
            for part in windows.parts():
                part.settle(RETRY, reason)
            windows.clear()
        self._touched.clear()

    def settled(self, tokens: list[Token]) -> None:
        for token in tokens:  # of panes
            for each in token.key:
                each.settle(token.status, token.reason)

    def gathered(self) -> Iterable[Settleable | None]:
        for windows in (self._windows, self._again):
            for part in windows.parts():
                yield from part.tokens

    def kept(self) -> int:
        return self._windows.members + self._again.members + self._current

    def forget(self) -> None:
        self._work.forget()
        self._windows.clear()
        self._again.clear()
        self._touched.clear()


class _Results:
    """Results that are emitted together, in steps."""

    def __init__(self, operator: WindowOperator) -> None:
        self._operator = operator
        self._events: list[Event] = []
        self._cost = 0  # merged parts since the last step

    def add(self, result: Result) -> None:
        self._events.append(result[0])
        self._cost += result[1]

    def take(self, results: Iterator[Result]) -> Iterator[None]:
        """Add results. Emit them and end a step when they cost too much."""
        for each in results:
            self.add(each)
            if self._cost >= SLICE:
                self.emit()
                yield

    def emit(self) -> None:
        events, self._events, self._cost = self._events, [], 0
        self._operator.emit(events)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
