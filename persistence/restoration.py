"""Restores a keyspace from the store at a start. See ``layout`` for the entries and ``store`` for what is verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import lmdb

from persistence.checksums import COUNTED, StoreContent
from persistence.layout import (
    CRC,
    GROUP,
    LOCAL_FORMAT,
    MARKS_KEY,
    NODE_KEY,
    PIECE,
    PRODUCER,
    STAGE,
    STAGE_KEY,
    STREAM,
    STRING,
    U64,
    short,
    unpack_fence,
)  # fmt: skip
from persistence.storecopy import DATABASES, FENCES, GROUPS, MARKS, NODES, PRODUCERS, STAGES, STREAMS, STRINGS
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.model.ids import MASK64
from storage.model.records import unpack_sizes
from storage.streams import indexlog
from storage.streams.delayed import DelayedEntries
from storage.streams.metadata import has_tier_after, is_companion
from storage.streams.stages import Stage
from storage.streams.stream import Stream


def verified_entries(
    path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], db: int, found: StoreContent
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the verified entries of a database in order, and count them in ``found``.

    Raises CorruptError if one is damaged.
    """
    if db >= len(databases):
        return
    count = total = 0
    unpack, size = CRC.unpack_from, CRC.size
    for raw_key, raw_value in txn.cursor(db=databases[db]):
        key, value = bytes(raw_key), bytes(raw_value)
        (crc,) = unpack(value)
        if crc32(memoryview(value)[size:], crc32(key)) != crc:
            raise CorruptError(f"{path}: the entry {key!r} is damaged: {REMEDY}")
        count += 1
        total += crc
        yield key, value
    found.set(db, count, total)


