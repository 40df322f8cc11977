"""The copy of a key for another group of a cluster: records that recreate it there, as of one moment.

Times are in the served time of this server. ``importing`` converts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import zstandard

from storage.groups.pending import PendingTable
from storage.groups.rangerow import OWNED, unpack_range
from storage.keyspace.copymutators import MOST_DEAD
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.values import String
from storage.model import records
from storage.model.timers import NEVER
from storage.nodes.node import HEADER
from storage.nodes.reference import is_reference
from storage.streams.delayed import DelayedEntries
from storage.streams.snapshot import Snapshot
from storage.streams.stages import Stage


def copy_of(ks: Keyspace, key: bytes, refer: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Return the records that recreate a key, which must exist, as it is now. Nothing of the key may be unlogged.

    The iterator reads a stream node by node, while the key changes. It must be read to its end, or closed. It yields
    b"" for each attempt to read a node that is only in the object store. ``ks.pool.absent`` is then set, and the next
    attempt follows when the iteration continues. ``refer``: returns the reference that the other group gets instead of
    the entries of the node with this reference; b"": it gets the entries. Raises DamagedNodeError, as its steps do.
    """
    value, expire = ks.keys[key], ks.expires.get(key, NEVER)
    if isinstance(value, String):
        return iter((records.set_string(key, value.value, expire),))
    groups = [(name, group.meta(), group.pending.freeze()) for name, group in value.groups.items()]
    producers = [] if value.producers is None else value.producers.dumps()
    nodes = value.snapshot(value.first_ord, value.next_ord) if value.length else None
    delayed = _delayed(ks.delayed.get(key))
    return _stream(key, value.meta(), nodes, groups, producers, delayed, expire, refer)


def _delayed(delayed: DelayedEntries | None) -> Snapshot | None:
    if delayed is None or not len(delayed):
        return None
    return delayed.entries.snapshot(delayed.entries.first_ord, delayed.entries.next_ord)


def _stream(
    key: bytes, meta: bytes, nodes: Snapshot | None, groups: list[tuple[bytes, bytes, PendingTable]],
    producers: list[tuple[bytes, bytes]], delayed: Snapshot | None, expire: int,
    refer: Callable[[bytes], bytes],
) -> Iterator[bytes]:  # fmt: skip
    try:
        yield records.copied(key, 0, meta)
        if nodes is not None:
            compressor = zstandard.ZstdCompressor()
            nodes.waits = True
            for first, end, blob, dead in nodes.stored_form(compressor, refer):
                yield from _node(key, first, end, blob, dead) if blob else (b"",)
        yield records.copied(key, 1, meta)
        for name, group, pending in groups:
            yield records.group_copy(key, name, group)
            for row, deadletter, ids in pending.runs():
                yield _pending(key, name, row, deadletter, ids)
        for name, dump in producers:
            yield records.producer(key, name, dump)
        if delayed is not None:
            for wires in delayed.entries():
                for wire in wires:
                    ms, seq = wire.split(b"\r\n", 3)[2].split(b".")
                    yield records.delay(key, int(ms), int(seq), wire)
        if expire:
            yield records.expire(key, expire)
    finally:
        for snapshot in (nodes, delayed):
            if snapshot is not None:
                snapshot.close()


def _node(key: bytes, first: int, end: int, blob: bytes, dead: list[int]) -> Iterator[bytes]:
    """Yield the records of a node. Those of the ordinals after its entries, which are all deleted, are limited."""
    stop = min(end, first + HEADER.unpack_from(blob)[3])
    record = records.node_reference if is_reference(blob) else records.node
    yield record(key, first, stop, _ranges([ordinal for ordinal in dead if ordinal < stop]), blob)
    while stop < end:
        begin, stop = stop, min(end, stop + MOST_DEAD)
        yield records.node(key, begin, stop, [(begin, stop)], b"")


def _ranges(ordinals: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _, same in groupby(enumerate(ordinals), lambda pair: pair[1] - pair[0]):
        run = [ordinal for _, ordinal in same]
        found.append((run[0], run[-1] + 1))
    return found


def _pending(key: bytes, name: bytes, row: bytes, deadletter: bytes, ids: list[bytes]) -> bytes:
    _, first, due, expire, retry, deliveries, most, _, kind = unpack_range(row)
    if kind == OWNED:  # the fields have other meanings
        return records.pending(key, name, b"", (first, due, NEVER, 0), expire, 0, most, OWNED, ids)
    return records.pending(key, name, deadletter, (first, due, expire, retry), deliveries, most, 0, 0, ids)


def stage_copy(name: bytes, stage: Stage, keys: set[bytes]) -> Iterator[bytes]:
    """Yield the records that recreate the entries of a stage for some keys."""
    for piece in list(stage.pieces):
        if piece.key in keys:
            yield b"".join(records.stage(name, piece.key, stage.ttl, stage.deadline, piece.sizes[:], bytes(piece.bare)))


def fence_copy(ks: Keyspace, fence: bytes) -> bytes:
    """Return the record that sets a fence."""
    return records.publish(fence, ks.stages.fences[fence], ks.stages.checks.get(fence, b""), (), ())
