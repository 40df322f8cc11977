"""One HTTP server for each address of a process, shared by all connectors that listen there, including those of
different flows.

Rule 1: A path belongs to one connector of one flow. Several instances of the flow get the requests in turn. An
        instance that accepts no events at the moment is skipped.
Rule 2: The first connector opens the address, and the last one closes it. The options of the address (TLS,
        connection limits) must be the same for all of them.
Rule 3: The limits of its connections are those of ``HttpAddress``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from aiohttp import web

from tidelog.flows.connectors.tls import ServerTlsOptions
from tidelog.operating.hostnames import host_name, is_local
from tidelog.operating.httpaddress import LINGER, HttpAddress, HttpLimits, handling
from tidelog.options.structs import Struct
from tidelog.options.units import Duration

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_SHARED: Final = "http_listeners"  # the key in ``FlowContext.shared``


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


class HttpListener:
    """The HTTP server of one address."""

    def __init__(self, options: ListenAddressOptions) -> None:
        self.options = options
        limits = HttpLimits(options.max_connections, options.header_timeout, options.idle_timeout)
        self._address = HttpAddress(options.host, options.port, limits)
        self.port = 0  # the actual port
        self.routes: list[HttpRoute] = []
        self._turns: dict[str, int] = {}  # by path
        self._lock = asyncio.Lock()
        self._http: web.Server | None = None

    @property
    def connections(self) -> int:
        return self._address.connections

    def url(self, scheme: str, route: HttpRoute) -> str:
        """Return the URL of a connector. scheme: ``http`` or ``ws``, to which TLS adds an s."""
        secure = "" if self.options.tls is None else "s"
        return f"{scheme}{secure}://{self.options.host}:{self.port}{route.path.removesuffix('*')}"

    def make_way(self, route: HttpRoute) -> None:
        """Send requests to the other instances, if there are any, because the connector is closing."""
        if len(self.routes) > 1 and route in self.routes:
            self.routes.remove(route)

    async def start(self) -> None:
        """Open the address, once. Raises OSError if that fails, or if a file of ``tls`` can't be read."""
        async with self._lock:
            if self._http is not None:
                return
            tls = None if self.options.tls is None else await asyncio.to_thread(self.options.tls.context)
            http = web.Server(self._dispatch)
            await self._address.start(http, tls)
            self._http = http
            self.port = self._address.bound[1]

    async def stop(self) -> None:
        http, self._http = self._http, None
        await self._address.stop()
        if http is not None:
            http.pre_shutdown()
            await http.shutdown(LINGER)

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
