"""Detects that open files are no longer at their paths.

If a file was removed or renamed, or its file system was unmounted, the next start cannot read the data written to it.
"""

from __future__ import annotations

import os
from pathlib import Path

REMEDY = "put it back, or let a replica copy the data before this server ends"


class OpenFile:
    """A file or directory that is kept open to be compared with the file at its path."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self.path = path
        self._fd = -1
        self._fd = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_CLOEXEC)
        self._comparable = os.path.samestat(os.fstat(self._fd), os.stat(path))  # False on some network file systems

    def displaced(self) -> str | None:
        """Return a message if the file is not at its path, otherwise None. May be called from any thread."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            return missing(self.path, error)
        if self._comparable and not os.path.samestat(found, os.fstat(self._fd)):
            return f"{self.path} is not what this server has open: something else is in its place: {REMEDY}"
        return None

    def close(self) -> None:
        """Close the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def missing(path: Path, error: OSError) -> str:
    """Return a message about a file that cannot be accessed."""
    if isinstance(error, FileNotFoundError):
        return f"{path} is gone: it was removed or renamed, or its file system was unmounted: {REMEDY}"
    return f"{path} can't be reached ({error.strerror}): {REMEDY}"


def absent(path: Path) -> str | None:
    """Return a message if there is no file at the path, otherwise None."""
    try:
        os.stat(path)
    except OSError as error:
        return missing(path, error)
    return None


def disk_bytes(path: Path) -> int:
    """Return the size of a file on disk; 0 if it cannot be accessed."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
