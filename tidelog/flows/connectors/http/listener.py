"""One HTTP server for each address of a process, shared by all connectors that listen there, including those of
different flows.

Rule 1: A path belongs to one connector of one flow. Several instances of the flow get the requests in turn. An
        instance that accepts no events at the moment is skipped.
Rule 2: The first connector opens the address, and the last one closes it. The options of the address (TLS,
        connection limits) must be the same for all of them.
Rule 3: The headers of a request must be complete within ``header_timeout``, counted from the time the connection is
        accepted for the first request, and from the first byte for later ones. Between two requests, a connection
        stays open for ``idle_timeout``. A peer that reads nothing of a response for UNREAD seconds is disconnected.
Rule 4: A connection counts as soon as it is accepted, before TLS. A connection beyond ``max_connections`` is closed
        with 503, or without a response if it uses TLS, because of the cost of the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.connectors.http.options import ServerTlsOptions
from tidelog.operating.tasks import BackgroundTasks
from tidelog.options.structs import Struct
from tidelog.options.units import Duration

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

IDLE: Final = 75.0  # s, default for which a connection stays open between requests
UNREAD: Final = 30.0  # s in which a peer must read some of the response
BACKLOG: Final = 256  # connections that wait to be accepted
LINGER: Final = 2.0  # s for the rest of an unread body
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

_SHARED: Final = "http_listeners"  # the key in ``FlowContext.shared``

log = logging.getLogger("tidelog.flows")

# aiohttp logs each malformed request of any peer with a traceback.
_quiet = logging.getLogger("tidelog.flows.http")
_quiet.setLevel(logging.CRITICAL)


class ListenAddressOptions(Struct):
    """The options of an address."""

    host: str
    port: int
    tls: ServerTlsOptions | None
    max_connections: int
    header_timeout: Duration
    idle_timeout: Duration


@dataclass(eq=False)
class HttpRoute:
    """The path of a connector. ``owner``: (flow, connector), the same for all instances of a flow."""

    path: str  # "/in", or "/in/*" for all paths with this prefix
    owner: tuple[str, str]
    handle: Handler
    taking: Callable[[], bool]

    def rank(self, path: str) -> float:
        """Return how well the route matches a path: 0: not at all; else the length of its prefix; inf: exactly."""
        if path == self.path:
            return math.inf
        prefix = self.path.removesuffix("*")
        return len(prefix) if prefix != self.path and f"{path}/".startswith(prefix) else 0


def check_path(path: str) -> None:
    """Raise ValueError if the path is not valid."""
    if not path.startswith("/") or "*" in path[:-1] or (path.endswith("*") and not path.endswith("/*")):
        raise ValueError(f"path: {path!r}: use the form /in, or /in/* for all paths that begin with /in/")


def is_local(host: str) -> bool:
    """Return whether only this machine can connect to a listening address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def host_name(given: str) -> str:
    """Return the host in a ``Host`` header; empty if it is not valid."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


def origin_allowed(headers: Mapping[str, str], host: str, origins: Collection[str] | None) -> bool:
    """Return whether the page that sent a request may send it.

    A page of any site can make its visitor's browser send requests here; ``Origin`` names the site. host: the listening
    address. origins: the allowed origins; None allows pages of this server. In that case, if only this machine can
    connect, ``Host`` must also be a name of this machine, which prevents DNS rebinding.
    """
    origin = headers.get("Origin")
    if origin is None:
        return True
    if origins is not None:
        return origin in origins or "*" in origins
    own = headers.get("Host", "")
    if origin.partition("://")[2].lower() != own.lower():
        return False
    return is_local(host_name(own)) or not is_local(host)


class HttpConnection(web.RequestHandler):
    """A connection of a listener. The handler of its requests calls ``begin`` and ``ended``."""

    __slots__ = ("_begun", "_counted", "_done", "_ended", "_heading", "_listener", "_lost", "_unread", "made")

    def __init__(self, server: web.Server, listener: HttpListener, *, counted: bool = False) -> None:
        """counted: the listener has already counted and admitted the connection."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, access_log=_quiet, logger=_quiet,
            keepalive_timeout=listener.options.idle_timeout, lingering_time=LINGER,
        )  # fmt: skip
        self._listener = listener
        self._begun = False  # a request is being handled
        self._done = 0  # handled requests
        self.made = False
        self._lost = False
        self._counted = counted
        self._ended = False  # the peer has half-closed the connection, and waits for the response
        self._heading: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # -- the request -----------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Record that the headers of a request are complete."""
        self._begun = True
        _cancel(self._heading)
        self._heading = None

    def ended(self) -> None:
        """Record that the response is written, though the peer may not have read all of it."""
        self._begun = False
        self._done += 1
        if self._ended and self._done >= self._request_count:
            self.close()

    # -- the transport ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = True
        super().connection_made(transport)
        listener = self._listener
        if not self._counted and not listener.enter():
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
        if self._upgraded or self.ssl_context is not None or self._half():
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
        self._listener.leave()
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
        self._heading = loop.call_later(self._listener.options.header_timeout, self._late)

    def _late(self) -> None:
        self._heading = None
        if not self._begun:
            self.force_close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class HttpListener:
    """The HTTP server of one address."""

    def __init__(self, options: ListenAddressOptions) -> None:
        self.options = options
        self.port = 0  # the actual port
        self.connections = 0
        self.routes: list[HttpRoute] = []
        self._handshakes = BackgroundTasks()
        self._turns: dict[str, int] = {}  # by path
        self._lock = asyncio.Lock()
        self._accepting: list[asyncio.Task[None]] = []  # with TLS
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None

    def url(self, scheme: str, route: HttpRoute) -> str:
        """Return the URL of a connector. scheme: ``http`` or ``ws``, to which TLS adds an s."""
        secure = "" if self.options.tls is None else "s"
        return f"{scheme}{secure}://{self.options.host}:{self.port}{route.path.removesuffix('*')}"

    def enter(self) -> bool:
        """Count an accepted connection. Returns False if it exceeds the limit. Call ``leave`` in both cases."""
        self.connections += 1
        return self.connections <= self.options.max_connections

    def leave(self) -> None:
        self.connections -= 1

    def make_way(self, route: HttpRoute) -> None:
        """Send requests to the other instances, if there are any, because the connector is closing."""
        if len(self.routes) > 1 and route in self.routes:
            self.routes.remove(route)

    async def start(self) -> None:
        """Open the address, once. Raises OSError if that fails, or if a file of ``tls`` can't be read."""
        async with self._lock:
            if self._server is not None:
                return
            tls = None if self.options.tls is None else await asyncio.to_thread(self.options.tls.context)
            http = web.Server(self._dispatch)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: HttpConnection(http, self), self.options.host, self.options.port, backlog=BACKLOG,
                start_serving=tls is None,
            )  # fmt: skip
            self._http = http
            self.port = self._server.sockets[0].getsockname()[1]
            if tls is not None:
                own = [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]
                self._server.close()
                self._accepting = [asyncio.create_task(self._accept(each, http, tls)) for each in own]

    async def stop(self) -> None:
        server, self._server = self._server, None
        http, self._http = self._http, None
        if server is not None:
            server.close()
        accepting, self._accepting = self._accepting, []
        await cancel(*accepting, *self._handshakes.tasks)
        if http is not None:
            http.pre_shutdown()
            await http.shutdown(LINGER)

    async def _accept(self, listening: socket.socket, http: web.Server, tls: ssl.SSLContext) -> None:
        """Accept connections before TLS (Rule 4). An event loop's own server reports them only after the handshake."""
        loop = asyncio.get_running_loop()
        with listening:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            while True:
                try:
                    peer, _ = await loop.sock_accept(listening)
                except OSError as error:  # too many open files, most likely
                    log.warning("%s:%s: no connection can be accepted: %s", self.options.host, self.port, error)
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
                lambda: connection, peer, ssl=tls, ssl_handshake_timeout=self.options.header_timeout,
                ssl_shutdown_timeout=LINGER,
            )  # fmt: skip
        except OSError as error:
            log.debug("%s:%s: TLS: %s", self.options.host, self.port, error)
        finally:
            if not connection.made:
                self.leave()
                peer.close()

    def find(self, path: str) -> HttpRoute | None:
        """Return the route with the longest match of a path; of several instances, the next one that accepts events."""
        rank = max((each.rank(path) for each in self.routes), default=0)
        if not rank:
            return None
        best = [each for each in self.routes if each.rank(path) == rank]
        chosen = [each for each in best if each.taking()] or best
        turn = self._turns.get(best[0].path, 0)
        self._turns[best[0].path] = turn + 1
        return chosen[turn % len(chosen)]

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        with handling(request):
            route = self.find(request.path)
            if route is None:
                return web.json_response({"error": "not found"}, status=404)
            return await route.handle(request)


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


