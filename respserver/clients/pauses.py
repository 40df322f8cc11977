"""Delays commands during CLIENT PAUSE, during a FAILOVER, and during shutdown.

As in Redis, the data does not change meanwhile: nothing expires, and no entry falls due. During a CLIENT PAUSE, a
replica does not apply the batches that its leader sends (``roles.link``).

Rule 1: a pause lasts a time of the monotonic clock. Changes of the wall clock neither end nor extend it.
"""

from __future__ import annotations

import asyncio

from respserver.clients.clients import Clients
from respserver.runtime.parts import RuntimeParts, ServerPart


class Pauses(ServerPart):
    """Implements ``PausesPart``."""

    def __init__(self, parts: RuntimeParts, clients: Clients) -> None:
        super().__init__(parts)
        self._clients = clients
        self._until = 0  # ms (monotonic): the end of the CLIENT PAUSE
        self._timer: asyncio.TimerHandle | None = None

    def pause(self, ms: int, writes_only: bool) -> None:
        """CLIENT PAUSE for ``ms``. Overlapping pauses last as long as the longest, and delay all commands if one of
        them does."""
        gates, mono = self._gates, self._clock.mono()
        until = mono + ms
        if gates.paused:
            until = max(until, self._until)
            writes_only = writes_only and gates.pause_writes_only
        elif not ms:
            return
        self._until = until
        gates.pause(True, writes_only)
        self._freeze()
        self._cancel()
        if not self._clock.by_hand:  # on_time() would end it up to 100 ms later
            self._timer = self._loop.call_later((until - mono) / 1000, self._end)

    def unpause(self) -> None:
        """End the pause (CLIENT UNPAUSE, or its time has expired)."""
        self._cancel()
        self._gates.pause(False, False)
        self._freeze()
        self.retry()

    def hold_writes(self, hold: bool, reads: bool = False) -> None:
        """Delay commands that write, or end the delay. Independent of CLIENT PAUSE and UNPAUSE.

        ``reads``: also delay commands that show data. If it is False, those that were delayed before run now.
        """
        narrowed = self._gates.held_reads and not reads
        self._gates.hold(hold, reads)
        self._freeze()
        if narrowed or not hold:
            self.retry()

    def on_time(self, mono: int) -> None:
        """End a pause that has expired. ``mono``: ms, monotonic."""
        if self._gates.paused and self._until <= mono:
            self.unpause()

    def _end(self) -> None:
        self._timer = None
        self.on_time(max(self._until, self._clock.mono()))  # a timer may run a fraction of a millisecond early

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _freeze(self) -> None:
        self._data.freeze(self._gates.held or self._gates.paused)

    def retry(self) -> None:
        """Check the delayed commands again: each of them runs, or is delayed again."""
        for conn in self._clients.connections():
            if conn.flow.paused:
                conn.flow.paused = False
                conn.idle_since = 0
                self._ticks.queue_resume(conn)
