"""The stored changes of an index of delayed entries, so that a checkpoint writes only what has changed.

The store has the index in parts, as groups of the companion: all rows at one time (``delayed``), and the changes since
then, in order:

    name b""               all rows
    name 1, 2, 3 ... u64   changes

    0      1               57          61
    +------+---------------+-----------+
    | 3 u8 | 56 zero bytes | crc32 u32 |       meta: that of a group, in a version which earlier servers refuse
    +------+---------------+-----------+
    | due * 4 + flags u64 | ordinal u64 | hash of the token 8 | ... | crc32 u32 |
    +---------------------+-------------+---------------------+-----+-----------+
      flags  1: wall-clock time, 2: the entry was removed, otherwise added

Numbers are big-endian and never used again. The last part is written again with later changes until it has PART_BYTES.
If the changes are more than a SHARE of the index, all rows are written, and the parts are deleted. A change thus costs
about 150 bytes of writes at most, regardless of the number of entries.
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError

CHANGE: Final = Struct(">QQ8s")
NAME: Final = Struct(">Q")
CRC: Final = Struct(">I")
WALL: Final = 1
REMOVED: Final = 2
PART_BYTES: Final = 64 * 1024
SHARE: Final = 4  # all rows are written after len / SHARE + FEW changes
FEW: Final = 16
_HEAD: Final = b"\3" + bytes(56)
META: Final = _HEAD + CRC.pack(crc32(_HEAD))


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

    __slots__ = ("_first", "_last", "_new", "_stored", "_tail", "whole")

    def __init__(self) -> None:
        self.whole = True  # the next checkpoint must write all rows
        self._first = 1  # numbers of the parts in the store; there are none if the last is lower
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

    def begin_parts(self) -> list[bytes]:
        """Record that all rows are being written. Return the names of the parts to delete."""
        gone = [NAME.pack(number) for number in range(self._first, self._last + 1)]
        self._first = self._last + 1
        self.whole, self._stored = False, 0
        return gone

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


class StoredChanges:
    """The parts of one index, as they are read from the store."""

    __slots__ = ("_added", "_first", "_last", "_removed", "_stored")

    def __init__(self) -> None:
        self._first = self._last = 0
        self._stored = 0
        self._added: dict[int, IndexChange] = {}  # by ordinal, as the next ones
        self._removed: dict[int, IndexChange] = {}

    def add(self, name: bytes, meta: bytes, changes: bytes) -> None:
        """Add the next part. Raises CorruptError if it is damaged."""
        end = len(changes) - CRC.size
        if meta != META or len(name) != NAME.size or end % CHANGE.size or end <= 0:
            raise CorruptError("the changes of an index of delayed entries are damaged")
        (number,) = NAME.unpack(name)
        if CRC.unpack_from(changes, end)[0] != crc32(memoryview(changes)[:end]) or self._last not in (0, number - 1):
            raise CorruptError("the changes of an index of delayed entries are damaged, or incomplete")
        self._first, self._last = self._first or number, number
        self._stored += end // CHANGE.size
        for at in range(0, end, CHANGE.size):
            due, ordinal, hash_ = CHANGE.unpack_from(changes, at)
            change = IndexChange(due >> 2, due & WALL, ordinal, hash_)
            if not due & REMOVED:
                self._added[ordinal] = change
            elif self._added.pop(ordinal, None) is None:
                self._removed[ordinal] = change

    def result(self) -> tuple[IndexLog, list[IndexChange], list[IndexChange]]:
        """Return the log that continues the parts, and the entries to remove from the rows, and to add to them."""
        log = IndexLog()
        log.whole = False
        log._first, log._last, log._stored = self._first or 1, self._last, self._stored
        return log, list(self._removed.values()), list(self._added.values())
