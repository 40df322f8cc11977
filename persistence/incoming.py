"""A full copy of a leader's store on its way in, and how it takes the place of what was there.

    incoming/         being written; worth nothing until it is complete
    incoming.ready/   tail, journal/, store/, replication: complete, checked, on disk

Rule 1: until ``incoming`` is renamed to ``incoming.ready`` nothing has changed; from then on the directory is the new
one, whatever lies in it: whoever opens it next calls install() first.
Rule 2: install() moves part after part. A part that is still in incoming.ready has not been moved, one that isn't has:
so it may break off anywhere and be run again.
Rule 3: nothing is taken on trust. Each entry must carry its crc and follow the one before, each stream must have the
nodes that it claims, and all together must be as many as were sent."""

from __future__ import annotations

import errno
import shutil
import struct
import threading
from pathlib import Path
from zlib import crc32

import lmdb

from persistence.directory import sync as sync_directory
from persistence.history import NAME as HISTORY
from persistence.history import History
from persistence.journal import Journal
from persistence.lmdbfile import open_env, reported
from persistence.pieces import DATABASES, META, NODES, STREAMS, Entry, entries
from persistence.store import CRC, MAP_SIZE, NODE_KEY, STREAM, U64
from persistence.wal import create as create_tail
from resp.errors import CorruptError
from storage.ids import MASK64
from storage.nodes.node import BODY, HEADER
from storage.nodes.node import CRC as NODE_CRC

HALF, READY = "incoming", "incoming.ready"
PARTS = ("tail", "journal", "store", HISTORY)
WRITE_ABOVE = 16 << 20  # bytes that are gathered for one transaction


