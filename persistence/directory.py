"""The data directory: its contents, its ID, and the lock against other servers.

    tidelog.format   "tidelog data directory, format 1", then "id " with 40 hex digits: its first replication ID
    lock             locked (flock) while a server runs
    tail             the WAL, see ``wal``
    journal/         see ``journal``
    store/           see ``store``
    replication      see ``history``
    incoming/        a full copy of a leader's store in progress, see ``fullcopy``; removed by the next start
    incoming.ready/  a complete copy: the next start replaces the parts above by its parts
    scrub            the progress of the scrub, see ``scrub``; may be missing
    replicas         empty; exists while there are replicas, or there were within repl-backlog-ttl
    node             the ID of this server, see ``nodeid``
    group            the identity of a member of a server group, see ``respserver.group.identity``
    map              the map of the cluster, see ``respserver.slotmaps.mapfile``
    tidelog.making   empty; exists until a first start is complete
    *.new            the replacement of a file, left by a crash; removed by the next start

Rule 1: a new directory gets tidelog.format last, by rename. A directory without it contains no data.
Rule 2: an incomplete directory is refused, never repaired by guessing.
Rule 3: only the server's user can access the files, see ``permissions``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

from persistence.permissions import FILE, opener
from persistence.wal import Wal
from persistence.wal import create as create_wal
from resp.errors import REMEDY, CorruptError

FORMAT = "tidelog data directory, format 1"
MARKER = "tidelog.format"
LOCK = "lock"
ID_LINE = re.compile(r"id [0-9a-f]{40}")
PARTS = ("tail", "journal", "store")
REPLICAS = "replicas"
LEFT = ("scrub.new", "tail.new", "replication.new", "tidelog.format.new", "node.new", "group.new", "map.new")


def lock(directory: Path) -> int:
    """Lock the directory while the returned descriptor is open. Raises OSError."""
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            text = "the data directory is in use by another tidelog-server"
            raise OSError(errno.EBUSY, text, str(directory)) from error
        raise
    return fd


def marked(directory: Path) -> str | None:
    """Return the ID in tidelog.format; None if there is no such file. Raises CorruptError, OSError."""
    marker = directory / MARKER
    if not marker.exists():
        return None
    lines = marker.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0].startswith("tidelog data directory, format "):
        raise CorruptError(f"{marker}: not a tidelog data directory; choose another dir")
    if lines[0] != FORMAT:
        raise CorruptError(f"{marker}: says '{lines[0]}', which this tidelog does not know: start the newer one")
    if len(lines) < 2 or not ID_LINE.fullmatch(lines[1]):
        raise CorruptError(
            f"{marker}: damaged: its second line must be 'id ' and 40 hex digits; restore it from a backup"
        )
    return lines[1][3:]


def prepare(directory: Path, ring_bytes: int) -> tuple[str, bool]:
    """Create the files of a new directory, or check those of an existing one. Raises CorruptError, OSError.

    Returns the directory's ID and whether it is new. A new one still needs journal, store, and complete().
    """
    making = directory / "tidelog.making"
    identity = marked(directory)
    if identity is not None:
        missing = [name for name in PARTS if not (directory / name).exists()]
        files = [f"{name}/data.mdb" for name in PARTS[1:]]  # LMDB would treat an empty file as new
        missing = missing or [name for name in files if not size_of(directory / name)]
        if missing:
            what = f"{', '.join(missing)} missing or empty"
            raise CorruptError(f"{directory}: {what}: {REMEDY}")
        making.unlink(missing_ok=True)  # left by a first start that ended between its last two steps
        for name in LEFT:
            (directory / name).unlink(missing_ok=True)
        return identity, False
    foreign = [name for name in (*PARTS, "incoming.ready") if (directory / name).exists()]
    if foreign and (not making.exists() or _served(directory)):
        raise CorruptError(
            f"{directory}: contains {', '.join(foreign)} but no tidelog.format: restore the directory from a backup, or"
            " choose another dir"
        )
    making.touch(FILE)
    for name in foreign:  # left by an incomplete first start
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    create_wal(directory / "tail", ring_bytes)
    return secrets.token_hex(20), True


def _served(directory: Path) -> bool:
    """Return whether a server has used this directory; tidelog.making then reappeared after a power failure."""
    try:
        wal = Wal(directory / "tail")
    except (CorruptError, OSError):
        return False  # the directory is incomplete
    wal.close()
    return wal.noted is not None


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def complete(directory: Path, identity: str) -> None:
    """Mark a new directory, all of whose files exist, as complete, and sync. Raises OSError."""
    replace(directory / MARKER, f"{FORMAT}\nid {identity}\n")
    (directory / "tidelog.making").unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Create or replace a text file by rename, and sync. Raises OSError; the old file then stays."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(directory: Path) -> None:
    """Sync the entries of a directory to disk. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
