"""For tests of connectors over HTTP: flows that are fed and watched, servers that answer as a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import aiohttp
from aiohttp import web

from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import STATUSES, Token
from tidelog.flows.runtime.runningflow import RunningFlow

DEADLINE = 15.0  # s until a condition must hold


class Feed(Source):
    """Events that a test gives. ``outcomes``: (status, reason) by ID, of events that ended."""

    owns_policy = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.outcomes: dict[Any, tuple[str, str]] = {}
        self.ended = False
        self._more = asyncio.Event()

    def give(self, *events: Event) -> None:
        self.events += events
        self._more.set()

    def end(self) -> None:
        self.ended = True
        self._more.set()

    async def pull(self, limit: int) -> list[Event] | None:
        if not self.events and not self.ended:
            self._more.clear()
            await self.wait(self._more.wait())
        taken, self.events = self.events[:limit], self.events[limit:]
        return taken or (None if self.ended else [])

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            assert token.key not in self.outcomes
            self.outcomes[token.key] = (STATUSES[token.status], token.reason)


class Remembering(Feed):
    """The same, and the runtime sends again what is to be tried again."""

    owns_policy = False


class Seen(Sink):
    """What came."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def write(self, events: list[Event]) -> None:
        self.events += events

    @property
    def values(self) -> list[Any]:
        return [each.value for each in self.events]


def changing(change: Callable[[Event], None]) -> type[Operator]:
    """An operator that changes events one by one; what raises fails."""

    class Changing(Operator):
        type = "each"

        def process(self, events: list[Event]) -> None:
            for event in events:
                try:
                    change(event)
                except Exception as error:  # noqa: BLE001 - the test's own
                    self.fail(event, error)
                else:
                    self.emit([event])

    return Changing


@contextlib.asynccontextmanager
async def running(flow: Flow, shared: dict[str, Any] | None = None, alias: str = "") -> AsyncIterator[RunningFlow]:
    context = FlowContext(alias or flow.name, debug=True)
    if shared is not None:
        context.shared = shared
    one = RunningFlow(flow.spec(), context)
    await one.start()
    try:
        yield one
        assert one.error == ""
        assert context.lost == []
    finally:
        await one.stop()


async def url_of(one: RunningFlow, name: str = "in") -> str:
    """The URL at which a connector of a running flow listens."""
    context = one.graph.connectors[name].context
    await until(lambda: "url" in context.described and one.status in ("running", "paused"))
    return str(context.described["url"])


async def port_of(one: RunningFlow, name: str = "in") -> int:
    """The port on which a connector of TCP or UDP listens."""
    described = one.graph.connectors[name].context.described
    await until(lambda: "address" in described)
    return int(described["address"].rpartition(":")[2])


@contextlib.asynccontextmanager
async def served(flow: Flow, **options: Any) -> AsyncIterator[tuple[RunningFlow, str, aiohttp.ClientSession]]:
    """A running flow, the URL of its connector ``in``, and a client."""
    async with running(flow, **options) as one, aiohttp.ClientSession() as session:
        yield one, await url_of(one), session


def feed(flow: Flow, name: str = "in", *, remembers: bool = False, **options: Any) -> Feed:
    """A source of a flow."""
    made = Remembering() if remembers else Feed()
    flow.connector(name, given(made), **options)
    return made


def seen(flow: Flow, name: str = "seen", **options: Any) -> Seen:
    made = Seen()
    flow.connector(name, given(made), **options)
    return made


def given(one: Any) -> type[Any]:
    """A connector of which there is one, as a class: what flows take."""
    kind: Any = type(one)

    class Given(kind):  # type: ignore[misc]
        def __new__(cls) -> Any:
            return one

    return Given


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def peer(handler: Handler, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """An HTTP server; its URL."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, **options)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
