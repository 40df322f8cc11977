"""Where a copy is cut into chunks, the files of a backup.

A second backup of a grown server should find most of its chunks at the target. Nodes of streams that are full never
change, so it is enough that the cuts fall at the same places again.

Rule 1: in the store's entries, which come in the order of their keys, whether a cut may follow an entry depends on its
key and its size alone. So after an insertion the cuts soon fall together again.
Rule 2: a chunk has entries of one database only: what changes with every checkpoint is kept apart from nodes.
Rule 3: in the log, cuts are where a batch passes a multiple of LOG_CHUNK.
Rule 4: a chunk has at least one whole entry or batch, however large that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from tidelog.backup.frames import Entry, Frame, entries

SMALLEST: Final = 1 << 20  # bytes of a chunk before a cut may come
LARGEST: Final = 8 << 20  # bytes after which it comes in any case
APART: Final = 2 << 20  # bytes between places where a cut may come, on average
LOG_CHUNK: Final = 4 << 20  # bytes of log


class StoreCutter:
    """Pieces in, chunks out. A chunk is the entries of one or more pieces, as the server sent them."""

    def __init__(self) -> None:
        self.entries = 0
        self._parts: list[bytes] = []
        self._size = 0  # bytes of the chunk in the making
        self._db = -1  # that its entries are of

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The chunks that are complete now. BackupError if an entry is damaged."""
        begin = 0  # of what belongs to the chunk in the making
        for entry in entries(piece):
            self.entries += 1
            if entry.db != self._db:
                yield from self._cut(piece[begin : entry.start])
                begin, self._db = entry.start, entry.db
            self._size += entry.end - entry.start
            if self._size >= SMALLEST and (self._size >= LARGEST or _may_follow(entry)):
                yield from self._cut(piece[begin : entry.end])
                begin = entry.end
        self._parts.append(piece[begin:])

    def end(self) -> Iterator[bytes]:
        """The last chunk, if there is one."""
        return self._cut(b"")

    def _cut(self, last: bytes) -> Iterator[bytes]:
        chunk = b"".join([*self._parts, last])
        self._parts, self._size = [], 0
        if chunk:
            yield chunk


def _may_follow(entry: Entry) -> bool:
    """Whether a cut may follow that entry: as likely as it is large."""
    return crc32(entry.key) * APART < (entry.end - entry.start) << 32


class LogCutter:
    """BATCH frames in, chunks out. A chunk is frames, one after another."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, batch: Frame) -> Iterator[bytes]:
        """The chunk that is complete now, if one is."""
        self._parts.append(batch.encoded())
        if batch.offset // LOG_CHUNK != (batch.offset + len(batch.payload)) // LOG_CHUNK:
            yield from self.end()

    def end(self) -> Iterator[bytes]:
        """The last chunk, if there is one."""
        chunk, self._parts = b"".join(self._parts), []
        if chunk:
            yield chunk
