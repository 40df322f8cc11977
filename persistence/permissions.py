"""File modes: only the server's user can read the files of a data directory, regardless of the umask.

An existing directory keeps its mode, since it may contain other files.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_IMODE

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077  # permissions of group and others
OURS = (
    "lock", "tail", "replication", "replicas", "tidelog.format", "node", "group",
    "journal", "journal/data.mdb", "journal/lock.mdb", "store", "store/data.mdb", "store/lock.mdb",
)  # fmt: skip


def opener(path: str, flags: int) -> int:
    """Open a file for open(). A file that it creates is private."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def tighten(directory: Path) -> None:
    """Remove permissions that earlier versions gave to others, if the system permits it."""
    for name in OURS:
        path = directory / name
        try:
            mode = S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                path.chmod(mode & ~OTHERS)
        except OSError:
            pass  # missing, owned by another user, or on a file system without modes
