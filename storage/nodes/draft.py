"""Drafts: full nodes of a stream that are not encoded and compressed yet.

Decision: full nodes are compressed in a thread, not by the append that fills them. Compressing 1 KB of JSON takes as
long as half of the event loop's work for its append (pipelines of 16). The pool lists the drafts that wait, and limits
their memory: beyond ``NodePool.most_drafted``, an append compresses its node at once.

Decision: all nodes are compressed with the level that the store needs. Faster levels of zstd, with a second compression
when the server is idle, do not pay: for 1 KB of JSON with varied numbers, level -5 takes 0.88 us instead of 1.30 us.
Its blobs take 1.8 times the space, all of which is written and synced, and later read and compressed again.

Decision: published entries are compressed later. A TPUBLISH appends all staged entries while all other clients wait.
Encoding their IDs and compressing them takes more than a microsecond per entry, a second for a million entries.
Adopting them as drafts takes a microsecond per node. They get their IDs when they are read or compressed. Up to 4096
entries are appended like others, so that small publications fill nodes.

Rule 1: a draft in a stream is immutable. Any thread may open or seal it.
Rule 2: a draft represents a node but is not one. Each call of ``unpack()`` creates the node.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import zstandard

from storage.nodes.appendlist import ENTRY_BYTES, STEP, sealed_blob
from storage.nodes.node import ActiveNode, Node, seal, sealed, sizes_of
from storage.nodes.stagedentries import CHUNK_BYTES, LONGEST_ID, StagedChunk, write

OVERHEAD: Final = 250  # memory of a draft's objects, in bytes


class Draft:
    """A node that is not created yet."""

    __slots__ = ("blob", "counted", "largest", "replacement", "sealed", "size", "wire_bytes")

    def __init__(self, size: int, largest: int, wire_bytes: int) -> None:
        self.size = size  # approximate memory in bytes
        self.largest = largest  # upper bound of the size of its largest entry with its ID
        self.wire_bytes = wire_bytes  # upper bound of the size of all entries with their IDs
        self.sealed = 0  # size of the blob; 0 until seal() is called
        self.blob: bytes | None = None  # the result of seal()
        # for the stream: the blob that it holds instead of the draft, and whether the blob counts in its totals
        self.replacement: bytes | None = None
        self.counted = False

    def __len__(self) -> int:
        raise NotImplementedError

    def unpack(self) -> Node:
        raise NotImplementedError

    def seal(self, compressor: zstandard.ZstdCompressor) -> bytes:
        """Return the blob. ``compressor`` belongs to the calling thread. Two threads may do this at the same time."""
        blob = self.blob
        if blob is None:
            blob = self.blob = self._seal(compressor)
            self.sealed = len(blob)
        return blob

    def _seal(self, compressor: zstandard.ZstdCompressor) -> bytes:
        return seal(self.unpack(), compressor=compressor)


def blob_bytes(blob: bytes | Draft) -> int:
    """Return the memory of a node that is not stored yet."""
    return blob.size if isinstance(blob, Draft) else len(blob)


class ActiveDraft(Draft):
    """The former active node of a stream, which no longer changes."""

    __slots__ = ("_node", "_sizes")

    def __init__(self, active: ActiveNode) -> None:
        sizes = sizes_of(active.ends)
        super().__init__(active.size + len(sizes[1]), sizes[2], len(active.wire))
        self._node = active
        self._sizes = sizes  # computing them again would add 1 % to the time of a TMAPPEND of small entries

    def __len__(self) -> int:
        return len(self._node)

    def unpack(self) -> Node:
        return self._node

    def _seal(self, compressor: zstandard.ZstdCompressor) -> bytes:
        return sealed(self._node, True, compressor, self._sizes)[0]


class ListDraft(Draft):
    """A former append list, and the entries after it in parts, with the IDs ms.seq, ms.seq + 1 ... They are large."""

    __slots__ = ("_listed", "_ms", "_parts", "_seq", "_sizes")

    def __init__(
        self, listed: list[Any], listed_bytes: int, ms: int, seq: int, sizes: list[int], parts: list[bytes]
    ) -> None:
        """``listed`` and ``parts`` must no longer change. ``listed_bytes``: the size of the entries of the list."""
        own = [len(wire) for wire in listed[::STEP]]
        size = listed_bytes + sum(sizes)
        super().__init__(size + ENTRY_BYTES * (len(own) + len(sizes)) + OVERHEAD, max(own + sizes), size)
        self._listed = listed
        self._ms = ms
        self._seq = seq
        self._sizes = sizes
        self._parts = parts

    def __len__(self) -> int:
        return len(self._listed) // STEP + len(self._sizes)

    def unpack(self) -> Node:
        listed, count = self._listed, len(self._sizes)
        ms = array("Q", [*listed[1::STEP], *([self._ms] * count)])
        seq = array("Q", [*listed[2::STEP], *range(self._seq, self._seq + count)])
        wires: list[bytes] = listed[::STEP]
        ends = array("I", accumulate([len(wire) for wire in wires] + self._sizes))
        return Node(0, ms, seq, ends, b"".join(wires + self._parts))

    def _seal(self, compressor: zstandard.ZstdCompressor) -> bytes:
        """Return the blob, without joining the entries twice."""
        return sealed_blob(self._listed, self._ms, self._seq, self._sizes, self._parts, compressor)[0]


class StagedDraft(Draft):
    """Staged entries, which get the IDs ms.seq, ms.seq + 1 ..."""

    __slots__ = ("_count", "_ms", "_pieces", "_seq")

    def __init__(self, ms: int, seq: int, pieces: Sequence[StagedChunk]) -> None:
        """``pieces`` must no longer change. The last sequence number must be below 2**64."""
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
        """Set the ID of the first entry of a draft that is not in a stream yet (Rule 1)."""
        self._ms = ms
        self._seq = seq

    def entries(self) -> list[bytes]:
        """Return each entry without its ID."""
        return [bare for piece in self._pieces for bare in piece.entries()]

    def unpack(self) -> Node:
        wires = write(self._ms, self._seq, self.entries())
        ends = array("I", accumulate(map(len, wires)))
        seqs = array("Q", range(self._seq, self._seq + self._count))
        return Node(self._ms, array("I", bytes(4 * self._count)), seqs, ends, b"".join(wires))
