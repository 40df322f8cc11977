"""``Buffer``: the entries of one partition that are in flight: waiting, in progress, or not acknowledged yet.

Rule 1: an ID is in ``in_flight`` from its delivery until the server has confirmed its acknowledgement, or until it is
        returned. An entry that is redelivered meanwhile is dropped.
Rule 2: an acknowledgement and a TREAD can overtake each other. While a TREAD is in flight, IDs that are removed
        therefore stay in ``in_flight`` until its reply was processed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.client.entries import StreamId
from tidelog.coordination import Claim
from tidelog.workers.execution.prefetch import PrefetchLimit
from tidelog.workers.execution.stats import Stats

Row = list[Any]  # an entry as the server sends it: ID, field, value, ...


def id_of(raw: bytes) -> StreamId:
    ms, _, seq = raw.partition(b".")
    return StreamId(int(ms), int(seq))


class Buffer:
    """The buffer of one partition. ``limit``: the maximum number of entries in flight."""

    __slots__ = (
        "_freed", "_leaving", "_newest", "_stats", "_wanted", "claim", "uncounted", "filled", "in_flight", "limit",
        "open", "prefetch_limit", "not_reading", "redelivered", "rows", "stream",
    )  # fmt: skip

    def __init__(self, stream: str, claim: Claim, limit: int, stats: Stats, freed: Callable[[], None]) -> None:
        self.stream = stream
        self.claim = claim
        self.limit = limit
        self.rows: deque[Row] = deque()  # waiting entries, oldest first
        self.prefetch_limit: PrefetchLimit | None = None  # limits reading if the partition has no owner
        self.uncounted = 0  # entries in flight that don't count against the limit
        self.in_flight: dict[bytes, float] = {}  # ID -> last delivery or touch, on the monotonic clock
        self.filled = asyncio.Event()  # set when rows arrive
        self.open = False  # whether entries may be read into the buffer
        self.not_reading = asyncio.Event()  # cleared while a TREAD is in flight
        self.not_reading.set()
        self._freed = freed  # called when the buffer has room again
        self._leaving: list[bytes] = []
        self._stats = stats
        self._wanted = 0  # rows that the consumer waits for
        self._newest: StreamId | None = None  # with ordering "none": entries up to this ID were delivered before
        self.redelivered: list[bytes] = []  # IDs that were delivered before; the consumer clears the list

    @property
    def room(self) -> int:
        """How many entries may be read.

        0 while the buffer is more than half full, so that entries are read in large groups, unless the consumer waits
        for more entries than there are.
        """
        if self.prefetch_limit is not None:
            return self.prefetch_limit.room(len(self.in_flight), self._wanted) if self.open else 0
        in_flight, limit = len(self.in_flight) - self.uncounted, max(self.limit, self._wanted)
        few = in_flight * 2 <= limit or len(self.rows) < self._wanted
        return max(0, limit - in_flight) if self.open and few else 0

    def want(self, count: int) -> None:
        """Set the number of rows that the consumer waits for; 0: it does not wait."""
        self._wanted = count
        self.changed()

    def add_rows(self, rows: Iterable[Row | None], now: float) -> int:
        """Add the reply of a TREAD; returns the number of entries, including those that were in flight already."""
        in_flight, taken, came = self.in_flight, self.rows, 0
        stats = self._stats
        for row in rows:
            if row is None:
                stats.missing += 1
                continue
            came += 1
            entry_id = row[0]
            if entry_id in in_flight:
                stats.repeated += 1
                continue
            in_flight[entry_id] = now
            taken.append(row)
        stats.fetched += came
        if taken:
            self.filled.set()
            if self._newest is not None:
                self._note_redelivered(came)
            if self.prefetch_limit is not None:
                self.prefetch_limit.took(taken[-1][0], len(in_flight), now)
        return came

    def set_last_delivered(self, newest: StreamId) -> None:
        """Set the newest entry that was delivered to any worker. For partitions without an owner."""
        self._newest = newest

    def _note_redelivered(self, came: int) -> None:
        """Record which of the new rows were delivered before. They are the first ones in the reply."""
        rows, newest = self.rows, self._newest
        assert newest is not None  # noqa: S101 - see take_in
        for at in range(max(0, len(rows) - came), len(rows)):
            if id_of(rows[at][0]) > newest:
                break
            self.redelivered.append(rows[at][0])
        self._newest = max(newest, id_of(rows[-1][0]))

    def read_finished(self) -> None:
        """Mark the TREAD as finished."""
        self.not_reading.set()
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            self.forget(leaving)

    def forget(self, ids: Iterable[bytes]) -> None:
        """Remove entries that were acknowledged or returned."""
        if not self.not_reading.is_set():
            self._leaving.extend(ids)
            return
        pop = self.in_flight.pop
        for entry_id in ids:
            pop(entry_id, None)
        if self.prefetch_limit is not None:
            self.prefetch_limit.left(self.in_flight)
        self.changed()

    def returned_now(self, entry_id: bytes) -> None:
        """Remove an entry that a call on the connection of the TREADs returns; the next TREAD may redeliver it."""
        self.in_flight.pop(entry_id, None)
        self.changed()

    def changed(self) -> None:
        """Notify the fetcher if there is room."""
        if self.room:
            self._freed()

    def clear(self) -> None:
        """Remove all entries."""
        self.rows.clear()
        self.in_flight.clear()
        self.uncounted = 0

    def aging(self, before: float, now: float) -> list[bytes]:
        """Return the IDs that were not delivered or touched since ``before``. They then count as touched."""
        old = [entry_id for entry_id, at in self.in_flight.items() if at < before]
        for entry_id in old:
            self.in_flight[entry_id] = now
        return old
