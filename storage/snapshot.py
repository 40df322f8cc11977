"""A range of a stream as it was at one moment, read while the stream changes: the source of long replies."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from storage.nodes.cache import NodeCache
from storage.nodes.draft import Draft
from storage.nodes.node import Node
from storage.nodes.packed import AnyNode, open_stored
from storage.nodes.pool import NodeStore

SNAPSHOT_BYTES: Final = 1000  # of the objects


class Snapshot:
    """Independent of the stream: copies of borders and tail, immutable blobs, a pinned view of the store.

    Nodes that it opens aren't put into the cache: one long reply would displace what short ones need. A piece is one
    node's part of the range, so memory is bounded by the largest node. The owner calls close(); reading to the end does
    so too.
    """

    __slots__ = ("_blobs", "_borders", "_cache", "_hi", "_lo", "_ms", "_seq", "_sid", "_tail", "_view")

    def __init__(
        self, sid: int, lo: int, hi: int, cache: NodeCache, view: NodeStore, borders: array[int],
        ids: tuple[array[int], array[int]], blobs: dict[int, bytes | Draft], tail: Node | None,
    ) -> None:  # fmt: skip
        self._sid = sid
        self._lo = lo
        self._hi = hi
        self._cache = cache
        self._view: NodeStore | None = view
        self._borders = borders  # first ordinal of each sealed node of the range, and the end of the last
        self._ms, self._seq = ids  # their first IDs
        self._blobs = blobs  # first ordinal -> blob or draft, of nodes that the store didn't have
        self._tail = tail  # the tail's part of the range, None if it has none

    def close(self) -> None:
        """Release the pinned view, if not done yet. Reading on raises RuntimeError where it needs the store."""
        if self._view is not None:
            self._view.release()
            self._view = None

    @property
    def end(self) -> int:
        """The ordinal after the last entry."""
        return self._hi

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, roughly, without the nodes that it shares with the stream."""
        return SNAPSHOT_BYTES + 24 * len(self._borders) + (0 if self._tail is None else self._tail.size)

    def end_at(self, hi: int) -> None:
        """Leave out the entries from ordinal ``hi`` on. At least one must be left."""
        tail, borders = self._tail, self._borders
        if tail is not None and hi < self._hi:
            left = len(tail) - (self._hi - hi)
            self._tail = tail.part(0, left) if left > 0 else None
        while len(borders) > 1 and borders[-2] >= hi:
            borders.pop()
        self._hi = hi

    def forward(self) -> Iterator[bytes]:
        """The range's wire, oldest entry first."""
        try:
            for number in range(len(self._borders) - 1):
                node, start, stop = self._node(number)
                yield node.slice(start, stop)
            if self._tail is not None:
                yield bytes(self._tail.wire)
        finally:
            self.close()

    def backward(self) -> Iterator[bytes]:
        """The same, newest entry first."""
        try:
            if self._tail is not None:
                yield b"".join(self._tail.each_reversed(0, len(self._tail)))
            for number in range(len(self._borders) - 2, -1, -1):
                node, start, stop = self._node(number)
                yield b"".join(node.each_reversed(start, stop))
        finally:
            self.close()

    def _node(self, number: int) -> tuple[AnyNode, int, int]:
        """Sealed node ``number`` of the range, and start and stop of its part in the range."""
        if self._view is None:
            raise RuntimeError("a snapshot was read after its close()")
        first = self._borders[number]
        start, stop = max(self._lo, first) - first, min(self._hi, self._borders[number + 1]) - first
        node = self._cache.get(self._sid, first)
        if node is None or len(node) < stop:  # after a reload with other limits it may end elsewhere
            first_id = self._ms[number] << 64 | self._seq[number]
            blob = self._blobs.get(first)
            if isinstance(blob, Draft):
                return blob.unpack(), start, stop
            blob = blob or self._view.load(self._sid, first, first_id)
            node = open_stored(blob, self._sid, first, first_id, self._borders[number + 1] - first)
        return node, start, stop
