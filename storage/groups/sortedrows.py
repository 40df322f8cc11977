"""Sorted rows of fixed width: an ordered set that takes little more memory than its rows.

Rule 1: a row starts with its key; keys are unique and big-endian, so they sort as bytes.
Rule 2: rows are kept in chunks, immutable ``bytes`` of about 2 KB, and a change makes a new chunk. Copying one takes
0.1 us; in return nothing is over-allocated, a search slices ``bytes`` (twice as fast as slicing a ``bytearray``), and a
dump is one join.

    _mins     b""          key             key           not above its chunk's first key, above all keys before that
    _chunks   row row row  row row row row row row ...   none is empty, except the only one of an empty set

To find a row, ``_mins`` is bisected in C, then one chunk. Appending makes full chunks; inserting into a full chunk
splits it into two halves; a chunk that has become small is joined with a neighbour.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

CHUNK_BYTES: Final = 2048  # limit of a chunk's size; below 1 KB the overhead per chunk matters, above 4 KB the copying
CHUNK_OVERHEAD: Final = 33 + 16 + 64 + 16  # bytes: object header, malloc, the key in _mins, two list slots


class SortedRows:
    """Rows of ``width`` bytes, ordered by their first ``key_size`` bytes. Every change is O(log n) and a small copy."""

    __slots__ = ("_chunks", "_capacity", "_hint", "_key_size", "_mins", "_small", "_width", "count")

    def __init__(self, width: int, key_size: int) -> None:
        self._width = width
        self._key_size = key_size
        self._capacity = CHUNK_BYTES // width * width  # bytes
        self._small = self._capacity // 4  # bytes; a chunk that shrinks to this size is joined with a neighbour
        self.count = 0  # rows
        # Offset in its chunk of the last row found, where the next is often found, too: to acknowledge messages one by
        # one takes 10 % more instructions without it.
        self._hint = 0
        self._chunks: list[bytes] = [b""]
        self._mins: list[bytes] = [b""]

    # -- reading ---------------------------------------------------------------------------------------------
    def first(self) -> bytes:
        """The lowest row; empty if there is none."""
        return self._chunks[0][: self._width]

    def last(self) -> bytes:
        """The highest row; empty if there is none."""
        return self._chunks[-1][-self._width :]

    def get(self, key: bytes) -> bytes:
        """The row with this key; empty if there is none."""
        chunk, at, width = self._chunks[bisect_right(self._mins, key) - 1], self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return b""
        return chunk[at : at + width]

    def floor(self, key: bytes) -> bytes:
        """The highest row whose key is at or below ``key``; empty if there is none."""
        chunks, width, size = self._chunks, self._width, self._key_size
        row = chunks[-1][-width:]
        if row[:size] <= key:
            return row
        i = bisect_right(self._mins, key) - 1
        chunk = chunks[i]
        at = position(chunk, key, width)
        row = chunk[at : at + width]
        if row[:size] == key:
            return row
        if at:
            return chunk[at - width : at]
        return chunks[i - 1][-width:] if i else b""

    def above(self, key: bytes, itself: bool = False) -> bytes:
        """The lowest row whose key is above ``key`` (with ``itself``: or equal); empty if there is none."""
        chunks, width, size = self._chunks, self._width, self._key_size
        last = chunks[-1][-width:][:size]
        if last < key or (last == key and not itself):
            return b""
        i = bisect_right(self._mins, key) - 1
        chunk = chunks[i]
        at = position(chunk, key, width)
        if not itself and chunk[at : at + size] == key:
            at += width
        return chunk[at : at + width] if at < len(chunk) else chunks[i + 1][:width]

    def span(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """At most ``limit`` rows at or above ``start``, all below ``end`` (empty: no bound), in order."""
        width = self._width
        found: list[bytes] = []
        i = bisect_right(self._mins, start) - 1 if start else 0
        at = position(self._chunks[i], start, width) if start else 0
        while limit > len(found) and i < len(self._chunks):
            chunk = self._chunks[i]
            inside = not end or chunk[-width:] < end
            stop = min(len(chunk) if inside else position(chunk, end, width), at + (limit - len(found)) * width)
            found += [chunk[offset : offset + width] for offset in range(at, stop, width)]
            if not inside:
                break
            i += 1
            at = 0
        return found

    def between(self, start: bytes, end: bytes) -> int:
        """The number of rows at or above ``start`` and below ``end`` (empty: no bound)."""
        low = bisect_right(self._mins, start) - 1
        high = bisect_right(self._mins, end) - 1 if end else len(self._mins) - 1
        if low > high:
            return 0
        size = sum(map(len, self._chunks[low:high]))
        size += position(self._chunks[high], end, self._width) if end else len(self._chunks[high])
        return max(0, size - position(self._chunks[low], start, self._width)) // self._width

    def freeze(self) -> SortedRows:
        """A copy, which costs a pointer for each chunk."""
        other = SortedRows(self._width, self._key_size)
        other.count = self.count
        other._chunks = self._chunks.copy()
        other._mins = self._mins.copy()
        return other

    # -- one row ---------------------------------------------------------------------------------------------
    def insert(self, row: bytes) -> None:
        """Add a row with a new key."""
        chunks, mins, width = self._chunks, self._mins, self._width
        i = len(mins) - 1
        if row < mins[i]:
            i = bisect_right(mins, row) - 1
        chunk = chunks[i]
        self.count += 1
        if chunk[-width:] < row:
            if len(chunk) < self._capacity:
                chunks[i] = chunk + row
                return
            if i == len(mins) - 1:
                chunks.append(row)
                mins.append(row[: self._key_size])
                return
            chunk += row
        else:
            at = position(chunk, row, width)
            chunk = chunk[:at] + row + chunk[at:]
        if len(chunk) <= self._capacity:
            chunks[i] = chunk
        else:
            self._split(i, chunk)

    def replace(self, row: bytes) -> bool:
        """Replace the row that has the key of ``row``; False if there is none."""
        key = row[: self._key_size]
        i = bisect_right(self._mins, key) - 1
        chunk, at, width = self._chunks[i], self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return False
        self._chunks[i] = chunk[:at] + row + chunk[at + width :]
        return True

    def delete(self, key: bytes) -> bytes:
        """Remove the row with this key and return it; empty if there is none."""
        i = bisect_right(self._mins, key) - 1
        chunk, at, width = self._chunks[i], self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return b""
        row = chunk[at : at + width]
        self.count -= 1
        self._set_rest(i, chunk[:at] + chunk[at + width :])
        return row

    # -- batches of rows ---------------------------------------------------------------------------------------
    def insert_many(self, rows: bytes) -> None:
        """Add rows with new keys, joined, in ascending order."""
        width = self._width
        first, last = rows[:width], rows[-width:]
        i = bisect_right(self._mins, first) - 1
        chunk = self._chunks[i]
        at = len(chunk) if chunk[-width:] < first else position(chunk, first, width)
        after = chunk[at : at + width] if at < len(chunk) else self._min_after(i)
        # A bound may outlive its row, so the last of these rows may have just that key; it belongs to the next chunk.
        if after and after <= last:  # other rows, or a bound, are between these
            self._merge([rows[offset : offset + width] for offset in range(0, len(rows), width)])
            return
        self.count += len(rows) // width
        if i == len(self._mins) - 1 and at == len(chunk):
            self._append(rows)
            return
        chunk = chunk[:at] + rows + chunk[at:]
        if len(chunk) <= self._capacity:
            self._chunks[i] = chunk
        else:
            self._split(i, chunk)

    def _merge(self, rows: list[bytes]) -> None:
        """Add rows with new keys, ascending, chunk by chunk."""
        width, key_size = self._width, self._key_size
        at, count = 0, len(rows)
        while at < count:
            row = rows[at]
            i = bisect_right(self._mins, row[:key_size]) - 1
            border = self._min_after(i)
            stop = bisect_left(rows, border, at) if border and border <= rows[-1] else count
            if stop - at == 1:
                self.insert(row)
            else:
                chunk = self._chunks[i]
                start = position(chunk, row, width)
                here = [chunk[offset : offset + width] for offset in range(start, len(chunk), width)]
                here += rows[at:stop]
                here.sort()
                chunk = chunk[:start] + b"".join(here)
                self.count += stop - at
                if len(chunk) <= self._capacity:
                    self._chunks[i] = chunk
                else:
                    self._split(i, chunk)
            at = stop

    def exchange(self, keys: list[bytes], rows: list[bytes]) -> None:
        """Remove the rows with these keys, then add ``rows``, whose keys are new then. Both are ascending."""
        if len(keys) == 1:
            self.delete(keys[0])
        elif keys:
            self.delete_many(keys)
        if len(rows) == 1:
            self.insert(rows[0])
        elif rows:
            self.insert_many(b"".join(rows))

    def present(self, keys: list[bytes]) -> list[bytes]:
        """Those of the keys, which ascend, that have a row."""
        found: list[bytes] = []
        at, count, width, size = 0, len(keys), self._width, self._key_size
        while at < count:
            key = keys[at]
            i = bisect_right(self._mins, key) - 1
            chunk, border = self._chunks[i], self._min_after(i)
            stop = count if not border or keys[-1] < border else bisect_left(keys, border, at)
            start = position(chunk, key, width)
            some = keys[at:stop]
            end = start + len(some) * width
            if width == size and chunk[start:end] == b"".join(some):  # often they are neighbours
                found += some
            elif len(some) == 1:
                if chunk[start : start + size] == key:
                    found.append(key)
            else:
                here = {chunk[offset : offset + size] for offset in range(start, len(chunk), width)}
                found += [key for key in some if key in here]
            at = stop
        return found

    def delete_many(self, keys: list[bytes]) -> list[bytes]:
        """Remove the rows with these keys, which ascend; returns the rows that existed, in order."""
        gone: list[bytes] = []
        n, j = len(keys), 0
        while j < n:
            i = bisect_right(self._mins, keys[j]) - 1
            at = position(self._chunks[i], keys[j], self._width)
            count = self._delete_next(i, at, keys, j)
            if count:  # often the keys are those of the next rows
                gone += keys[j : j + count]
                j += count
            else:
                j = self._delete_some(i, at, keys, j, gone)
        self.count -= len(gone)
        return gone

    def _delete_next(self, i: int, at: int, keys: list[bytes], j: int) -> int:
        """Remove the rows of chunk ``i`` from ``at`` on if they are just the keys from ``j`` on; their number, or 0."""
        chunk, width = self._chunks[i], self._width
        count = min(len(keys) - j, (len(chunk) - at) // width) if width == self._key_size else 0
        if count < 2:
            return 0
        end = at + count * width
        if chunk[at:end] != b"".join(keys[j : j + count]):
            return 0
        self._set_rest(i, chunk[:at] + chunk[end:])
        return count

    def _delete_some(self, i: int, at: int, keys: list[bytes], j: int, gone: list[bytes]) -> int:
        """Remove rows of chunk ``i``, ``at`` or after, into ``gone``; returns the first key that is another chunk's."""
        chunk, width, key_size = self._chunks[i], self._width, self._key_size
        border, n, key = self._min_after(i), len(keys), keys[j]
        kept: list[bytes] = []
        start = 0
        while True:
            row = chunk[at : at + width]
            if row[:key_size] == key:
                gone.append(row)
                if at > start:
                    kept.append(chunk[start:at])
                at += width
                start = at
            j += 1
            if j == n:
                break
            key = keys[j]
            if border and key >= border:
                break
            if chunk[at : at + key_size] < key:  # the next key need not be the next row
                at = position(chunk, key, width, at)
        if start:
            kept.append(chunk[start:])
            self._set_rest(i, b"".join(kept))
        return j

    def _set_rest(self, i: int, rest: bytes) -> None:
        """What is left of chunk ``i`` after a deletion."""
        if len(rest) > self._small:
            self._chunks[i] = rest
        else:
            self._shrunk(i, rest)

    # -- the whole -------------------------------------------------------------------------------------------
    def dump(self) -> list[bytes]:
        """All rows in order, as chunks to be joined; later changes don't affect them."""
        return self._chunks.copy()

    def fill(self, rows: bytes) -> None:
        """Fill an empty set with rows, joined, in ascending order."""
        self.count = len(rows) // self._width
        self._append(rows)

    def memory_bytes(self) -> int:
        """Estimate of what the set takes in memory."""
        return self.count * self._width + len(self._chunks) * CHUNK_OVERHEAD + 256

    # -- chunks ----------------------------------------------------------------------------------------------
    def _min_after(self, i: int) -> bytes:
        """Lower bound of the chunk after chunk ``i``; empty if there is none."""
        return self._mins[i + 1] if i + 1 < len(self._mins) else b""

    def _append(self, rows: bytes) -> None:
        """Add rows above all others: fill up the last chunk, then make full ones."""
        capacity = self._capacity
        room = capacity - len(self._chunks[-1])
        if room > 0:
            self._chunks[-1] += rows[:room]
        else:
            room = 0
        for at in range(room, len(rows), capacity):
            self._chunks.append(rows[at : at + capacity])
            self._mins.append(rows[at : at + self._key_size])

    def _split(self, i: int, chunk: bytes) -> None:
        """Replace chunk ``i`` by ``chunk``, which is too long for one, as chunks of about equal size."""
        width = self._width
        parts = -(-len(chunk) // self._capacity)
        step = -(-(len(chunk) // width) // parts) * width
        pieces = [chunk[at : at + step] for at in range(0, len(chunk), step)]
        self._chunks[i : i + 1] = pieces
        self._mins[i + 1 : i + 1] = [piece[: self._key_size] for piece in pieces[1:]]

    def _shrunk(self, i: int, rest: bytes) -> None:
        """Chunk ``i`` has only ``rest`` left: join it with a neighbour if both together leave room to grow."""
        chunks, mins = self._chunks, self._mins
        chunks[i] = rest
        limit = self._capacity - self._small
        if i + 1 < len(chunks) and len(rest) + len(chunks[i + 1]) <= limit:
            chunks[i] = rest + chunks[i + 1]
            del chunks[i + 1], mins[i + 1]
        elif i and len(rest) + len(chunks[i - 1]) <= limit:
            chunks[i - 1] += rest
            del chunks[i], mins[i]
        elif not rest and len(chunks) > 1:
            del chunks[i], mins[i]
            mins[0] = b""


def position(chunk: bytes, key: bytes, width: int, start: int = 0) -> int:
    """Offset of the first row that is not below ``key``, from the row at offset ``start`` on; maybe the chunk's end."""
    lo, hi = start // width, len(chunk) // width
    size = len(key)
    while lo < hi:
        mid = (lo + hi) >> 1
        at = mid * width
        if chunk[at : at + size] < key:
            lo = mid + 1
        else:
            hi = mid
    return lo * width
