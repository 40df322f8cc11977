"""The open windows of an operator ``window``: what all kinds have in common, and windows by time and by count.

Rule 1: Events are collected in parts. A window by time or by count is one part. A sliding window consists of several,
        and a part then belongs to several windows.
Rule 2: A part has the tokens of exactly its events.
Rule 3: Parts with the same ``place`` end together if they end early.
Rule 4: A window of which an earlier result exists, because it ended early or the clock was set back, has a partial
        result.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import OperatorRuntime
from tidelog.flows.api.tokens import Settleable, TokenGroup
from tidelog.flows.operators.aggregates import Aggregates

NEVER: Final = -math.inf

Result: TypeAlias = "tuple[Event, int]"  # the event, and the number of parts that were merged


class WindowPart:
    """Collected events, and what is known about them."""

    __slots__ = (
        "attempt", "count", "end", "ended", "ingest_ns", "key", "path", "place", "start", "states", "token", "tokens",
    )  # fmt: skip

    def __init__(self, key: Any, place: Hashable, start: int, end: int) -> None:
        self.key = key
        self.place = place
        self.start = start  # ns since 1970; in windows by count: the arrival of the first event
        self.end = end  # in windows by count: the arrival of the last event
        self.states: Sequence[Any] = ()
        self.tokens: list[Settleable] = []
        self.token: Settleable | None = None  # of a part that belongs to several windows
        self.count = 0
        self.ingest_ns = 0  # the minimum of its events
        self.attempt = 1  # the maximum of its events
        self.path = ""
        self.ended = False

    def join(self, event: Event, states: Sequence[Any]) -> None:
        self.states = states
        if event.token is not None:
            self.tokens.append(event.token)
        if not self.count:
            self.ingest_ns, self.path = event.ingest_ns, event.path
        elif event.ingest_ns < self.ingest_ns:
            self.ingest_ns = event.ingest_ns
        if event.attempt > self.attempt:
            self.attempt = event.attempt
        self.count += 1

    def settle(self, status: int, reason: str) -> None:
        """Settle its events without a result."""
        if self.token is not None:
            self.token.settle(status, reason)
            return
        for token in self.tokens:
            token.settle(status, reason)


class EarlyEnds:
    """Places whose windows ended early, for Rule 4. Beyond ``most`` of them, all windows that end as early count."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: dict[Hashable, int] = {}  # by place: ns since 1970, the end of the last window that ended early
        self._all = NEVER  # the same for all places

    def add(self, place: Hashable, end: int, passed: float) -> None:
        """``passed``: all windows up to this time have ended."""
        self._ends[place] = max(end, self._ends.get(place, end))
        if len(self._ends) > self._most:
            self._ends = {each: at for each, at in self._ends.items() if at > passed}
            if len(self._ends) > self._most // 2:
                self._all = max(self._all, *self._ends.values())
                self._ends.clear()

    def until(self, place: Hashable) -> float:
        """Return the end of the last window that ended early."""
        return max(self._all, self._ends.get(place, NEVER)) if self._ends else self._all


