"""Divides a copy into chunks, the files of a backup.

A second backup of a grown server should reuse most chunks at the target. Sealed nodes never change, so it is sufficient
that the chunk boundaries are at the same entries again.

Rule 1: in the store, whose entries arrive in key order, the key and the size of an entry determine whether a boundary
        may follow it. After an insertion, the boundaries of both copies soon coincide again.
Rule 2: a chunk has entries of one database only. This separates nodes from data that changes with every checkpoint.
Rule 3: in the log, a boundary follows each commit group that passes a multiple of LOG_CHUNK.
Rule 4: a chunk has at least one whole entry or commit group, independent of its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from zlib import crc32

from tidelog.backup.frames import NODES, BackupFrame, StoreEntry, entries

SMALLEST: Final = 1 << 20  # minimum size of a chunk in bytes
LARGEST: Final = 8 << 20  # maximum size of a chunk in bytes, except for a single larger entry
APART: Final = 2 << 20  # average distance of possible boundaries in bytes
LOG_CHUNK: Final = 4 << 20  # bytes of log
REFERENCE: Final = 108  # bytes of the value of a node whose entries are only in a history object
REFERENCES: Final = b"TN\3"  # with which it begins; the epoch and the digest in the name of the object follow at 48


class StoreCutter:
    """Converts pieces to chunks. A chunk contains the entries of one or more pieces, as the server sent them."""

    def __init__(self) -> None:
        self.entries = 0
        self.objects: set[str] = set()  # names of the history objects to which nodes refer
        self._parts: list[bytes] = []
        self._size = 0  # bytes of the unfinished chunk
        self._db = -1  # database of its entries

    def add(self, piece: bytes) -> Iterator[bytes]:
        """Return the chunks that are complete. Raises BackupError if an entry is damaged."""
        begin = 0  # start of the unfinished chunk
        for entry in entries(piece):
            self.entries += 1
            if entry.db == NODES:
                self._note_reference(piece[max(entry.start, entry.end - REFERENCE) : entry.end])
            if entry.db != self._db:
                yield from self._cut(piece[begin : entry.start])
                begin, self._db = entry.start, entry.db
            self._size += entry.end - entry.start
            if self._size >= SMALLEST and (self._size >= LARGEST or _may_follow(entry)):
                yield from self._cut(piece[begin : entry.end])
                begin = entry.end
        self._parts.append(piece[begin:])

    def end(self) -> Iterator[bytes]:
        return self._cut(b"")

    def _note_reference(self, value: bytes) -> None:
        if value.startswith(REFERENCES):
            epoch = int.from_bytes(value[48:56], "little")
            self.objects.add(f"{epoch:016x}-{value[56:72].hex()}.tide")

    def _cut(self, last: bytes) -> Iterator[bytes]:
        chunk = b"".join([*self._parts, last])
        self._parts, self._size = [], 0
        if chunk:
            yield chunk


def _may_follow(entry: StoreEntry) -> bool:
    """Return whether a boundary may follow that entry, with a probability in proportion to its size."""
    return crc32(entry.key) * APART < (entry.end - entry.start) << 32


class LogCutter:
    """Converts BATCH frames to chunks. A chunk is a sequence of frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, batch: BackupFrame) -> Iterator[bytes]:
        """Return the complete chunk, if there is one."""
        self._parts.append(batch.encoded())
        if batch.offset // LOG_CHUNK != (batch.offset + len(batch.payload)) // LOG_CHUNK:
            yield from self.end()

    def end(self) -> Iterator[bytes]:
        chunk, self._parts = b"".join(self._parts), []
        if chunk:
            yield chunk
