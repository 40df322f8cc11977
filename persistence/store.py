"""The store: the state as of the last checkpoint, in LMDB. This module opens and reads it. See ``layout`` for its
entries and ``checkpoint`` for their changes.

Rule 1: a start reads every entry, but only the keys of nodes (``restoration``). It verifies the crc of each entry, and
the counts and sums of each database (``checksums``).
Rule 2: reads use a view, which does not change until it is renewed. A checkpoint never affects them.
"""

from __future__ import annotations

import errno
import struct
import threading
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import lmdb
from xxhash import xxh3_128_digest

from persistence.checkpoint import Checkpoint, format_of_rest, is_plain
from persistence.checksums import COUNTED, StoreContent
from persistence.diskcache import CACHE, DiskCache
from persistence.fileidentity import OpenFile, disk_bytes
from persistence.layout import (
    CODED,
    CRC,
    I64,
    IMPORTS_FORMAT,
    META_KEYS,
    NODE_KEY,
    STREAM,
    TIERED,
    U64,
    signed,
)  # fmt: skip
from persistence.lmdbfile import open_env, reported, translated
from persistence.overflowpages import LARGE, OverflowPages
from persistence.ownnodes import OwnNodes
from persistence.permissions import FOLDER
from persistence.restoration import Restoration, verified_entries
from persistence.storecopy import (
    DATABASES,
    LATE,
    META,
    STREAMS,
    StoreCopy,
    StoreSnapshot,
    format_of,
)
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replayparts import DAMAGE
from storage.nodes import reference
from storage.nodes.coded import is_coded
from storage.nodes.node import new_compressor
from storage.nodes.pool import NodeStore
from storage.nodes.reference import PREFIX, Reference, is_reference
from storage.streams.capture import Capture

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

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        assert self._view is not None, "released"  # noqa: S101 - a bug of the caller
        return self._store.raw_from(self._view, sid, first_ord, first_id)

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        return self._store.reference(sid, first_ord, first_id)

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        return self._store.resolve(raw, sid, first_ord, first_id)

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
        self.tiered = DiskCache(directory.parent / CACHE)
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
            # highest format of a part of an index of delayed entries, and of b"imports"; set by restore() and write()
            self._indexes = 0
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
        return format_of(self._nodes, self.plain, self._shifted, self._indexes)

    def _node_version(self, txn: lmdb.Transaction) -> int:
        """Return the highest version of a node in the store. Raises CorruptError if it is unknown."""
        version = self._number(txn, b"nodes") or 1
        if version > TIERED:
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
        return self.resolve(self.raw_from(view, sid, first_ord, first_id), sid, first_ord, first_id)

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Implement NodeStore."""
        return self.raw_from(self.view, sid, first_ord, first_id)

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """Implement NodeStore. Reads the last checkpoint, which can be later than the view: the transaction of a view
        copies the whole value, which can have hundreds of MB."""
        key = NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big"))
        with reported(self.path), self.env.begin(db=self.nodes, buffers=True) as txn:
            raw = bytes(txn.get(key, b"")[: reference.SIZE + 1])  # unpack() refuses a longer one
            return raw if is_reference(raw) else b""

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return a blob, or the blob with this reference. Raises AbsentNodeError, DamagedNodeError."""
        return self.tiered.load(raw, sid, first_ord, first_id) if raw[:3] == PREFIX else raw

    def raw_from(self, view: View, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the value of a node in a view. Raises CorruptError if it is missing, OSError."""
        try:
            blob = view.get(NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big")))
        except lmdb.Error as error:
            raise translated(self.path, error) from error
        if blob is None:
            raise CorruptError(f"{self.path}: node {first_ord} of stream {sid} is missing: {REMEDY}")
        return blob

    def near(self, key: bytes, most: int, skip: Container[bytes]) -> list[tuple[int, Reference]]:
        """Return references with their first ordinals: that of the node ``key``, those of its section, and up to
        ``most`` that follow it in its stream, without those whose digests are in ``skip``. On the event loop only.

        Raises OSError, CorruptError if the node has no valid reference.
        """
        with reported(self.path):
            cursor = self.view.txn.cursor(db=self.nodes)
            if not cursor.set_key(key):
                return []
            first = reference.unpack(bytes(cursor.value()))
            found = [(NODE_KEY.unpack(key)[1], first)]
            for ahead in (True, False):
                cursor.set_key(key)
                left = most
                prefix = key[: U64.size]
                while (cursor.next() if ahead else cursor.prev()) and bytes(cursor.key())[: U64.size] == prefix:
                    raw = bytes(cursor.value())
                    if not is_reference(raw):
                        break
                    one = reference.unpack(raw)
                    if one.section != first.section:
                        left -= 1
                        if not ahead or left < 0:
                            break
                    if one.digest not in skip:
                        found.append((NODE_KEY.unpack(bytes(cursor.key()))[1], one))
        return found

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
                    self._number(txn, b"away", I64) is not None, self._indexes,
                )  # fmt: skip
            except BaseException:
                txn.abort()
                raise
        self._keep(copy)
        return copy

    @property
    def has_references(self) -> bool:
        """Whether the store has, or had, nodes that are only in the object store. Any thread."""
        return self._nodes >= TIERED

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
        keys, self._keys = self._keys, None
        try:
            with reported(self.path), self.env.begin() as txn:
                ks.next_sid = self._number(txn, b"next_sid") or ks.next_sid
                ks.away = self._number(txn, b"away", I64) or 0
                imports = bytes(txn.get(b"imports", db=self.meta) or b"")
                if imports and imports != signed(b"imports", imports[CRC.size :]):
                    raise CorruptError("the slots that are being copied to this group are damaged")
                ks.imports = imports[CRC.size :]
                restoration = Restoration(self.path, txn, self._databases, ks, keys)
                found = restoration.run(self._content(txn))
                self._indexes = max(restoration.indexes, IMPORTS_FORMAT if imports else 0)
                return found
        except DAMAGE as error:
            raise CorruptError(f"{self.path}: an invalid entry ({error!r}): {REMEDY}") from error
        except CorruptError as error:
            if str(self.path) in str(error):
                raise
            raise CorruptError(f"{self.path}: {error}: {REMEDY}") from error

    # -- checkpoints -----------------------------------------------------------------------------------------
    def write(self, capture: Capture, offset: int) -> None:
        """Write a capture of log offset ``offset`` in one transaction, and sync.

        Raises OSError, CorruptError.
        """
        self._keys = None
        self._indexes = max(self._indexes, format_of_rest(capture))  # before a copy can contain them
        if capture.imports:
            self._indexes = max(self._indexes, IMPORTS_FORMAT)
        if not is_plain(capture):
            with reported(self.path):
                self._make_late()
        with reported(self.path), self.env.begin(write=True, buffers=True) as txn:
            content = self._content(txn) or self._counted(txn)
            with OverflowPages(self.path, txn, self._databases[META]) as overflow:
                checkpoint = Checkpoint(
                    self.path, txn, self._databases, content, self._compressor, overflow, self._nodes
                )
                checkpoint.write(capture, offset)
        if checkpoint.coded:
            self._nodes = max(self._nodes, CODED)
        if checkpoint.tiered:
            self._nodes = TIERED
        self._shifted = self._shifted or capture.away != 0
        self.offset = offset

    def forget_dead_readers(self) -> None:
        """Free the pages of read transactions of processes that were killed. Any thread. Raises OSError."""
        with self.reading(), reported(self.path):
            self.env.reader_check()

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
            if is_coded(blob) and self._nodes < CODED:
                txn.put(b"nodes", signed(b"nodes", U64.pack(CODED)), db=self.meta)
            self._keep_content(txn, content)
        if is_coded(blob):
            self._nodes = max(self._nodes, CODED)
        return True

    def free(self, nodes: Sequence[tuple[bytes, bytes, bytes]]) -> tuple[int, int]:
        """Replace nodes by references in one transaction, and sync. Any thread. Raises OSError, CorruptError.

        ``nodes``: the key, the digest of the blob (XXH3-128), and the reference. A node with another blob stays as it
        is: its stream was changed since a history object was compared with it. Returns the number of replaced nodes,
        and the bytes that they need less.
        """
        count = size = 0
        with self.reading(), reported(self.path), self.env.begin(write=True, buffers=True) as txn:
            content = self._content(txn)
            with OverflowPages(self.path, txn, self.meta) as overflow:
                for key, digest, raw in nodes:
                    blob = txn.get(key, db=self.nodes)
                    if blob is None or is_reference(blob) or xxh3_128_digest(blob) != digest:
                        continue
                    if len(blob) >= LARGE:
                        overflow.check(key, blob, is_node=True)
                    size += len(blob) - len(raw)
                    count += 1
                    txn.put(key, raw, db=self.nodes)
                if not count:
                    txn.abort()
                    return 0, 0
                self._nodes = TIERED  # before a copy can contain them
                txn.put(b"nodes", signed(b"nodes", U64.pack(TIERED)), db=self.meta)
                self._keep_content(txn, content)
        return count, size

    def _keep_content(self, txn: lmdb.Transaction, content: StoreContent | None) -> None:
        """Let the recorded counts and sums, which are valid for one transaction, be those of this one."""
        if content is not None:
            packed = content.pack(self._number(txn, b"offset") or 0, txn.id())
            txn.put(b"content", signed(b"content", packed), db=self.meta)

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
            deque(verified_entries(self.path, txn, self._databases, db, content), 0)
        return content

    def displaced(self) -> str | None:
        """Return OpenFile.displaced(). Any thread."""
        return self._held.displaced()

    def bytes_used(self) -> int:
        """Return the size on disk; 0 for files that cannot be accessed."""
        return disk_bytes(self.path)
