"""Sorted rows of fixed width in blocks: an ordered set that costs little more memory than its rows.

Rule 1: a row starts with its key; keys are unique, big-endian, and so sort as bytes. Rule 2: blocks are immutable
``bytes`` of about 2 KB and a change makes a new one. Copying one costs 0.1 us, and in return nothing is over-allocated,
a search slices ``bytes`` (twice as fast as slicing a ``bytearray``), and a dump is one join.

    _mins     b""          key             key           at or below its block's first key, above all keys before it
    _blocks   row row row  row row row row row row ...   none is empty, except the only one of an empty set

Finding a row is a bisection of ``_mins`` in C, then one of a block. Appending behind the last row leaves full blocks;
a row that falls into a full block splits it in two halves; a block that has become small joins a neighbour.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

BLOCK_BYTES: Final = 2048  # a block's size limit; below 1 KB block overheads count, above 4 KB copying does
BLOCK_OVERHEAD: Final = 33 + 16 + 64 + 16  # bytes: object header, malloc's share, the key in _mins, two list slots


class SortedRows:
    """Rows of ``width`` bytes, ordered by their first ``key_size`` bytes. Every change is O(log n) and a small copy."""

    __slots__ = ("_blocks", "_capacity", "_hint", "_key_size", "_mins", "_small", "_width", "count")

    def __init__(self, width: int, key_size: int) -> None:
        self._width = width
        self._key_size = key_size
        self._capacity = BLOCK_BYTES // width * width  # bytes
        self._small = self._capacity // 4  # bytes; a block of this size or less looks for a neighbour to join
        self.count = 0  # rows
        self._hint = 0  # where in its block the last row was found: often the next is found there, too
        self._blocks: list[bytes] = [b""]
        self._mins: list[bytes] = [b""]

    def __len__(self) -> int:
        return self.count

    # -- reading ---------------------------------------------------------------------------------------------
    def first(self) -> bytes:
        """The lowest row; empty if there is none."""
        return self._blocks[0][: self._width]

    def last(self) -> bytes:
        """The highest row; empty if there is none."""
        return self._blocks[-1][-self._width :]

    def get(self, key: bytes) -> bytes:
        """The row with this key; empty if there is none."""
        block, at, width = self._blocks[bisect_right(self._mins, key) - 1], self._hint, self._width
        if block[at : at + self._key_size] != key:
            at = self._hint = position(block, key, width)
            if block[at : at + self._key_size] != key:
                return b""
        return block[at : at + width]

    def floor(self, key: bytes) -> bytes:
        """The highest row whose key is at or below ``key``; empty if there is none."""
        blocks, width, size = self._blocks, self._width, self._key_size
        row = blocks[-1][-width:]
        if row[:size] <= key:
            return row
        i = bisect_right(self._mins, key) - 1
        block = blocks[i]
        at = position(block, key, width)
        row = block[at : at + width]
        if row[:size] == key:
            return row
        if at:
            return block[at - width : at]
        return blocks[i - 1][-width:] if i else b""

    def above(self, key: bytes, itself: bool = False) -> bytes:
        """The lowest row whose key is above ``key`` (with ``itself``: or equal); empty if there is none."""
        blocks, width, size = self._blocks, self._width, self._key_size
        last = blocks[-1][-width:][:size]
        if last < key or (last == key and not itself):
            return b""
        i = bisect_right(self._mins, key) - 1
        block = blocks[i]
        at = position(block, key, width)
        if not itself and block[at : at + size] == key:
            at += width
        return block[at : at + width] if at < len(block) else blocks[i + 1][:width]

    def span(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """At most ``limit`` rows at or above ``start``, all below ``end`` (empty: no bound), in order."""
        width = self._width
        found: list[bytes] = []
        i = bisect_right(self._mins, start) - 1 if start else 0
        at = position(self._blocks[i], start, width) if start else 0
        while limit > len(found) and i < len(self._blocks):
            block = self._blocks[i]
            inside = not end or block[-width:] < end
            stop = min(len(block) if inside else position(block, end, width), at + (limit - len(found)) * width)
            found += [block[offset : offset + width] for offset in range(at, stop, width)]
            if not inside:
                break
            i += 1
            at = 0
        return found

    # -- one row ---------------------------------------------------------------------------------------------
    def insert(self, row: bytes) -> None:
        """Add a row whose key is not there yet."""
        blocks, mins, width = self._blocks, self._mins, self._width
        i = len(mins) - 1
        if row < mins[i]:
            i = bisect_right(mins, row) - 1
        block = blocks[i]
        self.count += 1
        if block[-width:] < row:
            if len(block) < self._capacity:
                blocks[i] = block + row
                return
            if i == len(mins) - 1:
                blocks.append(row)
                mins.append(row[: self._key_size])
                return
            block += row
        else:
            at = position(block, row, width)
            block = block[:at] + row + block[at:]
        if len(block) <= self._capacity:
            blocks[i] = block
        else:
            self._split(i, block)

    def replace(self, row: bytes) -> bool:
        """Put ``row`` in the place of the row with its key; False if there is none."""
        key = row[: self._key_size]
        i = bisect_right(self._mins, key) - 1
        block, at, width = self._blocks[i], self._hint, self._width
        if block[at : at + self._key_size] != key:
            at = self._hint = position(block, key, width)
            if block[at : at + self._key_size] != key:
                return False
        self._blocks[i] = block[:at] + row + block[at + width :]
        return True

    def delete(self, key: bytes) -> bytes:
        """Remove the row with this key and return it; empty if there is none."""
        i = bisect_right(self._mins, key) - 1
        block, at, width = self._blocks[i], self._hint, self._width
        if block[at : at + self._key_size] != key:
            at = self._hint = position(block, key, width)
            if block[at : at + self._key_size] != key:
                return b""
        row = block[at : at + width]
        self.count -= 1
        rest = block[:at] + block[at + width :]
        if len(rest) > self._small:
            self._blocks[i] = rest
        else:
            self._shrunk(i, rest)
        return row

    # -- many rows -------------------------------------------------------------------------------------------
    def insert_many(self, rows: bytes) -> None:
        """Add rows, joined and in ascending order, none of whose keys is there yet."""
        width = self._width
        first, last = rows[:width], rows[-width:]
        i = bisect_right(self._mins, first) - 1
        block = self._blocks[i]
        at = len(block) if block[-width:] < first else position(block, first, width)
        after = block[at : at + width] if at < len(block) else self._min_after(i)
        # A bound may outlive its row, so the last of these may stand right on it: that one belongs behind it.
        if after and after <= last:  # other rows, or a border, stand between these
            for offset in range(0, len(rows), width):
                self.insert(rows[offset : offset + width])
            return
        self.count += len(rows) // width
        if i == len(self._mins) - 1 and at == len(block):
            self._append(rows)
            return
        block = block[:at] + rows + block[at:]
        if len(block) <= self._capacity:
            self._blocks[i] = block
        else:
            self._split(i, block)

    def delete_many(self, keys: list[bytes]) -> list[bytes]:
        """Remove the rows with these keys, which are in ascending order; returns those that were there, in order."""
        blocks, mins, width, key_size = self._blocks, self._mins, self._width, self._key_size
        gone: list[bytes] = []
        n, j = len(keys), 0
        while j < n:
            key = keys[j]
            i = bisect_right(mins, key) - 1
            border = self._min_after(i)
            block = blocks[i]
            at = position(block, key, width)
            count = min(n - j, (len(block) - at) // width) if width == key_size else 0
            if count > 1:
                run, some = block[at : at + count * width], keys[j : j + count]
                if run == b"".join(some):  # often the keys are those of the next rows
                    gone += some
                    j += count
                    left = block[:at] + block[at + len(run) :]
                    if len(left) > self._small:
                        blocks[i] = left
                    else:
                        self._shrunk(i, left)
                    continue
            kept: list[bytes] = []
            start = 0
            while True:
                row = block[at : at + width]
                if row[:key_size] == key:
                    gone.append(row)
                    if at > start:
                        kept.append(block[start:at])
                    at += width
                    start = at
                j += 1
                if j == n:
                    break
                key = keys[j]
                if border and key >= border:
                    break
                if block[at : at + key_size] < key:  # the next key need not be the next row
                    at = position(block, key, width, at)
            if start:
                kept.append(block[start:])
                rest = b"".join(kept)
                if len(rest) > self._small:
                    blocks[i] = rest
                else:
                    self._shrunk(i, rest)
        self.count -= len(gone)
        return gone

    # -- the whole -------------------------------------------------------------------------------------------
    def dump(self) -> list[bytes]:
        """All rows in order, as blocks to be joined. Immutable: later changes don't show."""
        return self._blocks.copy()

    def fill(self, rows: bytes) -> None:
        """Put rows, joined and in ascending order, into an empty set."""
        self.count = len(rows) // self._width
        self._append(rows)

    def memory_bytes(self) -> int:
        """Estimate of what the set takes in memory."""
        return self.count * self._width + len(self._blocks) * BLOCK_OVERHEAD + 256

    # -- blocks ----------------------------------------------------------------------------------------------
    def _min_after(self, i: int) -> bytes:
        """Lower bound of the block behind block ``i``; empty if that is the last one."""
        return self._mins[i + 1] if i + 1 < len(self._mins) else b""

    def _append(self, rows: bytes) -> None:
        """Rows above all others: fill the last block, then make full ones."""
        capacity = self._capacity
        room = capacity - len(self._blocks[-1])
        if room > 0:
            self._blocks[-1] += rows[:room]
        else:
            room = 0
        for at in range(room, len(rows), capacity):
            self._blocks.append(rows[at : at + capacity])
            self._mins.append(rows[at : at + self._key_size])

    def _split(self, i: int, block: bytes) -> None:
        """Put what has outgrown block ``i`` in its place as blocks of about equal size."""
        width = self._width
        parts = -(-len(block) // self._capacity)
        step = -(-(len(block) // width) // parts) * width
        pieces = [block[at : at + step] for at in range(0, len(block), step)]
        self._blocks[i : i + 1] = pieces
        self._mins[i + 1 : i + 1] = [piece[: self._key_size] for piece in pieces[1:]]

    def _shrunk(self, i: int, rest: bytes) -> None:
        """Block ``i`` has little left: join it with a neighbour if both together leave room to grow."""
        blocks, mins = self._blocks, self._mins
        blocks[i] = rest
        limit = self._capacity - self._small
        if i + 1 < len(blocks) and len(rest) + len(blocks[i + 1]) <= limit:
            blocks[i] = rest + blocks[i + 1]
            del blocks[i + 1], mins[i + 1]
        elif i and len(rest) + len(blocks[i - 1]) <= limit:
            blocks[i - 1] += rest
            del blocks[i], mins[i]
        elif not rest and len(blocks) > 1:
            del blocks[i], mins[i]
            mins[0] = b""


def position(block: bytes, key: bytes, width: int, start: int = 0) -> int:
    """Offset of the first row that is not below ``key``, looking from ``start`` on (a row's); maybe the end."""
    lo, hi = start // width, len(block) // width
    size = len(key)
    while lo < hi:
        mid = (lo + hi) >> 1
        at = mid * width
        if block[at : at + size] < key:
            lo = mid + 1
        else:
            hi = mid
    return lo * width
