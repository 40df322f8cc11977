"""The digest of a keyspace's content for DEBUG DIGEST, to compare servers."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from storage.keyspace.values import String, Value
from storage.model.ids import MAX_ID
from storage.model.timers import NEVER
from storage.streams.delayed import DelayedEntries
from storage.streams.stages import Stages
from storage.streams.stream import Stream


def digest(
    keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages, delayed: dict[bytes, DelayedEntries]
) -> str:  # fmt: skip
    """Return a SHA-256 of the content, equal for equal states. Excludes the deadlines of groups, which reads change."""
    total = sha256()
    for key in sorted(keys):
        value = keys[key]
        total.update(b"%d:%b@%d" % (len(key), key, expires.get(key, NEVER)))
        if isinstance(value, String):
            total.update(b"S%d:%b" % (len(value.value), value.value))
        else:
            _add_stream(value, total.update)
        if key in delayed and delayed[key].entries.next_ord:
            total.update(b"L")
            _add_stream(delayed[key].entries, total.update)
    stages.digest(total.update)
    return total.hexdigest()


def _add_settings(stream: Stream, update: Callable[[bytes], object]) -> None:
    if stream.retention is not None:
        update(b"K%b;" % stream.retention.pack())
    if stream.tier_after is not None:
        update(b"H%b;" % stream.tier_after.pack())


def _add_stream(stream: Stream, update: Callable[[bytes], object]) -> None:
    update(b"T%d %d %d %d;" % (stream.last_id, stream.next_ord, stream.first_ord, stream.evicted_to))
    if stream.deleted or stream.shift or stream.max_deleted or stream.lone:
        added = stream.entries_added
        update(b"D%d %d %d %d;" % (stream.deleted, added, stream.max_deleted, stream.lone))
    _add_settings(stream, update)
    if stream.tombstones is not None:
        for chunk, container in stream.tombstones.chunks():
            update(b"M%d %d:%b" % (chunk, len(container), container))
    if stream.producers is not None:
        for name, dump in stream.producers.dumps():
            update(b"P%d:%b%d:%b" % (len(name), name, len(dump), dump))
    pieces, close = stream.pieces(stream.first_ord, stream.next_ord)
    for piece in pieces:
        update(piece)
    close()
    for name in sorted(stream.groups):
        group = stream.groups[name]
        update(b"G%d:%b %d %d" % (len(name), name, group.offset, group.ttl))
        if group.consumers or group.entries_read >= 0:
            update(b"R%d;" % group.entries_read)
            for one in group.consumers.values():
                update(b"C%d:%b %d;" % (len(one.name), one.name, one.number))
        for row in group.pending.rows(0, MAX_ID, len(group.pending)):
            update(repr(tuple(row[:8] if row.due else row)).encode())
