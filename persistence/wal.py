"""The write-ahead log (WAL): a ring file of fixed size in front of the journal. A tick costs one write and one sync.

The file in the data directory is named ``tail``.

    offset 0     +- header, one block of 4096 bytes ---------------------------------------------------------+
                 | magic "TIDETAIL" | version u32 | crc32 of the rest u32 | ring bytes u64 | salt u32 | zeros |
    offset 512   | a note: crc32 of the rest, from the salt u32 | end of the journal u64 | log offset of the store u64 |
    offset 1024  | another note; each is zeros until it is first written                                              |
    offset 4096  +- ring, a whole number of blocks -----------------------------------------------------------+
                 | frame ....| frame | frame ..... |             (free)                 | frame .... | frame   |
                 +-------------------------------------------------------------------------------------------+

    a frame, at the start of a block:
    0      4            8              16             24           28            32
    +------+------------+--------------+--------------+------------+-------------+-------------+--------------------+
    | "TF" | crc32 of   | log offset   | synced up to | length of  | crc32 of    | records ... | rest of the block: |
    | 0 0  | 8..32  u32 | u64          | u64          | records u32| records u32 |             | unchanged          |
    +------+------------+--------------+--------------+------------+-------------+-------------+--------------------+

The frame of a batch of 4096 bytes or more begins with "TX" and has, instead of the crc32 of its records, the lower half
of their XXH3 (64 bits), which takes a tenth of the time. The version is 1 until the first such frame, then 2, so that
servers that do not know them refuse the file. Version 3 was used temporarily for frames in other files, until a clean
stop.

All numbers are little-endian. The first crc starts from the salt, a random number, so that no client can forge a frame
with stored data. A frame is contiguous: a frame that does not fit before the end of the ring begins at its start.
Frames begin at block boundaries, so that a torn write cannot damage an earlier frame. Measurements show no cost,
because the system writes whole pages anyway.

A reader checks the head of every block that may begin a frame. From the end of the journal on, it follows the frames
whose log offset is the end of the previous frame. Stale frames of earlier laps have lower offsets. The chain ends at
the first frame that is missing or has a wrong crc. The frames after it decide:

    no complete frame                                        the frame was torn and never acknowledged: dropped
    a complete frame with "synced up to" after the gap       the missing frame was on disk: damaged, refused
    other complete frames                                    not synced before a power failure (everysec, no): dropped

A note records the positions of journal and store after they were reached. The two notes are written alternately, so
that a torn note does no harm. A journal or store that ends before its position lost its newest meta page or is an older
copy. Frames contain most of this information, too, except if a batch was written to the journal directly, or the ring
was wiped or replaced. The first versions had no notes.

Dropped frames are wiped; otherwise they could seem to follow later frames. The file is preallocated by writing zeros,
since converting unwritten extents would cost a commit of file system metadata for each sync.

Decision: only large batches have XXH3, so that servers that do not know it can open a directory that never contained
one.
Decision: the frame of a small batch is written in C (``_frame.c``), since a single client waits for it at each command.
Python would create an object for each number before packing it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from xxhash import xxh3_64_intdigest

from persistence.fileidentity import OpenFile
from persistence.fileio import read_part, write_parts
from persistence.permissions import opener
from resp.errors import REMEDY, CorruptError

MAGIC, VERSION = b"TIDETAIL", 1
LARGE_VERSION: Final = 2  # a file that can contain frames with XXH3
APART_VERSION: Final = 3  # a file that can contain such frames, and frames in other files
HEADER: Final = Struct("<8sIIQI")
REST: Final = Struct("<QI")
BLOCK: Final = 4096
FRAME_MAGIC: Final = b"TF\0\0"
LARGE_MAGIC: Final = b"TX\0\0"
MAGICS: Final = (FRAME_MAGIC, LARGE_MAGIC)
LARGE: Final = 4096  # bytes of records; frames of at least this size have XXH3
LOWER: Final = 0xFFFFFFFF  # mask of the half that a frame contains
FRAME: Final = Struct("<4sIQQII")
FRAME_SIZE: Final = 32  # FRAME.size, as a compile-time constant
CRC: Final = Struct("<I")
HEAD: Final = Struct("<4sI24s")  # head of a frame, with the part that the first crc covers as bytes
NOTE: Final = Struct("<QQ")
NOTES: Final = (512, 1024)  # their offsets, in separate sectors
SIGNED: Final = Struct("<QQII")  # what a frame's first crc covers

CHUNK: Final = 1 << 20  # a multiple of BLOCK
SMALL: Final = 2048  # bytes of records, see _write_small()

# Looked up once, since a single client waits for each small frame. Written in C if it was compiled.
_crc32: Final = crc32
_pwrite: Final = os.pwrite
_pack_head: Final = HEAD.pack
_pack_signed: Final = SIGNED.pack
_c_write: Callable[[int, int, int, int, int, bytes], int] | None = None
try:
    from persistence import _frame

    _c_write = _frame.write
except ImportError:  # installed without a C compiler, or run from a checkout
    pass
write_small: Final[Callable[[int, int, int, int, int, bytes], int] | None] = _c_write

Frame = tuple[int, bytes, int, int]  # log offset, records, position after the frame, checksum of the records: checked()
Head = tuple[int, int, int, int, bool]  # log offset, synced up to, length, checksum of the records, whether it is XXH3


def checked(records: bytes) -> int:
    """Return the checksum of a batch: its crc32 or, if it is large, the complement of its XXH3 (below zero)."""
    return crc32(records) if len(records) < LARGE else ~xxh3_64_intdigest(records)


def blocks(size: int) -> int:
    """Return ``size`` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK


