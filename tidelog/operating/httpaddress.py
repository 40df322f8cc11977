"""The HTTP connections of one address, with limits, for servers of aiohttp. aiohttp itself has none.

Rule 1: the headers of a request must be complete within ``header_timeout``, counted from the time the connection is
        accepted for the first request, and from the first byte for later ones. Between two requests, a connection
        stays open for ``idle_timeout``. A peer that reads nothing of a response for UNREAD seconds is disconnected.
Rule 2: a connection counts as soon as it is accepted, before TLS. A connection beyond the limit is closed with 503, or
        without a response if it uses TLS, because of the cost of the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelog.operating.tasks import BackgroundTasks
from tidelog.transport.cancellation import cancel_and_wait

IDLE: Final = 75.0  # s, default for which a connection stays open between requests
UNREAD: Final = 30.0  # s in which a peer must read some of the response
BACKLOG: Final = 256  # connections that wait to be accepted
LINGER: Final = 2.0  # s for the rest of an unread body
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

log = logging.getLogger("tidelog")

# aiohttp logs each malformed request of any peer with a traceback.
_quiet = logging.getLogger("tidelog.http")
_quiet.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class HttpLimits:
    """The limits of an address."""

    connections: int  # open at the same time
    header_timeout: float  # s
    idle_timeout: float = IDLE  # s


class HttpConnection(web.RequestHandler):
    """A connection of an address. The handler of its requests calls ``begin`` and ``ended``, see ``handling``."""

    __slots__ = (
        "_address", "_begun", "_counted", "_done", "_ended", "_endless", "_heading", "_lost", "_unread", "made",
    )  # fmt: skip

    def __init__(self, server: web.Server, address: HttpAddress, *, counted: bool = False) -> None:
        """counted: the address has already counted and admitted the connection."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, access_log=_quiet, logger=_quiet,
            keepalive_timeout=address.limits.idle_timeout, lingering_time=LINGER,
        )  # fmt: skip
        self._address = address
        self._begun = False  # a request is being handled
        self._done = 0  # handled requests
        self.made = False
        self._lost = False
        self._counted = counted
        self._endless = False  # the response does not end by itself
        self._ended = False  # the peer has half-closed the connection, and waits for the response
        self._heading: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # -- the request -----------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Record that the headers of a request are complete."""
        self._begun = True
        _cancel(self._heading)
        self._heading = None

    def endless(self) -> None:
        """Record that the response does not end by itself. A peer that half-closes the connection has then gone."""
        self._endless = True

    def ended(self) -> None:
        """Record that the response is written, though the peer may not have read all of it."""
        self._begun = self._endless = False
        self._done += 1
        if self._ended and self._done >= self._request_count:
            self.close()

    # -- the transport ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = True
        super().connection_made(transport)
        if not self._counted and not self._address.enter():
            self.transport.write(FULL)  # type: ignore[union-attr] # connection_made has just set it
            self.force_close()
            return
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._begun and self._heading is None and not self._messages:
            self._await_headers()

    def eof_received(self) -> bool:  # type: ignore[override] # the type of asyncio.Protocol; aiohttp's is narrower
        """Keep the connection open for the response if the peer half-closes it after a whole request."""
        if self._upgraded or self.ssl_context is not None or self._endless or self._half():
            return False
        self._ended = self._done < self._request_count
        if self._ended:
            asyncio.get_running_loop().call_later(LINGER, self._close_half)
        elif self._request_in_progress:  # the response is being written
            self.close()
        return self._ended or self._request_in_progress

    def _half(self) -> bool:
        """Return whether the body of the current request is incomplete."""
        request = self._current_request
        return request is not None and not request.content.is_eof()

    def _close_half(self) -> None:
        if self._half():
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lost = True
        self._address.leave()
        _cancel(self._heading)
        _cancel(self._unread)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        transport = self.transport
        if transport is not None and not self._upgraded:  # websockets have their own limits
            self._unread = asyncio.get_running_loop().call_later(UNREAD, transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._unread)
        super().resume_writing()

    def force_close(self) -> None:
        transport = self.transport
        super().force_close()
        if transport is not None and not self._lost:  # an unread response would keep it open
            _cancel(self._unread)
            self._unread = asyncio.get_running_loop().call_later(LINGER, transport.abort)

    def _await_headers(self) -> None:
        loop = asyncio.get_running_loop()
        self._heading = loop.call_later(self._address.limits.header_timeout, self._late)

    def _late(self) -> None:
        self._heading = None
        if not self._begun:
            self.force_close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class HttpAddress:
    """Accepts the connections of one address."""

    def __init__(self, host: str, port: int, limits: HttpLimits) -> None:
        self._host = host
        self._port = port
        self.bound = host, 0  # the actual address and port, after ``start``
        self.limits = limits
        self.connections = 0
        self._handshakes = BackgroundTasks()
        self._accepting: list[asyncio.Task[None]] = []  # with TLS
        self._server: asyncio.Server | None = None

    def enter(self) -> bool:
        """Count an accepted connection. Returns False if it exceeds the limit. Call ``leave`` in both cases."""
        self.connections += 1
        return self.connections <= self.limits.connections

    def leave(self) -> None:
        self.connections -= 1

    async def start(self, http: web.Server, tls: ssl.SSLContext | None = None) -> None:
        """Open the address. ``http``: its handler marks each request with ``handling``. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(http, self), self._host, self._port, backlog=BACKLOG, reuse_address=True,
            start_serving=tls is None,
        )  # fmt: skip
        self.bound = self._server.sockets[0].getsockname()[:2]
        if tls is not None:
            own = [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]
            self._server.close()
            for each in own:
                each.setblocking(False)
                each.listen(BACKLOG)
            self._accepting = [asyncio.create_task(self._accept(each, http, tls)) for each in own]

    @property
    def shown(self) -> str:
        """The actual address and port for a URL."""
        host, port = self.bound
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def stop(self) -> None:
        """Close the address. Connections remain open until ``http`` is shut down."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        accepting, self._accepting = self._accepting, []
        await asyncio.gather(*map(cancel_and_wait, (*accepting, *self._handshakes.tasks)))

    async def _accept(self, listening: socket.socket, http: web.Server, tls: ssl.SSLContext) -> None:
        """Accept connections before TLS (Rule 2). An event loop's own server reports them only after the handshake."""
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                try:
                    peer, _ = await loop.sock_accept(listening)
                except OSError as error:  # too many open files, most likely
                    log.warning("%s:%s: no connection can be accepted: %s", *self.bound, error)
                    await asyncio.sleep(1)
                    continue
                if not self.enter():
                    self.leave()
                    peer.close()
                    continue
                self._handshakes.spawn(self._secure(peer, http, tls))

    async def _secure(self, peer: socket.socket, http: web.Server, tls: ssl.SSLContext) -> None:
        connection = HttpConnection(http, self, counted=True)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, peer, ssl=tls, ssl_handshake_timeout=self.limits.header_timeout,
                ssl_shutdown_timeout=LINGER,
            )  # fmt: skip
        except OSError as error:
            log.debug("%s:%s: TLS: %s", *self.bound, error)
        finally:
            if not connection.made:
                self.leave()
                peer.close()


def endless(request: web.BaseRequest) -> None:
    """Mark a request whose response does not end by itself, such as a stream of events."""
    connection = request.protocol
    if isinstance(connection, HttpConnection):
        connection.endless()


@contextlib.contextmanager
def handling(request: web.BaseRequest) -> Iterator[None]:
    """Mark the time in which a request is handled. It ends ``header_timeout`` for the request."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        yield
        return
    connection.begin()
    try:
        yield
    finally:
        connection.ended()
