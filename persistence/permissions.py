"""Who may read the files of a data directory: the server's user alone, whatever the umask allows.

A directory that was there before keeps its own mode: other things may live in it, too."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_IMODE

FILE, FOLDER = 0o600, 0o700
OTHERS = 0o077  # permissions of group and world
OURS = (
    "lock", "tail", "replication", "replicas", "tidelog.format",
    "journal", "journal/data.mdb", "journal/lock.mdb", "store", "store/data.mdb", "store/lock.mdb",
)  # fmt: skip


def opener(path: str, flags: int) -> int:
    """For open(): a file that it creates is private."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)


def tighten(directory: Path) -> None:
    """Take from others what servers of before let them read, as far as the system permits."""
    for name in OURS:
        path = directory / name
        try:
            mode = S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                path.chmod(mode & ~OTHERS)
        except OSError:
            pass  # not there, not ours, or on a file system without modes
