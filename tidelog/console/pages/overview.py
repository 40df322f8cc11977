"""The overview: the state of the server and of its replicas or its group, with plots over time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Any, Final

from aiohttp import web

from tidelog.console import history, live
from tidelog.console.errors import PageError
from tidelog.console.infotext import ServerInfo, clients, slow_commands
from tidelog.console.pages.site import ConsoleSite, refusal, session_of
from tidelog.console.recorder import DISABLED
from tidelog.console.sessions import ConsoleSession
from tidelog.transport.call import Call, checked, plain

EVERY: Final = 2.0  # s between two updates of a page
SLOW: Final = 20  # slow commands shown
CLIENTS: Final = 100  # clients shown
SPANS: Final = {"15m": 15 * 60, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}  # s
PARTS: Final = ("tiles", "server", "replication", "storage", "slowlog")  # that events update


def now_ms() -> int:
    return int(time() * 1000)


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = OverviewPages(site)
    return [
        web.get("/", pages.show),
        web.get("/overview/live", pages.follow),
        web.get("/overview/history", pages.history),
        web.get("/overview/clients", pages.clients),
    ]


class OverviewPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        return self._site.page(request, "overview.html", spans=tuple(SPANS), **await self._state(session_of(request)))

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        return await live.stream(request, self._site.sessions, session, self._events(session))

    async def history(self, request: web.Request) -> web.Response:
        """Return the columns of the plots as JSON. ``span`` is one of SPANS."""
        span = request.query.get("span", "15m")
        if span not in SPANS:
            raise PageError(400, f"span is {span!r}: it must be one of {', '.join(SPANS)}")
        session, span_ms = session_of(request), SPANS[span] * 1000
        (newest,) = await session.connection.poll(history.newest_call())
        problem = refusal(newest)
        samples: list[history.Sample | None] = []
        if newest is not None and not problem:
            samples = checked(await session.connection.read(*history.range_calls(now_ms(), span_ms)))
        columns = history.points(samples, history.step_of(span_ms))
        return web.json_response({"columns": columns, "problem": problem, "notice": self._notice(session)})

    async def clients(self, request: web.Request) -> web.Response:
        (reply,) = await session_of(request).connection.read(plain("CLIENT", "LIST"))
        rows, total = ([], 0) if refusal(reply) else clients(reply, CLIENTS)
        return self._site.part("overview_clients.html", rows=rows, total=total, refused=refusal(reply))

    async def _events(self, session: ConsoleSession) -> AsyncIterator[live.Event]:
        before: history.Sample | None = None
        shown: dict[str, str] = {}
        while True:
            state = await self._state(session)
            parts = {name: self._site.renderer.part(f"overview_{name}.html", **state) for name in PARTS}
            changed = {name: text for name, text in parts.items() if shown.get(name) != text}
            shown = parts
            yield "parts", changed
            sample = history.sample_of(state["info"], now_ms())
            yield "sample", {"time": sample.ms / 1000, **history.rates(before, sample)}
            before = sample
            await asyncio.sleep(EVERY)

    async def _state(self, session: ConsoleSession) -> dict[str, Any]:
        """Return the values of the templates. Raises UnavailableError."""
        poll = session.connection.poll
        info, slow, slow_count = await poll(
            Call(("INFO",), ServerInfo.parse), Call(("SLOWLOG", "GET", SLOW), slow_commands), plain("SLOWLOG", "LEN")
        )
        if problem := refusal(info):
            info = ServerInfo({})
        group = None
        if info.word("group"):  # of the server group that it is a member of
            (group,) = await poll(Call(("TMEMBER", "STATUS"), json.loads))
        return {
            "info": info, "info_problem": problem, "group": None if refusal(group) else group,
            "group_problem": refusal(group), "slow": [] if refusal(slow) else slow, "slow_problem": refusal(slow),
            "slow_count": 0 if refusal(slow_count) else slow_count, "notice": self._notice(session),
        }  # fmt: skip

    def _notice(self, session: ConsoleSession) -> str:
        """Return why the samples of the plots are not recorded, empty if they are."""
        return DISABLED if self._site.recorder is None else session.history_problem


