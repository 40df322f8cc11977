"""The tail: a ring file of fixed size in front of the journal, so that a tick costs one write and one sync.

    offset 0     +- header, one block of 4096 bytes ---------------------------------------------------------+
                 | magic "TIDETAIL" | version u32 | crc32 of the rest u32 | ring bytes u64 | salt u32 | zeros |
    offset 4096  +- ring, a whole number of blocks -----------------------------------------------------------+
                 | frame ....| frame | frame ..... |             (free)                 | frame .... | frame   |
                 +-------------------------------------------------------------------------------------------+

    a frame, from the beginning of a block:
    0      4            8              16             24           28            32
    +------+------------+--------------+--------------+------------+-------------+-------------+--------------------+
    | "TF" | crc32 of   | log offset   | synced up to | length of  | crc32 of    | records ... | rest of the block: |
    | 0 0  | 8..32  u32 | u64          | u64          | records u32| records u32 |             | whatever was there |
    +------+------------+--------------+--------------+------------+-------------+-------------+--------------------+

All little-endian. The first crc starts from the salt (chance), so no client can make one by what it stores. A frame
lies in one piece: one that doesn't fit before the end of the ring begins at its start. Frames begin with a block, so
that a write torn by a power cut can't touch an earlier frame; measured, that costs nothing, as the system writes
whole pages anyway.

Who reads looks at the head of every block that may begin a frame, then follows the frames whose log offset is the end
of the one before, from the journal's end on; stale frames of earlier laps are below it. The first that is missing or
has a wrong crc is the end. Beyond it:

    nothing whole                                          it was torn, hence never acknowledged: dropped
    a whole frame whose "synced up to" is behind the gap   what is missing had been on disk: damage, refused
    a whole frame that says no such thing                  not synced (everysec, no) when the power went: dropped too

Dropped frames are wiped, or they might seem to follow what is written next. The file is preallocated by writing it:
converting unwritten extents would cost a commit of file system metadata a sync."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from resp.errors import CorruptError

MAGIC, VERSION = b"TIDETAIL", 1
HEADER: Final = Struct("<8sIIQI")
REST: Final = Struct("<QI")
BLOCK: Final = 4096
FRAME_MAGIC: Final = b"TF\0\0"
FRAME: Final = Struct("<4sIQQII")
CRC: Final = Struct("<I")
SIGNED: Final = Struct("<QQII")  # what a frame's first crc covers
REMEDY: Final = "restore the directory from a backup, or from a replica"

CHUNK: Final = 1 << 20  # a multiple of BLOCK

Frame = tuple[int, bytes, int, int]  # log offset, records, place behind, crc32 of the records
Head = tuple[int, int, int, int]  # log offset, synced up to, length, crc32 of the records


def blocks(size: int) -> int:
    """``size`` bytes rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def create(path: Path, ring_bytes: int) -> None:
    """A new tail of zeros, durable when this returns (its name isn't). Raises OSError."""
    ring_bytes = blocks(ring_bytes)
    with path.open("wb") as file:
        salt = int.from_bytes(os.urandom(4), "little")
        rest = REST.pack(ring_bytes, salt)
        file.write(HEADER.pack(MAGIC, VERSION, crc32(rest), ring_bytes, salt).ljust(BLOCK, b"\0"))
        left, zeros = ring_bytes, bytes(1 << 20)
        while left:
            left -= file.write(zeros[: min(left, len(zeros))])
        file.flush()
        os.fsync(file.fileno())


