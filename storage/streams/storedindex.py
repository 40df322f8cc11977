"""Reads the index of delayed entries from the store (``indexlog``) into its three tables.

Rule 1: all changes are read before the rows, except if the rows are in one part. Each piece of rows is merged with its
changes and appended to its table. All chunks of a table are therefore full, and packed except for the last ones. Adding
the changes of a million entries one by one took 1 s, and left most chunks plain.
Rule 2: the rows of changes are sorted for one table at a time, and joined before the table grows. Single rows among the
chunks would leave memory fragmented.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError
from storage.model.sortedrows import SortedRows, position
from storage.streams.duerows import ROW
from storage.streams.indexlog import CHANGE, CRC, META, NAME, REMOVED, ROWS_META, WALL, IndexLog, rows_name

HEAD: Final = Struct(">BQQ")  # see ``delayed``
ONE_PART: Final = 1  # versions of the head
PARTS: Final = 2
PIECE: Final = 1024 * ROW.size  # bytes of rows that are merged at a time
TOKENS: Final = 2  # the number of the table of tokens


def pack_head(version: int, served: int, wall: int) -> bytes:
    """Return the meta of the part with an empty name. ``served``, ``wall``: numbers of entries."""
    raw = HEAD.pack(version, served, wall)
    return raw + CRC.pack(crc32(raw))


class StoredIndex:
    """The parts of one index, in the order of the store: add() each of them, then end()."""

    __slots__ = (
        "_added", "_added_at", "_changes", "_first", "_last", "_left", "_parts", "_removed", "_removed_at", "_rows",
        "_sid", "_sorted", "_table", "_tables",
    )  # fmt: skip

    def __init__(self, sid: int, tables: list[SortedRows]) -> None:
        """``tables``: empty; rows in served time, rows in wall-clock time, rows of tokens."""
        self._sid = sid
        self._tables = tables
        self._left = [0, 0, 0]  # number of rows of each table that were not read
        self._rows = b""  # all rows, if they are in one part
        self._parts = 0  # number of parts with rows
        self._changes: list[bytes] = []
        self._first = self._last = 0  # numbers of their parts
        self._table = 0  # number of the table to which rows are being added
        self._sorted = False  # whether the following are those of this table
        self._added = b""  # rows, joined, ascending
        self._removed = b""
        self._added_at = self._removed_at = 0  # offsets of those that were not merged

    def add(self, name: bytes, meta: bytes, value: bytes) -> None:
        """Add the next part. Raises CorruptError if it is damaged."""
        end = len(value) - CRC.size
        if end < 0 or CRC.unpack_from(value, end)[0] != crc32(memoryview(value)[:end]):
            raise self._damaged()
        if not name:
            self._add_head(meta, value[:end])
        elif meta == ROWS_META:
            if name != rows_name(self._parts) or end % ROW.size or not end:
                raise self._damaged()
            self._parts += 1
            self._add_rows(value[:end])
        else:
            if meta != META or len(name) != NAME.size or end % CHANGE.size or not end:
                raise self._damaged()
            (number,) = NAME.unpack(name)
            if self._last not in (0, number - 1) or self._parts:
                raise self._damaged()
            self._first, self._last = self._first or number, number
            self._changes.append(value[:end])

    def _damaged(self) -> CorruptError:
        return CorruptError(f"the index of the delayed entries of stream {self._sid} is damaged, or incomplete")

    def _add_head(self, meta: bytes, rows: bytes) -> None:
        if len(meta) != HEAD.size + CRC.size or CRC.unpack_from(meta, HEAD.size)[0] != crc32(meta[: HEAD.size]):
            raise self._damaged()
        version, served, wall = HEAD.unpack_from(meta)
        if version not in (ONE_PART, PARTS):
            raise CorruptError("an index of delayed entries has a version of a newer tidelog")
        count = served + wall
        if len(rows) != (2 * count * ROW.size if version == ONE_PART else 0):
            raise self._damaged()
        self._left = [served, wall, count]
        self._rows = rows

    def end(self) -> IndexLog:
        """Complete the tables. Return the log that continues the parts.

        Raises CorruptError if parts are missing, or do not agree with each other.
        """
        rows, self._rows = self._rows, b""
        for at in range(0, len(rows), PIECE):
            self._add_rows(rows[at : at + PIECE])
        if any(self._left):
            raise self._damaged()
        while self._table <= TOKENS:
            self._end_table()
        served, wall, tokens = self._tables
        if served.count + wall.count != tokens.count:
            raise self._damaged()
        log = IndexLog()
        changes = sum(map(len, self._changes)) // CHANGE.size
        log.continue_parts(self._parts, self._first or 1, self._last, changes)
        return log

    # -- tables ----------------------------------------------------------------------------------------------------
    def _add_rows(self, rows: bytes) -> None:
        """Add rows, which can belong to several tables."""
        at, end = 0, len(rows)
        while at < end:
            while self._table <= TOKENS and not self._left[self._table]:
                self._end_table()
            if self._table > TOKENS:
                raise self._damaged()
            stop = min(end, at + PIECE, at + self._left[self._table] * ROW.size)
            self._left[self._table] -= (stop - at) // ROW.size
            self._append(rows[at:stop])
            at = stop

    def _end_table(self) -> None:
        """Add the rows above the stored ones, and continue with the next table."""
        self._sort()
        start, self._added_at = self._added_at, len(self._added)
        for at in range(start, len(self._added), PIECE):
            self._append(self._added[at : at + PIECE])
        self._table += 1
        self._sorted = False

    def _append(self, rows: bytes) -> None:
        """Append rows to the current table, with the added rows below the last one, and without the removed ones."""
        self._sort()
        last, width = rows[-ROW.size :], ROW.size
        added = position(self._added, last, width, self._added_at)
        removed = position(self._removed, last, width, self._removed_at)
        if self._removed[removed : removed + width] == last:
            removed += width
        if added > self._added_at or removed > self._removed_at:
            some = _rows(rows) + _rows(self._added[self._added_at : added])
            some.sort()
            gone = set(_rows(self._removed[self._removed_at : removed]))
            rows = b"".join([row for row in some if row not in gone] if gone else some)
            self._added_at, self._removed_at = added, removed
        self._tables[self._table].fill(rows)

    def _sort(self) -> None:
        """Set the changes of the current table."""
        if self._sorted:
            return
        self._sorted = True
        added: list[bytes] = []
        removed: list[bytes] = []
        for changes in self._changes:
            for due, ordinal, token in CHANGE.iter_unpack(changes):
                if self._table == TOKENS:
                    row = token + ordinal.to_bytes(8, "big")
                elif due & WALL == self._table:
                    row = ROW.pack(due >> 2, ordinal)
                else:
                    continue
                if due & REMOVED:
                    removed.append(row)
                else:
                    added.append(row)
        added.sort()
        removed.sort()
        self._added, self._removed = b"".join(added), b"".join(removed)
        self._added_at = self._removed_at = 0


def _rows(joined: bytes) -> list[bytes]:
    return [joined[at : at + ROW.size] for at in range(0, len(joined), ROW.size)]
