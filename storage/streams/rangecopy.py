"""A range of a stream as one node, for another server whose own node of these entries is damaged.

The entries are collected in steps, between which the stream may change. Entries never change, so that later steps fit
earlier ones. An entry that was deleted or evicted before its step is missing. The other server detects this.
"""

from __future__ import annotations

from array import array
from operator import lt
from typing import Final

from storage.model.ids import MASK64
from storage.nodes.node import Node
from storage.streams.reads import StreamReads

LONGEST: Final = 1 << 17  # ordinals that a copy contains at most


class RangeCopy:
    """The entries of ``count`` ordinals from ``first_ord`` on, whose first entry has the ID ``first_id``.

    ``most``: bytes of the entries. A copy with more of them, or with more than LONGEST ordinals, ends without a node.
    """

    __slots__ = ("next", "_end", "_ends", "_first_id", "_first_ord", "_ids", "_most", "_parts", "_size")

    def __init__(self, first_ord: int, first_id: int, count: int, most: int) -> None:
        self.next = first_ord  # the ordinal at which the next step begins
        self._first_ord = first_ord
        self._end = first_ord + count
        self._first_id = first_id
        self._most = most
        self._ids: list[int] = []
        self._ends: list[int] = []
        self._parts: list[bytes] = []
        self._size = 0

    def stop_of(self, entries: int) -> int:
        """Return the ordinal at which a step of up to ``entries`` ordinals ends."""
        return min(self._end, self.next + entries)

    def step(self, stream: StreamReads, entries: int, size: int) -> bool:
        """Collect up to ``entries`` ordinals, and about ``size`` bytes. Return whether another step is needed.

        Raises CorruptError.
        """
        lo, stop = max(self.next, stream.first_ord), self.stop_of(entries)
        if self._end > stream.next_ord:
            return False
        tombstones, left = stream.tombstones, size
        for node, start, end in stream.spans(lo, stop):
            at = self._first_ord + len(self._ids)
            ordinal = max(at, lo) if tombstones is None else tombstones.live_from(max(at, lo))
            if ordinal + end - start - self._first_ord > LONGEST:
                return False
            # evicted and deleted entries: 0 bytes, and an ID between those of their neighbours
            following = self._ids[-1] + 1 if self._ids else self._first_id
            self._ids += range(following, following + ordinal - at)
            self._ends += [self._size] * (ordinal - at)
            self._ids += node.ids(start, end)
            self._ends += [self._size + cut for cut in node.cuts(start, end)]
            part = node.slice(start, end)
            self._parts.append(part)
            self._size += len(part)
            left -= len(part)
            if self._size > self._most:
                return False
            if left <= 0:
                stop = ordinal + end - start
                break
        self.next = stop
        return stop < self._end

    def node(self) -> Node | None:
        """Return the node, without the dead entries at its end. Any thread.

        Returns None if not all steps were possible, if no entry is alive, or if the first one has another ID.
        """
        ids = self._ids
        if self.next < self._end or not ids or ids[0] != self._first_id or not all(map(lt, ids, ids[1:])):
            return None
        base = self._first_id >> 64
        ms, seq = array("Q", [(one >> 64) - base for one in ids]), array("Q", [one & MASK64 for one in ids])
        return Node(base, ms, seq, array("I", self._ends), b"".join(self._parts))
