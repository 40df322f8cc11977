"""Macro nodes: up to several hundred entries in wire form, with arrays of their IDs and ends.

A node in memory consists of the RESP bytes of its entries, as TREAD sends them, and three arrays:

    base + ms[i], seq[i]    the ID of entry i, ascending
    ends[i]                 end of entry i in ``wire``: the entry is wire[ends[i-1]:ends[i]] (from 0 for i = 0)

Reading a range takes two bisections and one slice. In the store, and until it is stored, a node is a blob. It is a
coded node (see ``coded``) if that is smaller and the encoder was compiled. Otherwise it has this form (``packed`` opens
it):

     0      2     3     4        8        12        20         28       32
    +------+-----+-----+--------+--------+---------+----------+--------+- body ---------------------------------
    | "TN" | 1   | how | count  | wire   | ms of   | seq of   | crc32  | zstd or raw, as ``how`` says:
    |      | u8  | u8  | u32    | bytes  | first   | first    | u32    |   ms deltas  unsigned x count (first 0)
    |      |     |     |        | u32    | u64     | u64      |        |   seq column x count, sizes x count, wire
    +------+-----+-----+--------+--------+---------+----------+--------+----------------------------------------

    how   bit 0     the body is one zstd frame
          bits 1-2  bytes of an ms delta: 1, 2, 4, 8
          bits 3-4  bytes of an element of the seq column: 1, 2, 4, 8
          bits 5-6  bytes of a size: 1, 2, 4 (3 is invalid)
          bit 7     the seq column contains differences (signed, first 0), otherwise the numbers (unsigned)

All numbers are little-endian. Each column is as narrow as its values allow, so that a node opens at the speed of its
decompression. zstd would also remove the zero bytes of wider columns, but this takes 1.4 bytes per entry. A blob is
valid if magic and version are known, count is not 0, the crc32 matches the 28 bytes before it and the stored body
(which is checked first), and the body has the stated length.

Decision: a long active node is coded for the store, a short one is not. LMDB stores values of 2 KB or more in separate
pages, and writing these takes longer than coding 30 sensor readings in C. A short node costs nothing, and servers that
do not know coded nodes can read a store without them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import sub
from struct import Struct
from sys import byteorder
from typing import Final
from zlib import crc32

import zstandard

from storage.model.ids import MASK64, RAWS
from storage.nodes import coder

MAGIC: Final = b"TN"
VERSION: Final = 1
HEADER: Final = Struct("<2sBBIIQQ")
CRC: Final = Struct("<I")
BODY: Final = HEADER.size + CRC.size  # offset of the body
ZSTD: Final = 0x01  # bits of ``how``
SEQ_DELTAS: Final = 0x80
UNSIGNED: Final = "BHIQ"  # array codes of 1, 2, 4, 8 bytes
SIGNED: Final = "bhiq"
COUNTED: Final = 4096
_COUNTING: Final = array("Q", range(COUNTED))  # copying from it saves 7 % of the time of 16 pipelined TAPPENDs
_BYTES: Final = bytes(range(256))
FEW_STEPS: Final = 8  # milliseconds in a node whose sequence numbers are examined per millisecond
FEW: Final = 4  # IDs that are packed separately; whole columns are faster for more
pack_id: Final = Struct(">QQ").pack
LONG_ACTIVE: Final = 1900  # bytes of wire; LMDB stores values of 2 KB or more in separate pages
OVERHEAD: Final = 550  # memory of a cached node: node, arrays, bytes, and the entry of the cache


def new_compressor() -> zstandard.ZstdCompressor:
    """Return a compressor, for one thread at a time."""
    return zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)


# The compressor of the keyspace's thread. It is reused, since creating one costs more than using it.
keyspace_compressor: Final = new_compressor()


_NO_ENDS: Final = array("I")


class Node:
    """Entries in memory. Only an ActiveNode is mutable, and only a new ActiveNode is empty."""

    __slots__ = ("redis_reads", "base", "redis_wire", "redis_ends", "ends", "ms", "seq", "wire")

    def __init__(self, base: int, ms: array[int], seq: array[int], ends: array[int], wire: bytes | bytearray) -> None:
        self.ms = ms
        self.seq = seq
        self.ends = ends
        self.wire = wire
        self.base = base  # ms since epoch, added to each of ``ms``
        # A node that X commands read repeatedly also stores its entries in their reply form (see ``redisform``).
        self.redis_wire = b""
        self.redis_ends = _NO_ENDS
        self.redis_reads = 0  # entries that were converted for X commands

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        own = len(self.wire) + (self.ms.itemsize + self.seq.itemsize + 4) * len(self.ends) + OVERHEAD
        return own + len(self.redis_wire) + 4 * len(self.redis_ends) if self.redis_wire else own

    def unpack(self) -> Node:
        """Return a Node with the same entries."""
        return self

    def id_at(self, index: int) -> int:
        return (self.base + self.ms[index]) << 64 | self.seq[index]

    def sure_id_at(self, index: int) -> int:
        """Return id_at(); see PackedNode."""
        return self.id_at(index)

    def ids(self, lo: int, hi: int) -> list[int]:
        """Return the IDs of entries lo to hi - 1."""
        base = self.base
        return [(base + ms) << 64 | seq for ms, seq in zip(self.ms[lo:hi], self.seq[lo:hi], strict=True)]

    def raw_ids(self, lo: int, hi: int) -> list[bytes]:
        """Return the IDs of entries lo to hi - 1, as 16 bytes each, big-endian."""
        base = self.base
        if RAWS is not None:
            return RAWS(base, self.ms, self.seq, lo, hi)
        if hi - lo <= FEW:
            numbers, seqs = self.ms, self.seq
            return [pack_id(base + numbers[at], seqs[at]) for at in range(lo, hi)]
        times = self.ms[lo:hi]
        return paired(array("Q", [base + ms for ms in times] if base else times), array("Q", self.seq[lo:hi]))

    def find_from(self, id: int) -> int:  # noqa: A002
        """Return the index of the first entry whose ID is >= ``id``; len(self) if there is none."""
        ms, seq = (id >> 64) - self.base, id & MASK64
        column = self.ms
        at = bisect_left(column, ms)
        if seq and at < len(column) and column[at] == ms:
            seqs = self.seq
            ahead = seq - seqs[at]  # sequence numbers are nearly always consecutive
            if ahead <= 0:
                return at
            guess = at + ahead
            if guess < len(column) and column[guess] == ms and seqs[guess] == seq:
                return guess
            at = bisect_left(seqs, seq, at, bisect_left(column, ms + 1, at))
        return at

    def slice(self, lo: int, hi: int) -> bytes:
        """Return the wire bytes of entries lo to hi - 1."""
        if hi <= lo:
            return b""
        ends, wire = self.ends, self.wire
        start: int = ends[lo - 1] if lo else 0
        stop: int = ends[hi - 1]
        return wire[start:stop] if isinstance(wire, bytes) else bytes(wire[start:stop])

    def each(self, lo: int, hi: int) -> list[bytes]:
        """Return the wire bytes of each of entries lo to hi - 1."""
        start, wire = self.ends[lo - 1] if lo else 0, self.wire
        wires = []
        for end in self.ends[lo:hi].tolist():
            wires.append(bytes(wire[start:end]))
            start = end
        return wires

    def cuts(self, lo: int, hi: int) -> list[int]:
        """Return the end of each entry in slice(lo, hi)."""
        start = self.ends[lo - 1] if lo else 0
        ends: list[int] = self.ends[lo:hi].tolist()
        return [end - start for end in ends] if start else ends

    def each_reversed(self, lo: int, hi: int) -> list[bytes]:
        """Return the wire bytes of each of entries hi - 1 to lo, newest first."""
        wires: list[bytes] = []
        if hi <= lo:
            return wires
        wire = self.slice(lo, hi)
        base: int = self.ends[lo - 1] if lo else 0
        ends: list[int] = self.ends[lo : hi - 1].tolist()
        stop = len(wire)
        at = len(ends) - 1
        while at >= 0:
            start = ends[at] - base
            wires.append(wire[start:stop])
            stop = start
            at -= 1
        wires.append(wire[:stop])
        return wires

    def part(self, lo: int, hi: int) -> Node:
        """Return a copy of entries lo to hi - 1 (at least one), which later changes do not affect."""
        start = self.ends[lo - 1] if lo else 0
        ends = array("I", [end - start for end in self.ends[lo:hi]])
        return Node(self.base, self.ms[lo:hi], self.seq[lo:hi], ends, self.slice(lo, hi))

    def largest(self) -> int:
        """Return the size of the largest entry."""
        return sizes_of(self.ends)[2]


class _LastMs:
    """The last millisecond as a column with one element.

    Joining columns takes less than half of the time of appending a number, and most entries share their millisecond.
    """

    __slots__ = ("column", "ms", "repeated")

    def __init__(self) -> None:
        self.ms = -1
        self.column = array("Q")
        self.repeated = array("Q")  # repeated for the last call of extend()


_last: Final = _LastMs()
_ONES: Final = [array("Q", (n,)) for n in range(1024)]


def _column(ms: int) -> array[int]:
    """Return a column with one millisecond, which must not be changed."""
    if ms != _last.ms:
        _last.ms, _last.column = ms, array("Q", (ms,))
        _last.repeated = _last.column
    return _last.column


class ActiveNode(Node):
    """The node that entries are appended to."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(0, array("Q"), array("Q"), array("I"), bytearray())

    @classmethod
    def of(cls, node: Node) -> ActiveNode:
        """Return a mutable copy of a sealed node."""
        active = cls()
        base = node.base
        active.ms = array("Q", [base + ms for ms in node.ms])
        active.seq = array("Q", node.seq)
        active.ends = node.ends[:]
        active.wire = bytearray(node.wire)
        return active

    def add(self, ms: int, seq: int, end: int) -> None:
        """Add the entry ms.seq, whose bytes were already added to ``wire`` and end at ``end``."""
        self.ends.append(end)
        if seq >= len(_ONES):
            self.ms.append(ms)
            self.seq.append(seq)
            return
        self.ms += _column(ms)
        self.seq += _ONES[seq]

    def extend(self, ms: int, seq: int, ends: list[int]) -> None:
        """Add entries ms.seq, ms.seq + 1 ..., whose bytes were already added to ``wire`` and end at ``ends``."""
        count, stop = len(ends), seq + len(ends)
        self.ends.fromlist(ends)
        if ms != _last.ms or count != len(_last.repeated):
            _last.repeated = _column(ms) * count
        self.ms.extend(_last.repeated)
        self.seq.extend(_COUNTING[seq:stop] if stop <= COUNTED else array("Q", range(seq, stop)))


