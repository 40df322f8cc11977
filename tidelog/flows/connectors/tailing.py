"""One file that is read, and which file comes after it: rotation, truncation, and where reading stood. All calls block.

Rule 1: a file is known by its device and inode, and by its first bytes: inodes are used again, and a file may be
        truncated and written anew under the same one.
Rule 2: rotated files are those beside the path whose name is the path's, then . or - and digits: app.log.1,
        app.log-20260101. After one of them come those that were changed later, by time of change, then the path itself.
Rule 3: a file that can't be found again is said, and reading goes on with the oldest that was changed later than it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

HEAD: Final = 256  # bytes that a file is known by, at most
TAIL: Final = 64  # bytes before where reading stands: files that are written anew may begin alike

log = logging.getLogger("tidelog.flows")


class Stored(msgspec.Struct, frozen=True):
    """Where reading stood, as it is kept in a file."""

    device: int
    inode: int
    offset: int  # bytes from the beginning that are settled
    length: int  # bytes at the beginning of which there is a digest
    digest: str  # SHA-256
    changed: int  # ns since 1970: of the file, when this was written


class Opened:
    """A file that is open. ``offset`` is where the next read begins."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a FIFO it would wait otherwise
        about = os.fstat(self.descriptor)
        if not stat.S_ISREG(about.st_mode):
            os.close(self.descriptor)
            raise OSError(f"{path} is no regular file")
        self.path = path
        self.key = (about.st_dev, about.st_ino)
        self.offset = offset
        self.changed = about.st_mtime_ns  # ns since 1970: when it was last looked at
        self.head = os.pread(self.descriptor, HEAD, 0)
        self._last = (0, b"")  # where the last read ended, and the bytes before that

    def read(self, size: int) -> bytes:
        """None at the end, for now, and where the file was written anew (``replaced``)."""
        data = os.pread(self.descriptor, size, self.offset)
        if data and not self._same():
            return b""
        self.offset += len(data)
        if data:
            self._last = (self.offset, data[-TAIL:])
        if data and len(self.head) < HEAD:
            self.head = os.pread(self.descriptor, HEAD, 0)
        return data

    def replaced(self) -> bool:
        """Whether it was truncated, or written anew."""
        about = os.fstat(self.descriptor)
        if about.st_size < self.offset:
            return True
        self.changed = about.st_mtime_ns
        return not self._same()

    def _same(self) -> bool:
        """Whether it begins as it did, and what was read last is still there."""
        at, last = self._last
        if at == self.offset and os.pread(self.descriptor, len(last), at - len(last)) != last:
            return False
        return os.pread(self.descriptor, len(self.head), 0) == self.head

    def stored(self, offset: int) -> Stored:
        """Also of a file that is closed."""
        device, inode = self.key
        return Stored(device, inode, offset, len(self.head), hashlib.sha256(self.head).hexdigest(), self.changed)

    def reopen(self, path: Path) -> None:
        """After ``close``. OSError: it is gone."""
        for each in (path, *rotated(path)):
            try:
                other = Opened(each)
            except FileNotFoundError:
                continue
            if other.key == self.key and other.head.startswith(self.head):
                self.close()
                self.descriptor, self.path = other.descriptor, each
                return
            other.close()
        raise FileNotFoundError(f"{self.path}: the file that was read is gone")

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def rotated(path: Path) -> list[Path]:
    """Rotated files, the one that was changed first comes first."""
    pattern = re.compile(re.escape(path.name) + r"[.-][0-9][0-9T:_.-]*")
    found = []
    for each in path.parent.iterdir():
        if pattern.fullmatch(each.name):
            try:
                about = each.stat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(about.st_mode):
                found.append((about.st_mtime_ns, each))
    return [each for _, each in sorted(found)]


def following(path: Path, changed: int, done: dict[tuple[int, int], bytes]) -> Path | None:
    """The file to read after one that was last changed then. done: files that were read, with their first bytes.

    None: there is none yet.
    """
    for each in (*rotated(path), path):
        try:
            about = each.stat()
            if each != path and (about.st_mtime_ns < changed or not about.st_size):
                continue
            if not _read_before(each, done.get((about.st_dev, about.st_ino))):
                return each
        except FileNotFoundError:
            continue
    return None


def _read_before(path: Path, head: bytes | None) -> bool:
    if not head:
        return False
    with path.open("rb") as file:
        return file.read(len(head)) == head


def resume(path: Path, stored: Stored) -> Opened | None:
    """Where reading goes on. None: there is no file at all yet."""
    for each in (path, *rotated(path)):
        try:
            opened = Opened(each, stored.offset)
        except FileNotFoundError:
            continue
        head = opened.head[: stored.length]
        same = opened.key == (stored.device, stored.inode) and len(head) == stored.length
        if same and hashlib.sha256(head).hexdigest() == stored.digest and not opened.replaced():
            return opened
        opened.close()
    log.warning("%s: the file that was read up to byte %d is gone or was written anew", path, stored.offset)
    found = following(path, stored.changed, {})
    try:
        return None if found is None else Opened(found)
    except FileNotFoundError:
        return None


def load(path: Path) -> Stored | None:
    """What ``save`` wrote. None: nothing. ValueError: it can't be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Stored)
    except ValueError as error:
        raise ValueError(f"{path} holds no position: {error}; delete it to read the file from its beginning") from None


def save(path: Path, stored: Stored) -> None:
    """Replaces the whole file, so that there is the old one or the new one after a crash."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(stored) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
