"""Appends to a file, and rotates it. All calls block.

Rule 1: If a batch can't be written completely, the file is truncated to its size before the batch.
Rule 2: An incomplete last line, left by a crash, gets a line break, so that the next line is not appended to it.
Rule 3: If another process moves or deletes the file, a new file is created.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tidelog.flows.connectors.files.tailing import rotated
from tidelog.flows.connectors.sockets.descriptors import write_all


class FileAppender:
    """Writes one file. It is rotated at ``bytes_most`` bytes, and every ``every`` s. keep: rotated files to retain."""

    def __init__(
        self,
        path: Path,
        *,
        truncate: bool = False,
        lines: bool = True,
        fsync: bool = False,
        bytes_most: int | None = None,
        every: float | None = None,
        keep: int | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._lines = lines
        self._fsync = fsync
        self._most = bytes_most
        self._every = every
        self._keep = keep
        self._now = now
        self._descriptor = -1
        self._size = 0
        self._period = 0  # the period of ``every``, counted from 1970, in which the file was begun
        self._truncate = truncate  # only at the first opening

    @property
    def empty(self) -> bool:
        return not self._size

    def open(self) -> None:
        """Open the file. Raises OSError if it can't be written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self._path, flags | (os.O_TRUNC if self._truncate else 0), 0o640)
        self._truncate = False
        about = os.fstat(self._descriptor)
        self._size = about.st_size
        self._period = self._now_period() if not self._size else int(about.st_mtime // (self._every or 1))
        if self._lines and self._size:
            with self._path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    write_all(self._descriptor, b"\n")
                    self._size += 1
        if self._fsync:
            self._sync_folder()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def prepare(self, size: int) -> bool:
        """Rotate the file if necessary before ``size`` bytes are written. Returns whether a new file was opened."""
        if self._moved():
            self.close()
            self.open()
            return True
        full = self._most is not None and self._size + size > self._most
        old = self._every is not None and self._now_period() != self._period
        if not self._size or not (full or old):
            return False
        self.close()
        self._path.rename(self._rotated_path())
        if self._keep is not None:
            every = rotated(self._path)
            for each in every[: max(0, len(every) - self._keep)]:
                each.unlink(missing_ok=True)
        self.open()
        return True

    def write(self, data: bytes) -> None:
        if not self._size:
            self._period = self._now_period()
        try:
            write_all(self._descriptor, data)
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)
        if self._fsync:
            os.fdatasync(self._descriptor)

    def _now_period(self) -> int:
        return int(self._now() // self._every) if self._every else 0

    def _moved(self) -> bool:
        try:
            found, own = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return True
        if own.st_size < self._size:  # truncated by another process
            self._size = own.st_size
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)

    def _rotated_path(self) -> Path:
        name = f"{self._path.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime(self._now()))}"
        taken = self._path.with_name(name)
        number = 0
        while taken.exists():
            number += 1
            taken = self._path.with_name(f"{name}.{number:04d}")
        return taken

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
