"""Tombstones: the ordinals of entries that were deleted individually.

Ordinals are divided into chunks of 8192. A chunk with tombstones has a container in one of two forms, which differ in
length:

    few     up to 511 tombstones: their offsets in the chunk, ascending, u16 big-endian each      2 bytes each
    bitmap  1024 bytes: bit n % 8 of byte n // 8 is the entry at offset n                         0.12 to 2 bytes each

Decision: deletions are recorded by ordinal, not in the nodes. Counts and seeks need only a sum and a bit count, and
nodes stay immutable. A node without living entries leaves the index, and the tombstones describe the gap.

Rule 1: a container is replaced, never changed. Snapshots and checkpoints share containers, and any thread may read
them.
Rule 2: no operation takes more than O(log chunks) plus the work of one chunk, a few microseconds. After a change, the
sums before each chunk are recomputed only when they are needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from sys import byteorder
from typing import Final

from resp.errors import CorruptError

BITS: Final = 13
CHUNK: Final = 1 << BITS  # ordinals of a chunk
LOW: Final = CHUNK - 1
BITMAP: Final = CHUNK >> 3  # size of a bitmap
LONG: Final = 1024  # ordinals; few nodes have more entries
TOMBSTONES_BYTES: Final = 800  # memory of an object without chunks
CHUNK_BYTES: Final = 60  # memory of a chunk without its container's bytes
FULL: Final = b"\xff" * BITMAP  # shared by all chunks without a living entry


def numbers(container: bytes) -> list[int]:
    """Return the offsets in a container, ascending."""
    if len(container) != BITMAP:
        return _few(container).tolist()
    bits = int.from_bytes(container, "little")
    found: list[int] = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def packed(offsets: list[int]) -> bytes:
    """Return the container of these offsets (ascending)."""
    if 2 * len(offsets) < BITMAP:
        column = array("H", offsets)
        if byteorder == "little":
            column.byteswap()
        return column.tobytes()
    bitmap = bytearray(BITMAP)
    for offset in offsets:
        bitmap[offset >> 3] |= 1 << (offset & 7)
    return FULL if len(offsets) == CHUNK else bytes(bitmap)


def check(container: bytes) -> int:
    """Return the number of offsets in a container from a file. Raises CorruptError if the container is invalid."""
    if len(container) == BITMAP:
        count = int.from_bytes(container, "little").bit_count()
        if 2 * count >= BITMAP:
            return count
    elif 0 < len(container) < BITMAP and not len(container) % 2:
        column = _few(container).tolist()
        if column[-1] < CHUNK and all(map(int.__lt__, column, column[1:])):
            return len(column)
    raise CorruptError("a list of deleted entries is damaged")


def _few(container: bytes) -> array[int]:
    column = array("H", container)
    if byteorder == "little":
        column.byteswap()
    return column


class Tombstones:
    """The tombstones of a stream, or a frozen copy of them."""

    __slots__ = (
        "_chunks", "_containers", "_counts", "_sums", "bytes", "changed", "claimed", "dead_nodes", "thin", "total",
    )  # fmt: skip

    def __init__(self) -> None:
        self._chunks = array("Q")  # numbers of the chunks with tombstones, ascending
        self._containers: list[bytes] = []
        self._counts = array("I")  # number of tombstones in each
        self._sums: array[int] | None = None  # number of tombstones before each chunk, and in total; None: not computed
        self.total = 0
        self.bytes = TOMBSTONES_BYTES  # approximate memory
        self.changed: set[int] = set()  # chunks that changed since the last capture
        # for the stream's next capture; stored here, since streams without tombstones need neither
        self.dead_nodes: list[tuple[int, int]] = []  # nodes that left the index: first ordinals and IDs
        self.claimed = 0  # number of tombstones that the restored metadata states
        self.thin: set[int] = set()  # first ordinals of nodes with deletions

    # -- queries ---------------------------------------------------------------------------------------------
    def has(self, ordinal: int) -> bool:
        at = self._at(ordinal >> BITS)
        return at >= 0 and _has(self._containers[at], ordinal & LOW)

    def before(self, ordinal: int) -> int:
        """Return the number of tombstones below ``ordinal``."""
        sums = self._sums
        if sums is None:
            sums = self._sums = array("Q", [0, *accumulate(self._counts)])
        chunk = ordinal >> BITS
        at = bisect_left(self._chunks, chunk)
        count = sums[at]
        if at < len(self._chunks) and self._chunks[at] == chunk:
            count += _below(self._containers[at], ordinal & LOW)
        return count

    def count(self, lo: int, hi: int) -> int:
        """Return the number of tombstones in [lo, hi)."""
        if lo >= hi:
            return 0
        first, last = lo >> BITS, hi >> BITS
        if last - first > 1:
            return self.before(hi) - self.before(lo)
        # for a node's ordinals, the sums of all chunks need not be recomputed after each change
        at = bisect_left(self._chunks, first)
        end, count = len(self._chunks), 0
        if at < end and self._chunks[at] == first:
            container = self._containers[at]
            count = (self._counts[at] if last > first else _below(container, hi & LOW)) - _below(container, lo & LOW)
            at += 1
        if last > first and at < end and self._chunks[at] == last:
            count += _below(self._containers[at], hi & LOW)
        return count

    def live_ranges(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Return the ranges of living ordinals in [lo, hi), each with start and stop.

        O(tombstones in [lo, hi)), so call it for a node, not for a stream.
        """
        found: list[tuple[int, int]] = []
        if hi - lo > LONG:  # a million deleted entries can follow the node
            hi = max(lo, self.live_below(hi) + 1)
        start = lo
        for marked in self.marked(lo, hi):
            if start < marked:
                found.append((start, marked))
            start = marked + 1
        if start < hi:
            found.append((start, hi))
        return found

    def marked(self, lo: int, hi: int) -> list[int]:
        """Return the deleted ordinals in [lo, hi). O(tombstones in [lo, hi))."""
        found: list[int] = []
        at = bisect_left(self._chunks, lo >> BITS)
        while at < len(self._chunks) and self._chunks[at] << BITS < hi:
            base = self._chunks[at] << BITS
            offsets = _between(self._containers[at], max(lo - base, 0), min(hi - base, CHUNK))
            found += [base + offset for offset in offsets]
            at += 1
        return found

    def ranges(self, lo: int, hi: int, chunks: int) -> tuple[list[tuple[int, int]], int]:
        """Return the ranges of deleted ordinals in [lo, hi), each with start and stop, and how far the list reaches.

        It covers at most ``chunks`` chunks, a few milliseconds each. If it reaches less than ``hi``, continue there.
        """
        found: list[tuple[int, int]] = []
        if lo >= hi:
            return found, hi
        at = first = bisect_left(self._chunks, lo >> BITS)
        start = stop = -1  # of the last range
        while at < len(self._chunks) and self._chunks[at] << BITS < hi:
            base = self._chunks[at] << BITS
            if at - first == chunks:
                hi = base
                break
            low, high = max(lo - base, 0), min(hi - base, CHUNK)
            container = self._containers[at]
            pieces = [(low, high)]
            if container is not FULL:
                pieces = [(offset, offset + 1) for offset in _between(container, low, high)]
            for begin, end in pieces:
                if base + begin != stop:
                    if stop > 0:
                        found.append((start, stop))
                    start = base + begin
                stop = base + end
            at += 1
        if stop > 0:
            found.append((start, stop))
        return found, hi

    def live_from(self, ordinal: int) -> int:
        """Return the first living ordinal at or above ``ordinal``."""
        at = bisect_left(self._chunks, ordinal >> BITS)
        while at < len(self._chunks) and self._chunks[at] == ordinal >> BITS:
            base = self._chunks[at] << BITS
            container = self._containers[at]
            offset = CHUNK if container is FULL else _first_clear(container, ordinal & LOW)
            if offset < CHUNK:
                return base + offset
            ordinal = base + CHUNK
            at += 1
        return ordinal

    def live_below(self, ordinal: int) -> int:
        """Return the last living ordinal below ``ordinal``; -1 if there is none."""
        ordinal -= 1
        if ordinal < 0:
            return -1
        at = self._at(ordinal >> BITS)
        while at >= 0 and self._chunks[at] == ordinal >> BITS:
            base = self._chunks[at] << BITS
            container = self._containers[at]
            offset = -1 if container is FULL else _last_clear(container, ordinal & LOW)
            if offset >= 0:
                return base + offset
            ordinal = base - 1
            if ordinal < 0:
                return -1
            at -= 1
        return ordinal

    def after(self, lo: int, count: int, end: int) -> int:
        """Return the lowest ``hi`` with ``count`` living ordinals in [lo, hi), at most ``end``."""
        # a binary search: the number of living ordinals in [lo, hi) grows with hi
        if lo + count >= end or not self.count(lo, lo + count):
            return min(lo + count, end)
        marked = self.before(lo)
        low, high = lo + count, end
        while low < high:
            middle = (low + high) >> 1
            if middle - lo - (self.before(middle) - marked) < count:
                low = middle + 1
            else:
                high = middle
        return low

    def ahead(self, hi: int, count: int, start: int) -> int:
        """Return the highest ``lo`` with ``count`` living ordinals in [lo, hi), at least ``start``."""
        if hi - count <= start or not self.count(hi - count, hi):
            return max(hi - count, start)
        marked = self.before(hi)
        low, high = start, hi - count
        while low < high:
            middle = (low + high + 1) >> 1
            if hi - middle - (marked - self.before(middle)) < count:
                high = middle - 1
            else:
                low = middle
        return low

    # -- changes ---------------------------------------------------------------------------------------------
    def add(self, ordinals: list[int]) -> int:
        """Add ordinals (ascending). Return how many of them were new."""
        i, end, added = 0, len(ordinals), 0
        while i < end:
            chunk = ordinals[i] >> BITS
            stop = bisect_left(ordinals, (chunk + 1) << BITS, i)
            added += self._add(chunk, [ordinal & LOW for ordinal in ordinals[i:stop]])
            i = stop
        return added

    def _add(self, chunk: int, offsets: list[int]) -> int:
        at = bisect_left(self._chunks, chunk)
        if at == len(self._chunks) or self._chunks[at] != chunk:
            self._chunks.insert(at, chunk)
            self._containers.insert(at, b"")
            self._counts.insert(at, 0)
            self.bytes += CHUNK_BYTES
        old = self._containers[at]
        if len(old) == BITMAP:
            bitmap = bytearray(old)
            for offset in offsets:
                bitmap[offset >> 3] |= 1 << (offset & 7)
            new = FULL if bitmap == FULL else bytes(bitmap)
            count = int.from_bytes(new, "little").bit_count()
        else:
            # entries are mostly deleted in order
            ascends = not old or int.from_bytes(old[-2:], "big") < offsets[0]
            merged = [*_few(old), *offsets] if ascends else sorted({*_few(old), *offsets})
            new, count = packed(merged), len(merged)
        added = count - self._counts[at]
        self._replace(at, new, count)
        return added

    def _replace(self, at: int, new: bytes, count: int) -> None:
        self.changed.add(self._chunks[at])
        self.bytes += len(new) - len(self._containers[at])
        self.total += count - self._counts[at]
        self._containers[at] = new
        self._counts[at] = count
        self._sums = None

    def drop_before(self, ordinal: int) -> None:
        """Remove the tombstones below ``ordinal``, whose entries were evicted."""
        stop = bisect_left(self._chunks, ordinal >> BITS)
        if stop:
            self.changed.update(self._chunks[:stop])
            self.bytes -= CHUNK_BYTES * stop + sum(map(len, self._containers[:stop]))
            self.total -= sum(self._counts[:stop])
            del self._chunks[:stop], self._containers[:stop], self._counts[:stop]
            self._sums = None
        if self._chunks and self._chunks[0] == ordinal >> BITS:
            container, offset = self._containers[0], ordinal & LOW
            gone = _below(container, offset)
            left = self._counts[0] - gone
            if not left:
                self.drop_before((self._chunks[0] + 1) << BITS)
            elif gone:
                self._replace(0, _without(container, offset, left), left)

    # -- the whole -------------------------------------------------------------------------------------------
    def take_changed(self) -> list[tuple[int, bytes]]:
        """Return the chunks that changed since the last call, with their containers (empty: no tombstones any more)."""
        taken = [(chunk, self.container(chunk)) for chunk in sorted(self.changed)]
        self.changed.clear()
        return taken

    def chunks(self) -> list[tuple[int, bytes]]:
        return list(zip(self._chunks, self._containers, strict=True))

    def container(self, chunk: int) -> bytes:
        """Return the container of a chunk; empty if it has no tombstones."""
        at = self._at(chunk)
        return self._containers[at] if at >= 0 else b""

    def restore(self, chunk: int, container: bytes) -> None:
        """Add a chunk from a store, in ascending order. Raises CorruptError if it is invalid."""
        count = check(container)
        if (self._chunks and chunk <= self._chunks[-1]) or chunk >> (63 - BITS):
            raise CorruptError("lists of deleted entries are out of order")
        self._chunks.append(chunk)
        self._containers.append(FULL if container == FULL else container)
        self._counts.append(count)
        self.total += count
        self.bytes += CHUNK_BYTES + len(container)
        self._sums = None

    def freeze(self, lo: int, hi: int) -> Tombstones:
        """Return a copy for queries in [lo, hi), which later changes do not affect. O(chunks in [lo, hi))."""
        other = Tombstones()
        at, stop = bisect_left(self._chunks, lo >> BITS), bisect_left(self._chunks, (hi >> BITS) + 1)
        other._chunks, other._counts = self._chunks[at:stop], self._counts[at:stop]
        other._containers = self._containers[at:stop]
        other.total = sum(other._counts)
        return other

    def _at(self, chunk: int) -> int:
        """Return the position of a chunk; -1 if it has no tombstones."""
        at = bisect_left(self._chunks, chunk)
        return at if at < len(self._chunks) and self._chunks[at] == chunk else -1


