"""Which clients may come in, and which have to leave."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from commands.session import Session
from resp.decode import RequestDecoder
from respserver.clients.connection import Connection
from respserver.clients.listen import is_loopback, keep_alive, shown

if TYPE_CHECKING:
    from respserver.server import Server

AT_ONCE = 100  # clients that are looked after at least
STALL_MS = 60_000  # a streamed reply of which the client takes nothing for so long is given up

PROTECTED = (
    b"-DENIED tidelog is running in protected mode because protected mode is enabled and no password is set for the"
    b" default user. In this mode connections are only accepted from the loopback interface. Set a password with"
    b" requirepass, or bind to the addresses you trust and set protected-mode no.\r\n"
)


def admit(server: Server, conn: Connection) -> None:
    """A new connection: give it a session, or turn it away."""
    transport, config = conn.transport, server.config
    sock: socket.socket | None = transport.get_extra_info("socket")
    unix = sock is not None and sock.family == socket.AF_UNIX
    session = Session(
        server.clients.next_id(), shown(transport.get_extra_info("peername"), config.unixsocket),
        shown(transport.get_extra_info("sockname"), config.unixsocket), server.now_ms(),
    )  # fmt: skip
    session.transport = conn
    session.unix = unix
    session.tls = transport.get_extra_info("ssl_object") is not None
    conn.session = session
    conn.decoder = RequestDecoder(max_bulk=config.proto_max_bulk_len, max_buffer=config.client_query_buffer_limit)
    server.stats.connections_received += 1
    refusal = b""
    if len(server.clients) >= config.maxclients:
        refusal = b"-ERR max number of clients reached\r\n"
    elif config.protected_mode and not config.requirepass and not unix and not is_loopback(session.addr):
        refusal = PROTECTED
    if refusal:
        server.stats.connections_rejected += 1
        transport.write(refusal)
        transport.close()
        return
    if config.requirepass:
        session.authenticated = False
        conn.decoder.authenticated = False
        session.refresh()
    if config.tcp_keepalive and sock is not None and not unix:
        keep_alive(sock, config.tcp_keepalive)
    server.clients.add(session)


def look_after(server: Server, now: int, mono: int) -> None:
    """Some ten times a second: cut who takes no replies, or has nothing to say for too long.

    Each client is looked at once a second or oftener: to look at 10,000 at once takes some milliseconds.
    """
    idle = server.config.timeout * 1000
    for session in server.clients.some(max(AT_ONCE, len(server.clients) // server.config.hz + 1)):
        conn = session.transport
        if not isinstance(conn, Connection):
            continue
        if conn.soft_since:
            conn.check_output_limit()
        if conn.streaming and conn.throttled and mono - conn.progress > STALL_MS:
            conn.cut(f"took nothing of a streamed reply for {STALL_MS // 1000} seconds")
        if idle and now - session.last_active > idle and not (
            session.blocked or session.channels or session.patterns or session.monitoring or conn.paused
            or session.replica is not None
        ):
            server.stats.idle_cuts += 1
            conn.kill()
