"""``Buffer``: the entries of one partition that are in flight: waiting, in progress, or not acknowledged yet."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from tidelog.coordination import Claim
from tidelog.topics.groupreader import GroupStream, Row
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.prefetch import PrefetchLimit


class Buffer(GroupStream):
    """The buffer of one partition. At most ``declared.prefetch`` entries are in flight."""

    __slots__ = ("_freed", "_wanted", "claim", "filled", "limit", "open", "prefetch_limit", "rows", "uncounted")

    def __init__(self, declared: Processor, claim: Claim, retry_ms: int, freed: Callable[[], None]) -> None:
        super().__init__(declared.topic.stream(claim.partition), declared.group, declared.start.last_id, retry_ms)
        self.claim = claim
        self.limit = declared.prefetch
        self.rows: deque[Row] = deque()  # waiting entries, oldest first
        self.prefetch_limit: PrefetchLimit | None = None  # limits reading if the partition has no owner
        self.uncounted = 0  # entries in flight that don't count against the limit
        self.filled = asyncio.Event()  # set when rows arrive
        self.open = False  # whether entries may be read into the buffer
        self._freed = freed  # called when the buffer has room again
        self._wanted = 0  # rows that the consumer waits for

    @property
    def active(self) -> bool:
        """Whether this worker owns the partition, as far as it knows."""
        return self.claim.held

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

    def add_rows(self, rows: list[Row]) -> None:
        """Add entries for the consumer."""
        if not rows:
            return
        self.rows.extend(rows)
        self.filled.set()
        if self.prefetch_limit is not None:
            self.prefetch_limit.took(rows[-1][0], len(self.in_flight), time.monotonic())

    def drop(self, ids: Iterable[bytes]) -> None:
        """See ``GroupStream.drop``."""
        super().drop(ids)
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
