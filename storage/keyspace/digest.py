"""The digest of a keyspace's content for DEBUG DIGEST, to compare servers.

``digest`` computes it at once. ``SteppedDigest`` has the same result, and waits for entries in the object store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256

from storage.keyspace.values import String, Value
from storage.model.ids import MAX_ID
from storage.model.timers import NEVER
from storage.streams.delayed import DelayedEntries
from storage.streams.snapshot import Snapshot
from storage.streams.stages import Stages
from storage.streams.stream import Stream

Update = Callable[[bytes], object]
Entries = Callable[[Stream], None]  # adds the entries of a stream


def digest(
    keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages, delayed: dict[bytes, DelayedEntries]
) -> str:  # fmt: skip
    """Return a SHA-256 of the content, equal for equal states. Excludes the deadlines of groups, which reads change."""
    total = sha256()
    _add(keys, expires, stages, delayed, total.update, None)
    return total.hexdigest()


class SteppedDigest:
    """The digest of the content at one point in time, computed while the content changes.

    Takes O(metadata) memory until close(), and about as much as a snapshot for each stream.
    """

    __slots__ = ("_pieces", "_reading", "_rest", "_total")

    def __init__(
        self, keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages, delayed: dict[bytes, DelayedEntries]
    ) -> None:  # fmt: skip
        self._total = sha256()
        self._rest: deque[bytes | Snapshot] = deque()
        self._reading: Snapshot | None = None
        self._pieces: Iterator[bytes] = iter(())

        def add_entries(stream: Stream) -> None:
            snapshot = stream.snapshot(stream.first_ord, stream.next_ord)
            snapshot.waits = True
            self._rest.append(snapshot)

        try:
            _add(keys, expires, stages, delayed, self._rest.append, add_entries)
        except BaseException:
            self.close()
            raise

    def step(self) -> str | None:
        """Add the entries of one node. Returns the digest after the last one.

        Raises AbsentNodeError. The next call then continues, also if the node was evicted meanwhile.
        """
        piece = next(self._pieces, None)
        if piece is None:
            self._reading = None
            while self._rest:
                part = self._rest.popleft()
                if isinstance(part, Snapshot):
                    self._reading, self._pieces = part, part.forward()
                    return None
                self._total.update(part)
            return self._total.hexdigest()
        self._total.update(piece)
        if not piece and self._reading is not None:
            absent = self._reading.take_absent()
            if absent is not None:
                raise absent
        return None

    def close(self) -> None:
        """Release the snapshots. Idempotent."""
        for part in (self._reading, *self._rest):
            if isinstance(part, Snapshot):
                part.close()
        self._rest.clear()
        self._reading, self._pieces = None, iter(())


def _add(
    keys: dict[bytes, Value], expires: dict[bytes, int], stages: Stages, delayed: dict[bytes, DelayedEntries],
    update: Update, add_entries: Entries | None,
) -> None:  # fmt: skip
    for key in sorted(keys):
        value = keys[key]
        update(b"%d:%b@%d" % (len(key), key, expires.get(key, NEVER)))
        if isinstance(value, String):
            update(b"S%d:" % len(value.value))
            update(value.value)
        else:
            add_stream(value, update, add_entries)
        if key in delayed and delayed[key].entries.next_ord:
            update(b"L")
            add_stream(delayed[key].entries, update, add_entries)
    stages.digest(update)


def _add_settings(stream: Stream, update: Update) -> None:
    if stream.retention is not None:
        update(b"K%b;" % stream.retention.pack())
    if stream.tier_after is not None:
        update(b"H%b;" % stream.tier_after.pack())


def add_stream(stream: Stream, update: Update, add_entries: Entries | None = None) -> None:
    """Add the content of a stream to a hash. ``add_entries``: adds its entries; None: ``update`` gets them."""
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
    if add_entries is not None:
        add_entries(stream)
    else:
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
