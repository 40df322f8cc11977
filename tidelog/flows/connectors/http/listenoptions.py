"""Options of connectors that accept HTTP connections: ``http_server``, ``websocket_server``."""

from __future__ import annotations

from aiohttp import web

from tidelog.flows.connectors.http import cors
from tidelog.flows.connectors.http.listener import IDLE, ListenAddressOptions, check_path, origin_allowed
from tidelog.flows.connectors.http.options import HttpAuth, ServerTlsOptions
from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.options.units import Duration


class HttpListenerOptions(PayloadOptions, kw_only=True):
    """Options of connectors that accept HTTP connections."""

    host: str = "127.0.0.1"  # The address to listen on. `0.0.0.0`: all addresses; set `auth` in this case.
    port: int  # The port. 0: any free port.
    path: str = "/*"  # `/in`, or `/in/*` for all paths with this prefix.
    origins: list[str] | None = None
    # Origins of pages with access (CORS), such as `https://shop.example.org`, or `*`. `null`: the same host and port.
    auth: HttpAuth | None = None  # The credentials that requests must have.
    tls: ServerTlsOptions | None = None  # TLS settings, see above. `null`: no TLS.
    max_connections: int = 1000  # Maximum number of open connections of the address.
    header_timeout: Duration = Duration(10.0)
    # Time limit for the headers of a request. For the first request, it starts with the connection.
    idle_timeout: Duration = Duration(IDLE)  # How long a connection stays open between two requests.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_path(self.path)
        if self.origins is not None:
            self.origins = cors.origins_of(self.origins)
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: it must be 0 to 65535")
        if self.max_connections < 1:
            raise ValueError(f"max_connections is {self.max_connections}: it must be at least 1")
        for name in ("header_timeout", "idle_timeout"):
            if not getattr(self, name):
                raise ValueError(f"{name} is 0: it must be more than 0")

    def admits(self, request: web.BaseRequest) -> bool:
        """Return whether the page that sent the request has access."""
        return origin_allowed(request.headers, self.host, self.origins)

    def listening(self) -> ListenAddressOptions:
        return ListenAddressOptions(
            host=self.host, port=self.port, tls=self.tls, max_connections=self.max_connections,
            header_timeout=self.header_timeout, idle_timeout=self.idle_timeout,
        )  # fmt: skip
