"""All programs of a server: apps, jobs, and flows, with their rates, their lag, and why they make no progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from aiohttp import web

from tidelog.console import live
from tidelog.console.apps import AppReader
from tidelog.console.errors import PageError
from tidelog.console.flows import FlowReader
from tidelog.console.jobs import JobReader
from tidelog.console.keynames import in_url
from tidelog.console.pages.site import ConsoleSite, session_of
from tidelog.console.programs import SHOWN, PolledCalls, ProgramList
from tidelog.console.sessions import ConsoleSession

EVERY: Final = 2.0  # s between two updates of a page
SHARE: Final = 10  # of this many parts of the time, reading takes at most one
KINDS: Final = {"app": "Apps", "job": "Jobs", "flow": "Flows"}  # titles


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = ProgramPages(site)
    return [
        web.get("/programs", pages.show),
        web.get("/programs/live", pages.follow),
        web.get("/programs/open", pages.open),
    ]


def kinds_of(request: web.Request) -> tuple[str, ...]:
    """Return the kinds that a page shows. Raises PageError."""
    kind = request.query.get("kind", "")
    if kind and kind not in KINDS:
        raise PageError(400, f"kind must be one of {', '.join(KINDS)}.")
    return (kind,) if kind else tuple(KINDS)


async def pause(took: float) -> None:
    """Wait for the next update. took: s for reading the last one."""
    await asyncio.sleep(max(EVERY, SHARE * took))


R = TypeVar("R")


@dataclass(frozen=True)
class ShownPage(Generic[R]):
    """What a page has just shown: by which reader, when (monotonic), and how long the reader took, in s."""

    what: Any
    reader: R
    at: float
    took: float


class ShownPages(Generic[R]):
    """The last page of each session. Its live part continues with the reader, instead of reading the same at once."""

    def __init__(self) -> None:
        self._pages: WeakKeyDictionary[ConsoleSession, ShownPage[R]] = WeakKeyDictionary()

    def keep(self, session: ConsoleSession, what: Any, reader: R, began: float) -> None:
        """Record a page. began: when reading began (monotonic)."""
        now = monotonic()
        self._pages[session] = ShownPage(what, reader, now, now - began)

    def take(self, session: ConsoleSession, what: Any) -> ShownPage[R] | None:
        """Return the page if it was shown recently, once."""
        page = self._pages.pop(session, None)
        return page if page is not None and page.what == what and monotonic() - page.at < EVERY else None


class ProgramPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site
        self._shown: ShownPages[ProgramListReader] = ShownPages()

    async def show(self, request: web.Request) -> web.Response:
        """Show all programs, or those of one ``kind``."""
        session, kinds, began = session_of(request), kinds_of(request), monotonic()
        reader = ProgramListReader(session)
        lists = await reader.read(kinds)
        self._shown.keep(session, kinds, reader, began)
        return self._site.page(
            request, "programs.html", kinds=KINDS, chosen=request.query.get("kind", ""), lists=lists, shown=SHOWN
        )  # fmt: skip

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session, kinds = session_of(request), kinds_of(request)
        return await live.stream(request, self._site.sessions, session, self._events(session, kinds))

    async def open(self, request: web.Request) -> web.Response:
        """Open the page of the program ``name``."""
        kind, name = request.query.get("kind", ""), request.query.get("name", "").strip()
        if kind not in KINDS or not name:
            raise PageError(400, "Enter the name of a program.")
        raise web.HTTPSeeOther(f"/programs/{kind}?name={in_url(name)}")

    async def _events(self, session: ConsoleSession, kinds: Sequence[str]) -> AsyncIterator[live.Event]:
        shown, page = "", self._shown.take(session, kinds)
        reader = ProgramListReader(session) if page is None else page.reader
        if page is not None:
            yield "parts", {}
            await pause(page.took)
        while True:
            began = monotonic()
            lists = await reader.read(kinds)
            took = monotonic() - began
            text = self._site.renderer.part("programs_lists.html", kinds=KINDS, lists=lists, shown=SHOWN)
            yield "parts", {"lists": text} if text != shown else {}
            shown = text
            await pause(took)


class ProgramListReader:
    """Reads the lists of programs of one user."""

    def __init__(self, session: ConsoleSession) -> None:
        sender = PolledCalls(session.connection)
        self._readers: dict[str, Any] = {
            "app": AppReader(sender), "job": JobReader(sender), "flow": FlowReader(sender),
        }  # fmt: skip

    async def read(self, kinds: Sequence[str]) -> dict[str, ProgramList]:
        return {kind: await self._readers[kind].rows() for kind in kinds}
