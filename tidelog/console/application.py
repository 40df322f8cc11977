"""``ConsoleServer``: the routes, and the HTTP server.

Rule 1: see ``operating.listening`` for the addresses that need TLS.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelog.console import DEFAULT_LISTEN
from tidelog.console.assets import Assets
from tidelog.console.audit import AuditLog
from tidelog.console.errors import ConsoleError
from tidelog.console.pages import (
    deadletteredit,
    deadletters,
    delayed,
    flows,
    group,
    groupset,
    jobs,
    login,
    nextsteps,
    overview,
    programs,
    retention,
    search,
    stream,
    streamlist,
    topic,
    workers,
)
from tidelog.console.pages.nextsteps import NextSteps
from tidelog.console.pages.site import ConsoleSite
from tidelog.console.recorder import HistoryRecorder
from tidelog.console.rendering import NavigationItem, Renderer
from tidelog.console.security import guard
from tidelog.console.sessions import ConsoleSessions
from tidelog.operating.hostnames import is_local
from tidelog.operating.httpaddress import HttpAddress, HttpLimits
from tidelog.operating.listening import ListenError, check_exposure, listen_address, server_tls
from tidelog.transport.access import Access
from tidelog.transport.cancellation import cancel_and_wait

BODY: Final = 1 << 20  # bytes of a request, at most
NEXT_STEPS: Final = NavigationItem("Next steps", nextsteps.PATH, "n")
REDIS_PORT: Final = 6379  # the default of redis-cli
SHUTDOWN: Final = 2.0  # s that requests have to end
CONNECTIONS: Final = 1000  # open at the same time; further ones get 503 and are closed
HEADERS_WITHIN: Final = 10.0  # s for the headers of a request, for the first request from the connection on
PAGES: Final = (
    login,
    overview,
    streamlist,
    stream,
    search,
    group,
    topic,
    delayed,
    retention,
    groupset,
    deadletters,
    deadletteredit,
    programs,
    workers,
    jobs,
    flows,
)
KEEPALIVE: Final = 30.0  # s after which an idle connection of a browser is closed


@dataclass(frozen=True)
class ConsoleOptions:
    """The options of a console."""

    access: Access  # the server that it shows
    listen: str = DEFAULT_LISTEN
    cert_file: str | None = None  # PEM; None: HTTP without TLS
    key_file: str | None = None  # PEM; None: it is in ``cert_file``
    without_tls: bool = False  # other machines can connect without TLS
    audit_file: str | None = None  # None: the audit log is part of the log
    history: bool = True  # record the samples of the plots on the server
    next_steps: NextSteps | None = None  # of tidelog quickstart; None: the console has no such page


class ConsoleServer:
    """A console. ``url`` is its address after ``start``. Raises ConsoleError for invalid options."""

    def __init__(self, options: ConsoleOptions) -> None:
        access = options.access
        if access.username or access.password or any("@" in url for url in access.urls):
            raise ConsoleError("the URL has a user or password: remove it, users of the console log in with their own")
        try:
            self._host, self._port = listen_address(options.listen, DEFAULT_LISTEN)
            secured = options.cert_file is not None
            check_exposure(options.listen, DEFAULT_LISTEN, tls=secured, without_tls=options.without_tls)
            self._tls = server_tls(options.cert_file, options.key_file)
        except ListenError as error:
            raise ConsoleError(str(error)) from None
        self._audit = AuditLog(options.audit_file)
        self._sessions = ConsoleSessions(access)
        renderer = Renderer(
            Assets(), access.places.replace("redis://", ""), (NEXT_STEPS,) if options.next_steps else ()
        )  # fmt: skip
        recorder = HistoryRecorder(self._sessions) if options.history else None
        site = ConsoleSite(
            self._sessions, renderer, self._audit, recorder, is_local(self._host), self._tls is not None,
            access.urls[0], _cli(access), nextsteps.PATH if options.next_steps else "/",
        )  # fmt: skip
        self._runner = web.AppRunner(
            application(site, options.next_steps), access_log=None, shutdown_timeout=SHUTDOWN, handler_cancellation=True
        )
        self._address: HttpAddress | None = None
        self._recorder = recorder
        self._recording: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Start listening. Raises ConsoleError if the address can't be used."""
        await self._runner.setup()
        handler = self._runner.server
        assert handler is not None  # noqa: S101 - set up above
        self._address = HttpAddress(self._host, self._port, HttpLimits(CONNECTIONS, HEADERS_WITHIN, KEEPALIVE))
        try:
            await self._address.start(handler, self._tls)
        except OSError as error:
            await self.stop()
            raise ConsoleError(
                f"{self._host}:{self._port} can't be used: {error.strerror or error}; use another --listen HOST:PORT"
            ) from None
        if self._recorder is not None:
            self._recording = asyncio.create_task(self._recorder.run())
        self.url = f"{'https' if self._tls else 'http'}://{self._address.shown}"

    async def stop(self) -> None:
        await cancel_and_wait(self._recording)
        self._sessions.end_all()
        if self._address is not None:
            await self._address.stop()
        await self._runner.cleanup()
        self._audit.close()


def application(site: ConsoleSite, next_steps: NextSteps | None = None) -> web.Application:
    """Return the application of a console."""
    app = web.Application(
        middlewares=[guard(site.sessions, site.renderer, site.local)], client_max_size=BODY
    )  # fmt: skip
    app.router.add_get("/static/{path:.+}", site.renderer.assets.serve)
    for page in PAGES:
        app.router.add_routes(page.routes(site))
    if next_steps is not None:
        app.router.add_routes(nextsteps.routes(site, next_steps))
    return app


def _cli(access: Access) -> str:
    """Return the options with which redis-cli connects to the first server."""
    place = access.address(access.urls[0])
    if place.path:
        return f"-s {shlex.quote(place.path)}"
    host = "" if is_local(place.host) else f"-h {place.host} "
    port = "" if place.port == REDIS_PORT else f"-p {place.port} "
    return f"{host}{port}{'--tls ' if place.tls else ''}".strip()

