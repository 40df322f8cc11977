"""Session windows: the events of a key, without a gap between them.

Rule 1: A session starts with its first event and ends ``gap`` after its last one. An event at exactly that time begins
        another session.
Rule 2: An event that is out of order extends a session, or merges two. Open sessions of a key do not overlap.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from tidelog.flows.operators.aggregates import Aggregates
from tidelog.flows.operators.openwindows import NEVER, OpenWindows, Result, WindowPart


class SessionWindows(OpenWindows):
    """Open sessions. Their place is the key."""

    changes = True

    def __init__(self, aggregates: Aggregates, most: int, gap: int) -> None:
        super().__init__(aggregates, most)
        self._gap = gap  # ns
        self._open: dict[Hashable, list[WindowPart]] = {}  # sessions of a key by time
        self._ends: list[tuple[int, int, WindowPart]] = []  # a heap of each session, perhaps with an earlier end

    def find(self, bucket: Hashable, time: int) -> WindowPart | None:
        sessions = self._open.get(bucket)
        if sessions is None:
            return None
        number = bisect.bisect_right(sessions, time, key=_end)  # the first one that ends later
        return sessions[number] if number < len(sessions) and sessions[number].start < time + self._gap else None

    def create(self, key: Any, bucket: Hashable, time: int) -> WindowPart:
        part = WindowPart(key, bucket, time, time + self._gap)
        bisect.insort(self._open.setdefault(bucket, []), part, key=_start)
        heapq.heappush(self._ends, (part.end, next(self._numbers), part))
        self.size += 1
        return part

    def joined(self, part: WindowPart, time: int) -> Result | None:
        part.start = min(part.start, time)
        part.end = max(part.end, time + self._gap)
        sessions = self._open[part.place]
        if len(sessions) > 1:
            after = bisect.bisect_left(sessions, part.start, key=_start) + 1
            while after < len(sessions) and sessions[after].start < part.end:
                self._merge(part, sessions.pop(after))
        return None

    def _merge(self, part: WindowPart, other: WindowPart) -> None:
        part.states = self._aggregates.merged([part.states, other.states])
        part.tokens += other.tokens
        part.count += other.count
        part.end = max(part.end, other.end)
        part.ingest_ns = min(part.ingest_ns, other.ingest_ns)
        part.attempt = max(part.attempt, other.attempt)
        other.ended = True
        self.size -= 1

    def late(self, bucket: Hashable, time: int, watermark: float) -> tuple[bool, bool]:
        ended = time + self._gap <= watermark and self.find(bucket, time) is None
        return ended, ended

    def due(self, time: float) -> Iterator[Result]:
        while self.next_end() <= time:
            part = heapq.heappop(self._ends)[2]
            self._remove(part)
            yield self._result(part, partial=part.start < self._early.until(part.place))

    def end_early(self, place: Hashable) -> Iterator[Result]:
        for part in self._open.pop(place):
            self._early.add(place, part.end, self.passed)
            yield self._result(part, partial=True)

    def _remove(self, part: WindowPart) -> None:
        sessions = self._open[part.place]
        sessions.remove(part)
        if not sessions:
            del self._open[part.place]

    def first_place(self) -> Hashable | None:
        return self._ends[0][2].place if self.next_end() < math.inf else None

    def places(self) -> list[Hashable]:
        return list(self._open)

    def next_end(self) -> float:
        ends = self._ends
        while ends:
            end, number, part = ends[0]
            if part.ended:
                heapq.heappop(ends)
            elif part.end > end:
                heapq.heapreplace(ends, (part.end, number, part))
            else:
                return end
        return math.inf

    def last_end(self) -> float:
        return max((each.end for each in self.parts()), default=NEVER)

    def parts(self) -> Iterable[WindowPart]:
        for sessions in self._open.values():
            yield from sessions

    def clear(self) -> None:
        super().clear()
        self._open.clear()
        self._ends.clear()


def _start(part: WindowPart) -> int:
    return part.start


def _end(part: WindowPart) -> int:
    return part.end
