"""Writes a checkpoint to the store: all changes in one transaction, with the new counts and sums (``checksums``).

Decision: a compacted node keeps all of its IDs and has entries of 0 bytes, so that positions in a node still count
ordinals, and the format of nodes did not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from zlib import crc32

import lmdb
import zstandard

from persistence.checksums import COUNTED, StoreContent
from persistence.layout import (
    CODED,
    CRC,
    GROUP,
    I64,
    LOCAL_FORMAT,
    MARKS_KEY,
    NODE_KEY,
    PIECE,
    PRODUCER,
    STAGE,
    STAGE_KEY,
    STREAM,
    STRING,
    TIERED,
    U64,
    pack_fence,
    short,
    signed,
)  # fmt: skip
from persistence.overflowpages import LARGE, OverflowPages
from persistence.storecopy import FENCES, GROUPS, MARKS, META, NODES, PRODUCERS, STAGES, STREAMS, STRINGS
from resp.errors import REMEDY, CorruptError
from storage.groups.pendingformat import assemble
from storage.model.ids import MASK64
from storage.model.records import pack_sizes
from storage.model.sortedrows import PackedRows
from storage.nodes.coded import is_coded
from storage.nodes.compaction import compacted
from storage.nodes.packed import new_decompressor
from storage.nodes.reference import is_reference
from storage.streams import indexlog
from storage.streams.capture import Capture, StreamCapture
from storage.streams.metadata import has_tier_after, plain

TOGETHER = 256  # number of sids that are sorted together
SEALED = 1 << 20  # bytes of nodes that are sealed before they are written


def is_plain(capture: Capture) -> bool:
    """Return whether earlier versions can read all entries of a capture, so that the late databases are not needed."""
    return not any(
        plain(stream.meta)[:1] == b"\2" or stream.tombstones or stream.producers for stream in capture.streams
    ) and not any(meta[:1] == b"\2" for _, _, meta, _ in capture.groups)


def format_of_rest(capture: Capture) -> int:
    """Return the highest format of a part of an index of delayed entries, or of a stream's metadata, in a capture; 0:
    that of all versions."""
    indexes = max((indexlog.format_of(meta) for _, _, meta, _ in capture.groups), default=0)
    return max(indexes, LOCAL_FORMAT if any(has_tier_after(stream.meta) for stream in capture.streams) else 0)


class Checkpoint:
    """One transaction, which must have been begun with ``buffers``, so that overwritten values are not copied."""

    def __init__(
        self, path: Path, txn: lmdb.Transaction, databases: Sequence[lmdb._Database], content: StoreContent,
        compressor: zstandard.ZstdCompressor, overflow: OverflowPages, nodes: int,
    ) -> None:  # fmt: skip
        """``databases``: in the order of ``storecopy``; the late ones may be missing if they are not needed.

        ``content``: the current counts and sums, which are updated. ``nodes``: the highest version of a node.
        """
        self._path = path
        self._txn = txn
        self._databases = databases
        self._content = content
        self._compressor = compressor
        self._overflow = overflow
        self._decompressor = new_decompressor()
        self._nodes = nodes
        self.coded = False  # whether a coded node was written
        self.tiered = False  # whether a reference was written

    def write(self, capture: Capture, offset: int) -> None:
        """Write a capture of log offset ``offset``. Raises lmdb.Error, CorruptError, OSError."""
        txn, databases = self._txn, self._databases
        if capture.flushed:
            for number in range(NODES, len(databases)):
                self._overflow.check_all(txn, databases[number], number == NODES)
                txn.drop(databases[number], delete=False)
            self._content = StoreContent()
        for sid in capture.dead_streams:
            prefix = U64.pack(sid)
            self._remove(STREAMS, prefix)
            self._remove_all(NODES, prefix)
            self._remove_all(GROUPS, prefix)
            self._remove_all(MARKS, prefix)
            self._remove_all(PRODUCERS, prefix)
        for sid, name in capture.dead_groups:
            self._remove(GROUPS, U64.pack(sid) + short(name))
        for stream in _in_order(capture.streams):
            self._write_stream(stream, *capture.stream_keys[stream.sid])
        for sid, name, meta, pending in capture.groups:
            key = U64.pack(sid) + short(name)
            self._put(GROUPS, key, _group(key, name, meta, pending))
        for name, string, expire in capture.strings:
            key = short(name)
            self._put(STRINGS, key, signed(key, STRING.pack(expire, len(name)), name, string))
        for name in capture.dead_strings:
            self._remove(STRINGS, short(name))
        self._write_staging(capture)
        self._write_meta(capture)
        content = self._content.pack(offset, txn.id())
        for name, value in (
            (b"next_sid", U64.pack(capture.next_sid)), (b"offset", U64.pack(offset)), (b"content", content),
        ):  # fmt: skip
            txn.put(name, signed(name, value), db=databases[META])

    def _write_meta(self, capture: Capture) -> None:
        """Write what is only in the store once it was needed."""
        txn, meta = self._txn, self._databases[META]
        if capture.away or txn.get(b"away", db=meta) is not None:
            txn.put(b"away", signed(b"away", I64.pack(capture.away)), db=meta)
        if capture.imports or txn.get(b"imports", db=meta) is not None:
            txn.put(b"imports", signed(b"imports", capture.imports), db=meta)
        newest = TIERED if self.tiered else CODED if self.coded else 0
        if newest > self._nodes:
            txn.put(b"nodes", signed(b"nodes", U64.pack(newest)), db=meta)

    def _write_staging(self, capture: Capture) -> None:
        for sid in capture.dead_stages:
            self._remove_all(STAGES, U64.pack(sid))
        for stage in capture.stages:
            key = STAGE_KEY.pack(stage.sid, 0)
            head = STAGE.pack(stage.ttl, stage.deadline, stage.count)
            self._put(STAGES, key, signed(key, head, stage.name))
            for number, piece, bare, sizes in stage.pieces:
                key = STAGE_KEY.pack(stage.sid, number + 1)
                head = PIECE.pack(len(piece.key), len(sizes))
                self._put(STAGES, key, signed(key, head, piece.key, pack_sizes(sizes), bare))
        for name, epoch, check in capture.fences:
            key = short(name)
            self._put(FENCES, key, signed(key, pack_fence(name, epoch, check)))

    def _write_stream(self, stream: StreamCapture, name: bytes, expire: int) -> None:
        txn = self._txn
        prefix = U64.pack(stream.sid)
        old = txn.get(prefix, db=self._databases[STREAMS])
        count = total = 0
        if old is not None:
            (crc,) = CRC.unpack_from(old)
            if crc32(old[CRC.size :], crc32(prefix)) != crc:
                raise CorruptError(f"{self._path}: the entry {prefix!r} is damaged: {REMEDY}")
            _, count, total, _ = STREAM.unpack_from(old, CRC.size)
            self._content.remove(STREAMS, crc)
        count, total = self._write_nodes(stream, prefix, count, total)
        if stream.tombstones or stream.producers:
            self._write_additions(stream)
        value = STREAM.pack(expire, count, total & MASK64, len(name)) + name + stream.meta
        crc = crc32(value, crc32(prefix))
        self._content.add(STREAMS, crc)
        txn.put(prefix, CRC.pack(crc) + value, db=self._databases[STREAMS])

    def _write_nodes(self, stream: StreamCapture, prefix: bytes, count: int, total: int) -> tuple[int, int]:
        """Write and delete nodes of a stream. Return their number and sum (see ``layout``), which were given."""
        txn, nodes = self._txn, self._databases[NODES]
        active = None if stream.active is None else stream.active[2]
        sparse = {first_ord: (first_id, alive) for first_ord, first_id, alive in stream.sparse}
        for key, blob in self._blobs(stream, sparse):
            self.coded = self.coded or is_coded(blob)
            self.tiered = self.tiered or is_reference(blob)
            sum_of_key = crc32(key)
            # Usually, the stream's only node was the active node at an earlier checkpoint; no lookup is needed then.
            known = count == 1 and total == sum_of_key
            if not known and txn.put(key, blob, db=nodes, overwrite=False):
                count += 1
                total += sum_of_key
            else:
                # A raw active node only grows: a short one replaces a shorter one, which has no own pages.
                if len(blob) >= LARGE or blob is not active or is_coded(blob):
                    self._check_node(key)
                txn.put(key, blob, db=nodes)
        for first_ord, first_id in stream.dead_nodes:
            key = NODE_KEY.pack(stream.sid, first_ord, first_id.to_bytes(16, "big"))
            self._check_node(key)
            if txn.delete(key, db=nodes):
                count -= 1
                total -= crc32(key)
        for first_ord, (first_id, alive) in sparse.items():
            self._compact(NODE_KEY.pack(stream.sid, first_ord, first_id.to_bytes(16, "big")), alive)
        if stream.first_ord:
            for key in self._evict(prefix, stream):
                count -= 1
                total -= crc32(key)
        return count, total

    def _blobs(
        self, stream: StreamCapture, sparse: dict[int, tuple[int, list[tuple[int, int]]]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and blobs of the captured nodes. Removes those that are compacted from ``sparse``.

        Blobs are sealed SEALED bytes at a time. LMDB retains the memory of the pages that it has written, for later
        checkpoints. If one page was allocated after each blob, the memory of the blobs could not be returned to the
        system: 16 MB after a million delayed entries.
        """
        blobs: list[tuple[bytes, bytes]] = []
        size = 0
        for first_ord, first_id, node in stream.nodes if stream.active is None else [*stream.nodes, stream.active]:
            _, alive = sparse.pop(first_ord, (0, ()))
            is_blob = not isinstance(node, bytes) or not is_reference(node)
            less = compacted(node, alive, self._compressor) if alive and is_blob else None
            if less is not None:
                blob = less
            else:
                blob = node if isinstance(node, bytes) else node.seal(self._compressor)
            blobs.append((NODE_KEY.pack(stream.sid, first_ord, first_id.to_bytes(16, "big")), blob))
            size += len(blob)
            if size >= SEALED:
                yield from blobs
                blobs, size = [], 0
        yield from blobs

    def _compact(self, key: bytes, alive: Sequence[tuple[int, int]]) -> None:
        """Rewrite a stored node without the bytes of its deleted entries, if this is worthwhile.

        A damaged node stays as it is: reading it fails, and the checkpoint continues. A reference has no entries.
        """
        txn, nodes = self._txn, self._databases[NODES]
        blob = txn.get(key, db=nodes)
        if blob is not None and not is_reference(blob):
            try:
                less = compacted(bytes(blob), alive, self._compressor, self._decompressor)
            except CorruptError:
                return
            if less is not None:
                self.coded = self.coded or is_coded(less)
                self._check(NODES, key, blob)
                txn.put(key, less, db=nodes)

    def _write_additions(self, stream: StreamCapture) -> None:
        """Write the tombstones and producers of a stream."""
        for chunk, container in stream.tombstones:
            key = MARKS_KEY.pack(stream.sid, chunk)
            if container:
                self._put(MARKS, key, signed(key, container))
            else:
                self._remove(MARKS, key)
        for name, dump in stream.producers:
            key = U64.pack(stream.sid) + short(name)
            if dump:
                self._put(PRODUCERS, key, signed(key, PRODUCER.pack(len(name)), name, dump))
            else:
                self._remove(PRODUCERS, key)

    # -- entries that are counted ----------------------------------------------------------------------------
    def _put(self, db: int, key: bytes, value: bytes | bytearray) -> None:
        txn, database = self._txn, self._databases[db]
        old = txn.get(key, db=database)
        if old is not None:
            self._content.remove(db, CRC.unpack_from(old)[0])
            self._check(db, key, old)
        self._content.add(db, CRC.unpack_from(value)[0])
        txn.put(key, value, db=database)

    def _remove(self, db: int, key: bytes) -> None:
        """Delete an entry, if it exists."""
        if db >= len(self._databases):
            return
        txn, database = self._txn, self._databases[db]
        old = txn.get(key, db=database)
        if old is not None:
            self._content.remove(db, CRC.unpack_from(old)[0])
            self._check(db, key, old)
            txn.delete(key, db=database)

    def _remove_all(self, db: int, prefix: bytes) -> None:
        """Delete all entries whose keys begin with ``prefix``."""
        if db >= len(self._databases):
            return
        counted = db in COUNTED
        cursor = self._txn.cursor(db=self._databases[db])
        cursor.set_range(prefix)
        while cursor.key()[: len(prefix)] == prefix:
            value = cursor.value()
            if counted:
                self._content.remove(db, CRC.unpack_from(value)[0])
            if len(value) >= LARGE:
                self._check(db, bytes(cursor.key()), value)
            cursor.delete()  # moves to the next entry; after the last one, the key is empty

    def _evict(self, prefix: bytes, stream: StreamCapture) -> list[bytes]:
        """Delete the nodes of a stream that end at or before its first_ord, which is not 0. Return their keys."""
        cursor, gone = self._txn.cursor(db=self._databases[NODES]), list[bytes]()
        cursor.set_range(prefix)
        while cursor.key()[:8] == prefix:
            here = bytes(cursor.key())
            following = cursor.next() and cursor.key()[:8] == prefix
            end = NODE_KEY.unpack(cursor.key())[1] if following else stream.next_ord
            if end > stream.first_ord:
                break
            cursor.set_key(here)
            value = cursor.value()
            if len(value) >= LARGE:
                self._check(NODES, here, value)
            cursor.delete()  # moves to the next entry; after the last one, the key is empty
            gone.append(here)
        return gone

    # -- pages of large values -------------------------------------------------------------------------------
    def _check_node(self, key: bytes) -> None:
        """Verify the pages of a node before it is overwritten or deleted. Raises CorruptError, OSError."""
        value = self._txn.get(key, db=self._databases[NODES])
        if value is not None and len(value) >= LARGE:
            self._check(NODES, key, value)

    def _check(self, db: int, key: bytes, value: bytes | memoryview) -> None:
        """Verify the pages of a value before it is overwritten or deleted. Raises CorruptError, OSError."""
        if len(value) >= LARGE:
            self._overflow.check(key, value, db == NODES)


def _group(key: bytes, name: bytes, meta: bytes, pending: Sequence[bytes | PackedRows]) -> bytearray:
    """Return a group's value, like signed(), but built in parts, so that other threads can run (see assemble())."""
    head = GROUP.pack(len(name), len(meta)) + name + meta
    value = assemble(pending, CRC.size + len(head))
    value[CRC.size : CRC.size + len(head)] = head
    CRC.pack_into(value, 0, crc32(memoryview(value)[CRC.size :], crc32(key)))
    return value


def _in_order(streams: Sequence[StreamCapture]) -> Iterator[StreamCapture]:
    """Yield streams by sid, the order of the store, so that each page of the store is found and copied only once.

    Sorts in parts, since sorting 100,000 streams at once would block other threads.
    """
    parts: dict[int, list[StreamCapture]] = {}
    for stream in streams:
        parts.setdefault(stream.sid // TOGETHER, []).append(stream)
    for number in sorted(parts):
        yield from sorted(parts.pop(number), key=attrgetter("sid"))