def _has(container: bytes, offset: int) -> bool:
    if len(container) == BITMAP:
        return bool(container[offset >> 3] >> (offset & 7) & 1)
    column = _few(container)
    at = bisect_left(column, offset)
    return at < len(column) and column[at] == offset


def _below(container: bytes, offset: int) -> int:
    """Return the number of offsets below ``offset``."""
    if len(container) != BITMAP:
        return bisect_left(_few(container), offset)
    whole = int.from_bytes(container[: offset >> 3], "little").bit_count()
    return whole + (container[offset >> 3] & ((1 << (offset & 7)) - 1)).bit_count() if offset < CHUNK else whole


def _without(container: bytes, offset: int, left: int) -> bytes:
    """Return the container without the offsets below ``offset``; ``left`` offsets (at least one) remain."""
    if len(container) != BITMAP:
        return container[2 * (len(container) // 2 - left) :]
    if 2 * left < BITMAP:
        return packed(_between(container, offset, CHUNK))
    return (int.from_bytes(container, "little") >> offset << offset).to_bytes(BITMAP, "little")


def _between(container: bytes, start: int, stop: int) -> list[int]:
    """Return the offsets in [start, stop)."""
    if len(container) != BITMAP:
        column = _few(container)
        return column[bisect_left(column, start) : bisect_left(column, stop)].tolist()
    low = start >> 3
    base = low << 3
    return [base + offset for offset in _set_bits(container[low : (stop + 7) >> 3]) if start <= base + offset < stop]


def _set_bits(raw: bytes) -> list[int]:
    found: list[int] = []
    for at, byte in enumerate(raw):
        if byte:
            first = at << 3
            found += [first + bit for bit in _BITS[byte]]
    return found


_BITS: Final = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]


def _first_clear(container: bytes, offset: int) -> int:
    """Return the first offset from ``offset`` on that is not in the container; CHUNK if there is none."""
    if len(container) != BITMAP:
        column = _few(container)
        at = bisect_left(column, offset)
        while at < len(column) and column[at] == offset:
            offset += 1
            at += 1
        return offset
    # ~ has infinitely many ones in the upper bits, so there is always one
    clear = ~int.from_bytes(container, "little") >> offset
    return min(CHUNK, offset + (clear & -clear).bit_length() - 1)


def _last_clear(container: bytes, offset: int) -> int:
    """Return the last offset up to ``offset`` that is not in the container; -1 if there is none."""
    if len(container) != BITMAP:
        column = _few(container)
        at = bisect_left(column, offset + 1) - 1
        while at >= 0 and column[at] == offset:
            offset -= 1
            at -= 1
        return offset
    clear = ~int.from_bytes(container, "little") & ((1 << (offset + 1)) - 1)
    return clear.bit_length() - 1