def paired(ms: array[int], seq: array[int]) -> list[bytes]:
    """Return IDs as 16 bytes each, big-endian."""
    both = array("Q", bytes(16 * len(ms)))
    both[::2] = ms
    both[1::2] = seq
    if byteorder == "little":
        both.byteswap()
    raw = both.tobytes()
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


def seal(node: Node, compress: bool = True, compressor: zstandard.ZstdCompressor | None = None) -> bytes:
    """Return the node as a blob, compressed or raw (for the active node, which will change again).

    ``compressor``: needed in other threads than the keyspace's.
    """
    return sealed(node, compress, compressor)[0]


def sealed(
    node: Node, compress: bool = True, compressor: zstandard.ZstdCompressor | None = None,
    sizes: tuple[int, bytes, int] | None = None,
) -> tuple[bytes, int]:  # fmt: skip
    """Return seal() and the size of the largest entry. ``sizes``: those of the entries, if they are known."""
    ms, seq, ends, wire = node.ms, node.seq, node.ends, node.wire
    size_width, size_column, largest = sizes_of(ends) if sizes is None else sizes
    coded = coder.encode(node.base, ms, seq, ends, wire) if compress else None
    if coded is not None and len(coded) <= coder.SMALL * len(ends):
        return coded, largest
    ms_width, ms_column = _gaps(ms, ms[0])
    how = (ZSTD if compress else 0) | ms_width << 1 | size_width << 5
    differences, seq_width, seq_column = packed_seqs(ms, seq)
    how |= (SEQ_DELTAS if differences else 0) | seq_width << 3
    body = b"".join((ms_column, seq_column, size_column, wire))
    if compress:
        body = (compressor or keyspace_compressor).compress(body)
    if coded is not None and len(coded) <= BODY + len(body):
        return coded, largest
    head = HEADER.pack(MAGIC, VERSION, how, len(ends), len(wire), node.base + ms[0], seq[0])
    return b"".join((head, CRC.pack(crc32(body, crc32(head))), body)), largest


