"""Sums over all streams, for INFO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream


@dataclass(slots=True)
class StreamTotals:
    """Sums over all streams."""

    streams: int = 0
    entries: int = 0
    entries_added: int = 0  # total ever added to the existing streams
    nodes: int = 0
    groups: int = 0
    pending: int = 0
    expired: int = 0
    deadlettered: int = 0
    redelivered: int = 0

    def add(self, stream: Stream) -> None:
        """Add a stream without its groups."""
        self.streams += 1
        self.entries += stream.length
        self.entries_added += stream.entries_added
        self.nodes += stream.node_count

    def add_groups(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self.groups += 1
            self.pending += len(group.pending)
            self.expired += group.expired
            self.deadlettered += group.deadlettered
            self.redelivered += group.redelivered


class StreamWalk:
    """Computes the totals. A result is reused for 20 times the duration of its computation, which costs at most 5 %."""

    __slots__ = ("_cost", "_cursor", "_partial", "_spent", "_taken_at", "_totals")

    CHEAP_SECONDS = 0.005  # a result that took less time is never reused, so that it is exact
    PAGE = 2000  # keys that are processed at a time

    def __init__(self) -> None:
        self._totals = StreamTotals()
        self._taken_at = 0.0
        self._cost = 0.0
        self._partial: StreamTotals | None = None  # totals of a walk in progress
        self._cursor = 0
        self._spent = 0.0

    def totals(self, ks: Keyspace) -> StreamTotals:
        """Complete the walk, and return the totals."""
        while not self.more(ks):
            pass
        return self._totals

    def more(self, ks: Keyspace) -> bool:
        """Process some more keys. Returns True if there is a usable result."""
        began = perf_counter()
        if self._partial is None:
            if self._cost > self.CHEAP_SECONDS and began - self._taken_at < 20 * self._cost:
                return True
            self._partial, self._cursor, self._spent = StreamTotals(), 0, 0.0
        self._cursor, keys = ks.index.page(self._cursor, self.PAGE)
        for key in keys:
            value = ks.keys[key]
            if isinstance(value, Stream):
                self._partial.add(value)
                self._partial.add_groups(value.groups.values())
        ended = perf_counter()
        self._spent += ended - began
        if self._cursor:
            return False
        self._totals, self._partial = self._partial, None
        self._taken_at, self._cost = ended, self._spent
        return True