def create(path: Path, ring_bytes: int, noted: tuple[int, int] | None = None) -> None:
    """Create an empty file and sync it, but not its directory. Raises OSError.

    ``noted``: the journal's end and the store's log offset, for a note.
    """
    ring_bytes = blocks(ring_bytes)
    with open(path, "wb", opener=opener) as file:
        salt = int.from_bytes(os.urandom(4), "little")
        rest = REST.pack(ring_bytes, salt)
        header = HEADER.pack(MAGIC, VERSION, crc32(rest), ring_bytes, salt)
        if noted is not None:
            header = header.ljust(NOTES[0], b"\0") + _note(noted, salt)
        file.write(header.ljust(BLOCK, b"\0"))
        left, zeros = ring_bytes, bytes(1 << 20)
        while left:
            left -= file.write(zeros[: min(left, len(zeros))])
        file.flush()
        os.fsync(file.fileno())


def _note(noted: tuple[int, int], salt: int) -> bytes:
    raw = NOTE.pack(noted[0], noted[1])
    return CRC.pack(crc32(raw, salt)) + raw


class Wal:
    """Positions are bytes from the start of the ring. Not thread-safe: ``Log`` holds its lock, except for sync()."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises CorruptError if it is damaged or not a WAL, OSError."""
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.size, self._salt, self._version = self._header()
            self.noted, self._next_note = self._notes()
            self._held = OpenFile(path)
        except BaseException:
            os.close(self.fd)
            raise
        self.head = 0  # position of the first frame that the journal lacks, or of an earlier frame
        self.end = 0  # position after the last frame
        self.used = 0  # number of frames from head to end

    def _header(self) -> tuple[int, int, int]:
        """Read the size of the ring, the salt and the version. Raises CorruptError."""
        head = os.pread(self.fd, HEADER.size, 0)
        if len(head) < HEADER.size or head[:8] != MAGIC:
            raise CorruptError(f"{self.path}: not a WAL file of tidelog, or its beginning is damaged: {REMEDY}")
        _, version, crc, size, salt = HEADER.unpack(head)
        if version == APART_VERSION:
            raise CorruptError(
                f"{self.path}: of version 3, by an unreleased tidelog: let that one start here and stop cleanly first"
            )
        if version not in (VERSION, LARGE_VERSION):
            raise CorruptError(f"{self.path}: of version {version}, unknown to this tidelog: start the newer one")
        if crc != crc32(REST.pack(size, salt)) or size % BLOCK:
            raise CorruptError(f"{self.path}: the header is damaged: {REMEDY}")
        actual = os.fstat(self.fd).st_size
        if actual != BLOCK + size:
            raise CorruptError(f"{self.path}: {actual} bytes long instead of {BLOCK + size}: {REMEDY}")
        return int(size), int(salt), int(version)

    def _notes(self) -> tuple[tuple[int, int] | None, int]:
        """Return the recorded positions of journal and store, and the index of the next note. Raises CorruptError."""
        found: list[tuple[int, int]] = []
        offsets: list[int] = []
        torn = 0
        for at in NOTES:
            raw = self._read(at, CRC.size + NOTE.size)
            journal, store = NOTE.unpack_from(raw, CRC.size)
            if raw == _note((journal, store), self._salt):
                found.append((int(journal), int(store)))
                offsets.append(at)
            elif any(raw):
                torn += 1
        if torn > 1:
            raise CorruptError(f"{self.path}: the header is damaged: {REMEDY}")
        if not found:
            return None, 0
        newest = max(found)
        return newest, (NOTES.index(offsets[found.index(newest)]) + 1) % len(NOTES)

    def note(self, journal: int, store: int) -> None:
        """Record the durable positions of journal and store. The note itself is not synced. Raises OSError."""
        noted = self.noted
        if noted is None or noted != (journal, store):
            os.pwrite(self.fd, _note((journal, store), self._salt), NOTES[self._next_note])
            self.noted = journal, store
            self._next_note = (self._next_note + 1) % len(NOTES)

    def renamed(self, path: Path) -> None:
        self.path = self._held.path = path

    def displaced(self) -> str | None:
        """Return OpenFile.displaced(). Any thread."""
        return self._held.displaced()

    def close(self) -> None:
        os.close(self.fd)
        self._held.close()

    # -- writing ---------------------------------------------------------------------------------------------
    def find_room(self, length: int) -> int | None:
        """Return the position for a frame with ``length`` bytes of records; None if there is no room now."""
        need = blocks(FRAME_SIZE + length)
        if not self.used:
            return self.end if self.end + need <= self.size else (0 if need <= self.size else None)
        if self.end > self.head:
            if self.end + need <= self.size:
                return self.end
            return 0 if need < self.head else None
        return self.end if self.end + need < self.head else None

    def write(self, at: int, offset: int, synced: int, batch: bytes) -> int:
        """Write a frame at a position from find_room(). It becomes part of the ring only when add() is called.

        ``synced``: the log offset up to which everything is known to be on disk. Returns checked() of the records.
        Raises OSError.
        """
        if len(batch) <= SMALL:
            return self._write_small(at, offset, synced, batch)
        size = len(batch)
        checksum = checked(batch)
        if checksum < 0:
            if self._version != LARGE_VERSION:
                self._announce()
            magic, rest = LARGE_MAGIC, SIGNED.pack(offset, synced, size, ~checksum & LOWER)
        else:
            magic, rest = FRAME_MAGIC, SIGNED.pack(offset, synced, size, checksum)
        head = magic + CRC.pack(crc32(rest, self._salt)) + rest
        write_parts(self.fd, (head, batch), BLOCK + at, FRAME.size + size)
        return checksum

    def _announce(self) -> None:
        """Write the version for large frames, before the first one. Raises OSError."""
        os.pwrite(self.fd, CRC.pack(LARGE_VERSION), len(MAGIC))
        self.sync()
        self._version = LARGE_VERSION

    def add(self, at: int, length: int) -> None:
        """Make the frame at ``at``, with ``length`` bytes of records, the last one of the ring."""
        if not self.used:
            self.head = at
        self.end = at + blocks(FRAME_SIZE + length)
        self.used += 1

    def _write_small(self, at: int, offset: int, synced: int, batch: bytes) -> int:
        """Write a frame of at most SMALL bytes as one buffer, which is faster than several."""
        if write_small is not None:
            return write_small(self.fd, BLOCK + at, self._salt, offset, synced, batch)
        crc = _crc32(batch)
        rest = _pack_signed(offset, synced, len(batch), crc)
        frame = _pack_head(FRAME_MAGIC, _crc32(rest, self._salt), rest) + batch
        done = _pwrite(self.fd, frame, BLOCK + at)
        while done < len(frame):
            done += _pwrite(self.fd, frame[done:], BLOCK + at + done)
        return crc

    def free(self, frames: int, head: int) -> None:
        """Remove the first ``frames`` frames, which the journal has. The next frame begins at ``head`` or at 0."""
        assert frames <= self.used  # noqa: S101 - only frames of the ring can be freed
        self.used -= frames
        self.head = head if self.used else self.end

    def sync(self) -> None:
        os.fdatasync(self.fd)

    # -- reading ---------------------------------------------------------------------------------------------
    def read(self, offset: int, wipe: bool = True) -> tuple[list[Frame], int]:
        """Read the consecutive frames from log offset ``offset`` on. The ring then ends after the last one.

        ``wipe``: overwrite frames that were dropped.

        Returns the frames and the number of dropped bytes, 0 if the ring ends cleanly. Raises OSError, and CorruptError
        if a frame that was on disk is damaged.
        """
        heads = self._heads(offset)
        frames: list[Frame] = []
        dropped = 0
        self.head = self.end = self.used = 0
        while True:
            body = None
            for at, head in heads.pop(offset, []):
                body = self._body(at, head)
                if body is not None:
                    break
                dropped += FRAME.size + head[2]
            if body is None:
                break
            batch, checksum = body
            dropped = 0  # from a failed first attempt to write this frame
            self.add(at, len(batch))
            frames.append((offset, batch, self.end, checksum))
            offset += len(batch)
        for its_offset, found in heads.items():
            for at, head in found:
                dropped += FRAME.size + head[2]
                if head[1] > offset and self._body(at, head) is not None:
                    raise CorruptError(
                        f"{self.path}: the frame at log offset {offset} is missing or damaged, but a later one"
                        f" (byte {BLOCK + at}, log offset {its_offset}) records that it was on disk: {REMEDY}"
                    )
        dropped += self._remains(self.end, offset) + (self._remains(0, offset) if self.end else 0)
        if dropped and wipe:
            self._wipe()
        return frames, dropped

    def _heads(self, offset: int) -> dict[int, list[tuple[int, Head]]]:
        """Return frames with valid heads at or after a log offset, as log offset -> positions and heads."""
        heads: dict[int, list[tuple[int, Head]]] = {}
        salt, size = self._salt, self.size
        for start in range(0, size, CHUNK):
            raw = self._read(BLOCK + start, min(CHUNK, size - start))
            for block in range(0, len(raw), BLOCK):
                magic = raw[block : block + 4]
                if magic != FRAME_MAGIC and magic != LARGE_MAGIC:
                    continue
                _, crc, its_offset, synced, length, body = FRAME.unpack_from(raw, block)
                at = start + block
                if its_offset < offset or crc != crc32(raw[block + 8 : block + FRAME.size], salt):
                    continue
                if length and at + FRAME.size + length <= size:
                    heads.setdefault(its_offset, []).append(
                        (at, (its_offset, synced, length, body, magic == LARGE_MAGIC))
                    )
        return heads

    def _remains(self, at: int, offset: int) -> int:
        """Return the size of a damaged head at ``at``, where the next frame would begin; 0 if there is none."""
        if at >= self.size:
            return 0
        raw = self._read(BLOCK + at, FRAME.size)
        magic, crc, its_offset, _, _, _ = FRAME.unpack(raw)
        like = magic in MAGICS or (its_offset == offset and any(raw))
        whole = magic in MAGICS and crc == crc32(raw[8:], self._salt)
        return FRAME.size if like and not whole else 0

    def _body(self, at: int, head: Head) -> tuple[bytes, int] | None:
        """Return the records of the frame at ``at``, and their checksum (see ``checked``); None if they are damaged."""
        batch = self._read(BLOCK + at + FRAME.size, head[2])
        checksum = ~xxh3_64_intdigest(batch) if head[4] else crc32(batch)
        said = ~checksum & LOWER if head[4] else checksum
        return (batch, checksum) if said == head[3] else None

    def _read(self, at: int, length: int) -> bytes:
        raw = read_part(self.fd, length, at)
        if len(raw) < length:
            raise OSError(errno.EIO, f"{self.path} became shorter")
        return raw

    def _wipe(self) -> None:
        """Overwrite everything except the frames in the ring with zeros."""
        live = [(self.head, self.end)]
        if self.used and self.end <= self.head:
            live = [(0, self.end), (self.head, self.size)]
        at = 0
        for start, stop in [*live, (self.size, self.size)]:
            while at < start:
                at += os.pwrite(self.fd, bytes(min(start - at, CHUNK)), BLOCK + at)
            at = max(at, stop)
        self.sync()
