"""The base of connectors that accept HTTP connections: ``http_server``, ``websocket_server``."""

from __future__ import annotations

from typing import Any, ClassVar

from aiohttp import web

from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.connectors.http.listener import (
    HttpListener,
    HttpRoute,
    ListenAddressOptions,
    check_path,
    join,
    leave,
    origin_allowed,
)
from tidelog.flows.connectors.http.options import HttpAuth
from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.flows.connectors.tls import ServerTlsOptions
from tidelog.operating import cors
from tidelog.operating.httpaddress import IDLE
from tidelog.options.limits import AtLeastOne, Port
from tidelog.options.units import PositiveDuration


class HttpListenerOptions(PayloadOptions, kw_only=True):
    """Options of connectors that accept HTTP connections."""

    host: str = "127.0.0.1"  # The address to listen on. `0.0.0.0`: all addresses; set `auth` in this case.
    port: Port  # The port to listen on. `0`: a free port.
    path: str = "/*"  # The path of requests: `/in`, or `/in/*` for all paths with this prefix.
    origins: list[str] | None = None
    # Origins of pages with access (CORS), such as `https://shop.example.org`, or `*`. `null`: the same host and port.
    auth: HttpAuth | None = None  # The credentials that requests must have. `null`: none.
    tls: ServerTlsOptions | None = None  # TLS settings, see above. `null`: no TLS.
    max_connections: AtLeastOne = 1000  # Maximum number of open connections of the address.
    header_timeout: PositiveDuration = PositiveDuration(10.0)
    # Time limit for the headers of a request. For the first request, it starts with the connection.
    idle_timeout: PositiveDuration = PositiveDuration(IDLE)  # How long a connection stays open between two requests.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_path(self.path)
        if self.origins is not None:
            self.origins = [cors.origin_of(each) for each in self.origins]

    def admits(self, request: web.BaseRequest) -> bool:
        """Return whether the page that sent the request has access."""
        return origin_allowed(request.headers, self.host, self.origins)

    def listening(self) -> ListenAddressOptions:
        """Return the options of the address."""
        return ListenAddressOptions(**{name: getattr(self, name) for name in ListenAddressOptions.__struct_fields__})


def error_response(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


class ListeningConnector(Source, Sink):
    """Handles the requests to one path of an address."""

    scheme: ClassVar[str]  # of its URL: ``http`` or ``ws``

    def __init__(self, options: HttpListenerOptions) -> None:
        super().__init__()
        self._access = options
        self.listener: HttpListener | None = None  # of the address, while it is open
        self._route: HttpRoute | None = None

    async def connect(self) -> None:
        owner = (self.context.flow.partition(".")[0], self.context.name)
        self._route = HttpRoute(self._access.path, owner, self.handle, self.taking)
        self.listener = await join(self.context.flow_context.shared, self._access.listening(), self._route)
        self.context.described["url"] = self.listener.url(self.scheme, self._route)

    async def close(self) -> None:
        listener, route = self.listener, self._route
        self.listener = self._route = None
        if listener is not None and route is not None:
            listener.make_way(route)
            await self.finish()
            await leave(self.context.flow_context.shared, listener, route)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raise NotImplementedError

    def taking(self) -> bool:
        """Return whether requests are accepted now. If not, other instances of the flow get them."""
        return True

    async def finish(self) -> None:
        """End the requests in progress. No further ones arrive if the flow has other instances."""

    def denied(self, request: web.BaseRequest) -> web.Response | None:
        """Return the response to a request without the credentials, or of a page that has no access."""
        auth = self._access.auth
        if auth is not None and not auth.admits(request.headers.get("Authorization", "")):
            self.context.count("unauthorized")
            response = error_response(401, "not authorized")
            response.headers["WWW-Authenticate"] = "Bearer" if auth.bearer is not None else 'Basic realm="tidelog"'
            return response
        if not self._access.admits(request):
            self.context.count("foreign_origins")
            return error_response(403, "pages of this origin have no access")
        return None

    def meta(self, request: web.BaseRequest) -> dict[str, Any]:
        """Return the meta of the events of a request. Only the first value of a header or parameter is used."""
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)
        for name, value in request.query.items():
            query.setdefault(name, value)
        if self._access.auth is not None:
            headers.pop("authorization", None)
        return {"path": request.path, "query": query, "headers": headers, "peer": request.remote or ""}
