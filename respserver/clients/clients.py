"""The registry of connected clients, by ID and in order of arrival.

Rule 1: a server never uses a client ID twice.
Rule 2: parts that keep sessions are told when one leaves (``on_leave``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commands.session import Session
from respserver.clients.connection import Connection, connection_of


class Clients:
    """Registry of sessions. Implements ``ClientsPart``."""

    __slots__ = ("_by_id", "_in_turn", "_last_id", "_sizes", "bytes", "on_leave")

    def __init__(self) -> None:
        self.on_leave: list[Callable[[Session], None]] = []
        self._by_id: dict[int, Session] = {}
        self._in_turn: list[Session] = []  # the rest of the current round of some(), in reverse order
        self._last_id = 0
        self.bytes = 0  # of memory that the clients take, as told by note()
        self._sizes: dict[int, int] = {}  # client ID -> its part of them

    def next_id(self) -> int:
        """A new client ID: 1, 2, ... never given twice."""
        self._last_id += 1
        return self._last_id

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def remove(self, session: Session) -> None:
        """Remove it without calling ``on_leave``."""
        self._by_id.pop(session.id, None)
        self.bytes -= self._sizes.pop(session.id, 0)

    def leave(self, session: Session) -> None:
        """Remove the session of a closed connection, and call ``on_leave``."""
        self.remove(session)
        for tell in self.on_leave:
            tell(session)

    def note(self, session: Session, size: int) -> None:
        """A client takes ``size`` bytes of memory."""
        self.bytes += size - self._sizes.get(session.id, 0)
        self._sizes[session.id] = size

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def all(self) -> list[Session]:
        """All sessions, oldest first. A copy: the caller may close clients while it iterates."""
        return list(self._by_id.values())

    def connections(self) -> list[Connection]:
        """The connections of all clients, oldest first; a copy. The link to a leader is not among them."""
        found = [connection_of(session) for session in self._by_id.values()]
        return [conn for conn in found if conn is not None]

    def some(self, count: int) -> list[Session]:
        """The next ``count`` sessions of a round, or fewer. A round has each session once, in order of arrival.

        Some may have left meanwhile. Sessions that come during a round are in the next one.
        """
        if not self._in_turn:
            self._in_turn = list(self._by_id.values())
            self._in_turn.reverse()
        found = self._in_turn[: -count - 1 : -1]
        del self._in_turn[-count:]
        return found

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())
