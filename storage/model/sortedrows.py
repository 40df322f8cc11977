"""Sorted rows of fixed width: an ordered set that takes little more memory than its rows.

Rule 1: a row starts with its key. Keys are unique and big-endian, so that they sort as bytes.
Rule 2: rows are stored in chunks, immutable ``bytes`` of about 2 KB. A change creates a new chunk, which takes 0.1 us.
In return, no memory is over-allocated, a search slices ``bytes`` (twice as fast as slicing a ``bytearray``), and a dump
is one join.

    _mins     b""          key             key           at most the first key of its chunk, above all keys before it
    _chunks   row row row  row row row row row row ...   none is empty, except the only one of an empty set

A search bisects ``_mins`` in C, then one chunk. Appending creates full chunks. Inserting into a full chunk splits it
into halves. A chunk that has become small is joined with a neighbor.

Rule 3: the unchanged chunks of a large set are compressed. A chunk is packed when HOT_CHUNKS others were created after
it by appending or splitting. It is then in ``_packed``, by its key in ``_mins``, and empty in ``_chunks``. Neighboring
rows are similar, so a packed chunk takes a fifth of the memory or less, and 2 us to read. A chunk becomes plain when it
changes and is not packed again: with repeated packing, random acknowledgements took 3.6 times as long.

Decision: pending messages are rows of 16 bytes, their IDs. Neighbors share one row with their times, counts, limits,
and dead-letter key. A message takes 19 bytes if it was delivered with others and 118 to 134 if every message differs;
compressed, 4 and 27 bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import zstandard

# limit of a chunk's size; the overhead per chunk matters below 1 KB, the time of copying above 4 KB
CHUNK_BYTES: Final = 2048
CHUNK_OVERHEAD: Final = 33 + 16 + 64 + 16  # bytes: object header, malloc, the key in _mins, two list slots
HOT_CHUNKS: Final = 64  # number of recent chunks that are not packed
PACKED_FROM: Final = 256  # bytes; a shorter chunk stays plain
PACKED_OVERHEAD: Final = 20  # bytes of overhead in addition to that of a plain chunk

_compressor: Final = zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=False)
_decompressor: Final = zstandard.ZstdDecompressor()


class PackedRows:
    """A packed chunk of a dump."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class SortedRows:
    """Rows of ``width`` bytes, ordered by their first ``key_size`` bytes. Every change is O(log n) and a small copy."""

    __slots__ = (
        "_chunks", "_capacity", "_hint", "_hot", "_key_size", "_mins", "_packed", "_saved", "_seen", "_seen_plain",
        "_small", "_width", "count",
    )  # fmt: skip

    def __init__(self, width: int, key_size: int) -> None:
        self._width = width
        self._key_size = key_size
        self._capacity = CHUNK_BYTES // width * width  # maximum bytes of a chunk, a multiple of the width
        self._small = self._capacity // 4  # bytes; a chunk that shrinks to this size is joined with a neighbor
        self.count = 0  # number of rows
        # Offset of the last row found in its chunk. The next one is often there, too. Without it, acknowledging
        # messages one by one takes 10 % more instructions.
        self._hint = 0
        self._chunks: list[bytes] = [b""]
        self._mins: list[bytes] = [b""]
        self._packed: dict[bytes, bytes] = {}  # packed chunks by their keys in _mins
        self._saved = 0  # bytes of memory that packing saves
        self._hot: list[bytes] = []  # keys in _mins of recent chunks, oldest first
        self._seen, self._seen_plain = b"", b""  # the packed chunk that was read last, in packed and plain form

    # -- packed chunks -----------------------------------------------------------------------------------------
    def _chunk(self, i: int) -> bytes:
        """Return chunk ``i`` for reading. Negative: from the end."""
        chunk = self._chunks[i]
        return chunk if chunk or not self._packed else self._unpacked(i)

    def _unpacked(self, i: int) -> bytes:
        packed = self._packed.get(self._mins[i])
        if packed is None:
            return b""
        if packed is not self._seen:
            self._seen_plain = _decompressor.decompress(packed)
            self._seen = packed
        return self._seen_plain

    def _set(self, i: int, chunk: bytes) -> None:
        """Replace the rows of chunk ``i``, plain or packed."""
        if self._packed and not self._chunks[i]:
            self._forget(self._mins[i])
        self._chunks[i] = chunk

    def _forget(self, key: bytes) -> None:
        """Remove the packed chunk with this key in _mins, if there is one."""
        packed = self._packed.pop(key, None)
        if packed is not None:
            self._saved -= zstandard.frame_content_size(packed) - len(packed) - PACKED_OVERHEAD

    def _heat(self, i: int) -> None:
        """Record that chunk ``i`` was created or is no longer the last one, and pack the oldest recent chunks."""
        hot, mins = self._hot, self._mins
        hot.append(mins[i])
        while len(hot) > HOT_CHUNKS:
            key = hot.pop(0)
            at = bisect_right(mins, key) - 1
            chunk = self._chunks[at]
            if mins[at] == key and at != i and at < len(mins) - 1 and len(chunk) >= PACKED_FROM:
                # copied, since the result is in a buffer as large as the chunk
                packed = self._packed[key] = b"".join((_compressor.compress(chunk), b""))
                self._chunks[at] = b""
                self._saved += len(chunk) - len(packed) - PACKED_OVERHEAD

    def _drop(self, i: int) -> None:
        """Remove chunk ``i``, whose rows were moved or removed."""
        chunks, mins = self._chunks, self._mins
        if self._packed and not chunks[i]:
            self._forget(mins[i])
        del chunks[i], mins[i]
        if not i:  # the first chunk has no lower bound
            packed = self._packed.pop(mins[0], None)
            mins[0] = b""
            if packed is not None:
                self._packed[b""] = packed

    # -- reading ---------------------------------------------------------------------------------------------
    def first(self) -> bytes:
        """Return the lowest row; empty if there is none."""
        return self._chunk(0)[: self._width]

    def last(self) -> bytes:
        """Return the highest row; empty if there is none."""
        return self._chunk(-1)[-self._width :]

    def get(self, key: bytes) -> bytes:
        """Return the row with this key; empty if there is none."""
        chunk, at, width = self._chunk(bisect_right(self._mins, key) - 1), self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return b""
        return chunk[at : at + width]

    def floor(self, key: bytes) -> bytes:
        """Return the highest row whose key is at or below ``key``; empty if there is none."""
        width, size = self._width, self._key_size
        row = self._chunk(-1)[-width:]
        if row[:size] <= key:
            return row
        i = bisect_right(self._mins, key) - 1
        chunk = self._chunk(i)
        at = position(chunk, key, width)
        row = chunk[at : at + width]
        if row[:size] == key:
            return row
        if at:
            return chunk[at - width : at]
        return self._chunk(i - 1)[-width:] if i else b""

    def above(self, key: bytes, itself: bool = False) -> bytes:
        """Return the lowest row whose key is above ``key`` (with ``itself``: or equal); empty if there is none."""
        width, size = self._width, self._key_size
        last = self._chunk(-1)[-width:][:size]
        if last < key or (last == key and not itself):
            return b""
        i = bisect_right(self._mins, key) - 1
        chunk = self._chunk(i)
        at = position(chunk, key, width)
        if not itself and chunk[at : at + size] == key:
            at += width
        return chunk[at : at + width] if at < len(chunk) else self._chunk(i + 1)[:width]

    def span(self, start: bytes, end: bytes, limit: int) -> list[bytes]:
        """Return at most ``limit`` rows at or above ``start`` and below ``end`` (empty: no bound), in order."""
        width = self._width
        found: list[bytes] = []
        i = bisect_right(self._mins, start) - 1 if start else 0
        at = position(self._chunk(i), start, width) if start else 0
        while limit > len(found) and i < len(self._chunks):
            chunk = self._chunk(i)
            inside = not end or chunk[-width:] < end
            stop = min(len(chunk) if inside else position(chunk, end, width), at + (limit - len(found)) * width)
            found += [chunk[offset : offset + width] for offset in range(at, stop, width)]
            if not inside:
                break
            i += 1
            at = 0
        return found

    def between(self, start: bytes, end: bytes) -> int:
        """Return the number of rows at or above ``start`` and below ``end`` (empty: no bound)."""
        low = bisect_right(self._mins, start) - 1
        high = bisect_right(self._mins, end) - 1 if end else len(self._mins) - 1
        if low > high:
            return 0
        size = sum(map(len, self._chunks[low:high]))
        if self._packed:
            for i in range(low, high):
                if not self._chunks[i]:
                    size += zstandard.frame_content_size(self._packed[self._mins[i]])
        size += position(self._chunk(high), end, self._width) if end else len(self._chunk(high))
        return max(0, size - position(self._chunk(low), start, self._width)) // self._width

    def freeze(self) -> SortedRows:
        """Return a copy, which costs one pointer per chunk."""
        other = SortedRows(self._width, self._key_size)
        other.count = self.count
        other._chunks = self._chunks.copy()
        other._mins = self._mins.copy()
        other._packed = self._packed.copy()
        return other

    # -- one row ---------------------------------------------------------------------------------------------
    def insert(self, row: bytes) -> None:
        """Add a row with a new key."""
        mins, width = self._mins, self._width
        i = len(mins) - 1
        if row < mins[i]:
            i = bisect_right(mins, row) - 1
        chunk = self._chunk(i)
        self.count += 1
        if chunk[-width:] < row:
            if len(chunk) < self._capacity:
                self._set(i, chunk + row)
                return
            if i == len(mins) - 1:
                self._chunks.append(row)
                mins.append(row[: self._key_size])
                self._heat(i)
                return
            chunk += row
        else:
            at = position(chunk, row, width)
            chunk = chunk[:at] + row + chunk[at:]
        self._put(i, chunk)

    def replace(self, row: bytes) -> bool:
        """Replace the row that has the same key as ``row``. Return False if there is none."""
        key = row[: self._key_size]
        i = bisect_right(self._mins, key) - 1
        chunk, at, width = self._chunk(i), self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return False
        self._set(i, chunk[:at] + row + chunk[at + width :])
        return True

    def delete(self, key: bytes) -> bytes:
        """Remove and return the row with this key; empty if there is none."""
        i = bisect_right(self._mins, key) - 1
        chunk, at, width = self._chunk(i), self._hint, self._width
        if chunk[at : at + self._key_size] != key:
            at = self._hint = position(chunk, key, width)
            if chunk[at : at + self._key_size] != key:
                return b""
        row = chunk[at : at + width]
        self.count -= 1
        self._set_rest(i, chunk[:at] + chunk[at + width :])
        return row

    # -- many rows ---------------------------------------------------------------------------------------------
    def insert_many(self, rows: bytes) -> None:
        """Add rows with new keys, joined, in ascending order."""
        width = self._width
        first, last = rows[:width], rows[-width:]
        i = bisect_right(self._mins, first) - 1
        chunk = self._chunk(i)
        at = len(chunk) if chunk[-width:] < first else position(chunk, first, width)
        after = chunk[at : at + width] if at < len(chunk) else self._min_after(i)
        # A bound can outlive its row. The last row can therefore have this key and belong to the next chunk.
        if after and after <= last:  # other rows, or a bound, are in between
            self._merge([rows[offset : offset + width] for offset in range(0, len(rows), width)])
            return
        self.count += len(rows) // width
        if i == len(self._mins) - 1 and at == len(chunk):
            self._append(rows)
            return
        chunk = chunk[:at] + rows + chunk[at:]
        self._put(i, chunk)

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
                chunk = self._chunk(i)
                start = position(chunk, row, width)
                here = [chunk[offset : offset + width] for offset in range(start, len(chunk), width)]
                here += rows[at:stop]
                here.sort()
                chunk = chunk[:start] + b"".join(here)
                self.count += stop - at
                self._put(i, chunk)
            at = stop

    def exchange(self, keys: list[bytes], rows: list[bytes]) -> None:
        """Remove the rows with these keys, then add ``rows``, whose keys must then be new. Both are ascending."""
        if len(keys) == 1:
            self.delete(keys[0])
        elif keys:
            self.delete_many(keys)
        if len(rows) == 1:
            self.insert(rows[0])
        elif rows:
            self.insert_many(b"".join(rows))

    def present(self, keys: list[bytes]) -> list[bytes]:
        """Return those of the keys (ascending) that have a row."""
        found: list[bytes] = []
        at, count, width, size = 0, len(keys), self._width, self._key_size
        while at < count:
            key = keys[at]
            i = bisect_right(self._mins, key) - 1
            chunk, border = self._chunk(i), self._min_after(i)
            stop = count if not border or keys[-1] < border else bisect_left(keys, border, at)
            start = position(chunk, key, width)
            some = keys[at:stop]
            end = start + len(some) * width
            if width == size and chunk[start:end] == b"".join(some):  # often, the rows are adjacent
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
        """Remove the rows with these keys (ascending). Return the rows that existed, in order."""
        gone: list[bytes] = []
        n, j = len(keys), 0
        while j < n:
            i = bisect_right(self._mins, keys[j]) - 1
            at = position(self._chunk(i), keys[j], self._width)
            count = self._delete_next(i, at, keys, j)
            if count:  # the keys are often those of the next rows
                gone += keys[j : j + count]
                j += count
            else:
                j = self._delete_some(i, at, keys, j, gone)
        self.count -= len(gone)
        return gone

    def _delete_next(self, i: int, at: int, keys: list[bytes], j: int) -> int:
        """Remove the rows of chunk ``i`` from ``at`` on if they are the keys from ``j`` on.

        Return their number, or 0.
        """
        chunk, width = self._chunk(i), self._width
        count = min(len(keys) - j, (len(chunk) - at) // width) if width == self._key_size else 0
        if count < 2:
            return 0
        end = at + count * width
        if chunk[at:end] != b"".join(keys[j : j + count]):
            return 0
        self._set_rest(i, chunk[:at] + chunk[end:])
        return count

    def _delete_some(self, i: int, at: int, keys: list[bytes], j: int, gone: list[bytes]) -> int:
        """Move rows of chunk ``i``, from ``at`` on, to ``gone``. Return the index of the first key of another chunk."""
        chunk, width, key_size = self._chunk(i), self._width, self._key_size
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
            if chunk[at : at + key_size] < key:  # the next key is not that of the next row
                at = position(chunk, key, width, at)
        if start:
            kept.append(chunk[start:])
            self._set_rest(i, b"".join(kept))
        return j

    def _set_rest(self, i: int, rest: bytes) -> None:
        """Replace chunk ``i`` with what remains of it after a deletion."""
        if len(rest) > self._small:
            self._set(i, rest)
        else:
            self._shrunk(i, rest)

    # -- the whole -------------------------------------------------------------------------------------------
    def dump(self) -> list[bytes | PackedRows]:
        """Return all rows in order, as chunks to be joined. Later changes do not affect them."""
        chunks, packed = self._chunks, self._packed
        if not packed:
            return list(chunks)
        mins = self._mins
        return [chunks[i] or PackedRows(packed[mins[i]]) for i in range(len(chunks))]

    def fill(self, rows: bytes) -> None:
        """Add rows, joined, in ascending order, above all others."""
        self.count += len(rows) // self._width
        self._append(rows)

    def begin(self, rows: bytes) -> None:
        """Fill an empty set; fast if the rows fit into a chunk."""
        self.count = len(rows) // self._width
        if len(rows) <= self._capacity:
            self._chunks[0] = rows
        else:
            self._append(rows)

    def is_all(self, rows: bytes) -> bool:
        """Return whether these joined rows (ascending) are all rows of the set; False if there are several chunks.

        Rows must consist only of their keys.
        """
        return len(self._chunks) == 1 and self._chunks[0] == rows

    def clear(self) -> None:
        self.count = 0
        if len(self._chunks) > 1:
            self._chunks, self._mins, self._hot = [b""], [b""], []
        else:
            self._chunks[0] = b""
        if self._packed:
            self._packed = {}
            self._saved = 0

    def memory_bytes(self) -> int:
        return self.count * self._width + len(self._chunks) * CHUNK_OVERHEAD + 256 - self._saved

    # -- chunks ----------------------------------------------------------------------------------------------
    def _min_after(self, i: int) -> bytes:
        """Return the lower bound of the chunk after chunk ``i``; empty if there is none."""
        return self._mins[i + 1] if i + 1 < len(self._mins) else b""

    def _append(self, rows: bytes) -> None:
        """Add rows above all others: fill the last chunk, then create full ones."""
        capacity = self._capacity
        last = self._chunk(-1)
        room = capacity - len(last)
        if room > 0:
            self._set(len(self._mins) - 1, last + rows[:room])
        else:
            room = 0
        for at in range(room, len(rows), capacity):
            self._chunks.append(rows[at : at + capacity])
            self._mins.append(rows[at : at + self._key_size])
            self._heat(len(self._mins) - 2)

    def _put(self, i: int, chunk: bytes) -> None:
        """Replace chunk ``i`` with ``chunk``; if it is too long, divided into chunks of about equal size."""
        if len(chunk) <= self._capacity:
            self._set(i, chunk)
            return
        width = self._width
        parts = -(-len(chunk) // self._capacity)
        step = -(-(len(chunk) // width) // parts) * width
        pieces = [chunk[at : at + step] for at in range(0, len(chunk), step)]
        self._set(i, pieces[0])
        self._chunks[i + 1 : i + 1] = pieces[1:]
        self._mins[i + 1 : i + 1] = [piece[: self._key_size] for piece in pieces[1:]]
        for number in range(len(pieces)):
            self._heat(i + number)

    def _shrunk(self, i: int, rest: bytes) -> None:
        """Replace chunk ``i`` with ``rest``, and join it with a neighbor if both together leave room to grow."""
        self._set(i, rest)
        limit, count = self._capacity - self._small, len(self._mins)
        after = self._chunk(i + 1) if i + 1 < count else b""
        if after and len(rest) + len(after) <= limit:
            self._set(i, rest + after)
            self._drop(i + 1)
            return
        before = self._chunk(i - 1) if i else b""
        if before and len(rest) + len(before) <= limit:
            self._set(i - 1, before + rest)
            self._drop(i)
        elif not rest and count > 1:
            self._drop(i)


def position(chunk: bytes, key: bytes, width: int, start: int = 0) -> int:
    """Return the offset of the first row from ``start`` on that is not below ``key``, or the end of the chunk."""
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
