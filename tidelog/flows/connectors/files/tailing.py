"""Reads a file, finds the file that follows it after a rotation or truncation. All calls block.

Rule 1: A file is identified by its device and inode, by its first bytes, and by the bytes before the position. Inodes
        are reused, a file may be truncated and rewritten under the same inode, and a rewritten log often starts with
        the same banner.
Rule 2: Rotated files are in the directory of the file, and their name adds . or - and digits: app.log.1,
        app.log-20260101. A rotated file is followed by those that were modified later, in the order of their
        modification times, and then by the file itself.
Rule 3: If a file can't be found again, this is logged, and reading continues with the oldest file modified after it.
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

HEAD: Final = 256  # maximum number of bytes at the beginning that identify a file
TAIL: Final = 64  # bytes before the read offset that are compared while the file is open
BEFORE: Final = 4096  # maximum number of bytes before the stored offset that its digest covers; read with one pread
RETAINED: Final = 64 << 10  # bytes before the read offset that a closed file retains, for positions stored later

log = logging.getLogger("tidelog.flows")


class FilePosition(msgspec.Struct, frozen=True):
    """A stored position."""

    device: int
    inode: int
    offset: int  # bytes from the beginning that are settled
    length: int  # bytes at the beginning that ``digest`` covers
    digest: str  # SHA-256
    changed: int  # ns since 1970, modification time of the file when the position was stored
    before: int = 0  # bytes before the offset that ``before_digest`` covers; 0: none, in positions of older versions
    before_digest: str = ""  # SHA-256


class TailedFile:
    """An open file. ``offset`` is the position of the next read."""

    def __init__(self, path: Path, offset: int = 0, descriptor: int | None = None) -> None:
        """descriptor: of the file, if it is open. Raises OSError."""
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # open would block on a FIFO
        self.descriptor = descriptor
        about = os.fstat(self.descriptor)
        if not stat.S_ISREG(about.st_mode):
            os.close(self.descriptor)
            raise OSError(f"{path} is not a regular file")
        self.path = path
        self.key = (about.st_dev, about.st_ino)
        self.offset = offset
        self.changed = about.st_mtime_ns  # ns since 1970, the last modification time that was read
        self.head = os.pread(self.descriptor, HEAD, 0)
        self.lost = False  # the file was truncated or rewritten, so positions are not valid for its content
        self._last = (0, b"")  # the end of the last read, and the bytes before it
        self._retained = (0, b"")  # of a closed file: an offset, and the bytes from there to the read offset

    def read(self, size: int) -> bytes:
        """Return bytes; none at the current end, and none if the file was rewritten (see ``replaced``)."""
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
        """Return whether the file was truncated or rewritten."""
        about = os.fstat(self.descriptor)
        if about.st_size < self.offset:
            self.lost = True
            return True
        self.changed = about.st_mtime_ns
        return not self._same()

    def _same(self) -> bool:
        """Return whether the first bytes and the last read bytes are unchanged."""
        at, last = self._last
        read, head = os.pread(self.descriptor, len(last), at - len(last)), os.pread(self.descriptor, len(self.head), 0)
        if read != last or head != self.head:
            self.lost = True
        return not self.lost

    def stored(self, offset: int) -> FilePosition:
        """Return the position to store. The file can be closed."""
        device, inode = self.key
        if self.descriptor >= 0:
            self._same()  # the bytes before the offset may be those of a rewritten file
        data = self._before(offset)
        before, digest = len(data), hashlib.sha256(data).hexdigest()
        if self.lost:
            before, digest = 1, ""  # matches no file: reading continues with the file that replaced it
        head = hashlib.sha256(self.head).hexdigest()
        return FilePosition(device, inode, offset, len(self.head), head, self.changed, before, digest)

    def _before(self, offset: int) -> bytes:
        start, size = max(0, offset - BEFORE), min(offset, BEFORE)
        if self.descriptor >= 0:
            return os.pread(self.descriptor, size, start)
        begin, data = self._retained
        return data[start - begin : offset - begin] if begin <= start else b""

    def holds(self, stored: FilePosition) -> bool:
        """Return whether the position belongs to this file: same inode, first bytes, and bytes before the offset."""
        head = self.head[: stored.length]
        if self.key != (stored.device, stored.inode) or len(head) < stored.length:
            return False
        if hashlib.sha256(head).hexdigest() != stored.digest or self.replaced():
            return False
        before = os.pread(self.descriptor, stored.before, max(0, stored.offset - stored.before))
        return not stored.before or hashlib.sha256(before).hexdigest() == stored.before_digest

    def reopen(self, path: Path) -> None:
        """Open the file again after ``close``. Raises OSError if it can't be found."""
        for each in (path, *rotated(path)):
            try:
                other = TailedFile(each)
            except FileNotFoundError:
                continue
            if other.key == self.key and other.head.startswith(self.head):
                self.close()
                self.descriptor, self.path = other.descriptor, each
                return
            other.close()
        raise FileNotFoundError(f"{self.path}: the file that was read no longer exists")

    def close(self) -> None:
        """Close the file. The last RETAINED bytes before the read offset are retained for positions stored later."""
        if self.descriptor >= 0:
            begin = max(0, self.offset - RETAINED)
            self._retained = begin, os.pread(self.descriptor, self.offset - begin, begin)
            os.close(self.descriptor)
            self.descriptor = -1


def rotated(path: Path) -> list[Path]:
    """Return the rotated files in the order of their modification times."""
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
    """Return the file that follows a file with the modification time ``changed``; None: it does not exist yet.

    done: the first bytes of files that were read.
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


def resume(path: Path, stored: FilePosition) -> TailedFile | None:
    """Open the file at which reading continues; None: no file exists yet."""
    for each in (path, *rotated(path)):
        try:
            opened = TailedFile(each, stored.offset)
        except FileNotFoundError:
            continue
        if opened.holds(stored):
            return opened
        opened.close()
    log.warning("%s: the file that was read up to byte %d was deleted or rewritten", path, stored.offset)
    found = following(path, stored.changed, {})
    try:
        return None if found is None else TailedFile(found)
    except FileNotFoundError:
        return None
