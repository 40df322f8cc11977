"""``Buffer``: the entries of one partition that are in hand: waiting, in work, or finished and not acknowledged yet.

Rule 1: an ID is in ``held`` from its delivery until the server is known to have forgotten it, or until it is given
        back. An entry that is delivered again meanwhile is dropped.
Rule 2: an acknowledgement and a TREAD may pass each other. So while a TREAD is under way, IDs that leave stay in
        ``held`` until its reply has been taken in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tidelog.client.entries import StreamId
from tidelog.coordination import Claim
from tidelog.workers.execution.prefetch import Pace
from tidelog.workers.execution.stats import Stats

Row = list[Any]  # an entry as the server sends it: ID, field, value, ...


def id_of(raw: bytes) -> StreamId:
    ms, _, seq = raw.partition(b".")
    return StreamId(int(ms), int(seq))


class Buffer:
    """Of one partition. ``limit``: how many entries it takes, those in work included."""

    __slots__ = (
        "_freed", "_leaving", "_newest", "_stats", "_wanted", "again", "claim", "extra", "filled", "held", "limit",
        "open", "pace", "quiet", "rows", "stream",
    )  # fmt: skip

    def __init__(self, stream: str, claim: Claim, limit: int, stats: Stats, freed: Callable[[], None]) -> None:
        self.stream = stream
        self.claim = claim  # of the partition
        self.limit = limit
        self.rows: deque[Row] = deque()  # waiting, oldest first
        self.pace: Pace | None = None  # where nobody owns the partition: how much is read
        self.extra = 0  # of those in hand, how many don't count against the limit
        self.held: dict[bytes, float] = {}  # ID -> when it was delivered or touched last, on the monotonic clock
        self.filled = asyncio.Event()  # set when rows come
        self.open = False  # whether entries may be read into it
        self.quiet = asyncio.Event()  # clear while a TREAD for it is under way
        self.quiet.set()
        self._freed = freed  # called when there is room again
        self._leaving: list[bytes] = []
        self._stats = stats
        self._wanted = 0  # so many rows somebody waits for
        self._newest: StreamId | None = None  # with ordering "none": all that is delivered up to it comes again
        self.again: list[bytes] = []  # IDs of what has come again since somebody looked

    @property
    def room(self) -> int:
        """How many entries may be read. 0 while it is more than half full, so that they are read by many; not so while
        somebody waits for more than there are.
        """
        if self.pace is not None:
            return self.pace.room(len(self.held), self._wanted) if self.open else 0
        held, limit = len(self.held) - self.extra, max(self.limit, self._wanted)
        return max(0, limit - held) if self.open and (held * 2 <= limit or len(self.rows) < self._wanted) else 0

    def want(self, count: int) -> None:
        """Somebody waits for so many rows. 0: nobody does any more."""
        self._wanted = count
        self.changed()

    def take_in(self, rows: Iterable[Row | None], now: float) -> int:
        """Add what a TREAD returned at ``now``; returns the number of entries, those in hand already included."""
        held, taken, came = self.held, self.rows, 0
        stats = self._stats
        for row in rows:
            if row is None:
                stats.missing += 1
                continue
            came += 1
            entry_id = row[0]
            if entry_id in held:
                stats.repeated += 1
                continue
            held[entry_id] = now
            taken.append(row)
        stats.fetched += came
        if taken:
            self.filled.set()
            if self._newest is not None:
                self._look(came)
            if self.pace is not None:
                self.pace.took(taken[-1][0], len(held), now)
        return came

    def begin_after(self, newest: StreamId) -> None:
        """Nobody owns the partition; this is the newest entry that was delivered to anybody."""
        self._newest = newest

    def _look(self, came: int) -> None:
        """Which of the last rows have come again. Those are the first ones of a TREAD."""
        rows, newest = self.rows, self._newest
        assert newest is not None  # noqa: S101 - see take_in
        for at in range(max(0, len(rows) - came), len(rows)):
            if id_of(rows[at][0]) > newest:
                break
            self.again.append(rows[at][0])
        self._newest = max(newest, id_of(rows[-1][0]))

    def read_ended(self) -> None:
        """No TREAD is under way any more."""
        self.quiet.set()
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            self.forget(leaving)

    def forget(self, ids: Iterable[bytes]) -> None:
        """These were acknowledged or given back."""
        if not self.quiet.is_set():
            self._leaving.extend(ids)
            return
        pop = self.held.pop
        for entry_id in ids:
            pop(entry_id, None)
        if self.pace is not None:
            self.pace.left(self.held)
        self.changed()

    def given_back(self, entry_id: bytes) -> None:
        """This one is being given back, by a call on the line of the TREADs: it may come again with the next one."""
        self.held.pop(entry_id, None)
        self.changed()

    def changed(self) -> None:
        """There may be room again."""
        if self.room:
            self._freed()

    def clear(self) -> None:
        """Nothing is in hand any more."""
        self.rows.clear()
        self.held.clear()
        self.extra = 0

    def aging(self, before: float, now: float) -> list[bytes]:
        """The IDs that were neither delivered nor touched since ``before``. They count as touched now."""
        old = [entry_id for entry_id, at in self.held.items() if at < before]
        for entry_id in old:
            self.held[entry_id] = now
        return old
