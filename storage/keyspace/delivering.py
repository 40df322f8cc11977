"""Delivery: moves delayed entries that are due to their streams. Only a leader runs it. Each delivery is logged.

Rule 1: one call does a bounded amount of work. Its unit is an entry, which takes 8 to 15 microseconds. Opening a node
that is not in the cache takes as long as NODE_COST entries, and SIZE_COST bytes as long as one.
Rule 2: an entry whose node is damaged stays delayed until the node is repaired. The others are delivered. The key is
then inspected once a second.
Rule 3: entries of one key join in the order of their due times, then of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from resp.errors import CommandError, DamagedNodeError
from storage.keyspace import delaymutators, events
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.model.ids import MASK64
from storage.streams.delayed import WALL, DelayedEntries, StoredDelay, entry_at, split
from storage.streams.position import StreamPosition
from storage.streams.producers import MOST_IDS
from storage.streams.stream import Stream

NODE_COST: Final = 16
SIZE_COST: Final = 4096
SCANNED: Final = 4096  # due entries of a key that one call inspects if it has damaged nodes
RETRY_MS: Final = 1000  # after which entries that could not be delivered are tried again

Damaged = Callable[[DamagedNodeError], object]


def run(ks: Keyspace, now: int, limit: int, damaged: Damaged) -> bool:
    """Deliver about ``limit`` of the entries that are due at ``now`` (ms since epoch). Return whether more may be due.

    ``damaged``: called for each damaged node that was met.
    """
    served, left = ks.served(now), limit
    while left > 0:
        item = ks.due.take(now, served)
        if item is None:
            return False
        key = item[1]
        stream, delayed = ks.live(key, now), ks.delayed.get(key)  # an expired key is deleted
        left -= 1
        if isinstance(stream, Stream) and delayed is not None:
            try:
                left -= _deliver(ks, key, stream, delayed, now, served, max(1, left), damaged)
            except Exception:  # a bug, or the store can't be read: without a timer, nothing more would be delivered
                ks.due.arm(timers.DUE_WALL, key, b"", now + RETRY_MS)
                raise
    return True


def _deliver(
    ks: Keyspace, key: bytes, stream: Stream, delayed: DelayedEntries, now: int, served: int, limit: int,
    damaged: Damaged,
) -> int:  # fmt: skip
    """Deliver entries of one key, and arm its timers. Return the work done, in entries."""
    scanned = SCANNED if delayed.entries.sid in ks.pool.damaged else limit
    due = _due(ks, delayed, now, served, scanned)
    batch = DueBatch()
    before = ks.pool.cache.misses
    for ordinal in due:
        work = len(batch.wires) + batch.size // SIZE_COST + NODE_COST * (ks.pool.cache.misses - before)
        if work >= limit:
            break
        batch.read(delayed, ordinal, damaged)
    if batch.wires and _append(ks, key, stream, delayed, now, batch):
        ks.arm_delayed(key, delayed)
    elif due:
        ks.due.arm(timers.DUE_WALL, key, b"", now + RETRY_MS)
    else:
        ks.arm_delayed(key, delayed)
    return len(batch.wires) + batch.size // SIZE_COST + NODE_COST * (ks.pool.cache.misses - before)


def _due(ks: Keyspace, delayed: DelayedEntries, now: int, served: int, limit: int) -> list[int]:
    """Return the ordinals of at most ``limit`` entries that are due, in order (Rule 3)."""
    rows = [(at + ks.away, ordinal) for at, ordinal in delayed.due(0, (0, 0), served, limit)]
    others = delayed.due(WALL, (0, 0), now, limit)
    if others:
        rows = sorted(rows + others)[:limit]
    return [ordinal for _, ordinal in rows]


class DueBatch:
    """Entries of one key that are delivered together."""

    __slots__ = ("_bad", "_position", "entries", "ordinals", "size", "wires")

    def __init__(self) -> None:
        self.ordinals: list[int] = []
        self.wires: list[bytes] = []  # of the companion
        self.entries: list[StoredDelay] = []
        self.size = 0  # bytes
        self._position: StreamPosition | None = None  # of the last entry: the next one is often in the same node
        self._bad: list[tuple[int, int]] = []  # first ordinal and end of damaged nodes

    def read(self, delayed: DelayedEntries, ordinal: int, damaged: Damaged) -> None:
        """Add an entry, unless its node is damaged."""
        for first, end in self._bad:
            if first <= ordinal < end:
                return
        try:
            position = self._position
            if position is None or not position.first <= ordinal < position.end:
                position = self._position = delayed.entries.position_of(ordinal)
            wire = entry_at(position, ordinal)
        except DamagedNodeError as error:
            self._bad.append((error.first_ord, error.first_ord + error.count))
            damaged(error)
            return
        self.ordinals.append(ordinal)
        self.wires.append(wire)
        self.entries.append(split(wire))
        self.size += len(wire)


def _append(ks: Keyspace, key: bytes, stream: Stream, delayed: DelayedEntries, now: int, batch: DueBatch) -> bool:
    """Append a batch to its stream. Return False if the stream has no ID left."""
    try:
        ms, seq = ks.next_id(stream, now)
    except CommandError:
        return False
    count = min(len(batch.wires), MASK64 - seq + 1)  # the IDs of a batch have the same millisecond
    delaymutators.join(
        ks, key, stream, delayed, (ms, seq), now, stream.idmp()[0], MOST_IDS, batch.ordinals[:count],
        batch.wires[:count], batch.entries[:count],
    )  # fmt: skip
    if ks.event_classes:
        for _ in range(count):
            ks.notify(events.STREAM, b"tappend", key)
    return True
