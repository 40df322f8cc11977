"""The store: all history as of the last checkpoint, in LMDB.

    db "meta"     b"offset"  -> log offset up to which the store is complete u64     b"next_sid" -> u64
    db "nodes"    sid u64 | first ordinal u64 | first ID 16                  ->  blob (see storage.node)
    db "streams"  sid u64                                                    ->  expiry u64 | key length u32 | key | meta
    db "groups"   sid u64 | short(name)                                      ->  name length u32 | meta length u32 | name | meta | pending list
    db "strings"  short(key)                                                 ->  expiry u64 | key length u32 | key | value

All big-endian, so that LMDB's order of keys is the order of ordinals. short(x) is 0 and x, or, where that is too long for
an LMDB key, 1 and the SHA-256 of x. A stream's last node may be a tail, stored raw; a later checkpoint overwrites it.

A node's end is the next node's first ordinal, so whatever ends at or before the stream's first_ord is known to be evicted without
being read; and start-up reads keys only.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

import lmdb

from persistence.lmdbfile import REMEDY, fit, open_env, reported
from resp.errors import CorruptError
from storage.stream import NodeStore, StreamCapture

if TYPE_CHECKING:
    from storage.capture import Capture
    from storage.keyspace import Keyspace

U64 = Struct(">Q")
NODE_KEY = Struct(">QQ16s")
KEYED = Struct(">QI")
GROUP = Struct(">II")
MAP_SIZE = 1 << 40  # address space: 1 TiB; the file grows as it is written


def short(name: bytes) -> bytes:
    return b"\0" + name if len(name) <= 400 else b"\1" + sha256(name).digest()


class View:
    """One LMDB read transaction: the store as of some checkpoint. Used on the event loop only."""

    __slots__ = ("_store", "_txn", "pins")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.pins = 0
        with reported(store.path):
            self._txn = store.env.begin(db=store.nodes)

    def get(self, key: bytes) -> bytes | None:
        value = self._txn.get(key)
        return None if value is None else bytes(value)

    def end(self) -> None:
        self._txn.abort()


class Pinned:
    """A NodeStore that stays on one view until release()."""

    __slots__ = ("_store", "_view")

    def __init__(self, store: Store, view: View) -> None:
        self._store = store
        self._view: View | None = view
        view.pins += 1

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        assert self._view is not None, "released"
        return self._store.load_from(self._view, sid, first_ord, first_id)

    def pin(self) -> NodeStore:
        assert self._view is not None, "released"
        return Pinned(self._store, self._view)

    def release(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.pins -= 1
            self._store.unpinned(view)


class Store:
    """Reads on the event loop through the current view; checkpoints in a worker thread."""

    def __init__(self, directory: Path) -> None:
        """Open or create. Raises CorruptError, OSError."""
        directory.mkdir(exist_ok=True)
        self.path = directory / "data.mdb"
        self.env = open_env(directory, MAP_SIZE, 5)
        with reported(self.path):
            self.meta = self.env.open_db(b"meta")
            self.nodes = self.env.open_db(b"nodes")
            self.streams = self.env.open_db(b"streams")
            self.groups = self.env.open_db(b"groups")
            self.strings = self.env.open_db(b"strings")
            with self.env.begin(db=self.meta) as txn:
                raw = txn.get(b"offset")
                if raw is not None and len(raw) != U64.size:
                    raise CorruptError(f"{self.path}: its log offset is unreadable: {REMEDY}")
                self.offset = int(U64.unpack(raw)[0]) if raw is not None else 0
        fit(self.env, self.path)
        self._view = View(self)

    # -- NodeStore -------------------------------------------------------------------------------------------
    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        """A node's blob. Raises CorruptError if it isn't there."""
        return self.load_from(self._view, sid, first_ord, first_id)

    def load_from(self, view: View, sid: int, first_ord: int, first_id: int) -> bytes:
        with reported(self.path):
            blob = view.get(NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big")))
        if blob is None:
            raise CorruptError(f"{self.path}: node {first_ord} of stream {sid} is missing: {REMEDY}")
        return blob

    def pin(self) -> NodeStore:
        return Pinned(self, self._view)

    def release(self) -> None:
        """The store itself is not pinned: nothing to do."""

    def unpinned(self, view: View) -> None:
        if not view.pins and view is not self._view:
            view.end()

    def renew_view(self) -> None:
        """New reads see the latest checkpoint; pinned views go on seeing theirs."""
        old, self._view = self._view, View(self)
        if not old.pins:
            old.end()

    def close(self) -> None:
        self._view.end()
        self.env.close()

    # -- start-up --------------------------------------------------------------------------------------------
    def restore(self, ks: Keyspace) -> tuple[int, int, int]:
        """Fill an empty keyspace; reads no node, only their keys. Returns (streams, nodes, strings). Raises CorruptError."""
        streams = nodes = strings = 0
        with reported(self.path), self.env.begin(buffers=False) as txn:
            raw = txn.get(b"next_sid", db=self.meta)
            if raw is not None:
                ks.next_sid = U64.unpack(raw)[0]
            made = {}
            for key, value in txn.cursor(db=self.streams):
                sid = int(U64.unpack(key)[0])
                expire, length = KEYED.unpack_from(value)
                name = value[KEYED.size : KEYED.size + length]
                made[sid] = ks.restore_stream(name, sid, value[KEYED.size + length :], expire)
                streams += 1
            unpack, last, stream = NODE_KEY.unpack, -1, None
            for key in txn.cursor(db=self.nodes).iternext(keys=True, values=False):
                sid, first_ord, first_id = unpack(key)
                if sid != last:
                    last, stream = sid, made.get(sid)
                if stream is None:
                    raise CorruptError(f"{self.path}: a node of stream {sid}, which isn't there: {REMEDY}")
                stream.add_stored_node(first_ord, int.from_bytes(first_id, "big"))
                nodes += 1
            for key, value in txn.cursor(db=self.groups):
                stream = made.get(int(U64.unpack_from(key)[0]))
                if stream is None:
                    raise CorruptError(f"{self.path}: a group of a stream that isn't there: {REMEDY}")
                name_len, meta_len = GROUP.unpack_from(value)
                at = GROUP.size + name_len
                ks.restore_group(stream, value[GROUP.size : at], value[at : at + meta_len], value[at + meta_len :])
            for _, value in txn.cursor(db=self.strings):
                expire, length = KEYED.unpack_from(value)
                at = KEYED.size + length
                ks.restore_string(value[KEYED.size : at], value[at:], expire)
                strings += 1
        return streams, nodes, strings

    # -- checkpoints -----------------------------------------------------------------------------------------
    def write(self, capture: Capture, offset: int) -> None:
        """One transaction with everything of the capture, synced when this returns. Raises OSError, CorruptError."""
        with reported(self.path), self.env.begin(write=True) as txn:
            if capture.flushed:
                for db in (self.nodes, self.streams, self.groups, self.strings):
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
                value = b"".join((GROUP.pack(len(name), len(meta)), name, meta, pending or b""))
                txn.put(U64.pack(sid) + short(name), value, db=self.groups)
            for key, string, expire in capture.strings:
                txn.put(short(key), b"".join((KEYED.pack(expire, len(key)), key, string)), db=self.strings)
            for key in capture.dead_strings:
                txn.delete(short(key), db=self.strings)
            txn.put(b"next_sid", U64.pack(capture.next_sid), db=self.meta)
            txn.put(b"offset", U64.pack(offset), db=self.meta)
        fit(self.env, self.path)
        self.offset = offset

    def _write_stream(self, txn: lmdb.Transaction, stream: StreamCapture, key: bytes, expire: int) -> None:
        prefix = U64.pack(stream.sid)
        txn.put(prefix, b"".join((KEYED.pack(expire, len(key)), key, stream.meta)), db=self.streams)
        nodes = stream.nodes if stream.tail is None else [*stream.nodes, stream.tail]
        for first_ord, first_id, blob in nodes:
            txn.put(NODE_KEY.pack(stream.sid, first_ord, first_id.to_bytes(16, "big")), blob, db=self.nodes)
        # evicted nodes: those behind which another one begins at or before first_ord
        cursor = txn.cursor(db=self.nodes)
        if not cursor.set_range(prefix):
            return
        while cursor.key()[:8] == prefix:
            here = cursor.key()
            following = cursor.next() and cursor.key()[:8] == prefix
            end = NODE_KEY.unpack(cursor.key())[1] if following else stream.next_ord
            if end > stream.first_ord:
                return
            cursor.set_key(here)
            cursor.delete()

    def node_count(self) -> int:
        with reported(self.path), self.env.begin(db=self.nodes) as txn:
            return int(txn.stat(self.nodes)["entries"])

    def bytes_used(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_blocks * 512


def _delete(cursor: lmdb.Cursor, prefix: bytes) -> None:
    cursor.set_range(prefix)
    while cursor.key().startswith(prefix):  # delete() goes on to the next; the key is empty behind the last
        cursor.delete()
