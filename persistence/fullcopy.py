"""A full copy of a leader's store: it is written next to the old data as it arrives, and then installed.

    incoming/         in progress; worthless until it is complete
    incoming.ready/   tail, journal/, store/, replication: complete, verified, on disk; and ``whole``, an empty file,
                      while none of them has been moved

Rule 1: until ``incoming`` is renamed to ``incoming.ready``, nothing has changed. From then on, incoming.ready is the
data, whatever else the directory contains: the next Log.open() first calls install().
Rule 2: install() removes the old parts, then ``whole``, then moves one part after another. It can stop at any point and
be repeated. While ``whole`` exists, no part may be missing. Afterwards, each part is either in one of the two
directories or lost. The start detects a lost part, since no old part can replace it. (Earlier versions had no ``whole``
and replaced each part.)
Rule 3: everything is verified. Each entry must have the correct crc and follow the previous one. Each node must open,
and begin at the end of the previous one, or later if entries were deleted. Each stream must have the stated nodes and
tombstones, and enough tombstones for the gaps between its nodes. The number of entries must be that of the leader.
Before ``incoming`` is renamed, it is opened and read in the same way as at a start, so that a copy that cannot be
opened replaces nothing.
Rule 4: a copy may refer to nodes of the old store (``ownnodes``). They are copied, so that the copy does not need the
old data, and verified like nodes that were received.
"""

from __future__ import annotations

import errno
import shutil
import struct
import threading
from pathlib import Path
from zlib import crc32

import lmdb

from persistence.checksums import COUNTED, StoreContent
from persistence.directory import size_of
from persistence.directory import sync as sync_directory
from persistence.history import NAME as HISTORY
from persistence.history import History
from persistence.journal import Journal
from persistence.layout import CODED, CRC, GROUP, I64, MARKS_KEY, NODE_KEY, STREAM, TIERED, U64, signed
from persistence.lmdbfile import open_env, reported
from persistence.ownnodes import OwnNodes
from persistence.permissions import FILE, FOLDER
from persistence.store import MAP_SIZE, Store
from persistence.storecopy import (
    DATABASES,
    ENTRY,
    GROUPS,
    LATE,
    MARKS,
    META,
    NODES,
    PRODUCERS,
    REUSED,
    STREAMS,
    Entry,
    UnknownDatabaseError,
    entries,
)  # fmt: skip
from persistence.wal import create as create_wal
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.model import tombstones
from storage.model.ids import MASK64
from storage.nodes import reference
from storage.nodes.cache import NodeCache
from storage.nodes.coded import check as check_rows
from storage.nodes.coded import is_coded
from storage.nodes.node import HEADER
from storage.nodes.packed import new_decompressor, open_packed
from storage.nodes.pool import NodePool
from storage.nodes.reference import is_reference
from storage.streams import metadata

HALF, READY, WHOLE = "incoming", "incoming.ready", "whole"
PARTS = ("tail", "journal", "store", HISTORY)
CONTENT = ("tail", "journal/data.mdb", "store/data.mdb", HISTORY)
WRITE_ABOVE = 16 << 20  # size of the pieces per transaction
# bytes of wire, far above the limit of commands; bounds the memory that a wrong size can require
LARGEST_NODE = 1 << 31
LONGEST_KEY = 511  # bytes; the limit of LMDB
LARGEST_CODED = 1025 + 3  # mean bytes of wire of a coded entry, and of its columns
SMALLEST_ENTRY = 8  # minimum bytes of wire of an entry before it was deleted
RATIO = 1 << 17, 4  # the maximum ratio of zstd: a block of one repeated byte


