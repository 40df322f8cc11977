"""The journal: all batches since the last checkpoint, and those that replicas may still request, in LMDB.

    db "log"    log offset u64 big-endian  ->  crc32 of the records u32 | the records of one batch
                                           or  crc32 of the rest u32 | 0 u8 | segment u32 | position u64 | length u32
                                               | XXH3 of the records u64, which are in a separate file
    db "meta"   b"end"                     ->  log offset after the last batch u64 | crc32 of these 8 bytes u32
    db "segments"   number u32             ->  log offset after the last batch in it u64 | crc32 of key and these u32

Values are little-endian. Keys are contiguous: each is the previous one plus the length of that batch. A gap is damage.
Every commit is synced. No record begins with 0. If one write is large, its large batches go to ``largebatches``. The
database "segments" is created with the first of them, so that servers that do not know it refuse the file.

Rule 1: one thread writes at a time (write, start, truncate, shrink). The caller ensures this.
Rule 2: any thread may read meanwhile (first, last, read_some). ``_swap`` is held for one small read, and by shrink()
while it replaces the file.

Decision: the journal's file is rewritten when a checkpoint has emptied most of it, because LMDB never shrinks a file.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb
from xxhash import xxh3_64_intdigest

from persistence.directory import sync as sync_directory
from persistence.fileidentity import OpenFile, disk_bytes
from persistence.largebatches import Segments
from persistence.lmdbfile import open_env, reported
from persistence.permissions import FOLDER, opener
from persistence.wal import Frame
from resp.errors import REMEDY, CorruptError

SEGMENTS = b"segments"
DATABASES = (b"log", b"meta", SEGMENTS)
KEY = Struct(">Q")
CRC = Struct("<I")
END = Struct("<Q")
LOCATION = Struct("<BIQIQ")  # location of a batch in a segment
NUMBER = Struct("<I")
ENDS = Struct("<QI")
MUCH = 256 << 10  # bytes of a write; in a write of at least this size,
LARGE = 512  # batches of at least this size go to a segment
MAP_SIZE = 1 << 38  # address space; the file grows only when it is written
MAP_SHARE = 1 / 8  # share of the address space, if that is limited
SHRINK_ABOVE = 16 << 20  # bytes; a smaller file is not rewritten
SHRINK_LIVE_AT_MOST = 64 << 20  # maximum bytes to copy while writers wait
TRUNCATE_AT_ONCE = 4_000  # batches that one transaction deletes; the journal's thread waits some ms for it


class Journal:
    """The journal. Each call is one transaction.

    ``end``: log offset after the last batch. ``room``: size of the map. ``used``: bytes of it that the batches take.
    """

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(FOLDER, exist_ok=True)
        self.path = directory / "data.mdb"
        self._shrunk = directory / "data.mdb.new"
        self._shrunk.unlink(missing_ok=True)
        shutil.rmtree(directory / "shrunk", ignore_errors=True)  # created by earlier versions
        self._swap = threading.Lock()
        self._shut = False  # shrink() could not open the file again
        # Log offset after the batches of a failed write to a segment, which LMDB may or may not refer to; 0: none.
        self._doubtful = 0
        self._open()
        try:
            with reported(self.path), self._env.begin() as txn:
                self._segments = Segments(directory, self._segment_ends(txn))
        except BaseException:
            self._env.close()
            raise

    def _open(self) -> None:
        self._env, _ = open_env(
            self.path.parent, MAP_SIZE, len(DATABASES), known=DATABASES, newer=(SEGMENTS,), share=MAP_SHARE
        )
        self.room = int(self._env.info()["map_size"])
        try:
            self._held = OpenFile(self.path)
            with reported(self.path):
                self._batches, self._meta = map(self._env.open_db, DATABASES[:2])
                self._ends: lmdb._Database | None = None  # the database "segments", if it exists
                with self._env.begin() as txn:
                    known = txn.get(SEGMENTS) is not None
                if known:
                    self._ends = self._env.open_db(SEGMENTS)
                with self._env.begin(db=self._meta) as txn:
                    self.end = self._end(txn)
                    self.used = self._used(txn)
                    if not self.end and txn.stat(self._batches)["entries"]:
                        raise CorruptError(f"{self.path}: has batches, but not their end: {REMEDY}")
        except BaseException:
            self._env.close()
            raise

    def _end(self, txn: lmdb.Transaction) -> int:
        raw = bytes(txn.get(b"end", db=self._meta) or b"")
        if not raw:
            return 0
        if len(raw) != END.size + CRC.size or crc32(raw[: END.size]) != CRC.unpack_from(raw, END.size)[0]:
            raise CorruptError(f"{self.path}: its end is damaged: {REMEDY}")
        return int(END.unpack_from(raw)[0])

    def _segment_ends(self, txn: lmdb.Transaction) -> dict[int, int]:
        """Return the log offset after the last batch in each segment, by number. Raises CorruptError."""
        ends: dict[int, int] = {}
        if self._ends is not None:
            for raw_key, raw_value in txn.cursor(db=self._ends):
                key, value = bytes(raw_key), bytes(raw_value)
                if len(key) != NUMBER.size or len(value) != ENDS.size or not _is_whole(key, value):
                    raise CorruptError(f"{self.path}: the entry of a segment is damaged: {REMEDY}")
                ends[NUMBER.unpack(key)[0]] = ENDS.unpack(value)[0]
        return ends

    def _used(self, txn: lmdb.Transaction) -> int:
        used = txn.stat(self._batches)
        return int((used["branch_pages"] + used["leaf_pages"] + used["overflow_pages"]) * used["psize"])

    def _ready(self) -> None:
        """Open the file if shrink() failed to reopen it. Raises CorruptError, OSError."""
        if self._shut:
            with self._swap:
                self._open()
                self._shut = False

    def close(self, tidy: bool = True) -> None:
        """Close the files. ``tidy``: remove spare files."""
        with self._swap:
            self._segments.close(tidy)
            self._env.close()
            if not self._shut:
                self._held.close()

    def start(self, offset: int) -> None:
        """Set the start of an empty journal, and sync. Raises OSError, CorruptError."""
        with reported(self.path), self._env.begin(write=True) as txn:
            if txn.stat(self._batches)["entries"] or self._end(txn):
                raise CorruptError(f"{self.path}: already begins at another offset: {REMEDY}")
            self._put_end(txn, offset)
        self.end = offset

    def _put_end(self, txn: lmdb.Transaction, end: int) -> None:
        raw = END.pack(end)
        txn.put(b"end", raw + CRC.pack(crc32(raw)), db=self._meta)

    def write(self, batches: Sequence[Frame]) -> None:
        """Append batches and sync. Raises OSError, CorruptError; some of the batches may have been written then."""
        self._ready()
        try:
            self._write(batches)
        except OSError as error:
            if not isinstance(error.__cause__, lmdb.MapFullError):
                raise
            # LMDB reuses pages that were freed two commits ago. Batches in separate transactions then need less
            # contiguous room.
            for _ in range(2):
                with reported(self.path), self._env.begin(write=True) as txn:
                    self._put_end(txn, self._end(txn))
            for batch in batches:
                self._write([batch])

    def _write(self, batches: Sequence[Frame]) -> None:
        large = self._large(batches)
        with reported(self.path), self._env.begin(write=True) as txn:
            # Not self.end: a commit that was reported as failed may have succeeded.
            end = self._end(txn)
            if self._doubtful > end:
                self._segments.take_back()
            self._doubtful = 0
            locations = self._to_segment(large)
            if locations:
                self._doubtful = batches[-1][0] + len(batches[-1][1])
            put, pack, db = txn.put, KEY.pack, self._batches
            for offset, batch, _, crc in batches:
                if offset < end:
                    continue
                if offset != end:
                    raise CorruptError(f"{self.path}: ends at log offset {end}, the next batch is at {offset}: restart")
                location = locations.get(offset)
                if location is not None:
                    value = CRC.pack(crc32(location)) + location
                else:
                    value = CRC.pack(crc32(batch) if crc < 0 else crc) + batch
                put(pack(offset), value, True, True, True, db)  # append=True, db=db; keyword arguments take 50 % longer
                end = offset + len(batch)
            self._put_end(txn, end)
            if locations:
                self._put_segment(txn, LOCATION.unpack(next(iter(locations.values())))[1], end)
            used = self._used(txn)
        self._doubtful = 0
        self.end, self.used = end, used

    def _large(self, batches: Sequence[Frame]) -> list[tuple[int, bytes, int]]:
        """Return log offset, records, and checksum of batches for a segment. Creates the database if necessary."""
        if sum([len(batch) for _, batch, _, _ in batches]) < MUCH:
            return []
        chosen = [(offset, batch, crc) for offset, batch, _, crc in batches if len(batch) >= LARGE]
        if chosen and self._ends is None:
            with reported(self.path):
                self._ends = self._env.open_db(SEGMENTS)
        return chosen

    def _to_segment(self, chosen: list[tuple[int, bytes, int]]) -> dict[int, bytes]:
        """Write these batches to a segment and sync. Return their locations by log offset."""
        if not chosen:
            return {}
        number, positions = self._segments.write([batch for _, batch, _ in chosen])
        return {
            offset: LOCATION.pack(0, number, at, len(batch), ~crc if crc < 0 else xxh3_64_intdigest(batch))
            for (offset, batch, crc), at in zip(chosen, positions, strict=True)
        }

    def _put_segment(self, txn: lmdb.Transaction, number: int, end: int) -> None:
        key, raw = NUMBER.pack(number), END.pack(end)
        txn.put(key, raw + CRC.pack(crc32(raw, crc32(key))), db=self._ends)
        self._segments.ends[number] = end

    def read(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the batches from ``offset``, where one must begin, to the end. Raises CorruptError, OSError."""
        with reported(self.path), self._env.begin(db=self._batches) as txn:
            cursor = txn.cursor()
            expected, end = offset, self._end(txn)
            if cursor.set_range(KEY.pack(offset)):
                for key, value in cursor:
                    key, value = bytes(key), bytes(value)
                    at = KEY.unpack(key)[0] if len(key) == KEY.size else -1
                    if at != expected:
                        raise CorruptError(
                            f"{self.path}: the batch at log offset {expected} is missing (next: {at}): {REMEDY}"
                        )
                    location = _location(value)
                    batch = self._records(at, value, location, self._from_segment(location))
                    yield at, batch
                    expected = at + len(batch)
            if expected != end:
                raise CorruptError(f"{self.path}: ends at log offset {expected} instead of {end}: {REMEDY}")

    def read_some(self, offset: int, limit: int) -> list[tuple[int, bytes]]:
        """Return batches from the one that contains ``offset`` on, about ``limit`` bytes but at least one.

        Returns [] if no batch contains it, because it is before the first batch or at the end. Raises CorruptError,
        OSError.
        """
        raw: list[tuple[bytes, bytes, tuple[int, ...] | None, bytes]] = []
        with self._swap, reported(self.path), self._env.begin(db=self._batches, buffers=True) as txn:
            end = self._end(txn)
            cursor = txn.cursor()
            if _at_or_before(cursor, offset):
                for its_key, its_value in cursor:  # views of the map; only requested batches are copied
                    location = _location(its_value)
                    limit -= len(its_value) - CRC.size if location is None else location[3]
                    if limit < 0 and raw:
                        break
                    raw.append((bytes(its_key), bytes(its_value), location, self._from_segment(location)))
        found: list[tuple[int, bytes]] = []
        for key, value, location, in_segment in raw:
            at = KEY.unpack(key)[0] if len(key) == KEY.size else -1
            batch = self._records(at, value, location, in_segment)
            expected = found[-1][0] + len(found[-1][1]) if found else at
            if at != expected:
                raise CorruptError(f"{self.path}: the batch at log offset {expected} is missing (next: {at}): {REMEDY}")
            found.append((at, batch))
        if found and found[0][0] + len(found[0][1]) <= offset:
            if len(found) > 1 or offset < end:
                raise CorruptError(f"{self.path}: the batch at log offset {offset} is missing: {REMEDY}")
            return []
        return found

    def _from_segment(self, location: tuple[int, ...] | None) -> bytes:
        """Return the unchecked records of a batch in a segment; b"" if it is not in a segment. Raises OSError."""
        return b"" if location is None else self._segments.read(location[1], location[2], location[3])

    def _records(self, at: int, value: bytes, location: tuple[int, ...] | None, in_segment: bytes) -> bytes:
        """Return the verified records of the batch at log offset ``at``. Raises CorruptError if they are damaged."""
        batch = value[CRC.size :]
        whole = batch and crc32(batch) == CRC.unpack_from(value)[0]
        if location is not None:
            batch = in_segment
            whole = whole and len(batch) == location[3] and xxh3_64_intdigest(batch) == location[4]
        if not whole:
            raise CorruptError(f"{self.path}: the batch at log offset {at} is damaged: {REMEDY}")
        return batch

    def first(self) -> int:
        """Return the log offset of the oldest batch; the end if there is none. Raises OSError."""
        with self._swap, reported(self.path), self._env.begin(db=self._batches) as txn:
            cursor = txn.cursor()
            return int(KEY.unpack(cursor.key())[0]) if cursor.first() else self.end

    def last(self) -> tuple[int, int] | None:
        """Return the log offset and crc32 of the last batch; None if there is none. Raises OSError."""
        with self._swap, reported(self.path), self._env.begin(db=self._batches, buffers=True) as txn:
            cursor = txn.cursor()
            if not cursor.last():
                return None
            at, value = KEY.unpack(cursor.key())[0], cursor.value()
            location = _location(value)
            return at, CRC.unpack_from(value)[0] if location is None else crc32(self._from_segment(location))

    def truncate(self, offset: int, keep: bool = False) -> bool:
        """Delete batches that end at or before ``offset``, a few thousand per call. Return True if there are more.

        ``keep``: keep some of the freed files as spare files. Raises OSError.
        """
        self._ready()
        with reported(self.path), self._env.begin(write=True, db=self._batches) as txn:
            cursor = txn.cursor()
            left = TRUNCATE_AT_ONCE
            if offset < self.end:  # it can be inside a batch, which is then retained
                if not _at_or_before(cursor, offset):
                    return False
                (offset,) = KEY.unpack(cursor.key())
            cursor.first()
            while left and cursor.key() and KEY.unpack(cursor.key())[0] < offset:
                cursor.delete()  # moves to the next entry; after the last one, the key is empty
                left -= 1
            rest = cursor.key()
            gone = self._forget_segments(txn, KEY.unpack(rest)[0] if rest else self.end)
            used = self._used(txn)
        self.used = used
        if gone or self._segments.spare:
            with self._swap:  # so that no reader uses a file that is being overwritten
                self._segments.release(gone, keep)
        return not left

    def rewind(self, at: int, kept: bytes) -> None:
        """Delete the batch at log offset ``at`` and all later ones, put ``kept`` in its place if it is not empty, and
        sync. Raises OSError."""
        end = at + len(kept)
        with reported(self.path), self._env.begin(write=True, db=self._batches) as txn:
            cursor = txn.cursor()
            cursor.set_range(KEY.pack(at))
            while cursor.key():
                cursor.delete()
            if kept:
                txn.put(KEY.pack(at), CRC.pack(crc32(kept)) + kept)
            for number, last in self._segments.ends.items():
                if last > end:
                    self._put_segment(txn, number, end)
            self._put_end(txn, end)
            used = self._used(txn)
        self.end, self.used = end, used

    def _forget_segments(self, txn: lmdb.Transaction, first: int) -> list[int]:
        """Remove the entries of segments whose batches all end at or before ``first``. Return their numbers."""
        gone = [number for number, end in self._segments.ends.items() if end <= first]
        for number in gone:
            txn.delete(NUMBER.pack(number), db=self._ends)
        return gone

    @property
    def spare(self) -> bool:
        return self._segments.spare

    def remove_spare(self) -> None:
        with self._swap:
            self._segments.release((), keep=False)

    def shrink(self, small: bool = False) -> bool:
        """Release space to the file system if most pages are free, as after a checkpoint. Return whether it did.

        A compact copy replaces the file by rename, so that a crash leaves one of them. The next start removes the rest
        of an incomplete copy. There is no copy if it would be large, because writers would wait for it, or if the file
        is small, unless ``small``. Raises OSError, CorruptError.
        """
        size, live = self.path.stat().st_size, self.used
        if (size < SHRINK_ABOVE and not small) or live * 4 > size or live > SHRINK_LIVE_AT_MOST:
            return False
        copy = self._shrunk
        try:
            with open(copy, "wb", opener=opener) as file, reported(self.path):
                self._env.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
            with self._swap:
                self._env.close()
                self._held.close()
                self._shut = True
                try:
                    copy.replace(self.path)
                    sync_directory(self.path.parent)
                finally:
                    self._open()  # if the system has no address space for the map now, _ready() tries again
                    self._shut = False
        finally:
            copy.unlink(missing_ok=True)
        return True

    def displaced(self) -> str | None:
        """Return OpenFile.displaced(). Any thread. Does not wait; returns None while the file is being replaced."""
        if not self._swap.acquire(blocking=False):
            return None
        try:
            return None if self._shut else self._held.displaced() or self._segments.displaced()
        finally:
            self._swap.release()

    def bytes_used(self) -> int:
        """Return the size on disk; 0 for files that cannot be accessed."""
        return disk_bytes(self.path) + self._segments.bytes_used()


def _location(value: bytes | memoryview) -> tuple[int, ...] | None:
    """Return the location of a batch in a segment (LOCATION); None if its records are in ``value``."""
    if len(value) != CRC.size + LOCATION.size or value[CRC.size]:
        return None
    return LOCATION.unpack_from(value, CRC.size)


def _is_whole(key: bytes, value: bytes) -> bool:
    """Return whether the checksum of a value in "segments" is correct."""
    return bool(crc32(value[: END.size], crc32(key)) == CRC.unpack_from(value, END.size)[0])


def _at_or_before(cursor: lmdb.Cursor, offset: int) -> bool:
    """Move the cursor to the last batch that begins at or before ``offset``. Return False if there is none."""
    key = KEY.pack(offset)
    if not cursor.set_range(key):
        return cursor.last()
    return bytes(cursor.key()) == key or cursor.prev()
