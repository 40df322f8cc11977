"""Segments: files next to the journal's LMDB with the records of large batches, to which LMDB refers.

    segment.N    records, one batch after another; their positions, lengths, and checksums are in LMDB

Decision: LMDB would copy a batch to its own pages before it writes them. While a server is busy, files that a
checkpoint has emptied are overwritten instead of being removed. The system's pages for them exist already, so that
writing takes a quarter of the time that new pages take, and removing a file of 8 MB takes 2.9 ms. Up to 64 MB of spare
files are kept until there has been no large write for two seconds.

Rule 1: a batch is synced here before LMDB refers to it. Data to which LMDB does not refer has no meaning.
Rule 2: one thread writes at a time, the journal's writer. Any thread may read, one at a time, and not while segments
are released.
Rule 3: at most two files are open: the one that is written and the one that was read last. The other file descriptors
are left for clients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from persistence.directory import sync as sync_directory
from persistence.fileidentity import absent
from persistence.fileio import read_part, write_parts
from persistence.permissions import FILE

NAME = "segment."
FULL = 8 << 20  # bytes; beyond this size, the next batches go to another segment
SPARE = 64 << 20  # maximum size of all spare segments
AT_ONCE = 1000  # maximum parts of a write; the limit of the system is 1024


class Segments:
    """The segments of a journal. ``ends``: the log offset after the last batch of each segment in use, by number."""

    def __init__(self, directory: Path, ends: dict[int, int]) -> None:
        """Remove all files except those in ``ends``. Raises OSError."""
        self._directory = directory
        self.ends = ends
        self._sizes: dict[int, int] = {}  # sizes of all files, by number
        self._spare: list[int] = []
        self._written = 0, -1  # number and file descriptor; 0: not open
        self._read = 0, -1
        self._before = 0, 0  # segment and start of the last write()
        self._next = max(ends, default=0) + 1
        self._current = 0  # number of the segment that is written; 0: none
        self._at = 0  # the position of the next batch
        for path in directory.glob(NAME + "*"):
            number = path.name.removeprefix(NAME)
            if number.isdigit() and int(number) in ends:
                self._sizes[int(number)] = path.stat().st_size
            else:
                path.unlink()

    def _path(self, number: int) -> Path:
        return self._directory / f"{NAME}{number}"

    def _open(self, number: int, flags: int) -> int:
        return os.open(self._path(number), flags | os.O_CLOEXEC, FILE)

    def _writer(self, number: int) -> int:
        """Return the file descriptor for writing a segment. Raises OSError."""
        if self._written[0] != number:
            fd = self._open(number, os.O_RDWR)
            self._close_written()
            self._written = number, fd
        return self._written[1]

    def _close_written(self) -> None:
        number, fd = self._written
        self._written = 0, -1
        if number:
            os.close(fd)

    def _close_read(self) -> None:
        number, fd = self._read
        self._read = 0, -1
        if number:
            os.close(fd)

    def write(self, batches: Sequence[bytes]) -> tuple[int, list[int]]:
        """Write and sync batches. Return the segment's number and the position of each batch. Raises OSError."""
        number = self._current
        if not number or self._at >= FULL:
            number = self._begin()
        positions: list[int] = []
        self._current = 0  # if this fails, nothing is written after it
        try:
            at = self._put(self._writer(number), batches, positions)
        except BaseException:
            if number not in self.ends:
                self._spare.append(number)
            raise
        self._before = number, self._at
        self._current, self._at = number, at
        self._sizes[number] = max(at, self._sizes[number])
        return number, positions

    def take_back(self) -> None:
        """Allow the next write() to overwrite the last one, to which LMDB will never refer."""
        number, at = self._before
        if number and number == self._current:
            self._at = at

    def _put(self, fd: int, batches: Sequence[bytes], positions: list[int]) -> int:
        """Write and sync batches after the last one, and add their positions. Return the end of the last one."""
        at = self._at
        for start in range(0, len(batches), AT_ONCE):
            part = batches[start : start + AT_ONCE]
            begin = at
            for batch in part:
                positions.append(at)
                at += len(batch)
            write_parts(fd, part, begin, at - begin)
        os.fdatasync(fd)
        return at

    def _begin(self) -> int:
        """Return the number of a segment to be written from its start. Raises OSError."""
        self._at = 0
        if self._spare:
            return self._spare.pop()
        number = self._next
        os.close(self._open(number, os.O_RDWR | os.O_CREAT))
        sync_directory(self._directory)  # if this fails, the next attempt uses the same file
        self._next += 1
        self._sizes[number] = 0
        return number

    def read(self, number: int, at: int, length: int) -> bytes:
        """Return bytes of a segment; fewer if the file is shorter, b"" if it does not exist. Raises OSError."""
        if self._read[0] != number:
            self._close_read()
            try:
                self._read = number, self._open(number, os.O_RDONLY)
            except FileNotFoundError:
                return b""
        return read_part(self._read[1], length, at)

    def release(self, numbers: Sequence[int], keep: bool) -> None:
        """Release segments to which LMDB no longer refers. ``keep``: keep them as spare files, up to the limit."""
        for number in numbers:
            self.ends.pop(number, None)
            if number == self._current:
                self._current = 0
            self._spare.append(number)
        room = SPARE if keep else 0
        kept: list[int] = []
        for number in self._spare:
            room -= self._sizes.get(number, 0)
            if keep and room >= 0 and number in self._sizes:
                kept.append(number)
            else:
                self._remove(number)
        self._spare = kept

    def _remove(self, number: int) -> None:
        if number == self._written[0]:
            self._close_written()
        if number == self._read[0]:
            self._close_read()
        self._sizes.pop(number, None)
        try:
            self._path(number).unlink(missing_ok=True)
        except OSError:
            pass  # the next start removes it

    @property
    def spare(self) -> bool:
        return bool(self._spare)

    def bytes_used(self) -> int:
        return sum(list(self._sizes.values()))

    def displaced(self) -> str | None:
        """Return OpenFile.displaced()."""
        for number in list(self.ends):
            wrong = absent(self._path(number))
            if wrong is not None:
                return wrong
        return None

    def close(self, tidy: bool) -> None:
        """Close the files. ``tidy``: remove spare files."""
        if tidy:
            self.release([], keep=False)
        self._close_written()
        self._close_read()
