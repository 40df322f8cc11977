"""Appends to a file, and rotates it. All calls block.

Rule 1: If a batch can't be written completely, the file is truncated to its size before the batch.
Rule 2: An incomplete last line, left by a crash, gets a line break, so that the next line is not appended to it.
Rule 3: If another process moves or deletes the file, a new file is created.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidelog.flows.connectors.files.tailing import rotated
from tidelog.flows.connectors.sockets.descriptors import write_all


@dataclass
class FileAppender:
    """Writes one file."""

    path: Path
    truncate: bool = False  # only at the first opening
    lines: bool = True
    fsync: bool = False
    bytes_most: int | None = None  # the size at which the file is rotated
    every: float | None = None  # s after which it is rotated
    keep: int | None = None  # rotated files to retain
    now: Callable[[], float] = time.time
    _descriptor: int = -1
    _size: int = 0
    _period: int = 0  # the period of ``every``, counted from 1970, in which the file was begun

    @property
    def empty(self) -> bool:
        return not self._size

    def open(self) -> None:
        """Open the file. Raises OSError if it can't be written."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        self._descriptor = os.open(self.path, flags | (os.O_TRUNC if self.truncate else 0), 0o640)
        try:
            self._begin()
        except OSError:
            self.close()
            raise

    def _begin(self) -> None:
        self.truncate = False
        about = os.fstat(self._descriptor)
        self._size = about.st_size
        self._period = self._now_period() if not self._size else int(about.st_mtime // (self.every or 1))
        if self.lines and self._size:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    write_all(self._descriptor, b"\n")
                    self._size += 1
        if self.fsync:
            sync_directory(self.path.parent)

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
        full = self.bytes_most is not None and self._size + size > self.bytes_most
        old = self.every is not None and self._now_period() != self._period
        if not self._size or not (full or old):
            return False
        self.close()
        self.path.rename(self._rotated_path())
        if self.keep is not None:
            every = rotated(self.path)
            for each in every[: max(0, len(every) - self.keep)]:
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
        if self.fsync:
            os.fdatasync(self._descriptor)

    def _now_period(self) -> int:
        return int(self.now() // self.every) if self.every else 0

    def _moved(self) -> bool:
        try:
            found, own = self.path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return True
        if own.st_size < self._size:  # truncated by another process
            self._size = own.st_size
        return (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino)

    def _rotated_path(self) -> Path:
        name = f"{self.path.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime(self.now()))}"
        taken = self.path.with_name(name)
        number = 0
        while taken.exists():
            number += 1
            taken = self.path.with_name(f"{name}.{number:04d}")
        return taken


def sync_directory(directory: Path) -> None:
    """Write the entries of a directory to disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
