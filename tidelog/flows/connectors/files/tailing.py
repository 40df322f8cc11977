"""One file that is read, and which file comes after it: rotation, truncation, and where reading stood. All calls block.

Rule 1: a file is identified by its device and inode, by its first bytes, and by the bytes before the position. Inodes
        are reused, a file may be truncated and rewritten under the same inode, and a rewritten log often starts with
        the same banner.
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
TAIL: Final = 64  # bytes before the read offset that are compared while the file is open
BEFORE: Final = 4096  # bytes before the stored offset that its digest covers, at most; one pread beside an fsync
RETAINED: Final = 64 << 10  # bytes before the read offset that a closed file keeps, for positions stored later

log = logging.getLogger("tidelog.flows")


class FilePosition(msgspec.Struct, frozen=True):
    """Where reading stood, as it is kept in a file."""

    device: int
    inode: int
    offset: int  # bytes from the beginning that are settled
    length: int  # bytes at the beginning of which there is a digest
    digest: str  # SHA-256
    changed: int  # ns since 1970: of the file, when this was written
    before: int = 0  # bytes before the offset of which there is a digest; 0: none, in positions of older versions
    before_digest: str = ""  # SHA-256


class TailedFile:
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
        self.lost = False  # it was truncated or rewritten: positions in it are not valid for what it holds now
        self._last = (0, b"")  # where the last read ended, and the bytes before that
        self._retained = (0, b"")  # of a closed file: an offset, and the bytes from there to the read offset

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
            self.lost = True
            return True
        self.changed = about.st_mtime_ns
        return not self._same()

    def _same(self) -> bool:
        """Whether it begins as it did, and what was read last is still there."""
        at, last = self._last
        read, head = os.pread(self.descriptor, len(last), at - len(last)), os.pread(self.descriptor, len(self.head), 0)
        if read != last or head != self.head:
            self.lost = True
        return not self.lost

    def stored(self, offset: int) -> FilePosition:
        """The position to store. It can also be called for a file that is closed."""
        device, inode = self.key
        if self.descriptor >= 0:
            self._same()  # the bytes before the offset may be those of a rewritten file
        data = self._before(offset)
        before, digest = len(data), hashlib.sha256(data).hexdigest()
        if self.lost:
            before, digest = 1, ""  # matches no file: reading continues with what took the file's place
        head = hashlib.sha256(self.head).hexdigest()
        return FilePosition(device, inode, offset, len(self.head), head, self.changed, before, digest)

    def _before(self, offset: int) -> bytes:
        start, size = max(0, offset - BEFORE), min(offset, BEFORE)
        if self.descriptor >= 0:
            return os.pread(self.descriptor, size, start)
        begin, data = self._retained
        return data[start - begin : offset - begin] if begin <= start else b""

    def holds(self, stored: FilePosition) -> bool:
        """Whether the stored position is one in this file: same inode, same beginning, same bytes before the offset."""
        head = self.head[: stored.length]
        if self.key != (stored.device, stored.inode) or len(head) < stored.length:
            return False
        if hashlib.sha256(head).hexdigest() != stored.digest or self.replaced():
            return False
        before = os.pread(self.descriptor, stored.before, max(0, stored.offset - stored.before))
        return not stored.before or hashlib.sha256(before).hexdigest() == stored.before_digest

    def reopen(self, path: Path) -> None:
        """After ``close``. OSError: it is gone."""
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
        raise FileNotFoundError(f"{self.path}: the file that was read is gone")

    def close(self) -> None:
        """Positions are still stored afterwards: up to RETAINED bytes behind the read offset with their digest."""
        if self.descriptor >= 0:
            begin = max(0, self.offset - RETAINED)
            self._retained = begin, os.pread(self.descriptor, self.offset - begin, begin)
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


def resume(path: Path, stored: FilePosition) -> TailedFile | None:
    """Where reading goes on. None: there is no file at all yet."""
    for each in (path, *rotated(path)):
        try:
            opened = TailedFile(each, stored.offset)
        except FileNotFoundError:
            continue
        if opened.holds(stored):
            return opened
        opened.close()
    log.warning("%s: the file that was read up to byte %d is gone or was written anew", path, stored.offset)
    found = following(path, stored.changed, {})
    try:
        return None if found is None else TailedFile(found)
    except FileNotFoundError:
        return None


def load(path: Path) -> FilePosition | None:
    """What ``save`` wrote. None: nothing. ValueError: it can't be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=FilePosition)
    except ValueError as error:
        raise ValueError(f"{path} holds no position: {error}; delete it to read the file from its beginning") from None


def save(path: Path, stored: FilePosition) -> None:
    """Replaces the whole file, so that there is the old one or the new one after a crash."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(stored) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
