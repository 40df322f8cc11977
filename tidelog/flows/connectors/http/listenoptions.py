"""Options of connectors that accept HTTP connections: ``http_server``, ``websocket_server``."""

from __future__ import annotations

from aiohttp import web

from tidelog.flows.connectors.http import cors
from tidelog.flows.connectors.http.listener import IDLE, ListenAddressOptions, check_path, origin_allowed
from tidelog.flows.connectors.http.options import HttpAuth, ServerTlsOptions
from tidelog.flows.connectors.payload import PayloadOptions
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
