"""Options of connectors that wait for HTTP connections: ``http_server``, ``websocket_server``."""

from __future__ import annotations

from aiohttp import web

from tidelog.flows.connectors.http import cors
from tidelog.flows.connectors.http.listener import IDLE, ListenAddressOptions, check_path, origin_allowed
from tidelog.flows.connectors.http.options import HttpAuth, ServerTlsOptions
from tidelog.flows.connectors.payload import PayloadOptions
from tidelog.options.units import Duration


class HttpListenerOptions(PayloadOptions, kw_only=True):
    """Options of connectors that wait for HTTP connections."""

    host: str = "127.0.0.1"
    port: int  # 0: any
    path: str = "/*"  # /in, or /in/* for all that begins so
    origins: list[str] | None = None  # of pages that may ask (CORS); null: pages of the same host and port
    auth: HttpAuth | None = None  # that requests must carry
    tls: ServerTlsOptions | None = None
    max_connections: int = 1000  # of the address, open at a time
    header_timeout: Duration = Duration(10.0)  # for a request's headers; the first one's count from the connection
    idle_timeout: Duration = Duration(IDLE)  # of a connection between two requests

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
                raise ValueError(f"{name} is 0: nothing would ever work")

    def admits(self, request: web.BaseRequest) -> bool:
        """Whether the page that it is from may ask."""
        return origin_allowed(request.headers, self.host, self.origins)

    def listening(self) -> ListenAddressOptions:
        return ListenAddressOptions(
            host=self.host, port=self.port, tls=self.tls, max_connections=self.max_connections,
            header_timeout=self.header_timeout, idle_timeout=self.idle_timeout,
        )  # fmt: skip
