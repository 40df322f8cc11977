"""Commands that need entries that are only in the object store: they wait for these entries, and are then repeated.

Rule 1: a command is repeated only if it has changed nothing. Otherwise, the client gets the error, which says so: the
effects of a command that stops at such entries are those of one that stops at damaged ones [96].
Rule 2: a command that is repeated MOST times without an end gets the error, too. The disk cache is then too small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from resp.errors import AbsentNodeError
from respserver.clients.connection import Connection
from respserver.clients.flowcontrol import Wait
from respserver.runtime.parts import RuntimeParts
from storage.keyspace.keyspace import Keyspace

#: Fetches a node into the disk cache with its section, and then calls the function, also if this has failed.
Fetch = Callable[[AbsentNodeError, Callable[[], None]], None]
#: The same. False: calls the function already when the node is there.
FetchNode = Callable[[AbsentNodeError, Callable[[], None], bool], None]

MOST: Final = 1000
WAIT_BYTES: Final = 300  # memory of a wait


class Absent:
    """The result of a call that must wait."""

    __slots__ = ("error",)

    def __init__(self, error: AbsentNodeError) -> None:
        self.error = error


class HistoryWait(Wait):
    """The wait of a client whose command is then repeated."""

    __slots__ = ("conn",)

    def __init__(self, conn: Connection) -> None:
        super().__init__(firm=True)
        self.conn: Connection | None = conn

    def memory_bytes(self) -> int:
        return WAIT_BYTES

    def forget(self) -> None:
        if self.conn is not None:
            self.conn.flow.wait = None
            self.conn.idle_since = 0
            self.conn = None

    def end(self, error: bool) -> bool:  # noqa: ARG002
        return False


class AbsentEntries:
    """Lets clients wait; one object per server."""

    def __init__(self, parts: RuntimeParts, fetch: FetchNode) -> None:
        self._ticks = parts.ticks
        self._fetch = fetch

    def may_wait(self, conn: Connection, argv: list[bytes], error: AbsentNodeError, unchanged: bool) -> bool:
        """Return whether a call that has raised ``error`` can be repeated. ``unchanged``: it has changed nothing."""
        last = conn.flow.absent
        return unchanged and not error.failed and not (last is not None and last[0] is argv and last[1] >= MOST)

    def suspend(self, conn: Connection, argv: list[bytes], error: AbsentNodeError, whole: bool) -> None:
        """Let the client wait for a node, or its whole section. Its commands from ``argv`` on are in its backlog."""
        last = conn.flow.absent
        tries = last[1] + 1 if last is not None and last[0] is argv else 1
        conn.flow.absent = argv, tries
        wait = HistoryWait(conn)
        conn.flow.wait = wait
        self._fetch(error, lambda: self._resume(wait), whole)

    def _resume(self, wait: HistoryWait) -> None:
        conn = wait.conn
        if conn is not None:
            wait.forget()
            self._ticks.queue_resume(conn)


def mark_of(ks: Keyspace) -> int:
    """Return a number that changes within a tick if the keyspace changes so that a command can't be repeated."""
    return len(ks.log) + ks.changes.count - ks.repeatable
