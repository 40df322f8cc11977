"""The walk over all keys: the totals of INFO, and the largest streams.

Rule 1: a step takes much less than a millisecond: at most PAGE keys or GROUPS groups.
Rule 2: a walk costs at most 1 % of the event loop's time. A result is reused for 100 times the time that it took, and
        at least while it is younger than FRESH if it took longer than CHEAP.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from time import perf_counter
from typing import Final

from commands.glob import Glob
from respserver.observe.streamtotals import StreamTotals, StreamWalk
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream

PAGE: Final = 40  # keys of a step; 5 microseconds each if interpreted
GROUPS: Final = 200  # of a step
CHEAP: Final = 0.02  # seconds; such a walk is part of each scrape, so that its result is exact
REUSE: Final = 100  # see Rule 2


class StreamSelection:
    """The result of a walk."""

    __slots__ = ("cost", "keys", "matching", "taken_at", "totals")

    def __init__(self) -> None:
        self.totals = StreamTotals()
        self.keys: list[bytes] = []  # the selected streams, the largest first
        self.matching = 0  # number of streams that the pattern matches
        self.cost = 0.0  # seconds of the event loop
        self.taken_at = 0.0  # perf_counter()

    @property
    def cheap(self) -> bool:
        return self.cost < CHEAP

    @property
    def old(self) -> bool:
        """Whether another walk may be made (Rule 2)."""
        return perf_counter() - self.taken_at > REUSE * self.cost


class TakenTotals(StreamWalk):
    """Passes the totals of a selection to INFO's functions."""

    __slots__ = ()

    def __init__(self, totals: StreamTotals) -> None:
        super().__init__()
        self._totals = totals

    def totals(self, ks: Keyspace) -> StreamTotals:  # noqa: ARG002
        return self._totals


def walk(ks: Keyspace, count: int, pattern: bytes, result: StreamSelection) -> Iterator[None]:
    """Fill ``result``: select the ``count`` largest streams of which the pattern (b"": any) matches the key."""
    matches = Glob(pattern).matches if pattern else None
    largest: list[tuple[int, bytes]] = []  # a heap
    cursor, totals = 0, result.totals
    while True:
        began, counted = perf_counter(), 0
        cursor, keys = ks.index.page(cursor, PAGE)
        for key in keys:
            stream = ks.keys.get(key)  # it can be deleted between two steps
            if not isinstance(stream, Stream):
                continue
            totals.add(stream)
            groups = list(stream.groups.values())
            for at in range(0, len(groups), GROUPS):
                part = groups[at : at + GROUPS]
                totals.add_groups(part)
                counted += len(part)
                if counted >= GROUPS:
                    result.cost += perf_counter() - began
                    yield
                    began, counted = perf_counter(), 0
            if matches is not None and not matches(key):
                continue
            result.matching += 1
            size = stream.disk_bytes()
            if len(largest) < count:
                heappush(largest, (size, key))
            elif count and size > largest[0][0]:
                heapreplace(largest, (size, key))
        result.cost += perf_counter() - began
        if not cursor:
            break
        yield
    while largest:
        result.keys += [heappop(largest)[1] for _ in range(min(len(largest), GROUPS))]
        yield
    result.keys.reverse()
    result.taken_at = perf_counter()
