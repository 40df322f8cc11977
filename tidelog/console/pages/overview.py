"""The overview: the state of the server and of its replicas or its group, or of all groups of a cluster, with plots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiohttp import web

from tidelog.console import history, live
from tidelog.console.clusterstate import ClusterReader, ClusterState
from tidelog.console.errors import PageError
from tidelog.console.infotext import ServerInfo, clients, slow_commands
from tidelog.console.pages.site import ConsoleSite, refusal, session_of
from tidelog.console.recorder import DISABLED
from tidelog.console.sessions import ConsoleSession
from tidelog.transport.call import Call, checked, plain
from tidelog.transport.slots import MemberAddress

EVERY: Final = 2.0  # s between two updates of a page
BUSY: Final = 0.05  # s between two updates for each member of a cluster, at least
FIRST: Final = 1.0  # s for which the first view of a cluster waits for its members
SLOW: Final = 20  # slow commands shown
CLIENTS: Final = 100  # clients shown
SPANS: Final = {"15m": 15 * 60, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}  # s
PARTS: Final = ("tiles", "server", "replication", "storage", "slowlog")  # that events update
MEMBER_PARTS: Final = ("tiles", "server", "replication", "storage")
CLUSTER_PARTS: Final = ("cluster", "clustertiles", "groups", "members", "changes", "slowlog")


def now_ms() -> int:
    return int(time() * 1000)


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = OverviewPages(site)
    return [
        web.get("/", pages.show),
        web.get("/overview/live", pages.follow),
        web.get("/overview/member", pages.show_member),
        web.get("/overview/member/live", pages.follow_member),
        web.get("/overview/history", pages.history),
        web.get("/overview/clients", pages.clients),
    ]


class OverviewPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site
        self._readers: WeakKeyDictionary[ConsoleSession, ClusterReader] = WeakKeyDictionary()

    async def show(self, request: web.Request) -> web.Response:
        session = session_of(request)
        await session.connection.leaders()
        if session.connection.several_groups:
            values = self._cluster_values(session, await self._reader(session).read(FIRST))
            return self._site.page(request, "overview_all.html", spans=tuple(SPANS), **values)
        return self._site.page(request, "overview.html", spans=tuple(SPANS), **await self._state(session))

    async def follow(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        await session.connection.leaders()
        events = self._cluster_events(session) if session.connection.several_groups else self._events(session)
        return await live.stream(request, self._site.sessions, session, events)

    async def show_member(self, request: web.Request) -> web.Response:
        """Show the member ``name`` of a cluster."""
        session, name = session_of(request), request.query.get("name", "")
        at = await self._address(session, name)
        return self._site.page(request, "overview_member.html", name=name, **await self._state(session, at))

    async def follow_member(self, request: web.Request) -> web.StreamResponse:
        session = session_of(request)
        at = await self._address(session, request.query.get("name", ""))
        return await live.stream(request, self._site.sessions, session, self._member_events(session, at))

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
        """Show the clients of the server; in a cluster, the first ones of each leader."""
        connection = session_of(request).connection
        leaders = await connection.leaders()
        call = plain("CLIENT", "LIST")
        replies = await asyncio.gather(*(connection.monitoring().read(call, at=leader) for leader in leaders))
        rows, total, refused = list[dict[str, str]](), 0, ""
        for leader, (reply,) in zip(leaders, replies, strict=True):
            if refusal(reply):
                refused = refused or refusal(reply)
                continue
            found, count = clients(reply, max(1, CLIENTS // len(leaders)))
            rows += [{**each, "group": connection.name_of(leader)} for each in found]
            total += count
        return self._site.part(
            "overview_clients.html", rows=rows, total=total, refused=refused, several_groups=connection.several_groups
        )  # fmt: skip

    # -- one server, or one member of a cluster ------------------------------------------------------------------------
    async def _events(self, session: ConsoleSession) -> AsyncIterator[live.Event]:
        before: history.Sample | None = None
        shown: dict[str, str] = {}
        while True:
            state = await self._state(session)
            yield "parts", self._changed(PARTS, state, shown)
            sample = history.sample_of(state["info"], now_ms())
            yield "sample", {"time": sample.ms / 1000, **history.rates(before, sample)}
            before = sample
            await asyncio.sleep(EVERY)

    async def _member_events(self, session: ConsoleSession, at: MemberAddress) -> AsyncIterator[live.Event]:
        shown: dict[str, str] = {}
        with self._reader(session).followed():
            while True:
                yield "parts", self._changed(MEMBER_PARTS, await self._state(session, at), shown)
                await asyncio.sleep(EVERY)

    def _changed(self, names: Sequence[str], state: dict[str, Any], shown: dict[str, str]) -> dict[str, str]:
        """Return the parts that have changed since the last call. shown: the parts of the last call."""
        parts = {name: self._site.renderer.part(f"overview_{name}.html", **state) for name in names}
        changed = {name: text for name, text in parts.items() if shown.get(name) != text}
        shown.update(parts)
        return changed

    async def _state(self, session: ConsoleSession, at: MemberAddress | None = None) -> dict[str, Any]:
        """Return the values of the templates, for the server or a member. Raises UnavailableError."""
        connection = session.connection.monitoring()
        info, slow, slow_count = await connection.poll(
            Call(("INFO",), ServerInfo.parse), Call(("SLOWLOG", "GET", SLOW), slow_commands), plain("SLOWLOG", "LEN"),
            at=at,
        )  # fmt: skip
        if problem := refusal(info):
            info = ServerInfo({})
        group = None
        if info.word("group"):  # of the server group that it is a member of
            (group,) = await connection.poll(Call(("TMEMBER", "STATUS"), json.loads), at=at)
        return {
            "info": info, "info_problem": problem, "group": None if refusal(group) else group,
            "group_problem": refusal(group), "slow": [] if refusal(slow) else slow, "slow_problem": refusal(slow),
            "slow_count": 0 if refusal(slow_count) else slow_count, "notice": self._notice(session),
            "several_groups": False,
        }  # fmt: skip

    # -- a cluster -----------------------------------------------------------------------------------------------------
    async def _cluster_events(self, session: ConsoleSession) -> AsyncIterator[live.Event]:
        before: history.Sample | None = None
        shown: dict[str, str] = {}
        reader = self._reader(session)
        with reader.followed():
            while True:
                state = await reader.read(EVERY)
                yield "parts", self._changed(CLUSTER_PARTS, self._cluster_values(session, state), shown)
                if state.complete:  # sums without a group would look like a change of the load
                    sample = history.sample_of(state.total, now_ms())
                    yield "sample", {"time": sample.ms / 1000, **history.rates(before, sample)}
                    before = sample
                await asyncio.sleep(max(EVERY, BUSY * sum(len(each.members) for each in state.groups)))

    def _cluster_values(self, session: ConsoleSession, state: ClusterState) -> dict[str, Any]:
        return {
            "cluster": state, "slow": state.slow, "slow_problem": state.slow_problem, "slow_count": 0,
            "several_groups": True, "notice": self._notice(session),
        }  # fmt: skip

    def _reader(self, session: ConsoleSession) -> ClusterReader:
        return self._readers.setdefault(session, ClusterReader(session.connection))

    async def _address(self, session: ConsoleSession, name: str) -> MemberAddress:
        """Return the address of a member. Raises PageError if the map has no such member."""
        await session.connection.leaders()
        if session.connection.several_groups:
            member = (await self._reader(session).read(FIRST)).member(name)
            if member is not None:
                return member.address
        raise PageError(404, f"There is no member {name[:100]!r} of a cluster.")

    def _notice(self, session: ConsoleSession) -> str:
        """Return why the samples of the plots are not recorded, empty if they are."""
        return DISABLED if self._site.recorder is None else session.history_problem
