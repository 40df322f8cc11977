"""Coded nodes: columns of numbers and of repeated texts, stored as rows of bits. Any entry is read without the others.

Decision: zstd takes about 17 us to open a node of sensor readings, of which a short read needs ten entries. Coded, the
node takes less than half of the space, and ten entries are written in half a microsecond. This is work for each byte,
so it is done in C (``_coded.c``). The encoder verifies that decoding returns the same bytes. Other entries (long texts,
texts without repetition) are packed (``node``, ``packed``). Without a compiler, all nodes are packed, and coded nodes
are read slowly in Python.

     0      2     3     4        8        12        20         28       32
    +------+-----+-----+--------+--------+---------+----------+--------+- body ---------------------------------
    | "TN" | 2   | how | count  | wire   | ms of   | seq of   | xxh3   |
    |      | u8  | u8  | u32    | bytes  | first   | first    | u32    |
    |      |     |     |        | u32    | u64     | u64      |        |
    +------+-----+-----+--------+--------+---------+----------+--------+----------------------------------------

    body      bits of an ms u8 | bits of a seq u8 | columns u8 | 0 u8 | lowest seq u64 | columns | rows | 8 zeros
    column    0 u8 | bits u8 | texts u16 | bytes of them u32 | size of each u8 | the texts
          or  1 u8 | bits u8 | digits after the point u8 | digits before it, at least, u8 | lowest number i64
          or  2 u8 | as above, but code 0 is minus zero, and the lowest number has code 1
    row       for each entry: ms minus that of the first, seq minus the lowest, and a code for each column: the index of
              the text, or the number (without its point) minus the lowest; without gaps, also between rows

    how       bit 0: seqs are stored. Otherwise they take no bits: they are consecutive from 0 in each millisecond, and
              from "seq of first" in the first one

All numbers are little-endian. Bits are counted from the lowest bit of the first byte. A column contains the names or
the values of one field; all entries have the same number of fields. The checksum is the lower half of XXH3 of the body,
seeded with XXH3 of the 28 bytes before it.
"""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.model.ids import MASK64
from storage.nodes import coder
from storage.nodes.node import BODY, CRC, HEADER, Node

OVERHEAD: Final = 400  # memory of a cached node: node, blob, and the entry of the cache
_VERSION: Final = bytes((coder.VERSION,))
# a cached node is unpacked after this many reads of all its entries; paging through it counts as one
UNPACK_AT: Final = 1


class CodedNode:
    """Entries of a coded node, immutable and never empty. It has the methods of Node.

    They raise CorruptError if the bytes are invalid.
    """

    __slots__ = ("_blob", "_count", "redis_reads", "base", "first_id", "left", "size")

    def __init__(self, blob: bytes) -> None:
        """``blob``: has the header of a coded node and a correct checksum."""
        count: int
        base: int
        seq: int
        _, _, _, count, _, base, seq = HEADER.unpack_from(blob)
        self._blob = blob
        self._count = count
        self.base = base  # ms since epoch
        self.first_id = base << 64 | seq
        self.size = len(blob) + OVERHEAD  # approximate memory in bytes
        self.redis_reads = 0  # entries that were converted for X commands (see ``redisform``)
        self.left = UNPACK_AT * count if coder.CODES else -1  # number of entries to read before the node is unpacked
        if coder.find(blob, base, 0):  # also validates everything except the rows
            raise CorruptError("a coded node does not match its first entry")

    def __len__(self) -> int:
        return self._count

    def unpack(self) -> Node:
        wire, ends = coder.parts(self._blob, 0, self._count)
        ms, seq = coder.columns(self._blob, self._count, self.base)
        node = Node(self.base, ms, seq, ends, wire)
        node.redis_reads = self.redis_reads
        return node

    def id_at(self, index: int) -> int:
        ms, seq = coder.times(self._blob, index, index + 1)
        return ms[0] << 64 | seq[0]

    def sure_id_at(self, index: int) -> int:
        """Return id_at() without ever failing: if the rows are invalid, the ID is wrong."""
        try:
            return self.id_at(index)
        except CorruptError:
            return self.first_id

    def ids(self, lo: int, hi: int) -> list[int]:
        times, seqs = coder.times(self._blob, lo, hi)
        return [ms << 64 | seq for ms, seq in zip(times, seqs, strict=True)]

    def raw_ids(self, lo: int, hi: int) -> list[bytes]:
        return coder.raws(self._blob, lo, hi)

    def find_from(self, id: int) -> int:  # noqa: A002
        return coder.find(self._blob, id >> 64, id & MASK64)

    def slice(self, lo: int, hi: int) -> bytes:
        if hi <= lo:
            return b""
        self.left -= hi - lo
        return coder.read(self._blob, lo, hi)

    def each(self, lo: int, hi: int) -> list[bytes]:
        self.left -= hi - lo
        wire, ends = coder.parts(self._blob, lo, hi)
        start, wires = 0, []
        for end in ends.tolist():
            wires.append(wire[start:end])
            start = end
        return wires

    def cuts(self, lo: int, hi: int) -> list[int]:
        _, ends = coder.parts(self._blob, lo, hi)
        return ends.tolist()

    def each_reversed(self, lo: int, hi: int) -> list[bytes]:
        wires = self.each(lo, hi)
        wires.reverse()
        return wires


def open_coded(blob: bytes) -> CodedNode:
    """Open the blob of a coded node, which is longer than its header. Raises CorruptError if it is damaged."""
    if CRC.unpack_from(blob, HEADER.size)[0] != coder.checksum(blob):
        raise CorruptError("a node's checksum is wrong")
    return CodedNode(blob)


def is_coded(blob: bytes) -> bool:
    """Return whether a blob is that of a coded node."""
    return blob[2:3] == _VERSION


def check(blob: bytes) -> None:
    """Validate all rows of a coded node. Raises CorruptError if one is invalid."""
    count = HEADER.unpack_from(blob)[3]
    coder.read(blob, 0, count)
    coder.times(blob, 0, count)


assert BODY == coder.BODY  # noqa: S101 - both forms have the same header
