"""Delays commands during CLIENT PAUSE, during a FAILOVER and while the server shuts down. As in Redis, the data does
not change meanwhile: nothing expires, and no message falls due. During a CLIENT PAUSE a replica applies nothing of what
its leader sends (``roles.link``)."""

from __future__ import annotations

from respserver.clients.clients import Clients
from respserver.runtime.data import Data
from respserver.runtime.gates import Gates
from respserver.runtime.ticks import Ticks


class Pauses:
    """Implements ``PausesPart``."""

    def __init__(self, gates: Gates, ticks: Ticks, clients: Clients, data: Data) -> None:
        self._gates = gates
        self._data = data
        self._ticks = ticks
        self._clients = clients

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """CLIENT PAUSE until ``until_ms`` (ms since epoch). Two pauses at once last as long as the longer one, and hold
        all commands if one of them does."""
        gates = self._gates
        if gates.pause_until:
            until_ms = max(until_ms, gates.pause_until)
            writes_only = writes_only and gates.pause_writes_only
        gates.pause(until_ms, writes_only)
        self._freeze()

    def unpause(self) -> None:
        """CLIENT UNPAUSE, or the end of a pause."""
        self._gates.pause(0, False)
        self._freeze()
        self._go_on()

    def hold_writes(self, hold: bool) -> None:
        """Hold back commands that write, or end that. Independent of CLIENT PAUSE and UNPAUSE."""
        self._gates.hold(hold)
        self._freeze()
        if not hold:
            self._go_on()

    def on_time(self, now: int) -> None:
        """End a pause that is over. ``now``: ms since epoch."""
        if self._gates.pause_until and self._gates.pause_until <= now:
            self.unpause()

    def _freeze(self) -> None:
        self._data.freeze(self._gates.held or self._gates.pause_until != 0)

    def _go_on(self) -> None:
        """Let clients that were held back try their commands again."""
        for conn in self._clients.connections():
            if conn.paused:
                conn.paused = False
                self._ticks.queue_resume(conn)
