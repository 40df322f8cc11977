"""Sliding windows: an event belongs to each window that contains its time.

    time: 5, slide: 2         0   1   2   3   4   5   6   7   8   9
    windows                   [-----------------)                        starts at 0, 2, 4, ...
                                      [-----------------)
                                              [-----------------)
    panes                     [---)[--)[---)[--)[---)[--)[---)[--)       limits at all starts and ends

Rule 1: An event is collected once, in the pane that contains its time. The result of a window merges its panes, so the
        cost of an event does not depend on the number of its windows. A pane is removed when its last window ends.
Rule 2: The events of a pane are settled when the results of all its windows are settled, with the worst outcome. The
        token of the pane counts the results that are in flight, and the pane itself as long as one of its windows is
        open. Each event is stored once, as its token.
Rule 3: The place is the key. If its windows end early, all of them end, and its panes are removed, so no event is
        counted twice.
Rule 4: A window that begins before the first pane since the start of the flow has a partial result: its earlier events
        were settled with other windows, or never arrived.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from tidelog.flows.api.tokens import Settleable, Token, TokenGroup, WatchedToken
from tidelog.flows.operators.aggregates import Aggregates
from tidelog.flows.operators.openwindows import NEVER, OpenWindows, Result, WindowPart


class _Key:
    """The panes of one key."""

    __slots__ = ("next", "panes")

    def __init__(self) -> None:
        self.panes: dict[int, WindowPart] = {}  # by start
        self.next: float = math.inf  # the end of the window that ends next, in ns since 1970


class SlidingWindows(OpenWindows):
    """Open sliding windows."""

    def __init__(self, aggregates: Aggregates, most: int, size: int, slide: int) -> None:
        super().__init__(aggregates, most)
        self._length = size  # ns
        self._slide = slide
        self._rest = size % slide
        self._open: dict[Hashable, _Key] = {}
        self._ends: list[tuple[float, int, Hashable]] = []  # a heap of (next end, number, place); may be outdated
        self._since = math.inf  # start of the first pane since the start of the flow

    # -- events --------------------------------------------------------------------------------------------------
    def find(self, bucket: Hashable, time: int) -> WindowPart | None:
        key = self._open.get(bucket)
        return None if key is None else key.panes.get(self._pane(time)[0])

    def create(self, key: Any, bucket: Hashable, time: int) -> WindowPart:
        start, end = self._pane(time)
        found = self._open.get(bucket)
        if found is None:
            found = self._open[bucket] = _Key()
        part = found.panes[start] = WindowPart(key, bucket, start, end)
        self._since = min(self._since, start)
        first = self._first(part.end) + self._length
        if first <= self.passed < self._last(part.start) + self._length:  # not if the clock was set back
            first += -((first - int(self.passed) - 1) // self._slide) * self._slide
        self._schedule(bucket, found, first)
        self.size += 1
        return part

    def late(self, bucket: Hashable, time: int, watermark: float) -> tuple[bool, bool]:  # noqa: ARG002 - the same for all
        start, end = self._pane(time)
        return self._first(end) + self._length <= watermark, self._last(start) + self._length <= watermark

    def _pane(self, time: int) -> tuple[int, int]:
        """Return the start and the end of the pane that contains a time."""
        base = time // self._slide * self._slide
        if time - base < self._rest:
            return base, base + self._rest
        return base + self._rest, base + self._slide

    def _first(self, end: int) -> int:
        """Return the start of the first window of a pane."""
        return -((self._length - end) // self._slide) * self._slide

    def _last(self, start: int) -> int:
        """Return the start of the last window of a pane."""
        return start // self._slide * self._slide

    def _schedule(self, place: Hashable, key: _Key, end: float) -> None:
        if end < key.next:
            key.next = end
            heapq.heappush(self._ends, (end, next(self._numbers), place))

    # -- ends ----------------------------------------------------------------------------------------------------
    def due(self, time: float) -> Iterator[Result]:
        while self.next_end() <= time:
            place = heapq.heappop(self._ends)[2]
            yield self._window(place, self._open[place], early=False)

    def end_early(self, place: Hashable) -> Iterator[Result]:
        key = self._open[place]
        last = max(self._last(each.start) for each in key.panes.values()) + self._length
        self._early.add(place, last, self.passed)
        while key.panes:
            yield self._window(place, key, early=True)

    def _window(self, place: Hashable, key: _Key, *, early: bool) -> Result:
        """Return the result of the window that ends next, and remove the panes of which it is the last window."""
        end = int(key.next)
        start = end - self._length
        panes = sorted((each for at, each in key.panes.items() if start <= at < end), key=_start)
        token = self._token(start, panes)
        partial = early or start < self._since or end <= max(self.passed, self._early.until(place))
        event = self._event(panes, start, end, token, partial=partial)
        for each in panes:
            if self._last(each.start) == start:
                del key.panes[each.start]
                each.ended = True
                self.size -= 1
                self.members -= each.count
        key.next = math.inf
        if key.panes:
            first = min(key.panes.values(), key=_start)
            self._schedule(place, key, max(start + self._slide, self._first(first.end)) + self._length)
        else:
            del self._open[place]
        return event, len(panes)

    def _token(self, start: int, panes: list[WindowPart]) -> Settleable | None:
        """Return the token of a result, with a branch of the token of each pane."""
        kind = WatchedToken if self.node.debug else Token
        branches: list[Settleable] = []
        for each in panes:
            if each.token is None and each.tokens:
                each.token = kind(self.node, each.tokens)
            if each.token is not None:
                branches.append(each.token if self._last(each.start) == start else each.token.fork())
        return TokenGroup(branches) if branches else None

    # -- observation ---------------------------------------------------------------------------------------------
    def first_place(self) -> Hashable | None:
        return self._ends[0][2] if self.next_end() < math.inf else None

    def places(self) -> list[Hashable]:
        return list(self._open)

    def next_end(self) -> float:
        while self._ends:
            end, _, place = self._ends[0]
            key = self._open.get(place)
            if key is not None and key.next == end:
                return end
            heapq.heappop(self._ends)
        return math.inf

    def last_end(self) -> float:
        return max((self._last(each.start) + self._length for each in self.parts()), default=NEVER)

    def parts(self) -> Iterable[WindowPart]:
        for key in self._open.values():
            yield from key.panes.values()

    def clear(self) -> None:
        super().clear()
        self._open.clear()
        self._ends.clear()


def _start(part: WindowPart) -> int:
    return part.start
