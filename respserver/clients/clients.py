"""The clients that are connected: by ID, in order of arrival, and as CLIENT LIST shows them.

Rule 1: a client ID is never used twice in a server's life.  Rule 2: this file only reads sessions; it closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from commands.admin.client import client_type
from commands.session import Session


@dataclass(slots=True)
class ConnectionFigures:
    """What only the connection knows of itself; all zero for a session without one."""

    fd: int = -1
    query_buffered: int = 0  # bytes of an incomplete command
    query_free: int = 0  # bytes still allocated and unused behind them
    output_buffered: int = 0  # bytes of replies waiting for the socket
    output_pieces: int = 0  # 1 while a streamed reply is under way
    reading: bool = True
    writing: bool = False  # the socket refused bytes; waiting for room


@runtime_checkable
class HasFigures(Protocol):
    """The side of a connection that this file needs; ``Session.transport`` offers it."""

    def figures(self) -> ConnectionFigures: ...


@runtime_checkable
class Closable(Protocol):
    """The same for CLIENT KILL."""

    def kill(self) -> None: ...


class Clients:
    """Registry of sessions by ID, in order of arrival."""

    __slots__ = ("_by_id", "_in_turn", "_last_id")

    def __init__(self) -> None:
        self._by_id: dict[int, Session] = {}
        self._in_turn: list[Session] = []  # for some(), the next one last
        self._last_id = 0

    def next_id(self) -> int:
        """A new client ID: 1, 2, ... never given twice."""
        self._last_id += 1
        return self._last_id

    def some(self, count: int) -> list[Session]:
        """At most ``count``, the next ones in turn: each once before the first comes again. Some may be gone since."""
        if not self._in_turn:
            self._in_turn = list(self._by_id.values())
            self._in_turn.reverse()
        found = self._in_turn[: -count - 1 : -1]
        del self._in_turn[-count:]
        return found

    def add(self, session: Session) -> None:
        self._by_id[session.id] = session

    def remove(self, session: Session) -> None:
        self._by_id.pop(session.id, None)

    def get(self, client_id: int) -> Session | None:
        return self._by_id.get(client_id)

    def all(self) -> list[Session]:
        """Every client, oldest connection first; a copy, so the caller may close some while it walks."""
        return list(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())


def client_flags(session: Session) -> str:
    """One letter a state, as CLIENT LIST documents them; ``N`` where there is nothing to say."""
    letters = ""
    if session.monitoring:
        letters += "O"
    kind = client_type(session)
    if kind == b"replica":
        letters += "S"
    elif kind == b"master":
        letters += "M"
    if session.channels or session.patterns:
        letters += "P"
    if session.multi:
        letters += "x"
    if session.blocked:
        letters += "b"
    if session.dirty_cas:
        letters += "d"
    if session.close_after_reply:
        letters += "c"
    if session.unix:
        letters += "U"
    if session.no_evict:
        letters += "e"
    if session.no_touch:
        letters += "T"
    return letters or "N"


def figures_of(session: Session) -> ConnectionFigures:
    transport = session.transport
    return transport.figures() if isinstance(transport, HasFigures) else ConnectionFigures()


# A rough price of a connection that holds nothing: the session, the connection, its decoder and its socket object.
IDLE_CLIENT_BYTES = 4096


def client_line(session: Session, now: int) -> str:
    """The client's line in CLIENT LIST and CLIENT INFO, without the line end. ``now``: ms since epoch.

    Names and order are Redis's (7.4 and later). ``argv-mem``, ``rbs`` and ``rbp`` are 0: a command's arguments are
    not kept after its handler, and there is no reply buffer of fixed size.
    """
    figures = figures_of(session)
    queued = sum(sum(map(len, argv)) for argv in session.queued)
    total = (
        IDLE_CLIENT_BYTES + figures.query_buffered + figures.query_free + queued + figures.output_buffered
    )
    events = ("r" if figures.reading else "") + ("w" if figures.writing else "")
    fields: list[tuple[str, object]] = [
        ("id", session.id),
        ("addr", session.addr),
        ("laddr", session.laddr),
        ("fd", figures.fd),
        ("name", session.name.decode("latin-1")),
        ("age", max(0, now - session.created) // 1000),
        ("idle", max(0, now - session.last_active) // 1000),
        ("flags", client_flags(session)),
        ("db", 0),
        ("sub", len(session.channels)),
        ("psub", len(session.patterns)),
        ("ssub", 0),
        ("multi", len(session.queued) if session.multi else -1),
        ("watch", len(session.watching)),
        ("qbuf", figures.query_buffered),
        ("qbuf-free", figures.query_free),
        ("argv-mem", 0),
        ("multi-mem", queued),
        ("rbs", 0),
        ("rbp", 0),
        ("obl", figures.output_buffered),
        ("oll", figures.output_pieces),
        ("omem", figures.output_buffered),
        ("tot-mem", total),
        ("events", events),
        ("cmd", session.last_command),
        ("user", session.user.decode("latin-1")),
        ("redir", -1),
        ("resp", session.proto),
        ("lib-name", session.lib_name.decode("latin-1")),
        ("lib-ver", session.lib_ver.decode("latin-1")),
        ("tot-net-in", session.total_in),
        ("tot-net-out", session.total_out),
        ("tot-cmds", session.total_commands),
    ]
    return " ".join(f"{name}={value}" for name, value in fields)
