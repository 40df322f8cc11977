"""``GatewayServer``: the HTTP server."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web

from tidelog.gateway import DEFAULT_LISTEN
from tidelog.gateway.errors import GatewayError
from tidelog.gateway.limits import BODY, OTHER_CONNECTIONS, READERS, STREAMS, USER_READERS
from tidelog.gateway.media import JSON
from tidelog.gateway.metrics import serving
from tidelog.gateway.openapi import document
from tidelog.gateway.routes import ROUTES
from tidelog.gateway.security import guard, handler_of
from tidelog.gateway.site import GatewaySite, json_response
from tidelog.gateway.users import GatewayUsers
from tidelog.operating import cors
from tidelog.operating.hostnames import is_local
from tidelog.operating.httpaddress import HttpAddress, HttpLimits
from tidelog.operating.listening import ListenError, check_exposure, listen_address, server_tls
from tidelog.transport.access import Access
from tidelog.transport.cancellation import cancel_and_wait

SHUTDOWN: Final = 5.0  # s that requests have to end
HEADERS_WITHIN: Final = 10.0  # s for the headers of a request, for the first request from the connection on
SERVER_FILES: Final = 2 * STREAMS  # open files in addition to the connections of clients
SWEPT: Final = 5.0  # s between two searches for unused tails and users

log = logging.getLogger("tidelog.gateway")


@dataclass(frozen=True)
class GatewayOptions:
    """The options of a gateway."""

    access: Access  # the server that it serves
    listen: str = DEFAULT_LISTEN
    cert_file: str | None = None  # PEM; None: HTTP without TLS
    key_file: str | None = None  # PEM; None: it is in ``cert_file``
    without_tls: bool = False  # other machines can connect without TLS
    cors_origins: Sequence[str] = ()  # origins of pages with access; ``*``: all
    readers: int = READERS  # open event streams
    user_readers: int = USER_READERS  # open event streams of one user
    metrics: int | None = None  # port of /metrics, 0: a free one; None: it is not served
    metrics_host: str = "127.0.0.1"


class GatewayServer:
    """A gateway. ``url`` is its address after ``start``. Raises GatewayError for invalid options."""

    def __init__(self, options: GatewayOptions) -> None:
        access = options.access
        if access.username or access.password or any("@" in url for url in access.urls):
            raise GatewayError("the URL has a user or password: remove it, users of the gateway send their own")
        try:
            self._host, self._port = listen_address(options.listen, DEFAULT_LISTEN)
            secured = options.cert_file is not None
            check_exposure(options.listen, DEFAULT_LISTEN, tls=secured, without_tls=options.without_tls)
            self._tls = server_tls(options.cert_file, options.key_file)
        except ListenError as error:
            raise GatewayError(str(error)) from None
        try:
            origins = [cors.origin_of(each) for each in options.cors_origins]
        except ValueError as error:
            raise GatewayError(str(error).replace("origins:", "--cors-origin:", 1)) from None
        self._users = GatewayUsers(access)
        self.site = GatewaySite(
            self._users, is_local(self._host), origins, options.readers, min(options.user_readers, options.readers)
        )
        self._runner = web.AppRunner(
            application(self.site), access_log=None, shutdown_timeout=SHUTDOWN, handler_cancellation=True
        )
        self._limits = HttpLimits(options.readers + OTHER_CONNECTIONS, HEADERS_WITHIN)
        self._address: HttpAddress | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._metrics_at = options.metrics, options.metrics_host
        self._metrics = ExitStack()
        self.url = ""
        self.metrics_port: int | None = None  # after ``start``, if metrics are served

    async def start(self) -> None:
        """Start listening. Raises GatewayError if the address can't be used."""
        _raise_open_files(self._limits.connections)
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None  # noqa: S101 - set up above
        self._address = HttpAddress(self._host, self._port, self._limits)
        try:
            await self._address.start(handler, self._tls)
        except OSError as error:
            await self.stop()
            raise GatewayError(
                f"{self._host}:{self._port} can't be used: {error.strerror or error}; use another --listen HOST:PORT"
            ) from None
        port, host = self._metrics_at
        if port is not None:
            try:
                self.metrics_port = self._metrics.enter_context(serving(self.site, port, host))
            except OSError as error:
                await self.stop()
                raise GatewayError(f"--metrics {port}: {host}:{port} is not available: {error}") from None
        self._sweeping = asyncio.create_task(self._sweep())
        self.url = f"{'https' if self._tls else 'http'}://{self._address.shown}"

    async def stop(self) -> None:
        """End the event streams, which clients then open again, and wait up to SHUTDOWN for other requests."""
        await cancel_and_wait(self._sweeping)
        if self._address is not None:
            await self._address.stop()
        self.site.close()
        await self._runner.cleanup()
        self._users.close()
        await asyncio.to_thread(self._metrics.close)  # it waits for a scrape

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEPT)
            for sweep in (self.site.tails.sweep, self.site.tokens.sweep, self._users.sweep):
                try:
                    sweep()
                except Exception:  # without later sweeps, memory would grow
                    log.exception("expired state could not be removed")


def application(site: GatewaySite) -> web.Application:
    """Return the application of a gateway."""
    app = web.Application(middlewares=[guard(site)], client_max_size=BODY)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, handler_of(site, route))
    described = msgspec.json.encode(document()) + b"\n"

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=described, content_type=JSON)

    async def health(_: web.Request) -> web.Response:
        return json_response({"status": "closing" if site.closing else "ok"}, 503 if site.closing else 200)

    app.router.add_get("/v1/openapi.json", openapi)
    app.router.add_get("/v1/health", health)
    return app


def _raise_open_files(connections: int) -> None:
    """Permit as many open files as the system allows. Each connection is one. Log if they are too few."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < connections + SERVER_FILES:
        log.warning(
            "the limit of open files is %d, and %d connections need %d: raise it (ulimit -n), or lower --max-readers",
            soft, connections, connections + SERVER_FILES,
        )  # fmt: skip
