"""The clients that are connected: by ID and in order of arrival.

Rule 1: a client ID is never used twice in a server's life.
Rule 2: whoever remembers sessions is told when one leaves (``on_leave``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commands.session import Session
from respserver.clients.connection import Connection, connection_of


class Clients:
    """Registry of sessions. Implements ``ClientsPart``."""

    __slots__ = ("_by_id", "_in_turn", "_last_id", "on_leave")

    def __init__(self) -> None:
        self.on_leave: list[Callable[[Session], None]] = []
        self._by_id: dict[int, Session] = {}
        self._in_turn: list[Session] = []  # for some(), the next one last
        self._last_id = 0

    def next_id(self) -> int:
        """A new client ID: 1, 2, ... never given twice."""
        self._last_id += 1
        return self._last_id

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def remove(self, session: Session) -> None:
        """Take it off the list; nobody is told."""
        self._by_id.pop(session.id, None)

    def leave(self, session: Session) -> None:
        """The client is gone."""
        self.remove(session)
        for tell in self.on_leave:
            tell(session)

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def all(self) -> list[Session]:
        """Every client, oldest connection first; a copy, so the caller may close some while it walks."""
        return list(self._by_id.values())

    def connections(self) -> list[Connection]:
        """Those of all clients, oldest first; a copy. Links to a leader are not among them."""
        found = [connection_of(session) for session in self._by_id.values()]
        return [conn for conn in found if conn is not None]

    def some(self, count: int) -> list[Session]:
        """At most ``count``, the next ones in turn: each once before the first comes again. Some may be gone since."""
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
