"""Accepts and refuses new clients, and closes idle and stalled ones."""

from __future__ import annotations

import socket

from commands.admin.clientlist import IDLE_CLIENT_BYTES
from commands.declare import HEADS
from commands.session import Session
from resp.decode import RequestDecoder, SharedDecoding
from respserver.clients import tlsclose
from respserver.clients.clients import Clients
from respserver.clients.connection import Connection, connection_of
from respserver.clients.listeners import is_loopback, keep_alive, shown
from respserver.clients.users import Users
from respserver.observe.info import RESP_PARSER
from respserver.runtime.parts import RuntimeParts, ServerPart

AT_ONCE = 100  # minimum number of clients that on_time() examines
STALL_MS = 60_000  # a client that accepts no part of a streamed reply for this long is closed

PROTECTED = (
    b"-DENIED tidelog is running in protected mode because protected mode is enabled and no password is set for the"
    b" default user. In this mode connections are only accepted from the loopback interface. Set a password with"
    b" requirepass, or bind to the addresses you trust and set protected-mode no.\r\n"
)


class Admission(ServerPart):
    """Gives new connections a session, or refuses them. Closes those that exceed a time limit later."""

    def __init__(self, parts: RuntimeParts, clients: Clients, users: Users) -> None:
        super().__init__(parts)
        self._clients = clients
        self._users = users
        parser = None
        if RESP_PARSER == "hiredis":
            from resp.hiredisparser import HiredisParser  # imported here, because a compiled server does not need it

            parser = HiredisParser(HEADS)
        self._decoding = SharedDecoding(HEADS, parser)

    def admit(self, conn: Connection) -> None:
        """Give a new connection its session and decoder, or refuse it."""
        transport, config = conn.socket.transport, self._config
        sock: socket.socket | None = transport.get_extra_info("socket")
        unix = sock is not None and sock.family == socket.AF_UNIX
        session = Session(
            self._clients.next_id(), shown(transport.get_extra_info("peername"), config.unixsocket),
            shown(transport.get_extra_info("sockname"), config.unixsocket), self._clock.now(),
        )  # fmt: skip
        session.transport = conn
        session.unix = unix
        session.tls = transport.get_extra_info("ssl_object") is not None
        conn.session, conn.seen_active = session, session.last_active
        conn.input.decoder = RequestDecoder(
            self._decoding, max_bulk=config.proto_max_bulk_len, max_buffer=config.client_query_buffer_limit
        )
        self._counters.connections_received += 1
        refusal = self._refusal(session)
        if refusal:
            self._counters.connections_rejected += 1
            transport.write(refusal)
            session.close_after_reply = True
            if session.tls:
                transport.pause_reading()
                tlsclose.close(transport)
            else:
                transport.close()
            return
        self._users.greet(session)
        conn.input.decoder.authenticated = session.authenticated
        if config.tcp_keepalive and sock is not None and not unix:
            keep_alive(sock, config.tcp_keepalive)
        self._clients.add(session)

    def _refusal(self, session: Session) -> bytes:
        """Return the error reply for a client that is refused; empty if the client is accepted."""
        config = self._config
        if len(self._clients) >= config.maxclients:
            return b"-ERR max number of clients reached\r\n"
        if config.protected_mode and self._users.default.open and not session.unix and not is_loopback(session.addr):
            return PROTECTED
        return b""

    def configure(self) -> None:
        """Apply changed limits to the connected clients, and record their memory."""
        config = self._config
        for conn in self._clients.connections():
            conn.input.decoder.limit(config.proto_max_bulk_len, config.client_query_buffer_limit)
            conn.check_output_limit()
            if config.maxmemory:
                self._note_memory(conn)

    def _note_memory(self, conn: Connection) -> None:
        session = conn.session
        self._clients.note(session, IDLE_CLIENT_BYTES + session.memory_bytes() + conn.waiting_bytes())

    def on_time(self, now: int, mono: int) -> None:
        """Close clients that do not read their replies, that have disconnected unnoticed, or that are idle
        (``timeout``). If ``maxmemory`` is set, record the memory of each client.

        Called ``hz`` times a second. Each client is examined at least once a second, because examining 10,000
        together would take milliseconds. ``now``: ms since epoch. ``mono``: ms, monotonic.
        """
        idle, limited = self._config.timeout * 1000, bool(self._config.maxmemory)
        for session in self._clients.some(max(AT_ONCE, len(self._clients) // self._config.hz + 1)):
            conn = connection_of(session)
            if conn is None:
                continue
            if limited:
                self._note_memory(conn)
            if conn.output.soft_since or conn.flow.throttled:
                conn.check_output_limit()
            if conn.flow.wait is not None and not conn.socket.reading:
                conn.poll_shutdown()
            if conn.output.streaming is not None and conn.flow.throttled and mono - conn.output.progress > STALL_MS:
                conn.cut(f"accepted nothing of a streamed reply for {STALL_MS // 1000} seconds")
            if _may_idle(session, conn):
                conn.idle_since = 0
            elif conn.seen_active != session.last_active or not conn.idle_since:
                _note_activity(conn, now, mono)
            elif idle and mono - conn.idle_since > idle:
                self._counters.idle_cuts += 1
                conn.kill()


def _note_activity(conn: Connection, now: int, mono: int) -> None:
    """Record a client's activity in monotonic time: a change of the wall clock must not close all clients.

    The dispatcher reads only the wall clock. Clients are examined each second, so the activity is at most that old.
    """
    waited = not conn.idle_since
    conn.seen_active = conn.session.last_active
    conn.idle_since = mono if waited else mono - min(max(0, now - conn.seen_active), 1000)


def _may_idle(session: Session, conn: Connection) -> bool:
    """Return whether ``timeout`` does not apply to the client."""
    return bool(
        session.blocked
        or session.subscribed
        or session.monitoring
        or conn.flow.paused
        or conn.flow.wait is not None
        or session.replica is not None
        or conn.output.marks
    )