class Restoration:
    """Restores one empty keyspace in one read transaction."""

    def __init__(
        self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], ks: Keyspace, keys: bytes | None
    ) -> None:
        """``databases``: in the order of ``storecopy``. ``keys``: those of all nodes; None: they are read."""
        self._path = path
        self._txn = txn
        self._databases = databases
        self._ks = ks
        self._keys = keys
        self._found = StoreContent()
        self.indexes = 0  # the highest format of a part of an index of delayed entries, and of metadata

    def run(self, claimed: StoreContent | None) -> tuple[int, int, int]:
        """Restore, and return the numbers of (streams, nodes, strings).

        ``claimed``: the recorded counts and sums; None: none are valid. Raises CorruptError, lmdb.Error, and what an
        invalid entry raises (DAMAGE).
        """
        ks = self._ks
        streams, nodes = self._restore_streams()
        self._restore_strings()
        if len(ks.keys) != streams + self._found.entries[STRINGS]:
            raise CorruptError("a key has two values")
        self._restore_staging()
        if ks.next_sid >> 63:
            raise CorruptError("the number of its next stream is invalid")
        if abs(ks.away) >> 62:
            raise CorruptError("the shift of its served time is invalid")
        self._check_content(claimed)
        return streams, nodes, self._found.entries[STRINGS]

    def _entries(self, db: int) -> Iterator[tuple[bytes, bytes]]:
        return verified_entries(self._path, self._txn, self._databases, db, self._found)

    def _check_content(self, claimed: StoreContent | None) -> None:
        """Compare the recorded counts and sums with the entries. Raises CorruptError if they differ."""
        if claimed is None:
            return
        for db in COUNTED:
            name, there, wanted = DATABASES[db].decode(), self._found.entries[db], claimed.entries[db]
            if there != wanted:
                raise CorruptError(f"{self._path}: has {there} {name} instead of {wanted}: {REMEDY}")
            if self._found.sums[db] != claimed.sums[db]:
                raise CorruptError(f"{self._path}: its {name} are not those of the last checkpoint: {REMEDY}")

    def _restore_streams(self) -> tuple[int, int]:
        made: dict[int, Stream] = {}
        companions: dict[int, DelayedEntries] = {}
        claimed: dict[int, tuple[int, int]] = {}  # sid -> nodes, their sum
        for key, value in self._entries(STREAMS):
            (sid,) = U64.unpack(key)
            expire, count, total, length = STREAM.unpack_from(value, CRC.size)
            at = CRC.size + STREAM.size
            if expire >> 63:
                raise CorruptError(f"the expiry of stream {sid} is invalid")
            name, meta = value[at : at + length], value[at + length :]
            if is_companion(meta):
                made[sid] = self._ks.restore_delayed(name, sid, meta)
                companions[sid] = self._ks.delayed[name]
            else:
                made[sid] = self._ks.restore_stream(name, sid, meta, expire)
                if has_tier_after(meta):
                    self.indexes = max(self.indexes, LOCAL_FORMAT)
            claimed[sid] = count, total
        nodes = self._restore_nodes(made, claimed)
        self._restore_additions(made)
        for stream in made.values():
            stream.all_nodes_added()
        for key, value in self._entries(GROUPS):
            (sid,) = U64.unpack_from(key)
            of = made.get(sid)
            if of is None:
                raise CorruptError(f"{self._path}: a group of an unknown stream: {REMEDY}")
            name_len, meta_len = GROUP.unpack_from(value, CRC.size)
            at = CRC.size + GROUP.size + name_len
            name = value[at - name_len : at]
            if short(name) != key[U64.size :]:
                raise CorruptError(f"the group {name!r} has the key of another one")
            meta, rest = value[at : at + meta_len], value[at + meta_len :]
            if sid not in companions:
                self._ks.restore_group(of, name, meta, rest)
            else:
                self.indexes = max(self.indexes, indexlog.format_of(meta))
                companions[sid].restore_part(name, meta, rest)
        self._ks.restored_delayed()
        return len(made) - len(companions), nodes

    def _restore_additions(self, made: dict[int, Stream]) -> None:
        """Restore the tombstones and producers of streams."""
        for key, value in self._entries(MARKS):
            sid, chunk = MARKS_KEY.unpack(key)
            stream = made.get(sid)
            if stream is None:
                raise CorruptError(f"{self._path}: deleted entries of an unknown stream: {REMEDY}")
            stream.restore_tombstones(chunk, value[CRC.size :])
        for key, value in self._entries(PRODUCERS):
            stream = made.get(U64.unpack_from(key)[0])
            if stream is None:
                raise CorruptError(f"{self._path}: a producer of an unknown stream: {REMEDY}")
            (length,) = PRODUCER.unpack_from(value, CRC.size)
            at = CRC.size + PRODUCER.size + length
            name = value[at - length : at]
            if len(name) != length or short(name) != key[U64.size :]:
                raise CorruptError(f"the producer {name!r} has the key of another one")
            stream.own_producers().restore(name, value[at:])

    def _restore_strings(self) -> None:
        for stored_key, value in self._entries(STRINGS):
            expire, length = STRING.unpack_from(value, CRC.size)
            at = CRC.size + STRING.size
            key = value[at : at + length]
            if len(key) != length or expire >> 63 or short(key) != stored_key:
                raise CorruptError(f"the string at {stored_key!r} is invalid")
            self._ks.restore_string(key, value[at + length :], expire)

    def _restore_nodes(self, made: dict[int, Stream], claimed: dict[int, tuple[int, int]]) -> int:
        keys = self._keys
        if keys is None:  # not the first call: slower, because the nodes are read, too
            keys = b"".join(map(bytes, self._txn.cursor(db=self._databases[NODES]).iternext(keys=True, values=False)))
        number, size = int.from_bytes, NODE_KEY.size
        last, count, total, nodes, before = -1, 0, 0, 0, b""
        stream: Stream | None = None
        for sid, first_ord, first_id in NODE_KEY.iter_unpack(keys):
            key = keys[nodes * size : nodes * size + size]
            if sid != last:
                if stream is not None and claimed.pop(last) != (count, total & MASK64):
                    raise CorruptError(f"{self._path}: the list of nodes of stream {last} is damaged: {REMEDY}")
                last, count, total, stream = sid, 0, 0, made.get(sid)
            if stream is None:
                raise CorruptError(f"{self._path}: a node of the unknown stream {sid}: {REMEDY}")
            if key <= before:
                raise CorruptError(f"{self._path}: the nodes of stream {sid} are out of order: {REMEDY}")
            stream.add_stored_node(first_ord, number(first_id, "big"))
            before = key
            count += 1
            total += crc32(key)
            nodes += 1
        if stream is not None and claimed.pop(last) != (count, total & MASK64):
            raise CorruptError(f"{self._path}: the list of nodes of stream {last} is damaged: {REMEDY}")
        for sid, (count, _) in claimed.items():
            if count:
                raise CorruptError(f"{self._path}: the nodes of stream {sid} are missing: {REMEDY}")
        return nodes

    def _restore_staging(self) -> None:
        stage, left = None, 0  # number of its chunks that follow
        for key, value in self._entries(STAGES):
            sid, number = STAGE_KEY.unpack(key)
            if not number and not left:
                ttl, deadline, left = STAGE.unpack_from(value, CRC.size)
                if ttl >> 63 or not left:
                    raise CorruptError(f"stage {sid} is invalid")
                stage = self._ks.stages.restore(value[CRC.size + STAGE.size :], sid, ttl, deadline)
                self._ks.next_sid = max(self._ks.next_sid, sid + 1)
            elif left and stage is not None and stage.sid == sid and number == len(stage.pieces) + 1:
                self._restore_piece(stage, value)
                left -= 1
                if not left:
                    self._ks.stages.restored(stage)
            else:
                left = -1
                break
        if left:
            raise CorruptError(f"{self._path}: parts of a stage are missing: {REMEDY}")
        for key, value in self._entries(FENCES):
            fence, epoch, check = unpack_fence(value)
            if short(fence) != key:
                raise CorruptError(f"the fence {fence!r} is invalid")
            self._ks.stages.restore_fence(fence, epoch, check)

    def _restore_piece(self, stage: Stage, value: bytes) -> None:
        length, count = PIECE.unpack_from(value, CRC.size)
        at = CRC.size + PIECE.size + length
        sizes, bare = unpack_sizes(value[at : at + 4 * count]), value[at + 4 * count :]
        if not count or len(sizes) != count or sum(sizes) != len(bare):
            raise CorruptError(f"{self._path}: a part of stage {stage.sid} has inconsistent sizes: {REMEDY}")
        stage.restore_piece(value[at - length : at], sizes, bare)
