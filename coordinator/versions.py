"""A value in numbered files, the next of which only one process can create.

Rule 1: Version n + 1 is the file ``n + 1`` in the value's directory. It is written under another name and linked to its
        name (link(2) fails if the name exists), so a version is complete, never changes, and has one author.
Rule 2: The highest version is the value. A version is removed when there are two higher ones, so the highest always
        remains, and no version is created twice by two processes that both see it as the highest.
Rule 3: No process waits for another. With a lock instead, a process that is stopped while it has the lock would stop
        all members.

A process that was stopped between reading version n and creating n + 1 can find that n + 1 was created and removed in
the meantime. Its link succeeds, below the highest version, where nobody reads it. It notices the higher version after
its link and reports that the outcome is unknown.

    file:   "tidelog 1 " CRC LF VALUE       CRC: crc32 of VALUE, 8 hex digits
"""

from __future__ import annotations

import os
import secrets
import zlib
from enum import Enum
from pathlib import Path
from typing import Final

MAGIC: Final = b"tidelog 1 "
_HEAD: Final = len(MAGIC) + 9  # with the checksum and a newline
NEW: Final = ".new-"  # files that are being written
_ATTEMPTS: Final = 1000  # to read a value while others change it: each needs two changes between two system calls


class DamagedFileError(Exception):
    """A version's file has other contents than were written."""


class Outcome(Enum):
    """The outcome of an attempt to create the next version."""

    DONE = "done"
    TAKEN = "another process created it first"
    UNKNOWN = "higher versions exist already"


def versions(directory: Path) -> list[int]:
    """Return the versions in a directory, ascending; none if there is no such directory.

    Linux lists a small directory in one step, so no version that exists all the time is missing.
    """
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isascii() and name.isdigit())
    except FileNotFoundError:
        return []


def read(directory: Path) -> tuple[int, bytes]:
    """Return the highest version and its value; 0 and nothing if there is none. Raises DamagedFileError."""
    for _ in range(_ATTEMPTS):
        highest = max(versions(directory), default=0)
        if highest == 0:
            return 0, b""
        try:
            return highest, read_version(directory / str(highest))
        except FileNotFoundError:  # two higher versions were created since the directory was listed
            pass
    raise DamagedFileError(f"{directory} lists a version that cannot be opened")


def read_version(path: Path) -> bytes:
    """Return the value in a version's file. Raises DamagedFileError, FileNotFoundError."""
    content = path.read_bytes()
    value = content[_HEAD:]
    if content[:_HEAD] != _head(value):
        raise DamagedFileError(f"the file {path} is damaged")
    return value


def append(directory: Path, version: int, value: bytes, scratch: Path, *, sync: bool) -> Outcome:
    """Create the version after ``version``. ``scratch`` is a directory of the same file system for temporary files.

    With ``sync``, the new version is on disk when this returns. Raises FileNotFoundError if there is no ``directory``.
    """
    new = scratch / f"{NEW}{secrets.token_hex(8)}"
    try:
        with new.open("xb") as file:
            file.write(_head(value) + value)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        try:
            os.link(new, directory / str(version + 1))
        except FileExistsError:
            return Outcome.TAKEN
    finally:
        new.unlink(missing_ok=True)
    present = versions(directory)
    if present[-1:] != [version + 1]:
        return Outcome.UNKNOWN
    if sync:
        sync_directory(directory)
    for old in present:
        if old >= version:
            break
        (directory / str(old)).unlink(missing_ok=True)
    return Outcome.DONE


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _head(value: bytes) -> bytes:
    return b"%s%08x\n" % (MAGIC, zlib.crc32(value))
