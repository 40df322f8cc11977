"""Sums over all clients, for INFO and MEMORY."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commands.admin.clientlist import client_bytes, queued_bytes, transport_stats
from commands.session import Session


@dataclass(slots=True)
class ClientTotals:
    """Sums over all clients. Replicas are counted for their memory only."""

    connected: int = 0
    blocked: int = 0
    subscribed: int = 0
    watching: int = 0
    watched_keys: int = 0
    largest_in: int = 0  # bytes
    largest_out: int = 0
    bytes: int = 0  # memory size
    replica_bytes: int = 0

    def add(self, sessions: Iterable[Session]) -> ClientTotals:
        for session in sessions:
            transport = transport_stats(session)
            size = client_bytes(session, transport) + queued_bytes(session)
            if session.replica is not None:
                self.replica_bytes += size
                continue
            self.bytes += size
            self.connected += 1
            self.subscribed += session.subscribed
            self.watching += bool(session.watching)
            self.watched_keys += len(session.watching)
            self.largest_in = max(self.largest_in, transport.query_buffered)
            self.largest_out = max(self.largest_out, transport.output_queued + transport.output_buffered)
            self.blocked += session.blocked or transport.paused
        return self


class ClientWalk:
    """Computes the totals, some clients at a time."""

    __slots__ = ("_left", "_partial", "_ready")

    PAGE = 500  # clients that are processed at a time; with fewer clients, the totals are current

    def __init__(self) -> None:
        self._left: list[Session] = []
        self._partial: ClientTotals | None = None  # totals of a walk in progress
        self._ready: ClientTotals | None = None

    def more(self, sessions: list[Session]) -> bool:
        """Process some more clients; ``sessions``: all of them. Returns True once take() is fast."""
        if self._ready is not None or len(sessions) <= self.PAGE:
            return True
        if self._partial is None:
            self._partial, self._left = ClientTotals(), sessions
        self._partial.add(self._left[-self.PAGE :])
        del self._left[-self.PAGE :]
        if not self._left:
            self._ready, self._partial = self._partial, None
        return self._ready is not None

    def take(self, sessions: list[Session]) -> ClientTotals:
        """Complete the walk, and return the totals."""
        ready, self._ready = self._ready, None
        return ClientTotals().add(sessions) if ready is None else ready
