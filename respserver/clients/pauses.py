"""Delays commands during CLIENT PAUSE, during a FAILOVER, and during shutdown.

As in Redis, the data does not change meanwhile: nothing expires, and no entry falls due. During a CLIENT PAUSE, a
replica does not apply the batches that its leader sends (``roles.link``).
"""

from __future__ import annotations

from respserver.clients.clients import Clients
from respserver.runtime.parts import RuntimeParts, ServerPart


class Pauses(ServerPart):
    """Implements ``PausesPart``."""

    def __init__(self, parts: RuntimeParts, clients: Clients) -> None:
        super().__init__(parts)
        self._clients = clients

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """CLIENT PAUSE until ``until_ms`` (ms since epoch). Overlapping pauses last as long as the longest, and delay
        all commands if one of them does."""
        gates = self._gates
        if gates.pause_until:
            until_ms = max(until_ms, gates.pause_until)
            writes_only = writes_only and gates.pause_writes_only
        gates.pause(until_ms, writes_only)
        self._freeze()

    def unpause(self) -> None:
        """End the pause (CLIENT UNPAUSE, or its time has expired)."""
        self._gates.pause(0, False)
        self._freeze()
        self._retry()

    def hold_writes(self, hold: bool, reads: bool = False) -> None:
        """Delay commands that write, or end the delay. Independent of CLIENT PAUSE and UNPAUSE.

        ``reads``: also delay commands that show data. If it is False, those that were delayed before run now.
        """
        narrowed = self._gates.held_reads and not reads
        self._gates.hold(hold, reads)
        self._freeze()
        if narrowed or not hold:
            self._retry()

    def on_time(self, now: int) -> None:
        """End a pause that has expired. ``now``: ms since epoch."""
        if self._gates.pause_until and self._gates.pause_until <= now:
            self.unpause()

    def _freeze(self) -> None:
        self._data.freeze(self._gates.held or self._gates.pause_until != 0)

    def _retry(self) -> None:
        for conn in self._clients.connections():
            if conn.flow.paused:
                conn.flow.paused = False
                self._ticks.queue_resume(conn)
