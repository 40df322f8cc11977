"""Delivery: moves delayed entries that are due to their streams. Only a leader runs it. Each delivery is logged.

Rule 1: one call does a bounded amount of work. Its unit is an entry, which takes 8 to 15 microseconds. Opening a node
that is not in the cache takes as long as NODE_COST entries, SIZE_COST bytes as long as one, and ROWS_COST rows of the
index, too.
Rule 2: entries of one key join in the order of their due times, then of their arrival.
Rule 3: an entry whose node is damaged stays delayed until the node is repaired. It is passed (``duerows``): the entries
after it are delivered. The key is then inspected every RETRY_MS.
Rule 4: if the next entries of a backlog are in many nodes, each node is read once for many of them (``readahead``).
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
ROWS_COST: Final = 32
SCANNED: Final = 4096  # due entries of a key that one call inspects if it has damaged nodes
PLANNED: Final = 4096  # due entries whose nodes are planned together
SCATTERED: Final = 4  # nodes opened in a step from which on the next entries are planned
RETRY_MS: Final = 1000  # after which entries that could not be delivered are tried again

DueRow = tuple[int, int, int, int]  # due time by the wall clock (ms), ordinal, WALL or 0, due time by its clock
NOTHING: Final[dict[int, str]] = {}
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
        if ks.inert is not None and ks.park(item):
            continue
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
    delayed.include_repaired(now)
    batch = DueBatch(delayed, damaged)
    passed: list[DueRow] = []
    rows = _due(ks, delayed, now, served, limit)
    backlog, examined = len(rows) >= limit, 0
    if not backlog:
        delayed.ahead.end_plan()
    while examined < len(rows) and batch.work() + len(passed) // ROWS_COST < limit:
        row = rows[examined]
        if backlog and batch.is_scattered() and row[:2] > delayed.ahead.until:
            planned = _due(ks, delayed, now, served, PLANNED)
            delayed.ahead.plan(delayed.entries, [(at, ordinal) for at, ordinal, _, _ in planned])
            batch.extra += len(planned) // ROWS_COST
        if not batch.read(row[1]):
            passed.append(row)
        examined += 1
        if examined == limit and passed:  # the next intact entries may be far
            rows = _due(ks, delayed, now, served, SCANNED)
    delivered = _append(ks, key, stream, delayed, now, batch) if batch.wires else 0
    if delivered < len(batch.wires):
        passed.clear()  # others before them remain
    if batch.wires and not delivered:
        ks.due.arm(timers.DUE_WALL, key, b"", now + RETRY_MS)
    else:
        for _, ordinal, wall, due in passed:
            delayed.pass_over(wall, due, ordinal, now)
        ks.arm_delayed(key, delayed)
        if delayed.passed:
            ks.due.arm(timers.DUE_WALL, key, b"", now + RETRY_MS)
    return batch.work() + len(passed) // ROWS_COST


def _due(ks: Keyspace, delayed: DelayedEntries, now: int, served: int, limit: int) -> list[DueRow]:
    """Return at most ``limit`` entries that are due and not passed, in order (Rule 2)."""
    rows = [(at + ks.away, ordinal, 0, at) for at, ordinal in delayed.due(0, served, limit)]
    others = delayed.due(WALL, now, limit)
    if others:
        rows += [(at, ordinal, WALL, at) for at, ordinal in others]
        rows.sort()
        del rows[limit:]
    return rows


class DueBatch:
    """Entries of one key that are delivered together."""

    __slots__ = ("_bad", "_before", "_damaged", "_delayed", "_opened", "_position", "entries", "extra", "ordinals",
        "size", "wires")  # fmt: skip

    def __init__(self, delayed: DelayedEntries, damaged: Damaged) -> None:
        self.ordinals: list[int] = []
        self.wires: list[bytes] = []  # of the companion
        self.entries: list[StoredDelay] = []
        self.size = 0  # bytes
        self.extra = 0  # other work
        self._delayed = delayed
        self._damaged = damaged
        self._before = delayed.entries.pool.cache.misses
        self._opened = 0  # nodes from which entries were read
        self._position: StreamPosition | None = None  # of the last entry: the next one is often in the same node
        self._bad: set[int] = set()  # first ordinals of damaged nodes that were met here

    def work(self) -> int:
        """Return the work done, in entries."""
        missed = self._delayed.entries.pool.cache.misses - self._before
        return len(self.wires) + self.size // SIZE_COST + NODE_COST * missed + self.extra

    def is_scattered(self) -> bool:
        """Return whether the entries so far are in many nodes."""
        return self._opened >= SCATTERED and len(self.wires) < 2 * SCATTERED * self._opened

    def read(self, ordinal: int) -> bool:
        """Add an entry. Return False if its node is damaged."""
        wire = self._delayed.ahead.get(ordinal)
        if wire is None:
            position = self._position
            if position is None or not position.first <= ordinal < position.end:
                position = self._open(ordinal)
                if position is None:
                    return False
            wire = entry_at(position, ordinal)
        self.ordinals.append(ordinal)
        self.wires.append(wire)
        self.entries.append(split(wire))
        self.size += len(wire)
        return True

    def _open(self, ordinal: int) -> StreamPosition | None:
        """Open the node of an entry, and take the others that are planned; None if it is damaged."""
        entries = self._delayed.entries
        first, pool = entries.node_start(ordinal), entries.pool
        if first in self._bad or (
            first in pool.damaged.get(entries.sid, NOTHING) and not pool.cache.has(entries.sid, first)
        ):
            return None
        try:
            position = self._position = entries.position_of(ordinal)
        except DamagedNodeError as error:
            self._bad.add(first)
            self._damaged(error)
            return None
        self._opened += 1
        self._delayed.ahead.take(entries, position)
        return position


def _append(ks: Keyspace, key: bytes, stream: Stream, delayed: DelayedEntries, now: int, batch: DueBatch) -> int:
    """Append a batch to its stream. Return how many entries were appended: fewer if the stream has no IDs left."""
    try:
        ms, seq = ks.next_id(stream, now)
    except CommandError:
        return 0
    count = min(len(batch.wires), MASK64 - seq + 1)  # the IDs of a batch have the same millisecond
    delaymutators.join(
        ks, key, stream, delayed, (ms, seq), now, stream.idmp()[0], MOST_IDS, batch.ordinals[:count],
        batch.wires[:count], batch.entries[:count],
    )  # fmt: skip
    if ks.event_classes:
        for _ in range(count):
            ks.notify(events.STREAM, b"tappend", key)
    return count
