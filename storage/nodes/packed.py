"""Packed nodes: the columns as stored in a blob, summed only as far as a read needs them.

Creating a Node from a blob costs three times as much as decompressing it, mostly for entries that are not read. A
PackedNode answers the same queries from the columns:

    ms of entry i      base + sum(gaps[: i + 1])
    end of entry i     sum(sizes[: i + 1])
    seq of entry i     seqs[i], or first_seq + sum(seqs[: i + 1]) if the column contains differences

``sum`` adds several hundred small numbers in a microsecond. The first reads of a node are cheap, and later ones cost
more than with arrays. The cache therefore unpacks nodes that are read repeatedly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from sys import byteorder
from typing import Final, TypeAlias
from zlib import adler32, crc32

import zstandard

from resp.errors import CorruptError, DamagedNodeError
from storage.model.ids import MASK64
from storage.model.tombstones import Tombstones
from storage.nodes import coder
from storage.nodes.coded import CodedNode, open_coded
from storage.nodes.node import BODY, CRC, HEADER, MAGIC, SEQ_DELTAS, SIGNED, UNSIGNED, VERSION, ZSTD, Node, paired

Column: TypeAlias = "bytes | array[int]"  # bytes, the fastest type, if elements have one byte
AT_ONCE: Final = 32  # numbers that a search sums one by one; longer columns are bisected first
OVERHEAD: Final = 700  # memory of a cached node: node, columns, body, and the entry of the cache

_NOT_NEGATIVE: Final = bytes(range(128))  # read as signed bytes
_LOW: Final = 0 if byteorder == "little" else 1  # offset of the lower byte of two


def new_decompressor() -> zstandard.ZstdDecompressor:
    """Return a decompressor, for one thread at a time."""
    return zstandard.ZstdDecompressor()


_decompressor: Final = new_decompressor()  # the decompressor of the keyspace's thread


class PackedNode:
    """Entries of a sealed node, immutable and never empty. It has the methods of Node.

    Most of them raise CorruptError if the columns are invalid.
    """

    __slots__ = (
        "_differences", "_first_seq", "_gaps", "_seqs", "_sizes", "_start", "redis_reads", "base", "body", "first_id",
        "size", "uses",
    )  # fmt: skip

    def __init__(
        self, base: int, gaps: Column, first_seq: int, seqs: Column, differences: bool, sizes: Column, body: bytes,
        start: int,
    ) -> None:  # fmt: skip
        """``body``: contains the wire form from ``start`` on. ``differences``: whether ``seqs`` contains differences.

        Raises CorruptError if the columns are invalid. Invalid differences are detected when they are used.
        """
        self.base = base  # ms since epoch
        self.body = body
        self.size = len(body) + 3 * len(sizes) + OVERHEAD  # approximate memory in bytes
        self.redis_reads = 0  # entries that were converted for X commands (see ``redisform``)
        self.uses = 0  # reads since it was added to the cache; counted there
        self._start = start
        self._gaps = gaps
        self.first_id = base << 64 | first_seq
        self._first_seq = first_seq
        self._seqs = seqs
        self._differences = differences
        self._sizes = sizes
        if _total(sizes) != len(body) - start:
            raise CorruptError("the sizes of a node's entries do not match its body")
        if gaps[0] or seqs[0] != (0 if differences else first_seq):
            raise CorruptError("a node's columns do not match its first entry")
        most = len(gaps) << (8 if isinstance(gaps, bytes) else 8 * gaps.itemsize)
        if base + most > MASK64 and base + _total(gaps) > MASK64:
            raise CorruptError("a node's IDs are too large")

    def __len__(self) -> int:
        return len(self._sizes)

    def unpack(self) -> Node:
        # via lists: an array is filled from a list twice as fast as from an iterator
        gaps = list(accumulate(self._gaps))
        offsets = array("Q" if gaps[-1] >> 32 else "I", gaps)
        seqs = self._seqs
        if self._differences:
            seqs = array("Q", self._seqs_of(0, len(gaps)))
        elif isinstance(seqs, bytes):
            seqs = array("B", seqs)
        node = Node(self.base, offsets, seqs, array("I", list(accumulate(self._sizes))), self.body[self._start :])
        node.redis_reads = self.redis_reads
        return node

    def id_at(self, index: int) -> int:
        ms = self.base + _total(self._gaps[: index + 1])
        return ms << 64 | self._seq_at(index)

    def sure_id_at(self, index: int) -> int:
        """Return id_at() without ever failing: if the differences are invalid, the ID is wrong."""
        if not self._differences:
            return self.id_at(index)
        seq = self._first_seq + _total(self._seqs[: index + 1])
        return self.base + _total(self._gaps[: index + 1]) << 64 | min(max(seq, 0), MASK64)

    def ids(self, lo: int, hi: int) -> list[int]:
        first = self.base + _total(self._gaps[:lo])
        times = list(accumulate(self._gaps[lo:hi], initial=first))[1:]
        return [ms << 64 | seq for ms, seq in zip(times, self._seqs_of(lo, hi), strict=True)]

    def raw_ids(self, lo: int, hi: int) -> list[bytes]:
        first = self.base + _total(self._gaps[:lo])
        times = list(accumulate(self._gaps[lo:hi], initial=first))[1:]
        return paired(array("Q", times), array("Q", self._seqs_of(lo, hi)))

    def find_from(self, id: int) -> int:  # noqa: A002
        ms, seq = (id >> 64) - self.base, id & MASK64
        gaps = self._gaps
        at = _first_reaching(gaps, ms)
        if not seq or at == len(gaps) or _total(gaps[: at + 1]) != ms:
            return at
        rest = gaps[at + 1 :]
        if isinstance(rest, bytes):
            stop = len(gaps) - len(rest.lstrip(b"\0"))
        else:
            stop = at + 1 + _first_reaching(rest, 1)
        return at + self._below(at, stop, seq)

    def _below(self, at: int, stop: int, seq: int) -> int:
        """Return how many of entries at to stop - 1, all of one millisecond, have a sequence number below ``seq``."""
        seqs, first = self._seqs, self._seq_at(at)
        ahead = seq - first  # sequence numbers are nearly always consecutive
        if ahead <= 0:
            return 0
        if at + ahead < stop:
            if not self._differences:
                if seqs[at + ahead] == seq:
                    return ahead
            elif not isinstance(seqs, bytes) and seqs[at + 1 : at + ahead + 1].tobytes() == _ones(ahead, seqs.itemsize):
                return ahead
        return bisect_left(self._seqs_of(at, stop), seq)

    def slice(self, lo: int, hi: int) -> bytes:
        if hi <= lo:
            return b""
        sizes, body = self._sizes, self.body
        start = self._start
        if lo:
            start += _total(sizes[:lo])
        return body[start : start + _total(sizes[lo:hi]) if hi < len(sizes) else len(body)]

    def each(self, lo: int, hi: int) -> list[bytes]:
        body = self.body
        start = self._start + _total(self._sizes[:lo])
        wires = []
        for size in self._sizes[lo:hi]:
            wires.append(body[start : start + size])
            start += size
        return wires

    def cuts(self, lo: int, hi: int) -> list[int]:
        return list(accumulate(self._sizes[lo:hi]))

    def each_reversed(self, lo: int, hi: int) -> list[bytes]:
        body = self.body
        end = self._start + _total(self._sizes[:hi])
        wires = []
        for size in reversed(self._sizes[lo:hi]):
            wires.append(body[end - size : end])
            end -= size
        return wires

    def _seq_at(self, index: int) -> int:
        seqs = self._seqs
        if not self._differences:
            return seqs[index]
        number = self._first_seq + _total(seqs[: index + 1])
        if number < 0 or number > MASK64:
            raise CorruptError("a node's IDs are invalid")
        return number

    def _seqs_of(self, lo: int, hi: int) -> list[int]:
        seqs = self._seqs
        if not self._differences:
            return list(seqs[lo:hi])
        numbers = list(accumulate(seqs[lo:hi], initial=self._first_seq + _total(seqs[:lo])))[1:]
        if numbers and (min(numbers) < 0 or max(numbers) > MASK64):
            raise CorruptError("a node's IDs are invalid")
        return numbers


AnyNode = Node | PackedNode | CodedNode


def _total(numbers: Column) -> int:
    """Return the sum of the numbers.

    For bytes, adler32 is ten times as fast as sum(). Its low half is the sum plus one modulo 65521, which the sum of
    256 bytes does not reach.
    """
    if not isinstance(numbers, bytes):
        if numbers.typecode == "b":
            raw = numbers.tobytes()
            return _total(raw) - 256 * len(raw.translate(None, _NOT_NEGATIVE))
        if numbers.typecode == "H":
            raw = numbers.tobytes()
            low, high = raw[_LOW::2], raw[1 - _LOW :: 2]
            return _total(low) + (_total(high) << 8)
        return sum(numbers)
    if len(numbers) <= 256:
        return (adler32(numbers) & 0xFFFF) - 1
    total = 0
    for at in range(0, len(numbers), 256):
        total += (adler32(numbers[at : at + 256]) & 0xFFFF) - 1
    return total


def _ones(count: int, width: int) -> bytes:
    """Return a column of ``count`` ones."""
    return (b"\1".ljust(width, b"\0") if byteorder == "little" else b"\1".rjust(width, b"\0")) * count


def _first_reaching(column: Column, target: int) -> int:
    """Return the smallest i with column[0] + ... + column[i] >= ``target``; len(column) if there is none."""
    lo, hi = 0, len(column)
    while hi - lo > AT_ONCE:
        middle = (lo + hi) >> 1
        half = _total(column[lo:middle])
        if half < target:
            lo = middle
            target -= half
        else:
            hi = middle
    return lo + bisect_left(list(accumulate(column[lo:hi])), target)


def open_packed(
    blob: bytes, decompressor: zstandard.ZstdDecompressor = _decompressor
) -> PackedNode | CodedNode:  # fmt: skip
    """Open the blob of a node. Raises CorruptError if it is damaged.

    ``decompressor``: needed in other threads than the keyspace's.
    """
    if len(blob) <= BODY:
        raise CorruptError("a node is truncated")
    magic, version, how, count, wire_size, ms, seq = HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise CorruptError("a node has an invalid header")
    if version == coder.VERSION:
        return open_coded(blob)
    if version != VERSION:
        raise CorruptError(f"a node has the unknown version {version}; a newer tidelog may have written it")
    stored = memoryview(blob)[BODY:]
    if CRC.unpack_from(blob, HEADER.size)[0] != crc32(stored, crc32(blob[: HEADER.size])):
        raise CorruptError("a node's checksum is wrong")
    ms_width, seq_width, size_width = how >> 1 & 3, how >> 3 & 3, how >> 5 & 3
    seqs = count << ms_width  # offset of the seq column
    sizes = seqs + (count << seq_width)
    wires = sizes + (count << size_width)
    try:
        if how & ZSTD:
            if zstandard.frame_content_size(stored) != wires + wire_size:
                raise CorruptError("the size of a node's body is wrong")
            body = decompressor.decompress(stored, allow_extra_data=False)
        else:
            body = bytes(stored)
    except zstandard.ZstdError as error:
        raise CorruptError(f"a node cannot be decompressed ({error})") from error
    if len(body) != wires + wire_size or not count:
        raise CorruptError("the size of a node's body is wrong")
    differences = bool(how & SEQ_DELTAS)
    seq_column = _column((SIGNED if differences else UNSIGNED)[seq_width], body[seqs:sizes])
    size_column = _column(UNSIGNED[size_width], body[sizes:wires])
    gaps = _column(UNSIGNED[ms_width], body[:seqs])
    return PackedNode(ms, gaps, seq, seq_column, differences, size_column, body, wires)


def open_stored(
    blob: bytes, sid: int, first_ord: int, first_id: int, count: int, tombstones: Tombstones | None
) -> PackedNode | CodedNode:  # fmt: skip
    """Open the node that a stream expects at ``first_ord``, with ``count`` entries, or fewer if the last are deleted.

    Raises CorruptError if the blob is damaged or belongs to another node.
    """
    try:
        node = open_packed(blob)
        missing = count - len(node)
        if (
            node.first_id != first_id
            or missing < 0
            or (
                missing
                and (tombstones is None or tombstones.count(first_ord + len(node), first_ord + count) != missing)
            )
        ):
            raise CorruptError("the blob belongs to another node")
    except CorruptError as error:
        raise DamagedNodeError(sid, first_ord, first_id, count, str(error)) from error
    return node


def _column(code: str, raw: bytes) -> Column:
    if code == "B":
        return raw
    column = array(code)
    column.frombytes(raw)
    if byteorder == "big":
        column.byteswap()
    return column