def active_blob(node: Node) -> tuple[bytes, int]:
    """Return an active node as a blob, and the size of its largest entry.

    It will be written again and is therefore not compressed. A long node is coded if possible, since this takes less
    time than writing separate pages for it.
    """
    ends = node.ends
    coded = coder.encode(node.base, node.ms, node.seq, ends, node.wire) if len(node.wire) >= LONG_ACTIVE else None
    if coded is None:
        return sealed(node, compress=False)
    return coded, sizes_of(ends)[2]


def sizes_of(ends: array[int]) -> tuple[int, bytes, int]:
    """Return the sizes of entries: the width of their column as a power of two, the column, and the largest one."""
    width, column = _gaps(ends, 0)
    return width, column, _largest(width, column)


def packed_seqs(ms: array[int], seq: array[int]) -> tuple[bool, int, bytes]:
    """Return the seq column: whether it contains differences, its width, and its bytes."""
    steps = _steps(ms, seq)
    if steps:
        return True, *_stepped(len(seq), steps)
    width, column = _narrowest(_little(seq), seq.itemsize)
    if not width or max(seq) >> 63:  # not needed for small numbers; too large if huge
        return False, width, column
    return True, *_signed_gaps(seq)


def _steps(ms: array[int], seq: array[int]) -> list[tuple[int, int]]:
    """Return the starts of the series of consecutive numbers in a few milliseconds, each with its difference from the
    number before it.

    The first one is at 0. Returns an empty list for other numbers, and if the numbers are small or huge.
    """
    steps = [(0, 0)]
    count, at, top = len(seq), 0, 0
    while len(steps) <= FEW_STEPS:
        end = bisect_right(ms, ms[at], at)
        last = seq[end - 1]
        if last - seq[at] != end - 1 - at:
            break
        top = max(top, last)
        if end == count:
            return steps if 255 < top < 1 << 63 else []
        steps.append((end, seq[end] - last))
        at = end
    return []


