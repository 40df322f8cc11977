"""What has to happen when: a heap of moments, each for a named thing, that tolerates change.

An item is filed under the earliest moment at which it may need attention. Whoever takes it looks at the thing itself
and
files it again if the moment has moved on. So extending a deadline (which every read of a group does) costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

Item = tuple[int, bytes, bytes]  # kind, key (or a stage's name), group name (b"" where the key itself is meant)

KEY_EXPIRY: Final = 0
GROUP_EXPIRY: Final = 1
PENDING_DROP: Final = 2
PENDING_DUE: Final = 3
STAGE_EXPIRY: Final = 4


class Agenda:
    """Times are ms since epoch. Every method is O(log n), taken over many calls."""

    __slots__ = ("_filed", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Item]] = []
        self._filed: dict[Item, int] = {}  # the earliest moment that stands in the heap

    def __len__(self) -> int:
        return len(self._filed)

    def file(self, kind: int, key: bytes, group: bytes, when: int) -> None:
        """See to the item at ``when`` or, if it is filed earlier already, then."""
        item = (kind, key, group)
        filed = self._filed.get(item)
        if filed is not None and filed <= when:
            return
        self._filed[item] = when
        heappush(self._heap, (when, item))
        self._tidy()

    def forget(self, kind: int, key: bytes, group: bytes = b"") -> None:
        """The thing is gone: nothing is to be seen to. (Whatever is filed of it would do no harm, but take memory.)"""
        if self._filed.pop((kind, key, group), None) is not None:
            self._tidy()

    def forget_all(self, kind: int, keys: Iterable[bytes]) -> None:
        """The same for many that have no group."""
        filed = self._filed
        if filed:
            for key in keys:
                filed.pop((kind, key, b""), None)
            self._tidy()

    def _tidy(self) -> None:
        """Of what stands in the heap at least a fourth is still filed."""
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._filed):
            self._heap = [(at, it) for it, at in self._filed.items()]
            heapify(self._heap)

    def next(self) -> int | None:
        """The earliest filed moment, None if there is none."""
        heap = self._heap
        while heap and self._filed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: int) -> Item | None:
        """The next item whose moment has come; it is no longer filed."""
        when = self.next()
        if when is None or when > now:
            return None
        item = heappop(self._heap)[1]
        del self._filed[item]
        return item

    def clear(self) -> None:
        self._heap.clear()
        self._filed.clear()
