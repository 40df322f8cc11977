"""A source that is fed and sinks that do as they are told, around one pipeline, for tests of quality of service."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tidelog.flows.api.connector import DEFERRED, Deferred, Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, STATUSES, Token
from tidelog.flows.declare import Flow, Op
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

SEEDS = range(6)  # orders in which what is ready runs
GONE = "disconnected:a"


class Feed(Source):
    """Gives what ``feed`` was given. ``settled_`` has (ID, status) of what it was told, in order."""

    type = "feed"

    def __init__(self) -> None:
        super().__init__()
        self._values: list[Any] = []
        self._given = 0
        self._closed = False
        self._more = asyncio.Event()
        self.pulled: list[tuple[float, int]] = []  # (when, how many)
        self.told: list[tuple[Any, str]] = []

    def feed(self, *values: Any) -> None:
        self._values += values
        self._more.set()

    def end(self) -> None:
        self._closed = True
        self._more.set()

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._values:
            if self._closed:
                return None
            self._more.clear()
            await self.wait(self._more.wait())
        values, self._values = self._values[:limit], self._values[limit:]
        if values:
            self.pulled.append((asyncio.get_running_loop().time(), len(values)))
        first = self._given
        self._given += len(values)
        found = enumerate(values, first)
        return [value if isinstance(value, Event) else Event(value, None, number) for number, value in found]

    async def settled(self, tokens: Any) -> None:
        self.told += [(token.key, STATUSES[token.status]) for token in tokens]


class OwnFeed(Feed):
    """One that hears of every status, once for each event: nothing is sent again."""

    type = "ownfeed"
    owns_policy = True

    async def settled(self, tokens: Any) -> None:
        self.told += [(getattr(token.key, "id", token.key), STATUSES[token.status]) for token in tokens]


class Target(Sink):
    """``answer`` says what becomes of an event: an outcome, or None for none, ever."""

    type = "target"
    concurrency = 1000

    def __init__(self) -> None:
        self.up = True
        self.delay = 0.0  # s
        self.answer: Callable[[Event], Outcome | None] = lambda event: OK
        self.got: list[tuple[float, Any]] = []  # all that was written: when, value
        self.errors: list[str] = []  # meta["error"] of it
        self.held: list[Event] = []  # no answer

    @property
    def values(self) -> list[Any]:
        return [each for _, each in self.got]

    async def connect(self) -> None:
        if not self.up:
            raise ConnectionError("it is down")

    def down(self) -> None:
        self.up = False
        self.context.disconnected(ConnectionError("it is down"))

    async def write(self, events: list[Event]) -> Deferred | list[Outcome]:
        now = asyncio.get_running_loop().time()
        self.got += [(now, each.value) for each in events]
        self.errors += [each.meta["error"] for each in events if "error" in each.meta]
        if self.delay:
            await asyncio.sleep(self.delay)
        if not self.up:
            raise ConnectionError("it is down")
        answers = [(each, self.answer(each)) for each in events]
        if all(answer is not None for _, answer in answers):
            return [answer for _, answer in answers if answer is not None]
        for event, answer in answers:
            if answer is None:
                self.held.append(event)
            else:
                status, reason = answer if isinstance(answer, tuple) else (answer, "")
                self.context.answer(event, status, reason)
        return DEFERRED


class Lab:
    """A flow that runs: ``in -> line -> a``, and each port of ``ways`` to a sink of its own."""

    def __init__(self, running: RunningFlow) -> None:
        self.running = running

    @property
    def feed(self) -> Any:
        return self.running.graph.connectors["in"]

    def sink(self, name: str) -> Any:
        return self.running.graph.connectors[name]

    @property
    def operator(self) -> Any:
        """The first of the line."""
        return self.node.operator

    @property
    def node(self) -> Any:
        return self.running.graph.operators["line"][0]

    @property
    def reasons(self) -> set[str]:
        return {each.reason for each in self.running.graph.sources["in"].breaker.reasons}

    async def until(self, condition: Callable[[], Any], limit: float = 1000.0) -> None:
        """Wait for it, at most so many seconds."""
        async with asyncio.timeout(limit):
            while not condition():  # noqa: ASYNC110 - of anything at all
                await asyncio.sleep(0.004)

    async def connected(self) -> None:
        await self.until(lambda: self.running.status == "running")


@asynccontextmanager
async def lab(
    *operators: Op | Callable[..., Any],
    sinks: dict[str, str] | None = None,
    source: type[Feed] = Feed,
    options: dict[str, Any] | None = None,
    sink: type[Target] = Target,
    before: Callable[[Lab], None] = lambda _: None,
    server: str | None = None,
    alias: str = "lab",
    now_ns: Callable[[], int] | None = None,
    seed: int = 0,
    **flow_options: Any,
) -> AsyncIterator[Lab]:
    """sinks: the port that leads to each; by default the sink a on ``out``. options: the source's."""
    flow = Flow("lab", server=server, **({"debug": True} | flow_options))
    flow.connector("in", source, **(options or {}))
    flow.pipeline("line", *operators)
    flow.connect("in -> line")
    for name, port in (sinks or {"a": "out"}).items():
        flow.connector(name, sink)
        flow.connect(f"line.{port} -> {name}")
    context = FlowContext(alias, server, debug=flow.options.debug, queue=flow.options.queue, random=random.Random(seed))
    running = RunningFlow(flow.spec(), context)
    made = Lab(running)
    before(made)
    await running.start()
    try:
        yield made
    finally:
        await running.stop()
        assert running.status != "failed", running.error
        assert not context.lost, context.lost
        assert all("settled_twice" not in each.counts for each in running.graph.nodes)


def down(*names: str) -> Callable[[Lab], None]:
    """For ``before``: these sinks cannot connect."""

    def before(it: Lab) -> None:
        for name in names:
            it.sink(name).up = False

    return before


def on_seeds(story: Callable[[VirtualLoop], Awaitable[None]]) -> None:
    """Run it in several orders, by a virtual clock."""
    for seed in SEEDS:
        try:
            simulate(story, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


__all__ = ["GONE", "Feed", "Lab", "OwnFeed", "Target", "Token", "down", "lab", "on_seeds"]
