"""Timers: a heap of times, one for each deadline. Deadlines can be changed.

A timer is armed for the earliest time at which its subject may need attention. When it fires, the subject is inspected,
and the timer is armed again if the deadline was extended. Extending a deadline, which every read of a group does,
therefore costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

NEVER: Final = 0  # as a deadline in ms since epoch: no deadline

Item = tuple[int, bytes, bytes]  # kind, key (or a stage's name), group name (b"" for a key or a stage)

# Size of the names in obsolete heap entries that is tolerated, and the additional size per heap entry.
STALE_BYTES: Final = 1 << 20
STALE_NAME: Final = 256

KEY_EXPIRY: Final = 0
GROUP_EXPIRY: Final = 1
PENDING_DROP: Final = 2
PENDING_DUE: Final = 3
STAGE_EXPIRY: Final = 4
PRODUCED: Final = 5  # expiry of the IDs of a stream's producers
DUE_SERVED: Final = 6  # delayed entries of a stream, whose due times are served time, or wall-clock time
DUE_WALL: Final = 7
RETENTION: Final = 8  # a stream whose policy may evict entries


class Expiring:
    """Something that expires after a time without activity: a group or a stage."""

    __slots__ = ("deadline", "ttl")

    def __init__(self, ttl: int, deadline: int) -> None:
        self.ttl = ttl  # ms of inactivity after which it expires; 0: never
        self.deadline = deadline  # time of expiry, in served time (ms), or NEVER

    def touch(self, served: int) -> None:
        """Extend the deadline, since there was activity at this served time [15].

        This is neither logged nor stored by a checkpoint; resume() compensates for it.
        """
        if self.ttl:
            self.deadline = served + self.ttl

    def resume(self, served: int) -> None:
        """Extend the deadline after the server was down or a replica, which does not count as inactivity [15]."""
        if self.ttl:
            self.deadline = max(self.deadline, served + self.ttl)


class Timers:
    """Timers of one clock; times in ms. Every method is amortized O(log n)."""

    __slots__ = ("_armed", "_heap", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Item]] = []
        self._armed: dict[Item, int] = {}  # the earliest time of each item in the heap
        self._stale = 0  # upper bound of the size of the names in obsolete heap entries

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, kind: int, key: bytes, group: bytes, when: int) -> None:
        """Arm the timer of an item for ``when``, unless it is already armed for an earlier time."""
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
        """Remove the timer of an item. (An obsolete timer is harmless but takes memory.)"""
        if self._armed.pop((kind, key, group), None) is not None:
            self._stale += len(key) + len(group)
            self._tidy()

    def cancel_all(self, kind: int, keys: Iterable[bytes]) -> None:
        """Remove the timers of many items without a group."""
        armed = self._armed
        if armed:
            for key in keys:
                if armed.pop((kind, key, b""), None) is not None:
                    self._stale += len(key)
            self._tidy()

    def _tidy(self) -> None:
        """Rebuild the heap if less than a fourth of its entries are valid, or if obsolete names take much memory."""
        entries = len(self._heap)
        if (entries > 64 and entries > 4 * len(self._armed)) or self._stale > STALE_BYTES + STALE_NAME * entries:
            self._heap = [(at, it) for it, at in self._armed.items()]
            heapify(self._heap)
            self._stale = 0

    def next(self) -> int | None:
        """Return the earliest time of all timers; None if there are none."""
        heap = self._heap
        while heap and self._armed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: int) -> Item | None:
        """Remove the timer of the next item that is due, and return the item; None if there is none."""
        when = self.next()
        if when is None or when > now:
            return None
        item = heappop(self._heap)[1]
        del self._armed[item]
        return item

    def items(self) -> list[Item]:
        return list(self._armed)

    def clear(self) -> None:
        self._heap.clear()
        self._armed.clear()
        self._stale = 0


class TwoClocks:
    """The timers of a keyspace. Some kinds use the wall clock, the others served time (Rule 6 of ``keyspace``)."""

    __slots__ = ("_served", "_wall")

    def __init__(self) -> None:
        self._wall = Timers()
        self._served = Timers()

    def __len__(self) -> int:
        return len(self._wall) + len(self._served)

    def _of(self, kind: int) -> Timers:
        return self._wall if kind in (KEY_EXPIRY, PRODUCED, RETENTION, DUE_WALL) else self._served

    def arm(self, kind: int, key: bytes, group: bytes, when: int) -> None:
        """Arm a timer (see Timers.arm()). ``when`` refers to the clock of the kind."""
        self._of(kind).arm(kind, key, group, when)

    def cancel(self, kind: int, key: bytes, group: bytes = b"") -> None:
        self._of(kind).cancel(kind, key, group)

    def cancel_all(self, kind: int, keys: Iterable[bytes]) -> None:
        self._of(kind).cancel_all(kind, keys)

    def in_served_time(self) -> list[Item]:
        """Return the items of all timers that use served time. O(timers)."""
        return self._served.items()

    def next(self) -> int | None:
        """Return the earliest time of all timers, as if both clocks were the same."""
        wall, served = self._wall.next(), self._served.next()
        return served if wall is None else wall if served is None else min(wall, served)

    def ahead(self, now: int, served: int) -> int | None:
        """Return by how many ms the earliest timer is ahead of its clock (negative: late); None if there is none."""
        wall, first = self._wall.next(), self._served.next()
        if wall is None:
            return None if first is None else first - served
        return wall - now if first is None else min(wall - now, first - served)

    def take(self, now: int, served: int | None = None) -> Item | None:
        """Return the next item that is due, None if there is none. ``served`` defaults to ``now``."""
        item = self._wall.take(now)
        return item if item is not None else self._served.take(now if served is None else served)

    def clear(self) -> None:
        self._wall.clear()
        self._served.clear()
