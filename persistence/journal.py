"""The journal: every batch since the last checkpoint (and what replicas may still ask for), in LMDB.

    db "log"    log offset u64 big-endian  ->  crc32 of the batch u32 little-endian | the records of one batch
    db "meta"   b"end"                     ->  log offset behind the last batch u64 | place in the tail of what follows u64 (little-endian)

Keys are contiguous: each is the one before plus the length of its batch. A gap is damage. Every commit is synced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from zlib import crc32

from persistence.lmdbfile import REMEDY, fit, open_env, reported
from resp.errors import CorruptError

KEY = Struct(">Q")
CRC = Struct("<I")
END = Struct("<QQ")
MAP_SIZE = 1 << 38  # address space; the file grows as it is written
CUT_AT_ONCE = 20_000  # batches deleted in one transaction

Batch = tuple[int, bytes, int]  # log offset, records, place in the tail behind its frame


class Journal:
    """One thread writes; each call is one transaction."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(exist_ok=True)
        self.path = directory / "data.mdb"
        self._env = open_env(directory, MAP_SIZE, 2)
        with reported(self.path):
            self._log = self._env.open_db(b"log")
            self._meta = self._env.open_db(b"meta")
            with self._env.begin(db=self._meta) as txn:
                raw = txn.get(b"end")
        fit(self._env, self.path)
        if raw is not None and len(raw) != END.size:
            raise CorruptError(f"{self.path}: its end is unreadable: {REMEDY}")
        self.end, self.tail_place = END.unpack(raw) if raw is not None else (0, 0)

    def close(self) -> None:
        self._env.close()

    def write(self, batches: Sequence[Batch], tail_place: int) -> None:
        """Append batches, synced when this returns; ``tail_place`` is where the tail's next frame begins. Raises OSError."""
        end = self.end
        with reported(self.path), self._env.begin(write=True) as txn:
            for offset, batch, _ in batches:
                assert offset == end, "batches are contiguous"
                txn.put(KEY.pack(offset), CRC.pack(crc32(batch)) + batch, db=self._log, append=True)
                end = offset + len(batch)
            txn.put(b"end", END.pack(end, tail_place), db=self._meta)
        fit(self._env, self.path)
        self.end, self.tail_place = end, tail_place

    def read(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Batches from the one that begins at ``offset`` on, up to the end. Raises CorruptError."""
        with reported(self.path), self._env.begin(db=self._log, buffers=False) as txn:
            cursor = txn.cursor()
            expected = offset
            if cursor.set_range(KEY.pack(offset)):
                for key, value in cursor:
                    at = KEY.unpack(key)[0] if len(key) == KEY.size else -1
                    if at != expected:
                        raise CorruptError(
                            f"{self.path}: the batch at log offset {expected} is missing (next: {at}): {REMEDY}"
                        )
                    if len(value) <= CRC.size or crc32(value[CRC.size :]) != CRC.unpack_from(value)[0]:
                        raise CorruptError(f"{self.path}: the batch at log offset {at} is damaged: {REMEDY}")
                    yield at, value[CRC.size :]
                    expected = at + len(value) - CRC.size
            if expected != self.end and offset < self.end:
                raise CorruptError(
                    f"{self.path}: ends at log offset {expected} instead of {self.end}: {REMEDY}"
                )

    def first(self) -> int:
        """Log offset of the oldest batch; the end if there is none."""
        with reported(self.path), self._env.begin(db=self._log) as txn:
            cursor = txn.cursor()
            return int(KEY.unpack(cursor.key())[0]) if cursor.first() else self.end

    def cut(self, offset: int) -> bool:
        """Forget batches before ``offset``, some thousands at once; True if there is more to forget. Raises OSError."""
        with reported(self.path), self._env.begin(write=True, db=self._log) as txn:
            cursor = txn.cursor()
            left = CUT_AT_ONCE
            cursor.first()
            while left and cursor.key() and KEY.unpack(cursor.key())[0] < offset:
                cursor.delete()  # and on to the next; the key is empty behind the last
                left -= 1
            more = not left
        fit(self._env, self.path)
        return more

    def bytes_used(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_blocks * 512


