"""The store: the state as of the last checkpoint, in LMDB. This module opens and reads it. See ``layout`` for its
entries and ``checkpoint`` for their changes.

Rule 1: a start reads every entry, but only the keys of nodes. It verifies the crc of each entry, and the counts and
sums of each database (``checksums``).
Rule 2: reads use a view, which does not change until it is renewed. A checkpoint never affects them.
"""

from __future__ import annotations

import errno
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb

from persistence.checkpoint import Checkpoint, is_plain
from persistence.checksums import COUNTED, StoreContent
from persistence.fileidentity import OpenFile, disk_bytes
from persistence.layout import (
    CODED,
    CRC,
    GROUP,
    I64,
    MARKS_KEY,
    META_KEYS,
    NODE_KEY,
    PIECE,
    PRODUCER,
    STAGE,
    STAGE_KEY,
    STREAM,
    STRING,
    U64,
    short,
    signed,
    unpack_fence,
)  # fmt: skip
from persistence.lmdbfile import open_env, reported, translated
from persistence.overflowpages import OverflowPages
from persistence.ownnodes import OwnNodes
from persistence.permissions import FOLDER
from persistence.storecopy import (
    DATABASES,
    FENCES,
    GROUPS,
    LATE,
    MARKS,
    META,
    PRODUCERS,
    STAGES,
    STREAMS,
    STRINGS,
    StoreCopy,
    StoreSnapshot,
    format_of,
)
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import DAMAGE
from storage.model.ids import MASK64
from storage.model.records import unpack_sizes
from storage.nodes.coded import is_coded
from storage.nodes.node import new_compressor
from storage.nodes.pool import NodeStore
from storage.streams.capture import Capture
from storage.streams.stages import Stage
from storage.streams.stream import Stream

NEWER = (b"stages", b"fences", *LATE)  # databases that a store may lack
MAP_SIZE = 1 << 40  # 1 TiB of address space; the file grows only when it is written


class View:
    """One LMDB read transaction: the store as of a checkpoint. For the event loop only."""

    __slots__ = ("_store", "get", "pins", "txn")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pins = 0
        with reported(store.path):
            self.txn = store.env.begin(db=store.nodes)
        self.get = self.txn.get

    def end(self) -> None:
        try:
            self.txn.abort()
        except lmdb.Error:
            pass  # the environment was closed together with the transaction


