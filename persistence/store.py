"""The store: all history as of the last checkpoint, in LMDB.

    db "meta"     b"offset"  -> crc | log offset up to which the store is complete u64    b"next_sid" -> crc | u64
    db "nodes"    sid u64 | first ordinal u64 | first ID 16  ->  a blob, which has its own crc (storage.nodes.node)
    db "streams"  sid u64              ->  crc | expiry u64 | nodes u64 | sum of nodes u64 | key length u32 | key | meta
    db "groups"   sid u64 | short(name)  ->  crc | name length u32 | meta length u32 | name | meta | pending list
    db "strings"  short(key)           ->  crc | expiry u64 | key length u32 | key | value
    db "stages"   sid u64 | 0 u32      ->  crc | ttl u64 | deadline u64 | pieces u32 | name
                  sid u64 | n u32      ->  crc | key length u32 | entries u32 | key | sizes u32 each | bare entries
    db "fences"   short(name)          ->  crc | epoch u64 | name

All numbers are big-endian, so that LMDB's order of keys is the order of ordinals. short(x) is a byte 0 and x, or, where
that is too long for an LMDB key, a byte 1 and the SHA-256 of x. crc is the crc32 of the key and the rest of the value,
u32. "nodes" and "sum of nodes" are the number of the stream's node keys and the sum of their crc32's (mod 2**64), so
that a lost or changed key is found at the start, which reads keys only. A stage's pieces are numbered from 1. A missing
database is empty.

A node ends where the next one begins, so nodes that end at or before the stream's first_ord are known to be evicted
without being read. A stream's last node may be its tail, stored uncompressed; a later checkpoint overwrites it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb

from persistence.lmdbfile import open_env, reported, translated
from persistence.pieces import DATABASES, StoreCopy
from resp.errors import REMEDY, CorruptError
from storage.capture import Capture, StreamCapture
from storage.groups.pendingdump import assemble
from storage.ids import MASK64
from storage.keyspace import Keyspace
from storage.nodes.node import new_compressor
from storage.nodes.pool import NodeStore
from storage.records import pack_sizes, unpack_sizes
from storage.stages.stages import Stage
from storage.stream import Stream

U64 = Struct(">Q")
CRC = Struct(">I")
NODE_KEY = Struct(">QQ16s")
STREAM = Struct(">QQQI")
STRING = Struct(">QI")
STAGE_KEY = Struct(">QI")
STAGE = Struct(">QQI")
PIECE = Struct(">II")
GROUP = Struct(">II")
MAP_SIZE = 1 << 40  # address space: 1 TiB; the file grows as it is written


def short(name: bytes) -> bytes:
    return b"\0" + name if len(name) <= 400 else b"\1" + sha256(name).digest()


def signed(key: bytes, *parts: bytes) -> bytes:
    """The parts as one value, with the crc of key and parts in front."""
    value = b"".join(parts)
    return CRC.pack(crc32(value, crc32(key))) + value


class View:
    """One LMDB read transaction: the store at some checkpoint. For the event loop only."""

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
            pass  # the environment was closed, and the transaction with it


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

    def release(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.pins -= 1
            self._store.unpinned(view)


class Store:
    """Reads use the current view, on the event loop; checkpoints run in one other thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(exist_ok=True)
        self._compressor = new_compressor()  # for write() only
        self._copies: list[StoreCopy] = []  # those that may not be closed yet
        self.path = directory / "data.mdb"
        # The keys of all nodes; None once a checkpoint may have changed them.
        self._keys: bytes | None
        self.env, self._keys = open_env(directory, MAP_SIZE, len(DATABASES), b"nodes", NODE_KEY.size)
        try:
            with reported(self.path):
                databases = map(self.env.open_db, DATABASES)
                self.meta, self.nodes, self.streams, self.groups, self.strings, self.stages, self.fences = databases
                with self.env.begin(db=self.meta) as txn:
                    offset = self._number(txn, b"offset")
                    if offset is None and any(txn.stat(db)["entries"] for db in self._content()):
                        raise CorruptError(f"{self.path}: its log offset is missing: {REMEDY}")
                    self.offset = offset or 0
            self._view = View(self)
        except BaseException:
            self.env.close()
            raise

    def _content(self) -> tuple[lmdb._Database, ...]:
        return self.nodes, self.streams, self.groups, self.strings, self.stages, self.fences

    def _number(self, txn: lmdb.Transaction, name: bytes) -> int | None:
        raw = bytes(txn.get(name, db=self.meta) or b"")
        if not raw:
            return None
        if len(raw) != CRC.size + U64.size or raw != signed(name, raw[CRC.size :]):
            raise CorruptError(f"{self.path}: its {name.decode()} is damaged: {REMEDY}")
        return int(U64.unpack_from(raw, CRC.size)[0])

    # -- NodeStore -------------------------------------------------------------------------------------------
    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """A node's blob, unchecked. Raises CorruptError if it is missing, OSError."""
        return self.load_from(self._view, sid, first_ord, first_id)

    def load_from(self, view: View, sid: int, first_ord: int, first_id: int) -> bytes:
        try:
            blob = view.get(NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big")))
        except lmdb.Error as error:
            raise translated(self.path, error) from error
        if blob is None:
            raise CorruptError(f"{self.path}: node {first_ord} of stream {sid} is missing: {REMEDY}")
        return blob

    def pin(self) -> NodeStore:
        return Pinned(self, self._view)

    def release(self) -> None:
        """Does nothing: the store itself is never pinned."""

    def unpinned(self, view: View) -> None:
        if not view.pins and view is not self._view:
            view.end()

    def renew_view(self) -> None:
        """Let new reads see the latest checkpoint; pinned views keep theirs. Raises OSError; then the view stays."""
        old, self._view = self._view, View(self)
        if not old.pins:
            old.end()

    def copy(self) -> StoreCopy:
        """The store at this moment, to be sent to a replica. Until it is closed, no page that it needs is reused.

        Any thread. Raises OSError, CorruptError.
        """
        with reported(self.path):
            txn = self.env.begin()
            try:
                # Not self.offset: a checkpoint may have ended after the transaction began.
                copy = StoreCopy(self.path, txn, (self.meta, *self._content()), self._number(txn, b"offset") or 0)
            except BaseException:
                txn.abort()
                raise
        self._copies = [copy, *(made for made in self._copies if not made.closed)]
        return copy

    def close(self) -> None:
        for copy in self._copies:  # LMDB must not unmap the file while a thread reads
            copy.close()
        self._view.end()
        self.env.close()

    # -- start-up --------------------------------------------------------------------------------------------
    def restore(self, ks: Keyspace) -> tuple[int, int, int]:
        """Fill an empty keyspace. Of nodes only the keys are read. Returns the numbers of (streams, nodes, strings).

        Raises CorruptError, OSError.
        """
        try:
            with reported(self.path), self.env.begin() as txn:
                ks.next_sid = self._number(txn, b"next_sid") or ks.next_sid
                streams, nodes = self._restore_streams(txn, ks)
                strings = 0
                for key, value in _items(txn, self.strings):
                    self._check(key, value)
                    expire, length = STRING.unpack_from(value, CRC.size)
                    at = CRC.size + STRING.size
                    ks.restore_string(value[at : at + length], value[at + length :], expire)
                    strings += 1
                self._restore_staging(txn, ks)
        except struct.error as error:
            raise CorruptError(f"{self.path}: an entry of the wrong size: {REMEDY}") from error
        except CorruptError as error:
            if str(self.path) in str(error):
                raise
            raise CorruptError(f"{self.path}: {error}: {REMEDY}") from error
        return streams, nodes, strings

    def _check(self, key: bytes, value: bytes) -> None:
        if crc32(memoryview(value)[CRC.size :], crc32(key)) != CRC.unpack_from(value)[0]:
            raise CorruptError(f"{self.path}: the entry {key!r} is damaged: {REMEDY}")

    def _restore_streams(self, txn: lmdb.Transaction, ks: Keyspace) -> tuple[int, int]:
        made: dict[int, Stream] = {}
        claimed: dict[int, tuple[int, int]] = {}  # sid -> nodes, their sum
        for key, value in _items(txn, self.streams):
            self._check(key, value)
            (sid,) = U64.unpack(key)
            expire, count, total, length = STREAM.unpack_from(value, CRC.size)
            at = CRC.size + STREAM.size
            made[sid] = ks.restore_stream(value[at : at + length], sid, value[at + length :], expire)
            claimed[sid] = count, total
        nodes = self._restore_nodes(txn, made, claimed)
        for key, value in _items(txn, self.groups):
            self._check(key, value)
            stream = made.get(U64.unpack_from(key)[0])
            if stream is None:
                raise CorruptError(f"{self.path}: a group of a stream that isn't there: {REMEDY}")
            name_len, meta_len = GROUP.unpack_from(value, CRC.size)
            at = CRC.size + GROUP.size + name_len
            ks.restore_group(stream, value[at - name_len : at], value[at : at + meta_len], value[at + meta_len :])
        return len(made), nodes

    def _restore_nodes(
        self, txn: lmdb.Transaction, made: dict[int, Stream], claimed: dict[int, tuple[int, int]]
    ) -> int:
        keys, self._keys = self._keys, None
        if keys is None:  # not the first time: slower, because this reads the nodes as well
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
                raise CorruptError(f"{self.path}: a node of stream {sid}, which isn't there: {REMEDY}")
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

    def _restore_staging(self, txn: lmdb.Transaction, ks: Keyspace) -> None:
        stage, left = None, 0  # left: how many of its pieces are still to come
        for key, value in _items(txn, self.stages):
            self._check(key, value)
            sid, number = STAGE_KEY.unpack(key)
            if not number and not left:
                ttl, deadline, left = STAGE.unpack_from(value, CRC.size)
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
            raise CorruptError(f"{self.path}: pieces of a stage are missing: {REMEDY}")
        for key, value in _items(txn, self.fences):
            self._check(key, value)
            ks.stages.fences[value[CRC.size + U64.size :]] = U64.unpack_from(value, CRC.size)[0]

    def _restore_piece(self, stage: Stage, value: bytes) -> None:
        length, count = PIECE.unpack_from(value, CRC.size)
        at = CRC.size + PIECE.size + length
        sizes, bare = unpack_sizes(value[at : at + 4 * count]), value[at + 4 * count :]
        if not count or len(sizes) != count or sum(sizes) != len(bare):
            raise CorruptError(f"{self.path}: a piece of stage {stage.sid} whose sizes don't add up: {REMEDY}")
        stage.restore_piece(value[at - length : at], sizes, bare)

    # -- checkpoints -----------------------------------------------------------------------------------------
    def write(self, capture: Capture, offset: int) -> None:
        """Write a capture, taken at log offset ``offset``, in one transaction; synced when this returns.

        Raises OSError, CorruptError.
        """
        self._keys = None
        with reported(self.path), self.env.begin(write=True) as txn:
            if capture.flushed:
                for db in self._content():
                    txn.drop(db, delete=False)
            for sid in capture.dead_streams:
                prefix = U64.pack(sid)
                txn.delete(prefix, db=self.streams)
                for db in (self.nodes, self.groups):
                    _delete(txn.cursor(db=db), prefix)
            for sid, name in capture.dead_groups:
                txn.delete(U64.pack(sid) + short(name), db=self.groups)
            for stream in capture.streams:
                self._write_stream(txn, stream, *capture.stream_keys[stream.sid])
            for sid, name, meta, pending in capture.groups:
                key = U64.pack(sid) + short(name)
                txn.put(key, _group(key, name, meta, pending), db=self.groups)
            for name, string, expire in capture.strings:
                key = short(name)
                txn.put(key, signed(key, STRING.pack(expire, len(name)), name, string), db=self.strings)
            for name in capture.dead_strings:
                txn.delete(short(name), db=self.strings)
            self._write_staging(txn, capture)
            for name, value in ((b"next_sid", capture.next_sid), (b"offset", offset)):
                txn.put(name, signed(name, U64.pack(value)), db=self.meta)
        self.offset = offset

    def _write_staging(self, txn: lmdb.Transaction, capture: Capture) -> None:
        for sid in capture.dead_stages:
            _delete(txn.cursor(db=self.stages), U64.pack(sid))
        for stage in capture.stages:
            key = STAGE_KEY.pack(stage.sid, 0)
            head = STAGE.pack(stage.ttl, stage.deadline, stage.count)
            txn.put(key, signed(key, head, stage.name), db=self.stages)
            for number, piece, bare, sizes in stage.pieces:
                key = STAGE_KEY.pack(stage.sid, number + 1)
                head = PIECE.pack(len(piece.key), len(sizes))
                txn.put(key, signed(key, head, piece.key, pack_sizes(sizes), bare), db=self.stages)
        for name, epoch in capture.fences:
            key = short(name)
            txn.put(key, signed(key, U64.pack(epoch), name), db=self.fences)

    def _write_stream(self, txn: lmdb.Transaction, stream: StreamCapture, name: bytes, expire: int) -> None:
        prefix = U64.pack(stream.sid)
        old = bytes(txn.get(prefix, db=self.streams) or b"")
        count = total = 0
        if old:
            self._check(prefix, old)
            _, count, total, _ = STREAM.unpack_from(old, CRC.size)
        for first_ord, first_id, node in stream.nodes if stream.tail is None else [*stream.nodes, stream.tail]:
            blob = node if isinstance(node, bytes) else node.seal(self._compressor)
            key = NODE_KEY.pack(stream.sid, first_ord, first_id.to_bytes(16, "big"))
            if txn.put(key, blob, db=self.nodes, overwrite=False):
                count += 1
                total += crc32(key)
            else:  # it was the tail at an earlier checkpoint
                txn.put(key, blob, db=self.nodes)
        cursor = txn.cursor(db=self.nodes)
        for key in _evicted(cursor, prefix, stream):
            count -= 1
            total -= crc32(key)
        head = STREAM.pack(expire, count, total & MASK64, len(name))
        txn.put(prefix, signed(prefix, head, name, stream.meta), db=self.streams)

    def bytes_used(self) -> int:
        """Bytes on disk. Raises OSError."""
        return self.path.stat().st_blocks * 512


def _group(key: bytes, name: bytes, meta: bytes, pending: Sequence[bytes]) -> bytearray:
    """A group's value, as signed() would make it. Built part by part, so that other threads get a turn: assemble()."""
    head = GROUP.pack(len(name), len(meta)) + name + meta
    value = assemble(pending, CRC.size + len(head))
    value[CRC.size : CRC.size + len(head)] = head
    CRC.pack_into(value, 0, crc32(memoryview(value)[CRC.size :], crc32(key)))
    return value


def _items(txn: lmdb.Transaction, db: lmdb._Database) -> Iterator[tuple[bytes, bytes]]:
    for key, value in txn.cursor(db=db):
        yield bytes(key), bytes(value)


def _evicted(cursor: lmdb.Cursor, prefix: bytes, stream: StreamCapture) -> list[bytes]:
    """Delete the stream's nodes that end at or before its first_ord. Returns their keys."""
    gone: list[bytes] = []
    if not stream.first_ord:
        return gone
    cursor.set_range(prefix)
    while cursor.key()[:8] == prefix:
        here = bytes(cursor.key())
        following = cursor.next() and cursor.key()[:8] == prefix
        end = NODE_KEY.unpack(cursor.key())[1] if following else stream.next_ord
        if end > stream.first_ord:
            break
        cursor.set_key(here)
        cursor.delete()  # moves on to the next; after the last the key is empty
        gone.append(here)
    return gone


def _delete(cursor: lmdb.Cursor, prefix: bytes) -> None:
    cursor.set_range(prefix)
    while bytes(cursor.key()).startswith(prefix):
        cursor.delete()
