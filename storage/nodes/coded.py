"""Coded nodes: columns of numbers, and of texts that return, as rows of bits. Any entry is read without the others.

zstd takes some 17 us to open a node of sensor readings, of which a short read wants ten entries. Coded, they take
less than half the space, and ten of them are written out in half a microsecond. What is not to be coded (long texts,
texts that don't return) is packed as before (``node``, ``packed``).

     0      2     3     4        8        12        20         28       32
    +------+-----+-----+--------+--------+---------+----------+--------+- body ---------------------------------
    | "TN" | 2   | how | count  | wire   | ms of   | seq of   | xxh3   |
    |      | u8  | u8  | u32    | bytes  | first   | first    | u32    |
    |      |     |     |        | u32    | u64     | u64      |        |
    +------+-----+-----+--------+--------+---------+----------+--------+----------------------------------------

    body      bits of an ms u8 | bits of a seq u8 | columns u8 | 0 u8 | lowest seq u64 | columns | rows | 8 zeros
    column    0 u8 | bits u8 | texts u16 | bytes of them u32 | size of each u8 | the texts
          or  1 u8 | bits u8 | digits after the point u8 | digits before it, at least, u8 | lowest number i64
          or  2 u8 | the same: code 0 is minus zero, and the lowest number has code 1
    row       of each entry: ms less that of the first, seq less the lowest, and a code for each column: the place of
              the text, or the number (without its point) less the lowest; without gaps, also between rows

    how       bit 0: seqs are stored. Else they take no bits: they count up by one from 0 in each millisecond, and from
              "seq of first" in the first one

All little-endian; bits are counted from the lowest of the first byte on. A column is a field's name or value at one
place of the entries, which all have as many. The checksum is the lower half of XXH3 of the body, seeded with XXH3 of
the 28 bytes before it.
"""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.model.ids import MASK64
from storage.nodes import coder
from storage.nodes.node import BODY, CRC, HEADER, Node

OVERHEAD: Final = 400  # memory of a cached node's objects: node, blob, the cache's entry
_VERSION: Final = bytes((coder.VERSION,))
UNPACK_AT: Final = 1  # times that all entries are read before a node in the cache is unpacked: by who pages, once


class CodedNode:
    """Entries of a coded node; immutable, never empty. Its methods return what those of Node return.

    Where no node can have these bytes, they raise CorruptError.
    """

    __slots__ = ("_blob", "_count", "redis_reads", "base", "first_id", "left", "size")

    def __init__(self, blob: bytes) -> None:
        """``blob`` has the header of a coded node, and its checksum is right."""
        count: int
        base: int
        seq: int
        _, _, _, count, _, base, seq = HEADER.unpack_from(blob)
        self._blob = blob
        self._count = count
        self.base = base  # ms since epoch
        self.first_id = base << 64 | seq
        self.size = len(blob) + OVERHEAD  # bytes of memory, roughly
        self.redis_reads = 0  # entries that were made for X commands (see ``dashed``)
        self.left = UNPACK_AT * count if coder.CODES else -1  # entries to be read before it is unpacked
        if coder.find(blob, base, 0):  # looks at all but the rows
            raise CorruptError("a coded node begins with another entry")

    def __len__(self) -> int:
        return self._count

    def unpack(self) -> Node:
        """The same with arrays."""
        wire, ends = coder.parts(self._blob, 0, self._count)
        ms, seq = coder.columns(self._blob, self._count, self.base)
        node = Node(self.base, ms, seq, ends, wire)
        node.redis_reads = self.redis_reads
        return node

    def id_at(self, index: int) -> int:
        ms, seq = coder.times(self._blob, index, index + 1)
        return ms[0] << 64 | seq[0]

    def sure_id_at(self, index: int) -> int:
        """id_at(), which can't fail: where the rows are impossible, it is another ID."""
        try:
            return self.id_at(index)
        except CorruptError:
            return self.first_id

    def ids(self, lo: int, hi: int) -> list[int]:
        """IDs of entries lo to hi - 1."""
        times, seqs = coder.times(self._blob, lo, hi)
        return [ms << 64 | seq for ms, seq in zip(times, seqs, strict=True)]

    def raw_ids(self, lo: int, hi: int) -> list[bytes]:
        """The same, each as 16 bytes, big-endian."""
        return coder.raws(self._blob, lo, hi)

    def find_from(self, id: int) -> int:  # noqa: A002
        """Index of the first entry whose ID is >= ``id``; len(self) if there is none."""
        return coder.find(self._blob, id >> 64, id & MASK64)

    def slice(self, lo: int, hi: int) -> bytes:
        """Wire bytes of entries lo to hi - 1."""
        if hi <= lo:
            return b""
        self.left -= hi - lo
        return coder.read(self._blob, lo, hi)

    def each(self, lo: int, hi: int) -> list[bytes]:
        """The same entries one by one."""
        self.left -= hi - lo
        wire, ends = coder.parts(self._blob, lo, hi)
        start, wires = 0, []
        for end in ends.tolist():
            wires.append(wire[start:end])
            start = end
        return wires

    def cuts(self, lo: int, hi: int) -> list[int]:
        """Where in slice(lo, hi) each of its entries ends."""
        _, ends = coder.parts(self._blob, lo, hi)
        return ends.tolist()

    def each_reversed(self, lo: int, hi: int) -> list[bytes]:
        """The same entries one by one, newest first."""
        wires = self.each(lo, hi)
        wires.reverse()
        return wires


def open_coded(blob: bytes) -> CodedNode:
    """The node whose blob ``coder.encode`` made, which is longer than its header. Raises CorruptError."""
    if CRC.unpack_from(blob, HEADER.size)[0] != coder.checksum(blob):
        raise CorruptError("a node's checksum is wrong")
    return CodedNode(blob)


def is_coded(blob: bytes) -> bool:
    """Whether it is a coded node's blob, if it is a blob."""
    return blob[2:3] == _VERSION


def check(blob: bytes) -> None:
    """Look at all rows of a coded node, as reading will. Raises CorruptError."""
    count = HEADER.unpack_from(blob)[3]
    coder.read(blob, 0, count)
    coder.times(blob, 0, count)


assert BODY == coder.BODY  # noqa: S101 - both forms have the same header