class Pinned:
    """A NodeStore that reads one view until release()."""

    __slots__ = ("_store", "_view")

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self._view: View | None = view
        view.pins += 1

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        assert self._view is not None, "released"  # noqa: S101 - a bug of the caller
        return self._store.load_from(self._view, sid, first_ord, first_id)

    def pin(self) -> NodeStore:
        assert self._view is not None, "released"  # noqa: S101 - a bug of the caller
        return Pinned(self._store, self._view)

    def is_current(self) -> bool:
        return self._view is self._store.view

    def release(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.pins -= 1
            self._store.unpinned(view)


class Store:
    """Reads use the current view, on the event loop; checkpoints run in one other thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(FOLDER, exist_ok=True)
        self._compressor = new_compressor()  # for write() only
        self._copies: list[StoreSnapshot] = []  # copies that may still be open
        # Held while databases are created, and while a copy begins, whose list of databases must match its transaction.
        self._creating = threading.Lock()
        self._in_use = threading.Lock()  # see reading()
        self._closed = False
        self.path = directory / "data.mdb"
        # The keys of all nodes; None after a checkpoint may have changed them.
        self._keys: bytes | None
        self.env, self._keys = open_env(
            directory, MAP_SIZE, len(DATABASES), b"nodes", NODE_KEY.size, known=DATABASES, newer=NEWER
        )
        try:
            self._held = OpenFile(self.path)
            with reported(self.path):
                self._databases = [self.env.open_db(name) for name in DATABASES if name not in LATE]
                with self.env.begin() as txn:
                    names = set(map(bytes, txn.cursor().iternext(keys=True, values=False)))
                if names.intersection(LATE):
                    if not names.issuperset(LATE):
                        raise CorruptError(f"{self.path}: one of its databases is missing: {REMEDY}")
                    self._databases += [self.env.open_db(name) for name in LATE]
                self.meta, self.nodes = self._databases[:2]
                with self.env.begin(db=self.meta) as txn:
                    self.offset = self._read_meta(txn)
                    self._nodes = self._node_version(txn)
                    self._shifted = self._number(txn, b"away", I64) is not None
            self.view = View(self)
        except BaseException:
            self.env.close()
            raise

    def _make_late(self) -> None:
        """Create the late databases if they do not exist, in a separate transaction. Raises lmdb.Error.

        No reader can then see entries in databases that it does not know.
        """
        with self._creating:
            if len(self._databases) < len(DATABASES):
                with self.env.begin(write=True) as txn:
                    content = self._content(txn)
                    made = [self.env.open_db(name, txn=txn) for name in LATE]
                    if content is not None:  # valid only for the last transaction, which is this one
                        packed = content.pack(self._number(txn, b"offset") or 0, txn.id())
                        txn.put(b"content", signed(b"content", packed), db=self.meta)
                self._databases = [*self._databases, *made]

    @property
    def plain(self) -> bool:
        """Whether the store has no late databases. Any thread."""
        return len(self._databases) < len(DATABASES)

    @property
    def format(self) -> int:
        """The format that a server must know to read the store (see ``storecopy``). Any thread."""
        return format_of(self._nodes, self.plain, self._shifted)

    def _node_version(self, txn: lmdb.Transaction) -> int:
        """Return the highest version of a node in the store. Raises CorruptError if it is unknown."""
        version = self._number(txn, b"nodes") or 1
        if version > CODED:
            raise CorruptError(f"{self.path}: it has nodes of version {version}: start the newer tidelog")
        return version

    def _read_meta(self, txn: lmdb.Transaction) -> int:
        """Return the log offset of the store. Raises CorruptError if the database "meta" is invalid."""
        for name in map(bytes, txn.cursor(db=self.meta).iternext(keys=True, values=False)):
            if name not in META_KEYS:
                raise CorruptError(f"{self.path}: damaged, or of a newer tidelog: it says {name!r} of itself: {REMEDY}")
        offset = self._number(txn, b"offset")
        if offset is None and any(txn.stat(db)["entries"] for db in self._databases[1:]):
            raise CorruptError(f"{self.path}: its log offset is missing: {REMEDY}")
        if self._content(txn) is not None and self._number(txn, b"next_sid") is None:
            raise CorruptError(f"{self.path}: its next_sid is missing: {REMEDY}")
        return offset or 0

    def _content(self, txn: lmdb.Transaction) -> StoreContent | None:
        """Return the recorded counts and sums; None if none are valid. Raises CorruptError if they are damaged."""
        raw = bytes(txn.get(b"content", db=self.meta) or b"")
        if not raw:
            return None
        try:
            content, offset, transaction = StoreContent.unpack(raw[CRC.size :])
        except struct.error:
            content = None
        if content is None or raw != signed(b"content", raw[CRC.size :]):
            raise CorruptError(f"{self.path}: its content is damaged: {REMEDY}")
        holds = offset == self._number(txn, b"offset") and transaction >= self.env.info()["last_txnid"]
        return content if holds else None

    def _number(self, txn: lmdb.Transaction, name: bytes, form: Struct = U64) -> int | None:
        raw = bytes(txn.get(name, db=self.meta) or b"")
        if not raw:
            return None
        if len(raw) != CRC.size + form.size or raw != signed(name, raw[CRC.size :]):
            raise CorruptError(f"{self.path}: its {name.decode()} is damaged: {REMEDY}")
        return int(form.unpack_from(raw, CRC.size)[0])

    # -- NodeStore -------------------------------------------------------------------------------------------
    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return a node's unchecked blob. Raises CorruptError if it is missing, OSError."""
        return self.load_from(self.view, sid, first_ord, first_id)

    def load_from(self, view: View, sid: int, first_ord: int, first_id: int) -> bytes:
        try:
            blob = view.get(NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big")))
        except lmdb.Error as error:
            raise translated(self.path, error) from error
        if blob is None:
            raise CorruptError(f"{self.path}: node {first_ord} of stream {sid} is missing: {REMEDY}")
        return blob

    def pin(self) -> NodeStore:
        return Pinned(self, self.view)

    def is_current(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing: the store itself is never pinned."""

    def unpinned(self, view: View) -> None:
        if not view.pins and view is not self.view:
            view.end()

    def renew_view(self) -> None:
        """Make the latest checkpoint visible to new reads, but not to pinned views.

        Raises OSError; nothing changes then.
        """
        old, self.view = self.view, View(self)
        if not old.pins:
            old.end()

    def copy(self) -> StoreCopy:
        """Return a copy of the current store, for a replica. Until it is closed, LMDB does not reuse its pages.

        Any thread. Raises OSError, CorruptError.
        """
        with reported(self.path):
            with self._creating:
                txn, databases = self.env.begin(), self._databases
            try:
                # Not self.offset: a checkpoint may have ended after the transaction began.
                copy = StoreCopy(
                    self.path, txn, databases, self._number(txn, b"offset") or 0, self._node_version(txn),
                    self._number(txn, b"away", I64) is not None,
                )  # fmt: skip
            except BaseException:
                txn.abort()
                raise
        self._keep(copy)
        return copy

    @property
    def has_nodes(self) -> bool:
        """Whether the current view has nodes. Raises OSError."""
        with reported(self.path):
            return bool(self.view.txn.stat(self.nodes)["entries"])

    def own_nodes(self) -> OwnNodes:
        """Return the nodes of the current store, for a copy that is received. Close it like a copy.

        Raises OSError, CorruptError.
        """
        with reported(self.path), self._creating:
            own = OwnNodes(self.path, self.env.begin(), self._databases)
        self._keep(own)
        return own

    def _keep(self, made: StoreSnapshot) -> None:
        self._copies = [made, *(one for one in self._copies if not one.closed)]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep the store open, for a short read in any thread: close() waits for its end. Raises OSError if closed."""
        with self._in_use:
            if self._closed:
                raise OSError(errno.EBADF, "the store was closed", str(self.path))
            yield

    def close(self) -> None:
        for copy in self._copies:  # LMDB must not unmap the file while a thread reads it
            copy.close()
        with self._in_use:
            self._closed = True
            self.view.end()
            self.env.close()
        self._held.close()

    # -- start-up --------------------------------------------------------------------------------------------
    def restore(self, ks: Keyspace) -> tuple[int, int, int]:
        """Restore an empty keyspace. Reads only the keys of nodes. Returns the numbers of (streams, nodes, strings).

        Raises CorruptError, OSError.
        """
        found = StoreContent()
        try:
            with reported(self.path), self.env.begin() as txn:
                ks.next_sid = self._number(txn, b"next_sid") or ks.next_sid
                ks.away = self._number(txn, b"away", I64) or 0
                streams, nodes = self._restore_streams(txn, ks, found)
                self._restore_strings(txn, ks, found)
                if len(ks.keys) != streams + found.entries[STRINGS]:
                    raise CorruptError("a key has two values")
                self._restore_staging(txn, ks, found)
                if ks.next_sid >> 63:
                    raise CorruptError("the number of its next stream is invalid")
                if abs(ks.away) >> 62:
                    raise CorruptError("the shift of its served time is invalid")
                self._check_content(txn, found)
        except DAMAGE as error:
            raise CorruptError(f"{self.path}: an invalid entry ({error!r}): {REMEDY}") from error
        except CorruptError as error:
            if str(self.path) in str(error):
                raise
            raise CorruptError(f"{self.path}: {error}: {REMEDY}") from error
        return streams, nodes, found.entries[STRINGS]

    def _check_content(self, txn: lmdb.Transaction, found: StoreContent) -> None:
        """Compare the recorded counts and sums with the entries. Raises CorruptError if they differ."""
        claimed = self._content(txn)
        if claimed is None:
            return
        for db in COUNTED:
            name, there, wanted = DATABASES[db].decode(), found.entries[db], claimed.entries[db]
            if there != wanted:
                raise CorruptError(f"{self.path}: has {there} {name} instead of {wanted}: {REMEDY}")
            if found.sums[db] != claimed.sums[db]:
                raise CorruptError(f"{self.path}: its {name} are not those of the last checkpoint: {REMEDY}")

    def _entries(self, txn: lmdb.Transaction, db: int, found: StoreContent) -> Iterator[tuple[bytes, bytes]]:
        """Yield the verified entries of a database in order, and count them in ``found``.

        Raises CorruptError if one is damaged.
        """
        if db >= len(self._databases):
            return
        count = total = 0
        unpack, size = CRC.unpack_from, CRC.size
        for raw_key, raw_value in txn.cursor(db=self._databases[db]):
            key, value = bytes(raw_key), bytes(raw_value)
            (crc,) = unpack(value)
            if crc32(memoryview(value)[size:], crc32(key)) != crc:
                raise self._damaged(key)
            count += 1
            total += crc
            yield key, value
        found.set(db, count, total)

    def _damaged(self, key: bytes) -> CorruptError:
        return CorruptError(f"{self.path}: the entry {key!r} is damaged: {REMEDY}")

    def _restore_streams(self, txn: lmdb.Transaction, ks: Keyspace, found: StoreContent) -> tuple[int, int]:
        made: dict[int, Stream] = {}
        claimed: dict[int, tuple[int, int]] = {}  # sid -> nodes, their sum
        for key, value in self._entries(txn, STREAMS, found):
            (sid,) = U64.unpack(key)
            expire, count, total, length = STREAM.unpack_from(value, CRC.size)
            at = CRC.size + STREAM.size
            if expire >> 63:
                raise CorruptError(f"the expiry of stream {sid} is invalid")
            made[sid] = ks.restore_stream(value[at : at + length], sid, value[at + length :], expire)
            claimed[sid] = count, total
        nodes = self._restore_nodes(txn, made, claimed)
        self._restore_additions(txn, made, found)
        for stream in made.values():
            stream.all_nodes_added()
        for key, value in self._entries(txn, GROUPS, found):
            of = made.get(U64.unpack_from(key)[0])
            if of is None:
                raise CorruptError(f"{self.path}: a group of an unknown stream: {REMEDY}")
            name_len, meta_len = GROUP.unpack_from(value, CRC.size)
            at = CRC.size + GROUP.size + name_len
            name = value[at - name_len : at]
            if short(name) != key[U64.size :]:
                raise CorruptError(f"the group {name!r} has the key of another one")
            ks.restore_group(of, name, value[at : at + meta_len], value[at + meta_len :])
        return len(made), nodes

    def _restore_additions(self, txn: lmdb.Transaction, made: dict[int, Stream], found: StoreContent) -> None:
        """Restore the tombstones and producers of streams."""
        for key, value in self._entries(txn, MARKS, found):
            sid, chunk = MARKS_KEY.unpack(key)
            stream = made.get(sid)
            if stream is None:
                raise CorruptError(f"{self.path}: deleted entries of an unknown stream: {REMEDY}")
            stream.restore_tombstones(chunk, value[CRC.size :])
        for key, value in self._entries(txn, PRODUCERS, found):
            stream = made.get(U64.unpack_from(key)[0])
            if stream is None:
                raise CorruptError(f"{self.path}: a producer of an unknown stream: {REMEDY}")
            (length,) = PRODUCER.unpack_from(value, CRC.size)
            at = CRC.size + PRODUCER.size + length
            name = value[at - length : at]
            if len(name) != length or short(name) != key[U64.size :]:
                raise CorruptError(f"the producer {name!r} has the key of another one")
            stream.own_producers().restore(name, value[at:])

    def _restore_strings(self, txn: lmdb.Transaction, ks: Keyspace, found: StoreContent) -> None:
        for stored_key, value in self._entries(txn, STRINGS, found):
            expire, length = STRING.unpack_from(value, CRC.size)
            at = CRC.size + STRING.size
            key = value[at : at + length]
            if len(key) != length or expire >> 63 or short(key) != stored_key:
                raise CorruptError(f"the string at {stored_key!r} is invalid")
            ks.restore_string(key, value[at + length :], expire)

    def _restore_nodes(
        self, txn: lmdb.Transaction, made: dict[int, Stream], claimed: dict[int, tuple[int, int]]
    ) -> int:
        keys, self._keys = self._keys, None
        if keys is None:  # not the first call: slower, because the nodes are read, too
            keys = b"".join(map(bytes, txn.cursor(db=self.nodes).iternext(keys=True, values=False)))
        number, size = int.from_bytes, NODE_KEY.size
        last, count, total, nodes, before = -1, 0, 0, 0, b""
        stream: Stream | None = None
        for sid, first_ord, first_id in NODE_KEY.iter_unpack(keys):
            key = keys[nodes * size : nodes * size + size]
            if sid != last:
                if stream is not None and claimed.pop(last) != (count, total & MASK64):
                    raise CorruptError(f"{self.path}: the list of nodes of stream {last} is damaged: {REMEDY}")
                last, count, total, stream = sid, 0, 0, made.get(sid)
            if stream is None:
                raise CorruptError(f"{self.path}: a node of the unknown stream {sid}: {REMEDY}")
            if key <= before:
                raise CorruptError(f"{self.path}: the nodes of stream {sid} are out of order: {REMEDY}")
            stream.add_stored_node(first_ord, number(first_id, "big"))
            before = key
            count += 1
            total += crc32(key)
            nodes += 1
        if stream is not None and claimed.pop(last) != (count, total & MASK64):
            raise CorruptError(f"{self.path}: the list of nodes of stream {last} is damaged: {REMEDY}")
        for sid, (count, _) in claimed.items():
            if count:
                raise CorruptError(f"{self.path}: the nodes of stream {sid} are missing: {REMEDY}")
        return nodes

    def _restore_staging(self, txn: lmdb.Transaction, ks: Keyspace, found: StoreContent) -> None:
        stage, left = None, 0  # number of its chunks that follow
        for key, value in self._entries(txn, STAGES, found):
            sid, number = STAGE_KEY.unpack(key)
            if not number and not left:
                ttl, deadline, left = STAGE.unpack_from(value, CRC.size)
                if ttl >> 63 or not left:
                    raise CorruptError(f"stage {sid} is invalid")
                stage = ks.stages.restore(value[CRC.size + STAGE.size :], sid, ttl, deadline)
                ks.next_sid = max(ks.next_sid, sid + 1)
            elif left and stage is not None and stage.sid == sid and number == len(stage.pieces) + 1:
                self._restore_piece(stage, value)
                left -= 1
                if not left:
                    ks.stages.restored(stage)
            else:
                left = -1
                break
        if left:
            raise CorruptError(f"{self.path}: parts of a stage are missing: {REMEDY}")
        for key, value in self._entries(txn, FENCES, found):
            fence, epoch, check = unpack_fence(value)
            if short(fence) != key:
                raise CorruptError(f"the fence {fence!r} is invalid")
            ks.stages.restore_fence(fence, epoch, check)

    def _restore_piece(self, stage: Stage, value: bytes) -> None:
        length, count = PIECE.unpack_from(value, CRC.size)
        at = CRC.size + PIECE.size + length
        sizes, bare = unpack_sizes(value[at : at + 4 * count]), value[at + 4 * count :]
        if not count or len(sizes) != count or sum(sizes) != len(bare):
            raise CorruptError(f"{self.path}: a part of stage {stage.sid} has inconsistent sizes: {REMEDY}")
        stage.restore_piece(value[at - length : at], sizes, bare)

    # -- checkpoints -----------------------------------------------------------------------------------------
    def write(self, capture: Capture, offset: int) -> None:
        """Write a capture of log offset ``offset`` in one transaction, and sync.

        Raises OSError, CorruptError.
        """
        self._keys = None
        if not is_plain(capture):
            with reported(self.path):
                self._make_late()
        with reported(self.path), self.env.begin(write=True, buffers=True) as txn:
            content = self._content(txn) or self._counted(txn)
            with OverflowPages(self.path, txn, self._databases[META]) as overflow:
                checkpoint = Checkpoint(self.path, txn, self._databases, content, self._compressor, overflow)
                checkpoint.write(capture, offset)
        if checkpoint.coded:
            self._nodes = CODED
        self._shifted = self._shifted or capture.away != 0
        self.offset = offset

    def replace_node(self, key: bytes, blob: bytes, allowed: Callable[[int], bool]) -> bool:
        """Overwrite a node in one transaction, and sync. Any thread. Raises OSError, CorruptError.

        ``allowed``: called with the number of the last transaction while there can be no other one. If it returns
        False, nothing changes, and this returns False.
        """
        with reported(self.path), self.env.begin(write=True) as txn:
            content = self._content(txn)
            if not allowed(txn.id() - 1):
                return False
            txn.put(key, blob, db=self.nodes)
            if is_coded(blob):
                txn.put(b"nodes", signed(b"nodes", U64.pack(CODED)), db=self.meta)
            if content is not None:
                packed = content.pack(self._number(txn, b"offset") or 0, txn.id())
                txn.put(b"content", signed(b"content", packed), db=self.meta)
        if is_coded(blob):
            self._nodes = CODED
        return True

    def key_of(self, sid: int) -> bytes | None:
        """Return the key of a stream as of the last checkpoint; None if it is not readable. On the event loop only."""
        try:
            with reported(self.path):
                value = self.view.txn.get(U64.pack(sid), db=self._databases[STREAMS]) or b""
            *_, length = STREAM.unpack_from(value, CRC.size)
        except (OSError, CorruptError, struct.error):
            return None
        at = CRC.size + STREAM.size
        return bytes(value[at : at + length])

    def _counted(self, txn: lmdb.Transaction) -> StoreContent:
        """Count all entries, once, for a store of an earlier version. Raises CorruptError."""
        content = StoreContent()
        for db in COUNTED:
            deque(self._entries(txn, db, content), 0)
        return content

    def displaced(self) -> str | None:
        """Return OpenFile.displaced(). Any thread."""
        return self._held.displaced()

    def bytes_used(self) -> int:
        """Return the size on disk; 0 for files that cannot be accessed."""
        return disk_bytes(self.path)
