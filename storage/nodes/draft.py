"""Drafts: full nodes of a stream that are not sealed yet.

A TPUBLISH adds as many entries as were staged, and nobody else may wait for it. To write their IDs and to compress them
takes a microsecond an entry and more; to adopt them as drafts takes a microsecond a node. So that is done later: when
an entry is read, or when a checkpoint stores the node.

Rule 1: a draft is immutable; any thread may open or seal it.
Rule 2: a draft answers for a node, it isn't one: ``unpack()`` makes the node, each time anew.

A *bare* entry is one in wire form that lacks its ID, which it is given in the place of nothing:

    bare      *5 CRLF                      CRLF $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...
    written   *5 CRLF $15 CRLF 1486475519747.0 CRLF $6 CRLF sensor CRLF $2 CRLF 01 CRLF ...
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import zstandard

from storage.ids import MASK64
from storage.nodes.node import Node, TailNode, seal
from storage.stages.stages import PIECE_BYTES, Piece

OVERHEAD = 250  # bytes of a draft's objects
_LAST_DIGITS = [b"%03d" % n for n in range(1000)]
LONGEST_ID = 46  # bytes of an ID as a bulk string without its last CRLF: $41 CRLF and twice 20 digits and a dot


class Draft:
    """A node to be. ``sealed`` is set by whoever seals it."""

    __slots__ = ("largest", "sealed", "size", "wire_bytes")

    def __init__(self, size: int, largest: int, wire_bytes: int) -> None:
        self.size = size  # bytes of memory, roughly
        self.largest = largest  # at least the bytes of its largest entry, written
        self.wire_bytes = wire_bytes  # at least those of all
        self.sealed = 0  # bytes of the blob; 0 until there is one

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


class WrittenDraft(Draft):
    """What was a stream's tail: nobody appends to it any more."""

    __slots__ = ("_node",)

    def __init__(self, tail: TailNode) -> None:
        super().__init__(tail.size, tail.largest(), len(tail.wire))
        self._node = tail

    def __len__(self) -> int:
        return len(self._node)

    def unpack(self) -> Node:
        return self._node


class BareDraft(Draft):
    """Bare entries, with the IDs that they are to have: ms.seq, ms.seq + 1 and so on."""

    __slots__ = ("_count", "_ms", "_pieces", "_seq")

    def __init__(self, ms: int, seq: int, pieces: Sequence[Piece]) -> None:
        """``pieces`` never change from now on. All IDs must be there below 2**64."""
        count = size = largest = 0
        for piece in pieces:
            count += piece.count
            size += piece.size
            if piece.largest > largest:
                largest = piece.largest
        memory = size + 4 * count + PIECE_BYTES * len(pieces) + OVERHEAD
        super().__init__(memory, largest + LONGEST_ID, size + LONGEST_ID * count)
        self._count = count
        self._ms = ms
        self._seq = seq
        self._pieces = pieces

    def __len__(self) -> int:
        return self._count

    def place(self, ms: int, seq: int) -> None:
        """Its first ID, if that wasn't known at first; not after a stream was given it (Rule 1)."""
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


def bulk_ids(ms: int, seq: int, count: int, before: bytes = b"\r\n") -> list[bytes]:
    """ms.seq, ms.seq + 1 ... as bulk strings, each with ``before`` before it and without the CRLF behind.

    Raises ValueError where a sequence number would pass 2**64.
    """
    if seq + count - 1 > MASK64:
        raise ValueError("sequence numbers end at 2**64")
    stem = b"%d." % ms
    ids: list[bytes] = []
    while count:
        digits = len(str(seq))
        head = b"%b$%d\r\n%b" % (before, len(stem) + digits, stem)
        thousands, low = divmod(seq, 1000)
        if thousands:
            some = min(count, 1000 - low)
            head = b"%b%d" % (head, thousands)
            ids += [head + digits3 for digits3 in _LAST_DIGITS[low : low + some]]
        else:
            some = min(count, 10**digits - seq)
            ids += [b"%b%d" % (head, number) for number in range(seq, seq + some)]
        seq += some
        count -= some
    return ids


def write(ms: int, seq: int, bares: Sequence[bytes]) -> list[bytes]:
    """Bare entries with their IDs: ms.seq, ms.seq + 1 and so on."""
    ids = bulk_ids(ms, seq, len(bares))
    return [bare.replace(b"\r\n", entry_id, 1) for bare, entry_id in zip(bares, ids, strict=True)]
