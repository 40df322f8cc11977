"""The index of a stream's sealed nodes: the first ordinal and the first ID of each.

Three parallel arrays, in order. Nodes are added at the end and removed at the front. Removed nodes stay in the arrays
as a dead prefix until it is half of them, so that eviction costs O(1) per node. With 100 million entries in nodes of
512, the index takes 5 MB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from storage.model.ids import MASK64

INDEX_BYTES: Final = 300  # memory of an empty index
NODE_BYTES: Final = 25  # memory of each node in it; arrays over-allocate by a sixteenth


class NodeIndex:
    """The index. Positions are offsets into the arrays. ``head`` is the first valid one, ``len(ords)`` the end."""

    __slots__ = ("_found", "head", "ms", "ords", "seq")

    def __init__(self) -> None:
        self.head = 0
        self._found = 0  # the last result of of_ord(), which the next read often needs again
        self.ords = array("Q")  # ordinal of the node's first entry
        self.ms = array("Q")  # ID of that entry
        self.seq = array("Q")

    def __len__(self) -> int:
        return len(self.ords) - self.head

    def begin(self, first_ord: int, first_id: int) -> None:
        """Make this the only node, in arrays without spare capacity: most streams in a store have one node."""
        self.head = 0
        self.ords = array("Q", (first_ord,))
        self.ms = array("Q", (first_id >> 64,))
        self.seq = array("Q", (first_id & MASK64,))

    def push(self, first_ord: int, first_id: int) -> None:
        self.ords.append(first_ord)
        self.ms.append(first_id >> 64)
        self.seq.append(first_id & MASK64)

    def pop(self) -> int:
        """Remove the last node and return its first ordinal."""
        self.ms.pop()
        self.seq.pop()
        return self.ords.pop()

    def remove(self, position: int) -> None:
        """Remove a node from the middle."""
        del self.ords[position], self.ms[position], self.seq[position]

    def drop_front(self, head: int) -> None:
        """Remove the nodes before position ``head``."""
        self.head = head
        if head > 32 and head * 2 > len(self.ords):
            del self.ords[:head], self.ms[:head], self.seq[:head]
            self.head = 0

    def of_ord(self, ordinal: int) -> int:
        """Return the position of the last node that begins at or before ``ordinal``; head - 1 if there is none."""
        ords, found = self.ords, self._found
        after = found + 1
        if self.head <= found and after < len(ords) and ords[found] <= ordinal < ords[after]:
            return found
        found = self._found = bisect_right(ords, ordinal, self.head) - 1
        return found

    def of_id(self, id: int) -> int:  # noqa: A002
        """Return the position of the last node whose first ID is <= ``id``; head - 1 if there is none."""
        ms, seq = id >> 64, id & MASK64
        column = self.ms
        lo = bisect_left(column, ms, self.head)
        if lo == len(column) or column[lo] != ms:  # nearly always true
            return lo - 1
        return bisect_right(self.seq, seq, lo, bisect_right(column, ms, lo)) - 1

    def first_id(self, position: int) -> int:
        return self.ms[position] << 64 | self.seq[position]

    def memory_bytes(self) -> int:
        return INDEX_BYTES + NODE_BYTES * len(self)
