"""The lock that lets only one process at a time use a store: ``<slot>.lock``, next to its directory (flock).

It is next to the directory, so that the directory can be replaced while the lock is held. It also records, in decimal,
the size of the store's file after the last transaction: a smaller file has been truncated, and reading it through mmap
would raise SIGBUS. The size is written after every transaction, not at close: a killed process would otherwise leave a
size that is too small, a truncation would go unnoticed, and every process that opened the file would be killed too.

Rule 1: A store's files are written only by the holder of its lock. Copying the files does not require the lock.
Rule 2: A lock file is never deleted; otherwise two processes could each lock a different file of the same name. It is
        removed together with its generation (``cleanup``), when nothing uses that generation any more.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tidelog.jobs.store.errors import StoreLockedError


class StoreLock:
    """Acquired on creation. Raises StoreLockedError if another process or task holds it."""

    def __init__(self, path: Path) -> None:
        """``path`` is the store's directory."""
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.with_name(path.name + ".lock")
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise StoreLockedError(f"{path} is in use by another process or task") from None

    def recorded_size(self) -> int:
        """Return the recorded size: the store's file has at least this many bytes."""
        text = os.pread(self._fd, 20, 0)
        return int(text) if text.isdigit() else 0

    def record_size(self, size: int) -> None:
        os.pwrite(self._fd, b"%020d" % size, 0)

    def release(self) -> None:
        """Unlock explicitly, since a child process that inherited the file would otherwise hold the lock."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
