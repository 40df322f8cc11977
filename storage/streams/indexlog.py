"""The index of delayed entries in the store: its parts, and which of them a checkpoint writes.

The parts are groups of the companion: all rows at one time, and the changes since then, in order. ``storedindex`` reads
them.

    name b""                          meta 1 (``delayed``): all rows; meta 2: the rows are in parts of their own
    name 1, 2, 3 ... u64              meta 3: changes
    name b"r" and 0, 1, 2 ... u32     meta 4: rows, at most ROWS_CHUNKS chunks; after the changes in the order of names

    0      1               57          61
    +------+---------------+-----------+
    | 3 u8 | 56 zero bytes | crc32 u32 |       meta 3: that of a group, in a version which earlier servers refuse
    +------+---------------+-----------+
    | due * 4 + flags u64 | ordinal u64 | hash of the token 8 | ... | crc32 u32 |
    +---------------------+-------------+---------------------+-----+-----------+
      flags  1: wall-clock time, 2: the entry was removed, otherwise added

Numbers are big-endian. Those of changes are never used again. The last part of the changes is written again with later
changes until it has PART_BYTES. If the changes are more than a SHARE of the index, all rows are written, and the
changes are deleted. A change thus costs about 150 bytes of writes at most, regardless of the number of entries.

Decision: all rows in one part, as earlier versions wrote them, are 32 MB for a million entries. Copies of it took up to
63 MB of memory in a checkpoint, and 76 MB at a start. In parts of 256 KB, these were 19 and 32 MB.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

CHANGE: Final = Struct(">QQ8s")
NAME: Final = Struct(">Q")
CRC: Final = Struct(">I")
WALL: Final = 1
REMOVED: Final = 2
PART_BYTES: Final = 64 * 1024
SHARE: Final = 4  # all rows are written after len / SHARE + FEW changes
FEW: Final = 16
ROWS_CHUNKS: Final = 128  # chunks of rows in a part, which has up to 256 KB; more rows are stored in several parts
_HEAD: Final = b"\3" + bytes(56)
META: Final = _HEAD + CRC.pack(crc32(_HEAD))
ROWS_META: Final = b"\4"
_ROWS_NAME: Final = Struct(">1sI")


def rows_name(number: int) -> bytes:
    """Return the name of a part with rows."""
    return _ROWS_NAME.pack(b"r", number)


def format_of(meta: bytes) -> int:
    """Return the format that the reader of a part must know (replication.formats); 0 for the part with an empty name,
    and for consumer groups."""
    return 5 if meta == META else 6 if meta == ROWS_META else 0


class IndexChange:
    """An entry that was added or removed."""

    __slots__ = ("due", "hash", "ordinal", "wall")

    def __init__(self, due: int, wall: int, ordinal: int, hash: bytes) -> None:  # noqa: A002
        self.due = due
        self.wall = wall
        self.ordinal = ordinal
        self.hash = hash  # of the token


class IndexLog:
    """The changes of one index."""

    __slots__ = ("_first", "_last", "_new", "_rows", "_stored", "_tail", "whole")

    def __init__(self) -> None:
        self.whole = True  # the next checkpoint must write all rows
        self._rows = 0  # number of parts with rows in the store, without the one with an empty name
        self._first = 1  # numbers of the parts with changes in the store; there are none if the last is lower
        self._last = 0
        self._stored = 0  # number of changes in them
        self._tail = b""  # the changes in the last part, if it may be written again
        self._new = bytearray()  # the changes since the last capture

    def memory_bytes(self) -> int:
        return len(self._tail) + len(self._new)

    def note(self, change: IndexChange, removed: int, count: int) -> None:
        """Record a change. ``removed``: REMOVED or 0. ``count``: the number of entries after it."""
        if self.whole:
            return
        if self._stored + len(self._new) // CHANGE.size >= count // SHARE + FEW:
            self.must_be_whole()
            return
        self._new += CHANGE.pack(change.due << 2 | removed | change.wall, change.ordinal, change.hash)

    def must_be_whole(self) -> None:
        """Write all rows with the next checkpoint."""
        self.whole = True
        self._tail = b""
        self._new.clear()

    def begin_parts(self, rows: int) -> list[bytes]:
        """Record that all rows are being written, in ``rows`` parts of their own. Return the names of the parts to
        delete."""
        gone = [NAME.pack(number) for number in range(self._first, self._last + 1)]
        gone += [rows_name(number) for number in range(rows, self._rows)]
        self._first, self._rows = self._last + 1, rows
        self.whole, self._stored = False, 0
        return gone

    def continue_parts(self, rows: int, first: int, last: int, changes: int) -> None:
        """Continue parts that were read from the store: ``rows`` parts with rows, and those of the changes."""
        self.whole = False
        self._rows, self._first, self._last, self._stored = rows, first, last, changes

    def part(self) -> tuple[bytes, bytes] | None:
        """Return the name and the changes of the part to write; None if nothing has changed."""
        new = bytes(self._new)
        if not new:
            return None
        self._new.clear()
        self._stored += len(new) // CHANGE.size
        if self._tail and len(self._tail) + len(new) <= PART_BYTES:
            self._tail += new
        else:
            self._last += 1
            self._tail = new
        return NAME.pack(self._last), self._tail
