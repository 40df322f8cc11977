"""Checks whether open files are still the files at their paths. If a file was removed or renamed, or its file system
was unmounted, the next start can't read the data that was written to it."""

from __future__ import annotations

import os
from pathlib import Path

REMEDY = "put it back, or let a replica copy the data before this server ends"


class Held:
    """A file, or a directory, that is held open to be compared with what is at its path."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self._fd = -1
        self._fd = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
        self._comparable = os.path.samestat(os.fstat(self._fd), os.stat(path))  # not so on some network file systems

    def displaced(self) -> str | None:
        """What is wrong with it, for people; None if it is in its place. Any thread."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            return missing(self.path, error)
        if self._comparable and not os.path.samestat(found, os.fstat(self._fd)):
            return f"{self.path} is not what this server has open: something else is in its place: {REMEDY}"
        return None

    def close(self) -> None:
        """Let go of it; again it does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def missing(path: Path, error: OSError) -> str:
    """For people: a file can't be looked at."""
    if isinstance(error, FileNotFoundError):
        return f"{path} is gone: it was removed or renamed, or its file system was unmounted: {REMEDY}"
    return f"{path} can't be reached ({error.strerror}): {REMEDY}"


def absent(path: Path) -> str | None:
    """What is wrong if there is nothing at the path, for people; None if there is something."""
    try:
        os.stat(path)
    except OSError as error:
        return missing(path, error)
    return None


def disk_bytes(path: Path) -> int:
    """Bytes that the file takes on disk; 0 if it can't be seen."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
