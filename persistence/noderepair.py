"""Replaces a damaged node of the store by a copy of its entries.

Rule 1: a node is replaced only while it is damaged, and only by a node with the first ID, with IDs that ascend and end
before the next node, and with the bytes of each entry that is alive as of the store. It may be alive only there: after
a crash, the journal deletes it again, and finds it by its ID.
Rule 2: the store is examined in the write transaction that replaces the node, so that no checkpoint is in between.
Rule 3: everything is examined with plain reads (``lmdbreads``). LMDB then follows only pages that were just verified.
Rule 4: LMDB frees the pages of the damaged node as the header of the first one says, so these must be the node's own
pages: either the blob in them names the node's first ID, or the disk cannot read them at all. A damaged header is
written again first. A reference to other pages is not repaired.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from operator import lt
from struct import error as struct_error
from typing import Final, NamedTuple
from zlib import crc32

import zstandard

from persistence.layout import CRC, MARKS_KEY, NODE_KEY, STREAM, U64
from persistence.lmdbfile import reported
from persistence.lmdbpages import HEAD, DamageError
from persistence.lmdbreads import Found, LmdbSnapshot, MissedError
from persistence.overflowpages import names_id, own
from persistence.store import Store
from persistence.storecopy import DATABASES, MARKS, NODES, STREAMS
from resp.errors import CorruptError
from storage.model.tombstones import BITS, Tombstones
from storage.nodes import reference
from storage.nodes.coded import CodedNode, is_coded
from storage.nodes.coded import check as check_rows
from storage.nodes.node import HEADER
from storage.nodes.packed import PackedNode, new_decompressor, open_packed
from storage.nodes.reference import Reference, is_reference
from storage.streams import metadata
from storage.streams.metadata import StreamMeta

MOST_ENTRIES: Final = 1 << 24  # ordinals of a node with the deleted entries after it


class RepairError(Exception):
    """Raised if a node cannot be replaced, or a copy does not fit."""


class NodeRange(NamedTuple):
    """The entries of a node: ``size`` ordinals from ``first_ord`` on; the last ones may be deleted."""

    sid: int
    first_ord: int
    first_id: int
    size: int
    key: bytes  # of the stream


@dataclass(slots=True)
class Expected:
    """What the store expects of a node."""

    found: Found
    range: NodeRange
    begin: int  # ordinal of the first entry that is not evicted
    below: int  # its IDs are lower than this one
    tombstones: Tombstones | None
    page_size: int  # of the file


def node_problem(key: bytes, blob: bytes, decompressor: zstandard.ZstdDecompressor) -> str:
    """Verify a node of the store. Return what is damaged, or "" if it is sound."""
    node: PackedNode | CodedNode | Reference
    try:
        if is_reference(blob):
            node = reference.unpack(blob)
        else:
            node = open_packed(blob, decompressor)
            if is_coded(blob):
                check_rows(blob)
    except (CorruptError, struct_error, ValueError) as error:
        return str(error)
    same = node.first_id == int.from_bytes(NODE_KEY.unpack(key)[2], "big")
    return "" if same else "the blob belongs to another node"


def wanted(store: Store, key: bytes) -> NodeRange | None:
    """Return what a copy of the damaged node with this key must contain; None if it is no longer damaged.

    Any thread. Raises RepairError, OSError.
    """
    with store.reading():
        fd = os.open(store.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with reported(store.path), store.env.begin() as txn:
                expected = _examine(fd, txn.id(), key)
        finally:
            os.close(fd)
    return None if expected is None else expected.range


def replace(store: Store, key: bytes, blob: bytes) -> bool:
    """Replace a damaged node by a copy. Return False if it is no longer damaged.

    Any thread. Raises RepairError if the copy does not fit, OSError, CorruptError.
    """

    def allowed(transaction: int) -> bool:
        fd = os.open(store.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            expected = _examine(fd, transaction, key)
            if expected is None:
                return False
            _check(blob, expected)
            _own_pages(fd, expected)
        finally:
            os.close(fd)
        return True

    with store.reading():
        return store.replace_node(key, blob, allowed)


def _examine(fd: int, transaction: int, key: bytes) -> Expected | None:
    """Return what the store expects of a damaged node; None if it is sound or gone. Raises RepairError, OSError."""
    try:
        return _expected(LmdbSnapshot(fd, transaction), key)
    except MissedError as error:
        raise RepairError(f"the store has changed meanwhile ({error})") from error
    except (DamageError, CorruptError, struct_error) as error:
        raise RepairError(f"the store is damaged at other places, too: {error}") from error


def _expected(snapshot: LmdbSnapshot, key: bytes) -> Expected | None:
    entries = snapshot.entries(DATABASES[NODES], key)
    found = next(entries, None)
    if found is None or found.key != key:
        return None
    if found.why and found.end != key + b"\0":
        raise DamageError(found.why)
    if not found.why and not node_problem(key, found.value, new_decompressor()):
        return None
    sid, first_ord, first_id = NODE_KEY.unpack(key)
    name, meta = _stream(snapshot, sid)
    end, below = meta.next_ord, (meta.last_ms << 64 | meta.last_seq) + 1
    following = next(entries, None)
    if following is not None:
        if len(following.key) != NODE_KEY.size:
            raise DamageError(following.why)
        its_sid, its_ord, its_id = NODE_KEY.unpack(following.key)
        if its_sid == sid:
            end, below = its_ord, int.from_bytes(its_id, "big")
    begin = max(first_ord, meta.first_ord)
    if begin >= end:  # evicted: the next checkpoint removes it
        return None
    if end - first_ord > MOST_ENTRIES:
        raise RepairError(f"{end - first_ord - 1} entries follow its first one")
    tombstones = Tombstones() if meta.tombstones else None
    if tombstones is not None:
        for each in _sound(snapshot, MARKS, MARKS_KEY.pack(sid, first_ord >> BITS)):
            its_sid, chunk = MARKS_KEY.unpack(each.key)
            if its_sid != sid or chunk > end >> BITS:
                break
            tombstones.restore(chunk, each.value[CRC.size :])
    wanted = NodeRange(sid, first_ord, int.from_bytes(first_id, "big"), end - first_ord, name)
    return Expected(found, wanted, begin, below, tombstones, snapshot.page_size)


def _stream(snapshot: LmdbSnapshot, sid: int) -> tuple[bytes, StreamMeta]:
    """Return the key and the metadata of a stream. Raises DamageError, CorruptError, struct.error."""
    prefix = U64.pack(sid)
    found = next(_sound(snapshot, STREAMS, prefix), None)
    if found is None or found.key != prefix:
        raise DamageError(f"stream {sid} is missing")
    *_, length = STREAM.unpack_from(found.value, CRC.size)
    at = CRC.size + STREAM.size
    return found.value[at : at + length], metadata.unpack(sid, found.value[at + length :])


def _sound(snapshot: LmdbSnapshot, db: int, start: bytes) -> Iterator[Found]:
    """Yield the entries of a database from a key on. Raises DamageError at the first that is damaged."""
    for each in snapshot.entries(DATABASES[db], start):
        if each.why or CRC.unpack_from(each.value)[0] != crc32(memoryview(each.value)[CRC.size :], crc32(each.key)):
            raise DamageError(each.why or f"the checksum of an entry of {DATABASES[db].decode()} is wrong")
        yield each


def _check(blob: bytes, expected: Expected) -> None:
    """Raise RepairError if a copy does not fit (Rule 1)."""
    _, first_ord, first_id, count, _ = expected.range
    try:
        packed = open_packed(blob, new_decompressor())
        if is_coded(blob):
            check_rows(blob)
        node = packed.unpack()
    except (CorruptError, struct_error, ValueError) as error:
        raise RepairError(f"the copy is damaged: {error}") from error
    size = len(node)
    ids = node.ids(0, size)
    if ids[0] != first_id or ids[-1] >= expected.below or not all(map(lt, ids, ids[1:])):
        raise RepairError("the copy has other IDs")
    end, tombstones = first_ord + count, expected.tombstones
    rest = max(first_ord + size, expected.begin)
    dead = 0 if tombstones is None else tombstones.count(rest, end)
    if size > count or end - rest != dead:
        raise RepairError("the copy has another number of entries")
    begin, stop = expected.begin, first_ord + size
    living = [(begin, stop)] if tombstones is None else tombstones.live_ranges(begin, stop)
    ends = [0, *node.ends]
    for lo, hi in living:
        its = ends[lo - first_ord : hi - first_ord + 1]
        if not all(map(lt, its, its[1:])):
            raise RepairError("the copy lacks entries that were deleted later")


def _own_pages(fd: int, expected: Expected) -> None:
    """Make sure that LMDB frees the node's own pages (Rule 4). Raises RepairError, OSError."""
    found = expected.found
    if not found.page:  # the value is in the page of the key
        return
    first_id = expected.range.first_id
    # found.size is that of the pages: the value's own length does not matter here.
    size = found.size - HEAD.size
    try:
        own(fd, found.page, size, expected.page_size, HEADER.size, lambda start: names_id(start, first_id))
    except DamageError as error:
        raise RepairError(str(error)) from error
