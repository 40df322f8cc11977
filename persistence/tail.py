"""The tail: a ring file of fixed size in front of the journal, so that a tick costs one write and one sync.

    offset 0     +- header, one block of 4096 bytes ------------------------------------------+
                 | magic "TIDETAIL" | version u32 | crc32 of rest u32 | ring bytes u64 | salt u32 |
    offset 4096  +- ring ---------------------------------------------------------------------+
                 | frame | frame | frame | ...                    (free) ... | frame | frame |
                 +---------------------------------------------------------------------------+
    a frame      | magic "TF" + 2 zero bytes | crc32 u32 | log offset u64 | length u32 | records ... |

All little-endian; the crc starts from the salt (chance: no client can forge a frame) and covers log offset, length and records.
A frame lies in one piece: one that doesn't fit before the end
of the ring begins at its start.

Who reads: begin where the journal says (the place of the frame behind its end). A frame counts if its magic, its crc and its log
offset (which must be the end of the one before) are right. Stale frames of an earlier lap show by their offset. The
first that doesn't count is the end: it was torn, hence never acknowledged. Only if a *later* frame is whole, an acknowledged one has been
damaged, and that is an error.

The file is preallocated by writing it: converting unwritten extents would cost a commit of file system metadata a sync.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from zlib import crc32

from resp.errors import CorruptError

MAGIC, VERSION = b"TIDETAIL", 1
HEADER = Struct("<8sIIQI")
REST = Struct("<QI")
BLOCK = 4096
FRAME = Struct("<4sIQI")
FRAME_MAGIC = b"TF\0\0"
MARKED = Struct("<QI")  # what the crc begins with


def _crc(salt: int, offset: int, batch: bytes) -> int:
    return crc32(batch, crc32(MARKED.pack(offset, len(batch)), salt))


def create(path: Path, ring_bytes: int) -> None:
    """A new tail of zeros, durable when this returns. Raises OSError."""
    with path.open("wb") as file:
        salt = int.from_bytes(os.urandom(4), "little")
        crc = crc32(REST.pack(ring_bytes, salt))
        file.write(HEADER.pack(MAGIC, VERSION, crc, ring_bytes, salt).ljust(BLOCK, b"\0"))
        left, zeros = ring_bytes, bytes(1 << 20)
        while left:
            left -= file.write(zeros[: min(left, len(zeros))])
        file.flush()
        os.fsync(file.fileno())


class Tail:
    """Positions are bytes from the start of the ring. One writer; not thread-safe: ``Log`` holds its lock."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises CorruptError if the file is damaged or none of ours."""
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        head = os.pread(self.fd, HEADER.size, 0)
        remedy = "restore it from a backup, or start on an empty directory"
        try:
            if len(head) < HEADER.size or head[:8] != MAGIC:
                raise CorruptError(f"{path}: not a tail file of tidelog: {remedy}")
            _, version, crc, size, salt = HEADER.unpack(head)
            if crc != crc32(REST.pack(size, salt)):
                raise CorruptError(f"{path}: the header is damaged: {remedy}")
            if version != VERSION:
                raise CorruptError(f"{path}: version {version} is newer than this tidelog knows: start the newer tidelog")
            actual = os.fstat(self.fd).st_size
            if actual != BLOCK + size:
                raise CorruptError(f"{path}: {actual} bytes long instead of {BLOCK + size}: {remedy}")
        except CorruptError:
            os.close(self.fd)
            raise
        self.size = int(size)
        self._salt = int(salt)
        self.head = 0  # position of the first frame that the journal lacks
        self.end = 0  # position behind the last frame
        self.used = 0  # frames between them

    def close(self) -> None:
        os.close(self.fd)

    def place_for(self, length: int) -> int | None:
        """Where a frame with that many bytes of records may go; None if there is no room now."""
        need = FRAME.size + length
        if not self.used:
            return self.end if self.end + need <= self.size else (0 if need <= self.size else None)
        if self.end > self.head:
            if self.end + need <= self.size:
                return self.end
            return 0 if need < self.head else None
        return self.end if self.end + need < self.head else None

    def write(self, place: int, offset: int, batch: bytes) -> None:
        """Write a frame at ``place`` (of place_for); it is part of the ring only after took(). Raises OSError."""
        head = FRAME.pack(FRAME_MAGIC, _crc(self._salt, offset, batch), offset, len(batch))
        want = FRAME.size + len(batch)
        done = os.pwritev(self.fd, (head, batch), BLOCK + place)
        if done != want:
            frame = head + batch
            while done < want:
                done += os.pwrite(self.fd, frame[done:], BLOCK + place + done)

    def took(self, place: int, length: int) -> None:
        if not self.used:
            self.head = place
        self.end = place + FRAME.size + length
        self.used += 1

    def freed(self, frames: int, head: int) -> None:
        """The journal has the first ``frames`` frames; the next begins at or behind ``head``."""
        self.used -= frames
        self.head = head if self.used else self.end

    def sync(self) -> None:
        os.fdatasync(self.fd)

    def read(self, place: int, offset: int) -> tuple[list[tuple[int, bytes, int]], int]:
        """Frames from ``place`` on, the first with log offset ``offset``: [(log offset, records, place behind)].

        Leaves the ring positioned behind the last one. The second value is the bytes of a torn frame, 0 if it ends cleanly.
        Raises CorruptError if a frame was damaged that had been acknowledged.
        """
        ring = os.pread(self.fd, self.size, BLOCK)
        frames: list[tuple[int, bytes, int]] = []
        self.head = self.end = place
        while True:
            found = _frame_at(ring, self._salt, self.end, offset)
            at = self.end
            if found is None and self.end:
                found, at = _frame_at(ring, self._salt, 0, offset), 0
            if found is None:
                break
            self.end = at + FRAME.size + len(found)
            frames.append((offset, found, self.end))
            offset += len(found)
            self.used += 1
            if self.used == 1:
                self.head = at
        later = _later_frame(ring, self._salt, offset)
        if later is not None:
            raise CorruptError(
                f"{self.path}: damaged at byte {BLOCK + self.end}: the frame at log offset {offset} is unreadable, but a later"
                f" one (log offset {later}) is whole. Restore the directory from a backup, or from a replica"
            )
        torn = 0
        if ring[self.end : self.end + 4] == FRAME_MAGIC:
            _, _, torn_offset, length = FRAME.unpack_from(ring.ljust(self.end + FRAME.size, b"\0"), self.end)
            if torn_offset == offset:
                torn = FRAME.size + length
        return frames, torn


def _frame_at(ring: bytes, salt: int, at: int, offset: int) -> bytes | None:
    """The records of the frame at that place, if it is whole and has that log offset."""
    if at + FRAME.size > len(ring):
        return None
    magic, crc, its_offset, length = FRAME.unpack_from(ring, at)
    if magic != FRAME_MAGIC or its_offset != offset or not length or at + FRAME.size + length > len(ring):
        return None
    batch = ring[at + FRAME.size : at + FRAME.size + length]
    return batch if _crc(salt, offset, batch) == crc else None


def _later_frame(ring: bytes, salt: int, offset: int) -> int | None:
    """The log offset of a whole frame beyond ``offset``; None if there is none."""
    at = ring.find(FRAME_MAGIC)
    while at >= 0:
        if at + FRAME.size <= len(ring):
            _, _, its_offset, _ = FRAME.unpack_from(ring, at)
            if its_offset > offset and _frame_at(ring, salt, at, its_offset) is not None:
                return int(its_offset)
        at = ring.find(FRAME_MAGIC, at + 1)
    return None