class Tail:
    """Places are bytes from the start of the ring. Not thread-safe: ``Log`` holds its lock, but for sync()."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises CorruptError if the file is damaged or none of ours, OSError."""
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.size, self._salt = self._header()
        except BaseException:
            os.close(self.fd)
            raise
        self.head = 0  # place of the first frame that the journal lacks, or less far
        self.end = 0  # place behind the last frame
        self.used = 0  # frames between them

    def _header(self) -> tuple[int, int]:
        """Size of the ring, salt."""
        head = os.pread(self.fd, HEADER.size, 0)
        if len(head) < HEADER.size or head[:8] != MAGIC:
            raise CorruptError(f"{self.path}: not a tail file of tidelog, or its beginning is damaged: {REMEDY}")
        _, version, crc, size, salt = HEADER.unpack(head)
        if version != VERSION:
            raise CorruptError(f"{self.path}: of version {version}, unknown to this tidelog: start the newer one")
        if crc != crc32(REST.pack(size, salt)) or size % BLOCK:
            raise CorruptError(f"{self.path}: the header is damaged: {REMEDY}")
        actual = os.fstat(self.fd).st_size
        if actual != BLOCK + size:
            raise CorruptError(f"{self.path}: {actual} bytes long instead of {BLOCK + size}: {REMEDY}")
        return int(size), int(salt)

    def close(self) -> None:
        os.close(self.fd)

    # -- writing ---------------------------------------------------------------------------------------------
    def place_for(self, length: int) -> int | None:
        """Where a frame with that many bytes of records may go; None if there is no room now."""
        need = blocks(FRAME.size + length)
        if not self.used:
            return self.end if self.end + need <= self.size else (0 if need <= self.size else None)
        if self.end > self.head:
            if self.end + need <= self.size:
                return self.end
            return 0 if need < self.head else None
        return self.end if self.end + need < self.head else None

    def write(self, place: int, offset: int, synced: int, batch: bytes) -> int:
        """Write a frame at ``place`` (of place_for); returns the crc of its records. It counts only after took().

        ``synced``: log offset up to which everything is known to be on disk. Raises OSError.
        """
        size = len(batch)
        crc = crc32(batch)
        rest = SIGNED.pack(offset, synced, size, crc)
        head = FRAME_MAGIC + CRC.pack(crc32(rest, self._salt)) + rest
        done = os.pwritev(self.fd, (head, batch), BLOCK + place)
        if done != FRAME.size + size:
            frame = memoryview(head + batch)
            while done < len(frame):
                done += os.pwrite(self.fd, frame[done:], BLOCK + place + done)
        return crc

    def took(self, place: int, length: int) -> None:
        """The frame written at ``place`` counts."""
        if not self.used:
            self.head = place
        self.end = place + blocks(FRAME.size + length)
        self.used += 1

    def freed(self, frames: int, head: int) -> None:
        """The journal has the first ``frames`` frames; the next begins at ``head``, or at the start of the ring."""
        self.used -= frames
        self.head = head if self.used else self.end

    def sync(self) -> None:
        os.fdatasync(self.fd)

    # -- reading ---------------------------------------------------------------------------------------------
    def read(self, offset: int) -> tuple[list[Frame], int]:
        """The frames that follow each other from log offset ``offset`` on; leaves the ring behind the last one.

        The second value is how many bytes had to be dropped, 0 if the ring ends cleanly. Raises OSError, and
        CorruptError if a frame is damaged that had been on disk.
        """
        heads = self._heads(offset)
        frames: list[Frame] = []
        dropped = 0
        self.head = self.end = self.used = 0
        while True:
            batch = None
            for at, head in heads.pop(offset, []):
                batch = self._body(at, head)
                if batch is not None:
                    break
                dropped += FRAME.size + head[2]
            if batch is None:
                break
            dropped = 0  # a first attempt to write what is here
            self.took(at, len(batch))
            frames.append((offset, batch, self.end, head[3]))
            offset += len(batch)
        for its_offset, found in heads.items():
            for at, head in found:
                dropped += FRAME.size + head[2]
                if head[1] > offset and self._body(at, head) is not None:
                    raise CorruptError(
                        f"{self.path}: the frame at log offset {offset} is missing or damaged, but a later one"
                        f" (byte {BLOCK + at}, log offset {its_offset}) says that it was on disk: {REMEDY}"
                    )
        dropped += self._remains(self.end, offset) + (self._remains(0, offset) if self.end else 0)
        if dropped:
            self._wipe()
        return frames, dropped

    def _heads(self, offset: int) -> dict[int, list[tuple[int, Head]]]:
        """All frames at or beyond a log offset whose head is whole, by theirs: where they are, what the head says."""
        heads: dict[int, list[tuple[int, Head]]] = {}
        salt, size = self._salt, self.size
        for start in range(0, size, CHUNK):
            raw = self._read(BLOCK + start, min(CHUNK, size - start))
            for place in range(0, len(raw), BLOCK):
                if raw[place : place + 4] != FRAME_MAGIC:
                    continue
                _, crc, its_offset, synced, length, body = FRAME.unpack_from(raw, place)
                at = start + place
                if its_offset < offset or crc != crc32(raw[place + 8 : place + FRAME.size], salt):
                    continue
                if length and at + FRAME.size + length <= size:
                    heads.setdefault(its_offset, []).append((at, (its_offset, synced, length, body)))
        return heads

    def _remains(self, at: int, offset: int) -> int:
        """Bytes, if what is at the place where the next frame would be looks like one whose head is damaged; else 0."""
        if at >= self.size:
            return 0
        raw = self._read(BLOCK + at, FRAME.size)
        magic, crc, its_offset, _, _, _ = FRAME.unpack(raw)
        like = magic == FRAME_MAGIC or (its_offset == offset and any(raw))
        whole = magic == FRAME_MAGIC and crc == crc32(raw[8:], self._salt)
        return FRAME.size if like and not whole else 0

    def _body(self, at: int, head: Head) -> bytes | None:
        """The records of the frame at that place, if they are whole."""
        batch = self._read(BLOCK + at + FRAME.size, head[2])
        return batch if crc32(batch) == head[3] else None

    def _read(self, at: int, length: int) -> bytes:
        raw = os.pread(self.fd, length, at)
        while len(raw) < length:  # one call reads at most 2 GiB
            more = os.pread(self.fd, length - len(raw), at + len(raw))
            if not more:
                raise OSError(errno.EIO, f"{self.path} became shorter")
            raw += more
        return raw

    def _wipe(self) -> None:
        """Zeros over everything but the frames that count."""
        live = [(self.head, self.end)]
        if self.used and self.end <= self.head:
            live = [(0, self.end), (self.head, self.size)]
        at = 0
        for start, stop in [*live, (self.size, self.size)]:
            while at < start:
                at += os.pwrite(self.fd, bytes(min(start - at, CHUNK)), BLOCK + at)
            at = max(at, stop)
        self.sync()
