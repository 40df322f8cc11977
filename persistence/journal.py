"""The journal: every batch since the last checkpoint (and what replicas may still ask for), in LMDB.

    db "log"    log offset u64 big-endian  ->  crc32 of the records u32 | the records of one batch
    db "meta"   b"end"                     ->  log offset behind the last batch u64 | crc32 of these 8 bytes u32

Values little-endian. Keys are contiguous: each is the one before plus the length of its batch; a gap is damage. Every
commit is synced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb

from persistence.directory import sync as sync_directory
from persistence.lmdbfile import REMEDY, open_env, reported
from persistence.tail import Frame
from resp.errors import CorruptError

KEY = Struct(">Q")
CRC = Struct("<I")
END = Struct("<Q")
MAP_SIZE = 1 << 38  # address space; the file grows as it is written
SHRINK_ABOVE = 16 << 20  # bytes; a smaller file is left alone
CUT_AT_ONCE = 4_000  # batches deleted in one transaction: some ms, for which the journal's thread waits


class Journal:
    """One thread writes at a time; each call is one transaction. ``end`` is the log offset behind the last batch."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(exist_ok=True)
        self.path = directory / "data.mdb"
        self._open()

    def _open(self) -> None:
        self._env, _ = open_env(self.path.parent, MAP_SIZE, 2)
        try:
            with reported(self.path):
                self._log = self._env.open_db(b"log")
                self._meta = self._env.open_db(b"meta")
                with self._env.begin(db=self._meta) as txn:
                    self.end = self._end(txn)
                    if not self.end and txn.stat(self._log)["entries"]:
                        raise CorruptError(f"{self.path}: holds batches, but not where they end: {REMEDY}")
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

    def close(self) -> None:
        self._env.close()

    def write(self, batches: Sequence[Frame]) -> None:
        """Append batches, synced when this returns. Raises OSError, CorruptError."""
        with reported(self.path), self._env.begin(write=True) as txn:
            # Not self.end: a commit that was reported as failed may have happened all the same.
            end = self._end(txn)
            put, pack, log = txn.put, KEY.pack, self._log
            for offset, batch, _, crc in batches:
                if offset < end:
                    continue
                if offset != end:
                    raise CorruptError(f"{self.path}: ends at log offset {end}, the next batch is at {offset}: restart")
                put(pack(offset), CRC.pack(crc) + batch, db=log, append=True)
                end = offset + len(batch)
            raw = END.pack(end)
            txn.put(b"end", raw + CRC.pack(crc32(raw)), db=self._meta)
        self.end = end

    def read(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Batches from the one that begins at ``offset`` on, up to the end. Raises CorruptError, OSError."""
        with reported(self.path), self._env.begin(db=self._log) as txn:
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
                    batch = value[CRC.size :]
                    if not batch or crc32(batch) != CRC.unpack_from(value)[0]:
                        raise CorruptError(f"{self.path}: the batch at log offset {at} is damaged: {REMEDY}")
                    yield at, batch
                    expected = at + len(batch)
            if expected != end:
                raise CorruptError(f"{self.path}: ends at log offset {expected} instead of {end}: {REMEDY}")

    def first(self) -> int:
        """Log offset of the oldest batch; the end if there is none. Raises OSError."""
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
        return not left

    def shrink(self) -> bool:
        """Give room back to the file system if most of the file is free pages, as after a checkpoint; True if it did.

        The copy takes the file's place by rename: a crash leaves the one or the other. Raises OSError, CorruptError.
        """
        size = self.path.stat().st_size
        with reported(self.path), self._env.begin() as txn:
            used = txn.stat(self._log)
            live = (used["branch_pages"] + used["leaf_pages"] + used["overflow_pages"]) * used["psize"]
        if size < SHRINK_ABOVE or live * 4 > size:
            return False
        copy = self.path.parent / "shrunk"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        try:
            with reported(self.path):
                self._env.copy(str(copy), compact=True)
            with (copy / "data.mdb").open("rb") as file:
                os.fsync(file.fileno())
            self._env.close()
            try:
                (copy / "data.mdb").replace(self.path)
                sync_directory(self.path.parent)
            finally:
                self._open()
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return True

    def bytes_used(self) -> int:
        """Bytes on disk. Raises OSError."""
        return self.path.stat().st_blocks * 512
