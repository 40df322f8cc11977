"""Timers: a heap of moments, one for each deadline, that tolerates change.

A timer is armed for the earliest moment at which its subject may need attention. Whoever takes it looks at the subject
and arms it again if the deadline has moved on. So extending a deadline (which every read of a group does) costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

NEVER: Final = 0  # as a deadline in ms since epoch: there is none

Item = tuple[int, bytes, bytes]  # kind, key (or a stage's name), group name (b"" for a key or a stage)

# Bytes of names that entries which are not valid any more may hold, and as many more for each entry.
STALE_BYTES: Final = 1 << 20
STALE_NAME: Final = 256

KEY_EXPIRY: Final = 0
GROUP_EXPIRY: Final = 1
PENDING_DROP: Final = 2
PENDING_DUE: Final = 3
STAGE_EXPIRY: Final = 4
PRODUCED: Final = 5  # IDs of a stream's producers are forgotten


class Timers:
    """Times are ms, all by the same clock. Every method is amortized O(log n)."""

    __slots__ = ("_armed", "_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Item]] = []
        self._armed: dict[Item, int] = {}  # each item's earliest moment in the heap
        self._stale = 0  # bytes of names in entries of the heap that are not valid any more, at most

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, kind: int, key: bytes, group: bytes, when: int) -> None:
        """Let the item come up at ``when``; an earlier moment that it is armed for stays."""
        item = (kind, key, group)
        armed = self._armed.get(item)
        if armed is not None:
            if armed <= when:
                return
            self._stale += len(key) + len(group)
        self._armed[item] = when
        heappush(self._heap, (when, item))
        self._tidy()

    def cancel(self, kind: int, key: bytes, group: bytes = b"") -> None:
        """The subject is gone. (A timer left behind does no harm, but takes memory.)"""
        if self._armed.pop((kind, key, group), None) is not None:
            self._stale += len(key) + len(group)
            self._tidy()

    def cancel_all(self, kind: int, keys: Iterable[bytes]) -> None:
        """cancel() for many items without a group."""
        armed = self._armed
        if armed:
            for key in keys:
                if armed.pop((kind, key, b""), None) is not None:
                    self._stale += len(key)
            self._tidy()

    def _tidy(self) -> None:
        """Keep at least a fourth of the heap's entries valid, and forget long names soon."""
        entries = len(self._heap)
        if (entries > 64 and entries > 4 * len(self._armed)) or self._stale > STALE_BYTES + STALE_NAME * entries:
            self._heap = [(at, it) for it, at in self._armed.items()]
            heapify(self._heap)
            self._stale = 0

    def next(self) -> int | None:
        """The earliest moment that an item is armed for, None if there is none."""
        heap = self._heap
        while heap and self._armed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: int) -> Item | None:
        """The next item whose moment has come, None if there is none; it is no longer armed."""
        when = self.next()
        if when is None or when > now:
            return None
        item = heappop(self._heap)[1]
        del self._armed[item]
        return item

    def clear(self) -> None:
        self._heap.clear()
        self._armed.clear()
        self._stale = 0


class TwoClocks:
    """The timers of a keyspace. Some kinds go by the wall clock, the others by served time (``keyspace``, Rule 6)."""

    __slots__ = ("_served", "_wall")

    def __init__(self) -> None:
        self._wall = Timers()
        self._served = Timers()

    def __len__(self) -> int:
        return len(self._wall) + len(self._served)

    def _of(self, kind: int) -> Timers:
        return self._wall if kind in (KEY_EXPIRY, PRODUCED) else self._served

    def arm(self, kind: int, key: bytes, group: bytes, when: int) -> None:
        """See Timers. ``when``: by the clock of the kind."""
        self._of(kind).arm(kind, key, group, when)

    def cancel(self, kind: int, key: bytes, group: bytes = b"") -> None:
        self._of(kind).cancel(kind, key, group)

    def cancel_all(self, kind: int, keys: Iterable[bytes]) -> None:
        self._of(kind).cancel_all(kind, keys)

    def next(self) -> int | None:
        """The earliest moment of all, if both clocks were the same."""
        wall, served = self._wall.next(), self._served.next()
        return served if wall is None else wall if served is None else min(wall, served)

    def take(self, now: int, served: int | None = None) -> Item | None:
        """The next item whose moment has come, None if there is none. ``served``: ``now`` unless it is given."""
        item = self._wall.take(now)
        return item if item is not None else self._served.take(now if served is None else served)

    def clear(self) -> None:
        self._wall.clear()
        self._served.clear()