class OpenWindows:
    """The open windows of one kind."""

    changes: ClassVar[bool] = False  # an event can change or complete its window: ``joined``

    node: OperatorRuntime  # set at the start

    def __init__(self, aggregates: Aggregates, most: int) -> None:
        """most: of the places whose early ends are remembered."""
        self._aggregates = aggregates
        self._numbers = itertools.count()
        self.size = 0  # parts
        self.members = 0  # events
        self._early = EarlyEnds(most)
        self.passed = NEVER  # ns since 1970: windows up to this time have ended

    def find(self, bucket: Hashable, time: int) -> WindowPart | None:
        """Return the part for an event."""
        raise NotImplementedError

    def create(self, key: Any, bucket: Hashable, time: int) -> WindowPart:
        raise NotImplementedError

    def joined(self, part: WindowPart, time: int) -> Result | None:  # noqa: ARG002 - for others
        """Update the part after an event has joined it. Return a result if this completes the window. Only called for
        kinds with ``changes``.
        """
        return None

    def late(self, bucket: Hashable, time: int, watermark: float) -> tuple[bool, bool]:
        """Return whether some, and whether all windows of an event have ended by event time."""
        raise NotImplementedError

    def due(self, time: float) -> Iterator[Result]:
        """End the windows up to this time, in the order of their ends."""
        raise NotImplementedError

    def end_early(self, place: Hashable) -> Iterator[Result]:
        """End all windows of a place, with partial results."""
        raise NotImplementedError

    def first_place(self) -> Hashable | None:
        """Return the place of the window that would end first. None: no window is open."""
        raise NotImplementedError

    def places(self) -> list[Hashable]:
        raise NotImplementedError

    def next_end(self) -> float:
        """Return the end of the window that ends first, in ns since 1970, or infinity."""
        raise NotImplementedError

    def last_end(self) -> float:
        """Return the end of the window that ends last."""
        raise NotImplementedError

    def parts(self) -> Iterable[WindowPart]:
        raise NotImplementedError

    def clear(self) -> None:
        self.size = self.members = 0

    def _result(self, part: WindowPart, *, partial: bool) -> Result:
        """Return the result of a window that is one part."""
        self.size -= 1
        self.members -= part.count
        part.ended = True
        token = TokenGroup(part.tokens) if part.tokens else None
        return self._event([part], part.start, part.end, token, partial=partial), 1

    def _event(
        self, parts: Sequence[WindowPart], start: int, end: int, token: Settleable | None, *, partial: bool
    ) -> Event:
        value = {
            "key": parts[0].key,
            "start": start / 1e9,
            "end": end / 1e9,
            "aggregates": self._aggregates.results(self._aggregates.merged([each.states for each in parts])),
            "partial": partial,
        }
        return Event(
            value, {"window": {"count": sum(each.count for each in parts)}},
            ingest_ns=min(each.ingest_ns for each in parts), attempt=max(each.attempt for each in parts),
            path=parts[0].path, token=token,
        )  # fmt: skip


class TumblingWindows(OpenWindows):
    """Windows by time that do not overlap. Their place is the key and the start."""

    def __init__(self, aggregates: Aggregates, most: int, size: int) -> None:
        super().__init__(aggregates, most)
        self._length = size  # ns
        self._open: dict[Hashable, WindowPart] = {}
        self._ends: list[tuple[int, int, WindowPart]] = []  # a heap; may contain windows that ended early

    def find(self, bucket: Hashable, time: int) -> WindowPart | None:
        return self._open.get((bucket, time // self._length))

    def create(self, key: Any, bucket: Hashable, time: int) -> WindowPart:
        number = time // self._length
        start = number * self._length
        part = self._open[(bucket, number)] = WindowPart(key, (bucket, number), start, start + self._length)
        heapq.heappush(self._ends, (part.end, next(self._numbers), part))
        self.size += 1
        return part

    def late(self, bucket: Hashable, time: int, watermark: float) -> tuple[bool, bool]:  # noqa: ARG002 - the same for all
        ended = (time // self._length + 1) * self._length <= watermark
        return ended, ended

    def due(self, time: float) -> Iterator[Result]:
        while self.next_end() <= time:
            part = heapq.heappop(self._ends)[2]
            del self._open[part.place]
            yield self._result(part, partial=part.end <= max(self.passed, self._early.until(part.place)))

    def end_early(self, place: Hashable) -> Iterator[Result]:
        part = self._open.pop(place)
        self._early.add(place, part.end, self.passed)
        yield self._result(part, partial=True)

    def first_place(self) -> Hashable | None:
        return self._ends[0][2].place if self.next_end() < math.inf else None

    def places(self) -> list[Hashable]:
        return list(self._open)

    def next_end(self) -> float:
        while self._ends and self._ends[0][2].ended:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else math.inf

    def last_end(self) -> float:
        return max((each.end for each in self._open.values()), default=NEVER)

    def parts(self) -> Iterable[WindowPart]:
        return self._open.values()

    def clear(self) -> None:
        super().clear()
        self._open.clear()
        self._ends.clear()


class CountWindows(TumblingWindows):
    """Windows by count. Their place is the key, and they end by no time."""

    changes = True

    def __init__(self, aggregates: Aggregates, most: int, count: int) -> None:
        super().__init__(aggregates, most, 1)
        self._most = count

    def find(self, bucket: Hashable, time: int) -> WindowPart | None:  # noqa: ARG002 - the same at any time
        return self._open.get(bucket)

    def create(self, key: Any, bucket: Hashable, time: int) -> WindowPart:
        part = self._open[bucket] = WindowPart(key, bucket, time, time)
        self.size += 1
        return part

    def joined(self, part: WindowPart, time: int) -> Result | None:
        part.end = time
        if part.count < self._most:
            return None
        del self._open[part.place]
        return self._result(part, partial=False)

    def first_place(self) -> Hashable | None:
        return next(iter(self._open), None)
