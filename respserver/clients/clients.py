"""The registry of connected clients, by ID and in order of arrival.

Rule 1: a server never uses a client ID twice.
Rule 2: ``on_leave`` notifies the parts that store sessions when a client disconnects.
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
        self._in_turn: list[Session] = []  # the rest of the current cycle of some(), in reverse order
        self._last_id = 0
        self.bytes = 0  # memory of the clients, as reported to note()
        self._sizes: dict[int, int] = {}  # client ID -> its share of ``bytes``

    def next_id(self) -> int:
        """Return a new client ID: 1, 2, ..."""
        self._last_id += 1
        return self._last_id

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def remove(self, session: Session) -> None:
        """Remove a session without calling ``on_leave``."""
        self._by_id.pop(session.id, None)
        self.bytes -= self._sizes.pop(session.id, 0)

    def leave(self, session: Session) -> None:
        """Remove the session of a closed connection, and call ``on_leave``."""
        self.remove(session)
        for notify in self.on_leave:
            notify(session)

    def note(self, session: Session, size: int) -> None:
        self.bytes += size - self._sizes.get(session.id, 0)
        self._sizes[session.id] = size

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def all(self) -> list[Session]:
        return list(self._by_id.values())

    def connections(self) -> list[Connection]:
        """Return a copy of the list of all connections, oldest first, without the link to a leader."""
        found = [connection_of(session) for session in self._by_id.values()]
        return [conn for conn in found if conn is not None]

    def some(self, count: int) -> list[Session]:
        """Return the next ``count`` sessions of a cycle, or fewer. A cycle contains each session once, in order of
        arrival.

        Some of them may have disconnected. Sessions that arrive during a cycle are in the next cycle.
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
