"""Reads streams and sealed nodes from the file of the store, in read transactions of the helper's process.

Rule 1: a node is *due* if another node of its stream follows it in the store and it exceeds ``tier-after``: all of its
entries are older than the age, or the nodes that follow it in the store have the size. The last stored node can be the
active node, and is never due.
Rule 2: a read transaction prevents LMDB from reusing pages. It is open only while entries are read, never during a call
to the object store.
Rule 3: the file can have been replaced or have grown since the last transaction, so each one opens it again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import lmdb

from persistence.layout import CRC, MARKS_KEY, NODE_KEY, STREAM, U64, signed
from persistence.lmdbfile import SMALLEST_MAP, reported
from persistence.storecopy import DATABASES, MARKS, META, NODES, STREAMS
from resp.errors import CorruptError
from storage.history.section import fields_of
from storage.model.ids import MASK64
from storage.model.tombstones import BITS, Tombstones
from storage.nodes import reference
from storage.nodes.packed import new_decompressor, open_packed
from storage.nodes.reference import Reference, is_reference
from storage.streams import metadata
from storage.streams.tierafter import TierAfter

NO_ID = 1 << 128  # above all IDs
NO_END = 1 << 63  # instead of the end of the last node, which is the end of its stream
SMALLEST = 512  # bytes of a blob that can become a reference; a reference and its key take 140


@dataclass(frozen=True, slots=True)
class StoredStream:
    """A stream in the store."""

    sid: int
    name: bytes
    first_ord: int
    next_ord: int
    tombstones: int  # their number
    tier_after: TierAfter | None = None  # None: as configured


@dataclass(frozen=True, slots=True)
class DueNodes:
    """Which nodes are due in a pass, see Rule 1.

    A size is that of the nodes as they are in the store. The ends of the due nodes are found once per stream and pass:
    new nodes make more of them due, which the next pass notices.
    """

    now: int  # ms since epoch
    after: TierAfter  # of streams without their own
    ends: dict[int, int] = field(default_factory=dict)  # of streams with a size: sid -> ordinal after the due nodes


AGELESS = DueNodes(0, TierAfter(False, 0))  # all nodes that another one follows are due


class _Limit(NamedTuple):
    """Which nodes of a stream are due."""

    end: int  # the ordinal after the last one
    before: int  # ID that all of their entries are below

    def includes(self, end: int, below: int | None) -> bool:
        """Return whether a node is due. ``end``, ``below``: see ``StoreView._keys``."""
        return below is not None and end <= self.end and below <= self.before


class StoredEntries(NamedTuple):
    """The living entries of a part of a node. The part covers the ordinals [first_ord, end_ord)."""

    first_ord: int
    end_ord: int
    ordinals: list[int]
    ids: list[int]
    fields: list[bytes]  # RESP arrays of fields and values
    reference: Reference | None = None  # what the store has instead of the entries; there are none here then


class StoreView:
    """The store in one read transaction."""

    def __init__(self, path: Path, txn: lmdb.Transaction, databases: dict[bytes, lmdb._Database]) -> None:
        self._path = path
        self._txn = txn
        self._databases = databases
        self._decompressor = new_decompressor()

    @property
    def offset(self) -> int:
        """The log offset of the store. Raises CorruptError."""
        raw = bytes(self._txn.get(b"offset", db=self._databases[DATABASES[META]]) or b"")
        if not raw:
            return 0
        if raw != signed(b"offset", raw[CRC.size :]):
            raise CorruptError(f"{self._path}: its offset is damaged")
        return int(U64.unpack_from(raw, CRC.size)[0])

    def stream(self, sid: int) -> StoredStream | None:
        """Return a stream; None if there is none, or if it has delayed entries only. Raises CorruptError."""
        raw = self._txn.get(U64.pack(sid), db=self._databases[DATABASES[STREAMS]])
        return None if raw is None else self._unpacked(U64.pack(sid), bytes(raw))

    def next_due(self, after: int, copied_to: Callable[[int], int], due: DueNodes) -> StoredStream | None:
        """Return the first stream with a sid above ``after`` that has a due node; None if there is none.

        ``copied_to``: returns the ordinal up to which the entries of a sid were copied. Raises CorruptError.
        """
        cursor = self._txn.cursor(db=self._databases[DATABASES[STREAMS]])
        there = cursor.set_range(U64.pack(after + 1))
        while there:
            key, value = bytes(cursor.key()), bytes(cursor.value())
            stream = self._unpacked(key, value)
            if stream is not None and self._is_due(stream, max(copied_to(stream.sid), stream.first_ord), due):
                return stream
            there = cursor.next()
        return None

    def streams(self, wanted: Callable[[StoredStream], bool]) -> Iterator[StoredStream]:
        """Yield some of the streams. Raises CorruptError."""
        for key, value in self._txn.cursor(db=self._databases[DATABASES[STREAMS]]):
            stream = self._unpacked(bytes(key), bytes(value))
            if stream is not None and wanted(stream):
                yield stream

    def referenced(self, after: bytes, most: int) -> tuple[set[str], bytes]:
        """Return the objects to which the nodes after a key refer, of at most ``most`` nodes, and the last key.

        The key is empty after the last node. Raises CorruptError.
        """
        cursor = self._txn.cursor(db=self._databases[DATABASES[NODES]])
        found: set[str] = set()
        there = cursor.set_range(after)
        if there and bytes(cursor.key()) == after:
            there = cursor.next()
        for _ in range(most):
            if not there:
                return found, b""
            raw = _reference_in(cursor.value())
            if raw:
                found.add(reference.unpack(raw).object)
            there = cursor.next()
        last = there and cursor.prev()
        return found, bytes(cursor.key()) if last else b""

    def entries(self, stream: StoredStream, lo: int, due: DueNodes) -> Iterator[StoredEntries]:
        """Yield the living entries of the due nodes from ordinal ``lo`` on, one item per node. Raises CorruptError."""
        expected, limit = lo, self._limit(stream, due)
        for key, end, below in self._keys(stream.sid, lo):
            if not limit.includes(end, below):
                return
            _, first, _ = NODE_KEY.unpack(key)
            missing = first - expected
            if missing > 0 and self._tombstones(stream.sid, expected, first).count(expected, first) != missing:
                raise CorruptError(f"{self._path}: stream {stream.sid} lacks the nodes from {expected} to {first}")
            yield self._living(stream, max(lo, first), first, end, self._node(key))
            expected = end

    def nodes(self, stream: StoredStream) -> Iterator[tuple[int, int, Reference | None]]:
        """Yield all nodes of a stream: first ordinal, the ordinal after the node, and its reference, if it has one.

        Raises CorruptError.
        """
        for key, end, _ in self._keys(stream.sid, stream.first_ord):
            raw = self._reference(key)
            yield NODE_KEY.unpack(key)[1], end, reference.unpack(raw) if raw else None

    def after_references(self, stream: StoredStream, lo: int, due: DueNodes) -> int:
        """Return the ordinal after the entries of the last due node that is a reference, from ordinal ``lo`` on.

        Returns ``lo`` if none is.

        The entries before it are in history objects, perhaps those of the stream's former name.
        """
        found, limit = lo, self._limit(stream, due)
        for key, end, below in self._keys(stream.sid, lo):
            if not limit.includes(end, below):
                break
            raw = self._reference(key)
            if raw:
                found = max(found, NODE_KEY.unpack(key)[1] + reference.unpack(raw).entries)
        return found

    def whole_nodes(
        self, stream: StoredStream, lo: int, hi: int, due: DueNodes
    ) -> Iterator[tuple[int, tuple[bytes, int, bytes]]]:  # fmt: skip
        """Yield the due nodes within [lo, hi) that can become references: the first ordinal; the key, the ordinal after
        the node, and the blob."""
        limit = self._limit(stream, due)
        for key, end, below in self._keys(stream.sid, lo):
            _, first, _ = NODE_KEY.unpack(key)
            if end > hi or not limit.includes(end, below):
                return
            if first < max(lo, stream.first_ord):
                continue
            blob = self._node(key)
            if len(blob) < SMALLEST or is_reference(blob):
                continue
            if not stream.tombstones or not self._tombstones(stream.sid, first, end).count(first, end):
                yield first, (key, end, blob)

    def due_to(self, stream: StoredStream, lo: int, hi: int, due: DueNodes) -> int:
        """Return the ordinal in [lo, hi] up to which all nodes are due."""
        limit = self._limit(stream, due)
        for key, end, below in self._keys(stream.sid, lo):
            first: int = NODE_KEY.unpack(key)[1]
            if first >= hi:
                break
            if not limit.includes(end, below):
                return max(lo, first)
        return min(hi, max(lo, stream.next_ord))

    def living(self, stream: StoredStream, first: int, end: int, blob: bytes) -> StoredEntries:
        """Return the living entries of the node of [first, end). Raises CorruptError."""
        return self._living(stream, first, first, end, blob)

    def between(self, stream: StoredStream, lo: int, hi: int) -> Iterator[StoredEntries]:
        """Yield the living entries of [lo, hi), of all nodes. Raises CorruptError."""
        for key, end, _ in self._keys(stream.sid, lo):
            _, first, _ = NODE_KEY.unpack(key)
            if first >= hi:
                return
            found = self._living(stream, max(lo, first), first, min(end, stream.next_ord), self._node(key))
            count = bisect_left(found.ordinals, hi)
            yield StoredEntries(
                found.first_ord, min(found.end_ord, hi), found.ordinals[:count], found.ids[:count],
                found.fields[:count], found.reference,
            )  # fmt: skip

    def _unpacked(self, key: bytes, value: bytes) -> StoredStream | None:
        (crc,) = CRC.unpack_from(value)
        if crc32(value[CRC.size :], crc32(key)) != crc:
            raise CorruptError(f"{self._path}: the entry {key!r} is damaged")
        *_, length = STREAM.unpack_from(value, CRC.size)
        at = CRC.size + STREAM.size
        raw = value[at + length :]
        if metadata.is_companion(raw):
            return None
        (sid,) = U64.unpack(key)
        meta = metadata.unpack(sid, raw)
        name = value[at : at + length]
        return StoredStream(sid, name, meta.first_ord, meta.next_ord, meta.tombstones, meta.tier_after)

    def _is_due(self, stream: StoredStream, lo: int, due: DueNodes) -> bool:
        found = next(self._keys(stream.sid, lo), None)
        return found is not None and found[2] is not None and self._limit(stream, due).includes(found[1], found[2])

    def _limit(self, stream: StoredStream, due: DueNodes) -> _Limit:
        after = stream.tier_after or due.after
        if not after.in_bytes:
            return _Limit(NO_END, (due.now - after.number) << 64 | MASK64 if after.number else NO_ID)
        end = due.ends.get(stream.sid)
        if end is None:
            end = due.ends[stream.sid] = self._before_newest(stream.sid, after.number)
        return _Limit(end, NO_ID)

    def _before_newest(self, sid: int, size: int) -> int:
        """Return the first ordinal of the newest nodes that together have this size in the store; 0 if all nodes have
        less. O(these nodes). No blob is read: LMDB has its size in the page of its key."""
        cursor = self._txn.cursor(db=self._databases[DATABASES[NODES]])
        prefix = U64.pack(sid)
        there = cursor.set_range(U64.pack(sid + 1))
        there = cursor.prev() if there else cursor.last()
        while there and bytes(cursor.key())[: U64.size] == prefix:
            size -= len(cursor.value())
            if size <= 0:
                first: int = NODE_KEY.unpack(cursor.key())[1]
                return first
            there = cursor.prev()
        return 0

    def _keys(self, sid: int, lo: int) -> Iterator[tuple[bytes, int, int | None]]:
        """Yield the nodes from the one with ordinal ``lo`` on: the key, the ordinal after the node, and the ID that its
        entries are below (None: it is the last node)."""
        cursor = self._txn.cursor(db=self._databases[DATABASES[NODES]])
        prefix = U64.pack(sid)
        there = cursor.set_range(NODE_KEY.pack(sid, lo, b"\xff" * 16))
        there = cursor.prev() if there else cursor.last()
        if not there or bytes(cursor.key())[: U64.size] != prefix:
            there = cursor.set_range(prefix)
        key = bytes(cursor.key())
        while there and key[: U64.size] == prefix:
            there = cursor.next()
            following = bytes(cursor.key())
            if there and following[: U64.size] == prefix:
                _, end, below = NODE_KEY.unpack(following)
                if end > lo:
                    yield key, end, int.from_bytes(below, "big")
            else:
                yield key, NO_END, None
            key = following

    def _node(self, key: bytes) -> bytes:
        blob = self._txn.get(key, db=self._databases[DATABASES[NODES]])
        if blob is None:
            raise CorruptError(f"{self._path}: a node is missing")
        return bytes(blob)

    def _reference(self, key: bytes) -> bytes:
        """Return the reference of a node; b"" if it has none."""
        return _reference_in(self._txn.get(key, b"", db=self._databases[DATABASES[NODES]]))

    def _living(self, stream: StoredStream, lo: int, first: int, end: int, blob: bytes) -> StoredEntries:
        if is_reference(blob):
            return StoredEntries(lo, end, [], [], [], reference.unpack(blob))
        node = open_packed(blob, self._decompressor).unpack()
        stop = min(end, first + len(node))
        begin = max(lo, stream.first_ord)
        ranges = [(begin, stop)] if begin < stop else []
        if stream.tombstones and ranges:
            ranges = self._tombstones(stream.sid, first, end).live_ranges(begin, stop)
        ordinals: list[int] = []
        ids: list[int] = []
        wires: list[bytes] = []
        for start, after in ranges:
            ordinals += range(start, after)
            ids += node.ids(start - first, after - first)
            wires += node.each(start - first, after - first)
        return StoredEntries(lo, end, ordinals, ids, [fields_of(wire) for wire in wires])

    def _tombstones(self, sid: int, lo: int, hi: int) -> Tombstones:
        """Return the tombstones of the chunks with ordinals in [lo, hi)."""
        found = Tombstones()
        marks = self._databases.get(DATABASES[MARKS])
        if marks is None:
            return found
        cursor = self._txn.cursor(db=marks)
        there = cursor.set_range(MARKS_KEY.pack(sid, lo >> BITS))
        while there:
            key, value = bytes(cursor.key()), bytes(cursor.value())
            its_sid, chunk = MARKS_KEY.unpack(key)
            if its_sid != sid or chunk > hi >> BITS:
                break
            if value != signed(key, value[CRC.size :]):
                raise CorruptError(f"{self._path}: the deleted entries of stream {sid} are damaged")
            found.restore(chunk, value[CRC.size :])
            there = cursor.next()
        return found


def _reference_in(value: memoryview | bytes) -> bytes:
    """Return the value of a node if it is a reference, otherwise b"". A blob, which can be large, is not read."""
    raw = bytes(value[: reference.SIZE + 1])  # unpack() refuses a longer one
    return raw if is_reference(raw) else b""


@contextmanager
def opened(directory: Path) -> Iterator[StoreView]:
    """Open the store in this directory in a read transaction. Raises CorruptError, OSError."""
    path = directory / "data.mdb"
    size = path.stat().st_size
    with reported(path):
        env = lmdb.open(
            str(directory), map_size=max(SMALLEST_MAP, 2 * size), max_dbs=len(DATABASES), readonly=True, create=False,
            readahead=False,
        )  # fmt: skip
        try:
            with env.begin(buffers=True) as txn:
                there = set(map(bytes, txn.cursor().iternext(keys=True, values=False)))
                databases = {
                    name: env.open_db(name, txn=txn, create=False) for name in DATABASES if name in there
                }  # fmt: skip
                yield StoreView(path, txn, databases)
        finally:
            env.close()
