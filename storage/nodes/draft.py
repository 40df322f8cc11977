"""Drafts: full nodes of a stream that are not sealed yet.

A TPUBLISH adds as many entries as were staged, while all other clients wait. Writing their IDs and compressing them
takes a microsecond an entry and more; adopting them as drafts takes a microsecond a node. So that work is done later:
when an entry is read, or when a checkpoint stores the node.

Rule 1: a draft in a stream is immutable; any thread may open or seal it.
Rule 2: a draft stands for a node, but isn't one: ``unpack()`` makes the node, anew each time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import zstandard

from storage.nodes.node import ActiveNode, Node, seal
from storage.nodes.stagedentries import CHUNK_BYTES, LONGEST_ID, StagedChunk, write

OVERHEAD: Final = 250  # memory of a draft's objects, in bytes


class Draft:
    """A node that is still to be made."""

    __slots__ = ("largest", "sealed", "size", "wire_bytes")

    def __init__(self, size: int, largest: int, wire_bytes: int) -> None:
        self.size = size  # bytes of memory, roughly
        self.largest = largest  # upper bound of the bytes of its largest entry, once written
        self.wire_bytes = wire_bytes  # the same of all its entries together
        self.sealed = 0  # bytes of the blob; 0 until seal() has made it

    def __len__(self) -> int:
        raise NotImplementedError

    def unpack(self) -> Node:
        """The node."""
        raise NotImplementedError

    def seal(self, compressor: zstandard.ZstdCompressor) -> bytes:
        """Its blob; ``compressor`` is the calling thread's own."""
        blob = seal(self.unpack(), compressor=compressor)
        self.sealed = len(blob)
        return blob


class ActiveDraft(Draft):
    """A stream's former tail, which is no longer appended to."""

    __slots__ = ("_node",)

    def __init__(self, active: ActiveNode) -> None:
        super().__init__(active.size, active.largest(), len(active.wire))
        self._node = active

    def __len__(self) -> int:
        return len(self._node)

    def unpack(self) -> Node:
        return self._node


class StagedDraft(Draft):
    """Bare entries (see ``bare``), to be written with the IDs ms.seq, ms.seq + 1 ..."""

    __slots__ = ("_count", "_ms", "_pieces", "_seq")

    def __init__(self, ms: int, seq: int, pieces: Sequence[StagedChunk]) -> None:
        """``pieces`` must not change any more; the last sequence number must be below 2**64."""
        count = size = largest = 0
        for piece in pieces:
            count += piece.count
            size += piece.size
            if piece.largest > largest:
                largest = piece.largest
        memory = size + 4 * count + CHUNK_BYTES * len(pieces) + OVERHEAD
        super().__init__(memory, largest + LONGEST_ID, size + LONGEST_ID * count)
        self._count = count
        self._ms = ms
        self._seq = seq
        self._pieces = pieces

    def __len__(self) -> int:
        return self._count

    def set_first_id(self, ms: int, seq: int) -> None:
        """For a draft made before its first ID was known; not to be called once it is in a stream (Rule 1)."""
        self._ms = ms
        self._seq = seq

    def entries(self) -> list[bytes]:
        """The bare entries one by one."""
        return [bare for piece in self._pieces for bare in piece.entries()]

    def unpack(self) -> Node:
        wires = write(self._ms, self._seq, self.entries())
        ends = array("I", accumulate(map(len, wires)))
        seqs = array("Q", range(self._seq, self._seq + self._count))
        return Node(self._ms, array("I", bytes(4 * self._count)), seqs, ends, b"".join(wires))