class Incoming:
    """A copy in progress. Any thread may use it, one at a time. A log may be open on the directory."""

    def __init__(self, directory: Path, ring_bytes: int, own: OwnNodes | None = None) -> None:
        """Remove any other copy and begin a new one.

        ``ring_bytes``: the size of the new WAL. ``own``: the nodes that were reported to the leader. Raises OSError.
        """
        self.entries = 0
        self.bytes = 0  # size of the pieces
        self.reused = 0  # bytes of the nodes from ``own``
        self._own = own
        self._directory = directory
        self._ring_bytes = ring_bytes
        self._path = directory / HALF
        self._ready = False
        self._deciding = threading.Lock()  # serializes finish() and revoke()
        self._revoked = False
        self._collected: list[Entry] = []
        self._collected_bytes = 0
        self._last = (-1, b"")  # database and key of the previous entry
        self._offset: int | None = None  # the log offset in the store
        # Nodes whose stream has not arrived yet: sid -> their number, the sum of the crc32's of their keys, the first
        # ordinal, the end, and the number of ordinals between nodes.
        self._nodes: dict[int, tuple[int, int, int, int, int]] = {}
        self._tombstones: dict[int, int] = {}  # sid -> number of tombstones that have not arrived yet
        self._late = False  # there are entries that earlier versions cannot read (see ``layout``)
        self._coded = False  # the store states that it has coded nodes
        self._tiered = False  # ... and references
        self._content = StoreContent()
        self._decompressor = new_decompressor()
        self._env: lmdb.Environment | None = None
        _discard(directory)
        self._path.mkdir(FOLDER)
        try:
            store = self._path / "store"
            store.mkdir(FOLDER)
            self._data = store / "data.mdb"
            self._env, _ = open_env(store, MAP_SIZE, len(DATABASES), sync=False)
            with reported(self._data):
                self._databases = [self._env.open_db(name) for name in DATABASES if name not in LATE]
        except BaseException:
            self.abandon()
            raise

    def add(self, payload: bytes) -> None:
        """Add a piece. Raises CorruptError if it is invalid, OSError."""
        self.bytes += len(payload)
        for db, key, value in entries(payload):
            if db == REUSED:
                for node, blob in self._reused(key, value):
                    self.reused += len(node) + len(blob)
                    self._collect(NODES, node, blob)
            else:
                self._collect(db, key, value)

    def _reused(self, first: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
        """Return the nodes to which the leader refers. Raises CorruptError if this server does not have them."""
        if self._own is None:
            raise _wrong("a reference to nodes that were not reported")
        return self._own.take(first, value[: NODE_KEY.size], value[NODE_KEY.size :])

    def _collect(self, db: int, key: bytes, value: bytes) -> None:
        self._check(db, key, value)
        self._collected.append((db, key, value))
        self._collected_bytes += ENTRY.size + len(key) + len(value)
        if self._collected_bytes >= WRITE_ABOVE:
            self._write()

    def _check(self, db: int, key: bytes, value: bytes) -> None:
        """Verify an entry (Rule 3). Raises CorruptError."""
        if (db, key) <= self._last:
            raise _wrong("entries out of order")
        if not 0 < len(key) <= LONGEST_KEY:
            raise _wrong("a key that LMDB does not take")
        self._last = db, key
        self.entries += 1
        try:
            if db == NODES:
                sound = self._check_node(key, value)
            else:
                (crc,) = CRC.unpack_from(value)
                sound = crc == crc32(memoryview(value)[CRC.size :], crc32(key))
                if db in COUNTED:
                    self._content.add(db, crc)
                sound = sound and self._check_kind(db, key, value)
        except (struct.error, ValueError) as error:
            raise _wrong(f"the entry {key!r} has the wrong size") from error
        except UnknownDatabaseError:
            raise
        except CorruptError as error:
            raise _wrong(f"at the entry {key!r}: {error}") from error
        if not sound:
            raise _wrong(f"the entry {key!r} is damaged")

    def _check_kind(self, db: int, key: bytes, value: bytes) -> bool:
        """Verify an entry that is not a node, depending on its database."""
        if db == META and key == b"offset":
            (self._offset,) = U64.unpack_from(value, CRC.size)
        elif db == META and key == b"nodes":
            (version,) = U64.unpack_from(value, CRC.size)
            if version > TIERED:
                raise UnknownDatabaseError(
                    f"a copy with nodes of version {version}, which this tidelog does not know: the leader is newer"
                )
            self._coded = version >= CODED
            self._tiered = version >= TIERED
        elif db == META and key == b"away":
            I64.unpack_from(value, CRC.size)
        elif db == STREAMS:
            return self._check_stream(key, value)
        elif db == GROUPS:
            self._late = self._late or _group_meta(value)[:1] == b"\2"
        elif db == MARKS:
            return self._check_tombstones(key, value)
        elif db == PRODUCERS:
            self._late = True
        return True

    def _check_node(self, key: bytes, blob: bytes) -> bool:
        if is_reference(blob):
            if not self._tiered:
                raise CorruptError("a reference to history in a store without references")
            found = reference.unpack(blob)
            return self._add_node(key, found.entries, found.first_id)
        _, _, how, claimed, size, _, _ = HEADER.unpack_from(blob)
        most = (len(blob) // RATIO[1] + 1) * RATIO[0]
        if is_coded(blob):
            how, most = 0, claimed * LARGEST_CODED  # equal entries take no bits, so that the ratio is unbounded
            if not self._coded:
                raise CorruptError("a coded node in a store without coded nodes")
        columns = (claimed << (how >> 1 & 3)) + (claimed << (how >> 3 & 3)) + (claimed << (how >> 5 & 3))
        if size > LARGEST_NODE or claimed > LARGEST_NODE // SMALLEST_ENTRY or columns + size > most:
            raise CorruptError("a node with an impossible size")
        node = open_packed(blob, self._decompressor)
        if is_coded(blob):
            check_rows(blob)
        return self._add_node(key, len(node), node.first_id)

    def _add_node(self, key: bytes, entries: int, its_first_id: int) -> bool:
        sid, first, first_id = NODE_KEY.unpack(key)
        count, total, start, end, holes = self._nodes.get(sid, (0, 0, first, first, 0))
        self._nodes[sid] = count + 1, total + crc32(key), start, first + entries, holes + first - end
        return first >= end and its_first_id == int.from_bytes(first_id, "big")

    def _check_stream(self, key: bytes, value: bytes) -> bool:
        (sid,) = U64.unpack(key)
        _, claimed, claimed_total, length = STREAM.unpack_from(value, CRC.size)
        raw = value[CRC.size + STREAM.size + length :]
        meta = metadata.unpack(sid, raw)
        everything = meta.next_ord
        count, total, start, end, holes = self._nodes.pop(sid, (0, 0, everything, everything, 0))
        holes += everything - end
        if meta.tombstones:
            self._tombstones[sid] = meta.tombstones
            known = meta.tombstones + max(0, meta.first_ord - start)  # evicted entries need no tombstones
            sound = everything >= end and holes + max(0, start - meta.first_ord) <= known
        else:
            sound = everything == end and not holes
        self._late = self._late or metadata.plain(raw)[:1] == b"\2"
        return sound and (claimed, claimed_total) == (count, total & MASK64)

    def _check_tombstones(self, key: bytes, value: bytes) -> bool:
        sid, _ = MARKS_KEY.unpack(key)
        left = self._tombstones.get(sid, 0) - tombstones.check(value[CRC.size :])
        self._tombstones[sid] = left
        self._late = True
        return left >= 0

    def _write(self) -> None:
        collected, self._collected, self._collected_bytes = self._collected, [], 0
        if not collected:
            return
        assert self._env is not None, "abandoned"  # noqa: S101 - a bug of the caller
        with reported(self._data), self._env.begin(write=True) as txn:
            if self._late and len(self._databases) < len(DATABASES):
                self._databases += [self._env.open_db(name, txn=txn) for name in LATE]
            put, databases = txn.put, self._databases
            for db, key, value in collected:
                put(key, value, db=databases[db], append=True)

    def _write_content(self, offset: int) -> None:
        """Write the counts and sums, see ``checksums``. Raises lmdb.Error."""
        assert self._env is not None, "abandoned"  # noqa: S101 - a bug of the caller
        with self._env.begin(write=True, db=self._databases[META]) as txn:
            txn.put(b"content", signed(b"content", self._content.pack(offset, txn.id())))

    def finish(self, offset: int, entries: int, history: History) -> None:
        """Complete the copy of ``entries`` entries as of log offset ``offset``. The next Log.open() installs it.

        Raises CorruptError, OSError; nothing has changed in that case.
        """
        self._write()
        if self.entries != entries:
            raise _wrong(f"{self.entries} entries instead of {entries}")
        if self.entries and self._offset is None:
            raise _wrong("its log offset is missing")
        if (self._offset or 0) != offset:
            raise _wrong(f"as of log offset {self._offset or 0} instead of {offset}")
        self._check_complete()
        assert self._env is not None, "abandoned"  # noqa: S101 - a bug of the caller
        with reported(self._data):
            if self.entries:
                self._write_content(offset)
            self._env.sync(True)
        self._env.close()
        self._env = None
        journal = Journal(self._path / "journal")
        try:
            journal.start(offset)
        finally:
            journal.close()
        create_wal(self._path / "tail", self._ring_bytes, (offset, offset))
        history.save(self._path, leads=False)
        self._read_back()
        (self._path / WHOLE).touch(FILE)
        for folder in (self._path / "store", self._path / "journal", self._path, self._directory):
            sync_directory(folder)
        with self._deciding:
            if self._revoked:
                raise OSError(errno.ECANCELED, "the copy was revoked")
            self._ready = True
            try:
                self._path.rename(self._directory / READY)
                sync_directory(self._directory)
            except OSError:
                self.abandon()
                raise

    def _check_complete(self) -> None:
        """Check the completeness of all streams. Raises CorruptError if one is missing or incomplete."""
        if self._nodes:
            raise _wrong(f"nodes of the missing stream {min(self._nodes)}")
        if any(self._tombstones.values()):
            sid = min(sid for sid, left in self._tombstones.items() if left)
            raise _wrong(f"the list of deleted entries of stream {sid} is incomplete")

    def _read_back(self) -> None:
        """Read the copy in the same way as a start. Raises CorruptError, OSError."""
        try:
            History.load(self._path, "")
            store = Store(self._path / "store")
            try:
                store.restore(Keyspace(NodePool(store, NodeCache(0))))
            finally:
                store.close()
        except CorruptError as error:
            raise _wrong(str(error).replace(f": {REMEDY}", "")) from error

    def revoke(self) -> None:
        """Ensure that the copy will not be installed, even if it is complete. Any thread. Call abandon() afterwards.

        The old data may then change again. Raises OSError.
        """
        with self._deciding:
            self._revoked = True
            if self._ready and (self._directory / READY).exists():
                (self._directory / READY).rename(self._path)
                sync_directory(self._directory)

    def abandon(self) -> None:
        """Remove the copy, even a complete one, unless the directory has been opened since."""
        self._collected, self._collected_bytes = [], 0
        if self._env is not None:
            self._env.close()
            self._env = None
        ready = self._directory / READY
        if self._ready and ready.exists():
            _discard(self._directory)
        else:
            shutil.rmtree(self._path, ignore_errors=True)


def install(directory: Path) -> bool:
    """Replace the old data with a complete copy, or remove an incomplete one. Return whether there was a complete one.

    No file of the directory may be open. Raises CorruptError if a part of the copy is missing, and OSError; it can then
    be called again.
    """
    if (directory / HALF).exists():
        shutil.rmtree(directory / HALF)
    ready = directory / READY
    if not ready.exists():
        return False
    if (ready / WHOLE).exists():
        missing = [name for name in CONTENT if not size_of(ready / name)]
        if missing:
            raise CorruptError(
                f"{ready}: {', '.join(missing)} missing or empty: {REMEDY}; or remove {READY}, to continue with"
                " the data from before the copy"
            )
        for name in PARTS:
            _remove(directory / name)
        sync_directory(directory)
        (ready / WHOLE).unlink()
        sync_directory(ready)
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
    """Remove both directories. incoming.ready is renamed first, so that it never lacks parts. Raises OSError."""
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


def _group_meta(value: bytes) -> bytes:
    """Return the metadata of a group from its entry."""
    name_len, meta_len = GROUP.unpack_from(value, CRC.size)
    at = CRC.size + GROUP.size + name_len
    return value[at : at + meta_len]


def _wrong(what: str) -> CorruptError:
    return CorruptError(f"the copy of the leader's store is damaged: {what}")
