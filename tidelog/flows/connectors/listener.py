"""One HTTP server for each address of a process, shared by the connectors that listen there, whatever their flow.

Rule 1: a path belongs to one connector of one flow. Where a flow has several instances they take turns, and one that
        takes nothing now is passed over.
Rule 2: the first connector opens the address, the last one closes it. What belongs to the address (TLS, limits of
        connections) has to be the same with all of them.
Rule 3: a peer holds a connection without sending a request for ``header_timeout`` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from tidelog.flows.connectors.http_options import ServerTls
from tidelog.flows.options import Duration, Struct

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

IDLE: Final = 75.0  # s that a connection may stay open between requests
LINGER: Final = 2.0  # s for the rest of a body that nobody wants
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

_SHARED: Final = "http_listeners"  # the key in what a process shares

# aiohttp logs each malformed request of any peer with a traceback.
_quiet = logging.getLogger("tidelog.flows.http")
_quiet.setLevel(logging.CRITICAL)


class ListenOptions(Struct):
    """What belongs to an address."""

    host: str
    port: int
    tls: ServerTls | None
    max_connections: int
    header_timeout: Duration


@dataclass(eq=False)
class Route:
    """A connector's path. ``owner``: (flow, connector), the same for all instances of a flow."""

    path: str  # "/in", or "/in/*" for all that begins so
    owner: tuple[str, str]
    handle: Handler
    taking: Callable[[], bool]

    @property
    def prefix(self) -> str | None:
        return self.path[:-1] if self.path.endswith("*") else None


def check_path(path: str) -> None:
    """ValueError: it is none that can be listened on."""
    if not path.startswith("/") or "*" in path[:-1] or (path.endswith("*") and not path.endswith("/*")):
        raise ValueError(f"path: {path!r}: give one as /in, or as /in/* for all that begins with /in/")


def is_local(host: str) -> bool:
    """Whether only this machine can connect to an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def named_host(given: str) -> str:
    """The host in a ``Host`` header; empty: none that can be read."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return ""


def page_admitted(headers: Mapping[str, str], host: str, origins: Collection[str] | None) -> bool:
    """Whether the page that a request is from may send it. A page of any site can make its visitor's browser ask here:
    ``Origin`` says where it is from. host: the address that is listened on. origins: None for pages of this server;
    then where only this machine can connect, ``Host`` must be a name of it, and none that somebody had lead here.
    """
    origin = headers.get("Origin")
    if origin is None:
        return True
    if origins is not None:
        return origin in origins or "*" in origins
    asked = headers.get("Host", "")
    if origin.partition("://")[2].lower() != asked.lower():
        return False
    return is_local(named_host(asked)) or not is_local(host)


class Connection(web.RequestHandler):
    """Of a listener. ``begun`` is set by who handles its requests."""

    __slots__ = ("begun", "listener", "timer")

    def __init__(self, server: web.Server, listener: Listener) -> None:
        super().__init__(
            server, loop=asyncio.get_running_loop(), auto_decompress=False, access_log=_quiet, logger=_quiet,
            keepalive_timeout=IDLE, lingering_time=LINGER,
        )  # fmt: skip
        self.listener = listener
        self.begun = False  # a request came
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        listener = self.listener
        listener.connections += 1
        if listener.connections > listener.options.max_connections:
            assert isinstance(transport, asyncio.WriteTransport)  # noqa: S101 - it is a socket's
            transport.write(FULL)
            self.force_close()
            return
        self.timer = asyncio.get_running_loop().call_later(listener.options.header_timeout, self._late)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.listener.connections -= 1
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def _late(self) -> None:
        if not self.begun:
            self.force_close()


class Listener:
    """Of one address."""

    def __init__(self, options: ListenOptions) -> None:
        self.options = options
        self.port = 0  # that was opened
        self.connections = 0
        self.routes: list[Route] = []
        self._turns: dict[str, int] = {}  # by path
        self._lock = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._http: web.Server | None = None

    def url(self, scheme: str, route: Route) -> str:
        """Where a connector is reached. scheme: ``http`` or ``ws``; with TLS it gets its s."""
        secure = "" if self.options.tls is None else "s"
        return f"{scheme}{secure}://{self.options.host}:{self.port}{route.path.removesuffix('*')}"

    def make_way(self, route: Route) -> None:
        """Requests go to others from now on, if there are others: the connector is closing."""
        if len(self.routes) > 1 and route in self.routes:
            self.routes.remove(route)

    async def start(self) -> None:
        """Open the address, once. OSError: it can't be, or a file of ``tls`` can't be read."""
        async with self._lock:
            if self._server is not None:
                return
            tls = None if self.options.tls is None else await asyncio.to_thread(self.options.tls.context)
            http = web.Server(self._dispatch)
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Connection(http, self), self.options.host, self.options.port, ssl=tls, backlog=256
            )
            self._http = http
            self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        server, self._server = self._server, None
        http, self._http = self._http, None
        if server is not None:
            server.close()
        if http is not None:
            http.pre_shutdown()
            await http.shutdown(LINGER)

    def find(self, path: str) -> Route | None:
        """The route of a path: the longest that fits, and of several instances the next that takes something."""
        exact = [each for each in self.routes if each.path == path]
        fitting = exact or [each for each in self.routes if each.prefix is not None and _within(path, each.prefix)]
        longest = max((len(each.path) for each in fitting), default=0)
        best = [each for each in fitting if len(each.path) == longest]
        if not best:
            return None
        chosen = [each for each in best if each.taking()] or best
        turn = self._turns.get(best[0].path, 0)
        self._turns[best[0].path] = turn + 1
        return chosen[turn % len(chosen)]

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        protocol = request.protocol
        if isinstance(protocol, Connection):
            protocol.begun = True
        route = self.find(request.path)
        if route is None:
            return web.json_response({"error": "there is nothing here"}, status=404)
        return await route.handle(request)


def _within(path: str, prefix: str) -> bool:
    return path.startswith(prefix) or path == prefix[:-1]


async def join(shared: dict[str, Any], options: ListenOptions, route: Route) -> Listener:
    """Listen for a connector. ValueError: its path or address is taken by another; OSError: it can't be had."""
    listeners: dict[tuple[str, int], Listener] = shared.setdefault(_SHARED, {})
    key = (options.host, options.port)
    listener = listeners.get(key) if options.port else None
    if listener is None:
        listener = Listener(options)
        if options.port:
            listeners[key] = listener
    where = f"{options.host}:{options.port}"
    if listener.options != options:
        common = "tls, max_connections and header_timeout belong to the address"
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


async def leave(shared: dict[str, Any], listener: Listener, route: Route) -> None:
    """Listen no more. Any number of times."""
    with contextlib.suppress(ValueError):
        listener.routes.remove(route)
    if not listener.routes:
        listeners = shared.get(_SHARED, {})
        key = (listener.options.host, listener.options.port)
        if listeners.get(key) is listener:
            del listeners[key]
        await listener.stop()