def _stepped(count: int, steps: list[tuple[int, int]]) -> tuple[int, bytes]:
    """Return the result of _signed_gaps() for numbers with these steps."""
    power = _signed_power(max([gap if gap >= 0 else -1 - gap for _, gap in steps]))
    width = 1 << power
    column = bytearray(b"\1".ljust(width, b"\0") * count)
    for at, gap in steps:
        column[at * width : (at + 1) * width] = gap.to_bytes(width, "little", signed=True)
    return power, bytes(column)


# Columns are little-endian bytes. They are computed as a whole: sliced with a stride, and subtracted as one long number
# whose digits are the elements. A loop over the elements takes five times as long.


def _gaps(column: array[int], start: int) -> tuple[int, bytes]:
    """Return the differences between ascending numbers, first from ``start``, as (width as a power of two, column)."""
    count, last = len(column), column[-1]
    if last == start:
        return 0, bytes(count)
    width = column.itemsize
    while width > 1 and start >> 4 * width == last >> 4 * width:
        width >>= 1  # the upper bytes of all elements are equal
    bits, mask = 8 * width, (1 << 8 * width) - 1
    number = int.from_bytes(_cut(_little(column), column.itemsize, width), "little")
    # subtract from each digit the one before it; no result is negative, so none borrows
    number += ((last & mask) << bits * count) - (number << bits) - (start & mask)
    return _narrowest(number.to_bytes(width * count, "little"), width)


def _largest(width: int, column: bytes) -> int:
    """Return the largest element of an unsigned column."""
    if not width:
        top = column[0]
        while higher := column.translate(None, _BYTES[: top + 1]):  # takes a tenth of the time of max()
            column, top = higher, higher[0]
        return top
    numbers = array(UNSIGNED[width])
    numbers.frombytes(column)
    if byteorder == "big":
        numbers.byteswap()
    return max(numbers)


def _signed_gaps(column: array[int]) -> tuple[int, bytes]:
    """Return the differences between numbers below 2**63 as the narrowest column; the first is 0.

    Only IDs that clients choose need it: other large sequence numbers are consecutive (_steps()).
    """
    values = array("q", [0, *map(sub, islice(column, 1, None), column)])
    power = _signed_power(max(max(values), -min(values) - 1))
    return power, _cut(_little(values), 8, 1 << power)


def _signed_power(reach: int) -> int:
    """Return the width, as a power of two, of signed numbers from -1 - reach to reach."""
    return 0 if reach < 1 << 7 else 1 if reach < 1 << 15 else 2 if reach < 1 << 31 else 3


def _narrowest(raw: bytes, width: int) -> tuple[int, bytes]:
    """Return unsigned elements of ``width`` bytes as (width as a power of two, narrowest column)."""
    zeros = bytes(len(raw) // width)
    needed = width
    while needed > 1 and raw[needed - 1 :: width] == zeros:
        needed -= 1
    power = 0 if needed == 1 else 1 if needed == 2 else 2 if needed <= 4 else 3
    return power, _cut(raw, width, 1 << power)


def _cut(raw: bytes, width: int, kept: int) -> bytes:
    """Return the lower ``kept`` bytes of each element of ``width`` bytes; all bytes if ``kept`` is not smaller."""
    if kept >= width:
        return raw
    if kept == 1:
        return raw[::width]
    column = bytearray(len(raw) // width * kept)
    for lane in range(kept):
        column[lane::kept] = raw[lane::width]
    return bytes(column)


def _little(column: array[int]) -> bytes:
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
