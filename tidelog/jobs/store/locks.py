"""One process at a time for a store: a file beside its directory, ``<slot>.lock``, with flock.

It lies beside the directory, so that the directory can be replaced under the lock. It also has the size that the
store's file had after the last transaction, in decimal: a file that has become shorter was cut, and to map it would end
in SIGBUS. It is not left for the end: whoever was killed would leave a size that is too small, and if the file were cut
then, each process that opens it would die of it.

Rule 1: a store's files are written only by who holds its lock. Who copies it needs none.
Rule 2: a lock file is never deleted; two holders of two files of the same name would not know of each other. It goes
        with its generation (``clearing``), of which nothing counts any more.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tidelog.jobs.store.errors import StoreLockedError


class StoreLock:
    """Held from the moment it is made. StoreLockedError if another holds it."""

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

    def seen(self) -> int:
        """So many bytes had the store's file, at least."""
        text = os.pread(self._fd, 20, 0)
        return int(text) if text.isdigit() else 0

    def see(self, size: int) -> None:
        os.pwrite(self._fd, b"%020d" % size, 0)

    def release(self) -> None:
        """Also where a child has inherited the file: it would hold the lock as long as it lives."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