async def join(shared: dict[str, Any], options: ListenAddressOptions, route: HttpRoute) -> HttpListener:
    """Listen for a connector.

    Raises ValueError if another connector uses its path or address, and OSError if the address can't be opened.
    """
    listeners: dict[tuple[str, int], HttpListener] = shared.setdefault(_SHARED, {})
    key = (options.host, options.port)
    listener = listeners.get(key) if options.port else None
    if listener is None:
        listener = HttpListener(options)
        if options.port:
            listeners[key] = listener
    where = f"{options.host}:{options.port}"
    if listener.options != options:
        common = "tls, max_connections, header_timeout and idle_timeout must be the same for an address"
        raise ValueError(f"another connector listens on {where} with other options: {common}")
    for each in listener.routes:
        if each.path == route.path and each.owner != route.owner:
            taken = f"the connector {each.owner[1]!r} of the flow {each.owner[0]!r}"
            raise ValueError(f"{where}{route.path} belongs to {taken}: choose another path")
    listener.routes.append(route)
    try:
        await listener.start()
    except BaseException:
        await leave(shared, listener, route)
        raise
    return listener


async def leave(shared: dict[str, Any], listener: HttpListener, route: HttpRoute) -> None:
    """Stop listening. It can be called more than once."""
    with contextlib.suppress(ValueError):
        listener.routes.remove(route)
    if not listener.routes:
        listeners = shared.get(_SHARED, {})
        key = (listener.options.host, listener.options.port)
        if listeners.get(key) is listener:
            del listeners[key]
        await listener.stop()