class Incoming:
    """A copy that arrives; used by one thread at a time, any. A log may be open on the directory."""

    def __init__(self, directory: Path, ring_bytes: int) -> None:
        """``ring_bytes``: of the new tail. Raises OSError."""
        self.entries = 0
        self.bytes = 0  # of pieces
        self._directory = directory
        self._ring_bytes = ring_bytes
        self._path = directory / HALF
        self._ready = False
        self._deciding = threading.Lock()  # between finish() and revoke()
        self._revoked = False
        self._gathered: list[Entry] = []
        self._gathered_bytes = 0
        self._last = (-1, b"")  # database and key of the entry before
        self._offset: int | None = None  # what the store says of itself
        self._nodes: dict[int, tuple[int, int]] = {}  # sid -> nodes, sum of the crc32's of their keys: not claimed yet
        self._env: lmdb.Environment | None = None
        _discard(directory)
        self._path.mkdir()
        try:
            store = self._path / "store"
            store.mkdir()
            self._data = store / "data.mdb"
            self._env, _ = open_env(store, MAP_SIZE, len(DATABASES), sync=False)
            with reported(self._data):
                self._databases = [self._env.open_db(name) for name in DATABASES]
        except BaseException:
            self.abandon()
            raise

    def add(self, payload: bytes) -> None:
        """Take a piece. Raises CorruptError if it can't be part of a store, OSError."""
        for entry in entries(payload):
            self._check(*entry)
            self._gathered.append(entry)
        self.bytes += len(payload)
        self._gathered_bytes += len(payload)
        if self._gathered_bytes >= WRITE_ABOVE:
            self._write()

    def _check(self, db: int, key: bytes, value: bytes) -> None:
        """Rule 3."""
        if (db, key) <= self._last:
            raise _wrong("entries out of order")
        self._last = db, key
        self.entries += 1
        try:
            if db == NODES:
                (crc,) = NODE_CRC.unpack_from(value, HEADER.size)
                sound = crc == crc32(memoryview(value)[BODY:], crc32(value[: HEADER.size]))
                sid = NODE_KEY.unpack(key)[0]
                count, total = self._nodes.get(sid, (0, 0))
                self._nodes[sid] = count + 1, total + crc32(key)
            else:
                sound = CRC.unpack_from(value)[0] == crc32(memoryview(value)[CRC.size :], crc32(key))
                if db == META and key == b"offset":
                    (self._offset,) = U64.unpack_from(value, CRC.size)
                elif db == STREAMS:
                    (sid,) = U64.unpack(key)
                    _, claimed, claimed_total, _ = STREAM.unpack_from(value, CRC.size)
                    count, total = self._nodes.pop(sid, (0, 0))
                    sound = sound and (claimed, claimed_total) == (count, total & MASK64)
        except struct.error as error:
            raise _wrong(f"the entry {key!r} has the wrong size") from error
        if not sound:
            raise _wrong(f"the entry {key!r} is damaged")

    def _write(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not gathered:
            return
        assert self._env is not None, "abandoned"  # noqa: S101 - a bug of the caller
        with reported(self._data), self._env.begin(write=True) as txn:
            put, databases = txn.put, self._databases
            for db, key, value in gathered:
                put(key, value, db=databases[db], append=True)

    def finish(self, offset: int, entries: int, history: History) -> None:
        """All has been added: ``entries`` in number, the store as of log offset ``offset``. The next start is with it.

        Raises CorruptError, OSError: then nothing has changed.
        """
        self._write()
        if self.entries != entries:
            raise _wrong(f"{self.entries} entries instead of {entries}")
        if self.entries and self._offset is None:
            raise _wrong("its log offset is missing")
        if (self._offset or 0) != offset:
            raise _wrong(f"as of log offset {self._offset or 0} instead of {offset}")
        if self._nodes:
            raise _wrong(f"nodes of stream {min(self._nodes)}, which isn't there")
        assert self._env is not None, "abandoned"  # noqa: S101 - a bug of the caller
        with reported(self._data):
            self._env.sync(True)
        self._env.close()
        self._env = None
        journal = Journal(self._path / "journal")
        try:
            journal.start(offset)
        finally:
            journal.close()
        create_tail(self._path / "tail", self._ring_bytes)
        history.save(self._path, leads=False)
        for place in (self._path / "store", self._path / "journal", self._path, self._directory):
            sync_directory(place)
        with self._deciding:
            if self._revoked:
                raise OSError(errno.ECANCELED, "the copy is not wanted any more")
            self._ready = True
            try:
                self._path.rename(self._directory / READY)
                sync_directory(self._directory)
            except OSError:
                self.abandon()
                raise

    def revoke(self) -> None:
        """It must not take the place of anything from now on, however far it is; from any thread. abandon() follows.

        The old data may change as soon as this returns. Raises OSError.
        """
        with self._deciding:
            self._revoked = True
            if self._ready and (self._directory / READY).exists():
                (self._directory / READY).rename(self._path)
                sync_directory(self._directory)

    def abandon(self) -> None:
        """Forget it, also when it was finished, as long as nobody has opened the directory since."""
        self._gathered, self._gathered_bytes = [], 0
        if self._env is not None:
            self._env.close()
            self._env = None
        ready = self._directory / READY
        if self._ready and ready.exists():
            _discard(self._directory)
        else:
            shutil.rmtree(self._path, ignore_errors=True)


def install(directory: Path) -> bool:
    """Let a complete copy take its place, and remove what is left of an incomplete one; True if there was one.

    Nothing may be open in the directory. Raises OSError: it can be done again.
    """
    if (directory / HALF).exists():
        shutil.rmtree(directory / HALF)
    ready = directory / READY
    if not ready.exists():
        return False
    for name in PARTS:
        if (ready / name).exists():
            _remove(directory / name)
            sync_directory(directory)
            (ready / name).rename(directory / name)
            sync_directory(directory)
            sync_directory(ready)
    shutil.rmtree(ready)
    sync_directory(directory)
    return True


def _discard(directory: Path) -> None:
    """Remove both, no half of incoming.ready ever being seen under that name. Raises OSError."""
    half, ready = directory / HALF, directory / READY
    if half.exists():
        shutil.rmtree(half)
    if ready.exists():
        ready.rename(half)
        sync_directory(directory)
        shutil.rmtree(half)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def _wrong(what: str) -> CorruptError:
    return CorruptError(f"the copy of the leader's store is damaged: {what}")
