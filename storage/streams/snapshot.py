"""Snapshots: a range of a stream at one point in time, read while the stream changes. They are the source of long
replies.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final

import zstandard

from resp.errors import AbsentNodeError
from storage.model.tombstones import Tombstones
from storage.nodes.draft import Draft, blob_bytes
from storage.nodes.node import ActiveNode, Node, active_blob
from storage.nodes.packed import AnyNode
from storage.nodes.pool import NodePool, NodeStore, open_sealed
from storage.nodes.reference import is_reference

SNAPSHOT_BYTES: Final = 1000  # memory of the objects
_NOTHING: Final = ActiveNode()


def _never(_reference: bytes) -> bytes:
    return b""


class Snapshot:
    """A range of a stream: copies of the index and the active node, immutable blobs, and a pinned view of the store.

    Nodes that it opens are not added to the cache, since one long reply would displace the nodes of short ones. A piece
    is the part of one node, so that memory is bounded by the largest node. The owner calls close(); reading to the end
    does so, too.
    """

    __slots__ = (
        "_blob_bytes", "_blobs", "_borders", "_dropped", "_hi", "_lo", "_tombstones", "_ms", "_pool", "_seq", "_sid",
        "_active", "_active_ord", "_view", "waits",
    )  # fmt: skip

    def __init__(
        self, sid: int, lo: int, hi: int, pool: NodePool, borders: array[int], ids: tuple[array[int], array[int]],
        blobs: dict[int, bytes | Draft], active: Node | None, tombstones: Tombstones | None,
    ) -> None:  # fmt: skip
        self.waits = False  # the reader waits for absent nodes, see _parts()
        self._sid = sid
        self._lo = lo
        self._hi = hi
        self._pool = pool
        self._view: NodeStore | None = pool.store.pin()
        self._borders = borders  # first ordinals of the sealed nodes of the range, and the end of the last one
        self._ms, self._seq = ids  # their first IDs
        self._blobs = blobs  # first ordinal -> blob or draft of nodes that were not stored
        self._blob_bytes = sum(map(blob_bytes, blobs.values()))
        self._dropped = pool.dropped
        self._active = active  # the part of the active node, None if there is none
        self._active_ord = 0 if active is None else hi - len(active)  # the ordinal of its first entry
        self._tombstones = tombstones  # tombstones of the deleted entries; None if there are none

    def close(self) -> None:
        """Release the pinned view. Idempotent. Reading from the store then raises RuntimeError."""
        if self._view is not None:
            self._view.release()
            self._view = None

    @property
    def end(self) -> int:
        """The ordinal after the last entry."""
        return self._hi

    def count(self, lo: int, hi: int) -> int:
        """Return the number of living entries in [lo, hi), a part of the range."""
        return hi - lo - (0 if self._tombstones is None else self._tombstones.count(lo, hi))

    def after(self, count: int) -> int:
        """Return the ordinal after the first ``count`` living entries."""
        lo, tombstones = self._lo, self._tombstones
        return lo + count if tombstones is None else tombstones.after(lo, count, self._hi)

    @property
    def memory_bytes(self) -> int:
        """The approximate memory, without nodes that are shared with the stream."""
        held = SNAPSHOT_BYTES + 24 * len(self._borders) + (0 if self._active is None else self._active.size)
        return held if self._tombstones is None else held + self._tombstones.bytes

    def pinned(self) -> int:
        """Return an upper bound of the memory of shared nodes that the stream has dropped since."""
        return min(self._blob_bytes, self._pool.dropped - self._dropped)

    def end_at(self, hi: int) -> None:
        """Exclude the entries from ordinal ``hi`` on. At least one living entry must remain."""
        active, borders = self._active, self._borders
        if active is not None and hi < self._hi:
            left = len(active) - (self._hi - hi)
            self._active = active.part(0, left) if left > 0 else None
        while len(borders) > 1 and borders[-2] >= hi:
            borders.pop()
        self._hi = hi

    def forward(self) -> Iterator[bytes]:
        """Yield the wire form of the living entries, oldest first, in pieces. An empty one: see _parts()."""
        try:
            for node, ranges in self._parts():
                if len(ranges) == 1:
                    yield node.slice(*ranges[0])
                else:
                    yield b"".join([node.slice(start, stop) for start, stop in ranges])
        finally:
            self.close()

    def backward(self) -> Iterator[bytes]:
        """Yield the same pieces and entries, newest first."""
        for wires in self.entries_reverse():
            yield b"".join(wires)

    def entries(self) -> Iterator[list[bytes]]:
        """Yield lists of the living entries in wire form, oldest first, one list per node."""
        try:
            for node, ranges in self._parts():
                wires: list[bytes] = []
                for start, stop in ranges:
                    wires += node.each(start, stop)
                yield wires
        finally:
            self.close()

    def stored_form(
        self, compressor: zstandard.ZstdCompressor, refer: Callable[[bytes], bytes] = _never
    ) -> Iterator[tuple[int, int, bytes, list[int]]]:  # fmt: skip
        """Yield the nodes as the store has them: first ordinal, the ordinal after it and after deleted entries that
        follow it, the blob, and the deleted ordinals of the range among them. Blobs can be empty, see _parts().
        ``refer``: returns what to yield instead of the blob with this reference; b"": the blob itself."""
        try:
            for number in range(len(self._borders) - 1):
                first, end = self._borders[number], self._borders[number + 1]
                blob = self._blobs.pop(first, None)
                if blob is None or (isinstance(blob, bytes) and is_reference(blob)):
                    self._blob_bytes -= len(blob or b"")
                    raw = blob or self._raw(number)
                    blob = refer(raw) if is_reference(raw) else raw
                    if not blob:
                        while (blob := self._loaded(number, raw)) is None:
                            yield first, end, b"", []
                elif isinstance(blob, Draft):
                    self._blob_bytes -= blob_bytes(blob)
                    blob = blob.seal(compressor)
                else:
                    self._blob_bytes -= len(blob)
                yield first, end, blob, self._marked(max(self._lo, first), end)
            active = self._active
            if active is not None:
                yield self._active_ord, self._hi, active_blob(active)[0], self._marked(self._active_ord, self._hi)
        finally:
            self.close()

    def references(self) -> Iterator[bytes]:
        """Yield the reference of each sealed node; b"" for nodes that have their entries here."""
        try:
            for number, first in enumerate(self._borders[:-1]):
                blob = self._blobs.get(first)
                if blob is None:
                    first_id = self._ms[number] << 64 | self._seq[number]
                    yield self._pinned().reference(self._sid, first, first_id)
                else:
                    yield blob if isinstance(blob, bytes) and is_reference(blob) else b""
        finally:
            self.close()

    def _raw(self, number: int) -> bytes:
        return self._pinned().raw(self._sid, self._borders[number], self._ms[number] << 64 | self._seq[number])

    def _loaded(self, number: int, raw: bytes) -> bytes | None:
        """Return the blob of the node with a reference, or None if it is absent and its reader waits."""
        first_id = self._ms[number] << 64 | self._seq[number]
        try:
            return self._pinned().resolve(raw, self._sid, self._borders[number], first_id)
        except AbsentNodeError as error:
            self._wait_for(error)
            return None

    def _wait_for(self, error: AbsentNodeError) -> None:
        """Let the reader wait for an absent node. Raises the error if it does not wait, or if there is no use."""
        if not self.waits or error.failed:
            raise error
        self._pool.absent = error

    def _marked(self, lo: int, hi: int) -> list[int]:
        return [] if self._tombstones is None else self._tombstones.marked(lo, hi)

    def _pinned(self) -> NodeStore:
        if self._view is None:
            raise RuntimeError("a snapshot was read after its close()")
        return self._view

    def cuts(self) -> Iterator[list[int]]:
        """Yield the ends of the living entries, oldest first, as offsets in each range of living entries of a node. An
        empty list: see _parts()."""
        try:
            for node, ranges in self._parts():
                if not ranges:
                    yield []
                for start, stop in ranges:
                    yield node.cuts(start, stop)
        finally:
            self.close()

    def entries_reverse(self) -> Iterator[list[bytes]]:
        """Yield the same lists, newest entry first."""
        try:
            for node, ranges in self._parts(newest_first=True):
                wires: list[bytes] = []
                for start, stop in reversed(ranges):
                    wires += node.each_reversed(start, stop)
                yield wires
        finally:
            self.close()

    def _parts(self, newest_first: bool = False) -> Iterator[tuple[AnyNode, list[tuple[int, int]]]]:
        """Yield the nodes of the range, each with the ranges (at least one) of its living entries.

        With ``waits``, yields an empty node without ranges for each attempt to read a node that is only in the object
        store. ``pool.absent`` is then set, and the next attempt follows when the iteration continues.
        """
        active = self._active
        if active is not None and newest_first:
            ranges = self._ranges(self._active_ord, self._active_ord, self._active_ord + len(active))
            if ranges:
                yield active, ranges
        count = len(self._borders) - 1
        for number in range(count - 1, -1, -1) if newest_first else range(count):
            first = self._borders[number]
            ranges = self._ranges(first, max(self._lo, first), min(self._hi, self._borders[number + 1]))
            if ranges:
                node = self._if_present(number, ranges[-1][1])
                while node is None:
                    yield _NOTHING, []
                    node = self._if_present(number, ranges[-1][1])
                yield node, ranges
        if active is not None and not newest_first:
            ranges = self._ranges(self._active_ord, self._active_ord, self._active_ord + len(active))
            if ranges:
                yield active, ranges

    def _ranges(self, first: int, lo: int, hi: int) -> list[tuple[int, int]]:
        """Return the ranges of living entries in [lo, hi), as positions in the node that begins at ``first``."""
        if self._tombstones is None:
            return [(lo - first, hi - first)]
        return [(start - first, stop - first) for start, stop in self._tombstones.live_ranges(lo, hi)]

    def take_absent(self) -> AbsentNodeError | None:
        """Return the absent node because of which the last part was empty."""
        return self._pool.take_absent()

    def _if_present(self, number: int, stop: int) -> AnyNode | None:
        """Return _node(), or None if it is absent and the reader waits for it."""
        try:
            return self._node(number, stop)
        except AbsentNodeError as error:
            self._wait_for(error)
            return None

    def _node(self, number: int, stop: int) -> AnyNode:
        """Return sealed node ``number`` of the range, with at least ``stop`` entries. Called once per node."""
        view, first = self._pinned(), self._borders[number]
        blob = self._blobs.get(first)
        # nodes opened after a later checkpoint may lack the bytes of entries that were deleted since
        node = self._pool.cache.get(self._sid, first) if view.is_current() else None
        if node is None or len(node) < stop:  # after a reload with other limits, the cached node can end elsewhere
            first_id = self._ms[number] << 64 | self._seq[number]
            count = self._borders[number + 1] - first
            node = open_sealed(blob, view, self._sid, first, first_id, count, self._tombstones)
        if blob is not None:  # only now: an absent node is opened again
            del self._blobs[first]
            self._blob_bytes -= blob_bytes(blob)
        return node
