"""A flow of one pipeline for tests of operators: a source that is fed, sinks that answer as they are told."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tidelog.flows import Flow
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import STATUSES, Token
from tidelog.flows.runtime.runningflow import RunningFlow

DEADLINE = 60.0  # s; generous, because other tests run at the same time


class Feed(Source):
    """Sends what is put in. ``outcomes`` says of each event's ID what became of it, each time."""

    owns_policy = True

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Event] = []
        self.outcomes: dict[Any, list[tuple[str, str]]] = {}
        self.ended = False
        self.number = 0

    def put(self, *values: Any) -> None:
        for value in values:
            self.put_event(Event(value, None, self.number))
            self.number += 1

    def put_event(self, event: Event) -> None:
        self.waiting.append(event)
        self.interrupt()

    def end(self) -> None:
        self.ended = True
        self.interrupt()

    async def pull(self, limit: int) -> list[Event] | None:
        if not self.waiting:
            if self.ended:
                return None
            await self.wait(asyncio.Event().wait())
        events, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self.outcomes.setdefault(token.key, []).append((STATUSES[token.status], token.reason))

    @property
    def statuses(self) -> dict[Any, str]:
        """What became of each event. Each was settled once."""
        for each in self.outcomes.values():
            assert len(each) == 1
        return {key: each[0][0] for key, each in self.outcomes.items()}


class Remembering(Feed):
    """Its events are tried again by the runtime."""

    owns_policy = False


class Out(Sink):
    """Keeps events. ``answer`` says what becomes of each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.metas: list[dict[str, Any]] = []
        self.answer: Callable[[Event], Outcome] | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def write(self, events: list[Event]) -> list[Outcome] | None:
        await self.open.wait()
        self.events += events
        return None if self.answer is None else [self.answer(each) for each in events]

    @property
    def values(self) -> list[Any]:
        return [each.value for each in self.events]


@dataclass
class Kit:
    running: RunningFlow
    feed: Feed
    sinks: dict[str, Out] = field(default_factory=dict)  # by port

    @property
    def out(self) -> Out:
        return self.sinks["out"]

    def operator(self, place: int = 0) -> Operator:
        made = self.running.graph.operators["p"][place].operator
        assert isinstance(made, Operator)
        return made

    def counts(self, place: int = 0) -> dict[str, int]:
        return self.running.graph.operators["p"][place].counts

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                assert self.running.status != "failed", self.running.error
                await asyncio.sleep(0.002)

    async def finished(self) -> None:
        """The source has nothing more, and all is settled."""
        self.feed.end()
        async with asyncio.timeout(DEADLINE):
            await self.running.finished()
        assert self.running.error == ""
        assert self.running.unsettled().count == 0


@asynccontextmanager
async def flow_of(
    *operators: Any,
    ports: Sequence[str] = (),
    source: type[Feed] = Feed,
    clock: Callable[[], int] | None = None,
    settle: bool = True,
    queue: int = 128,
    **options: Any,
) -> AsyncIterator[Kit]:
    """ports: besides out. options: the source's."""
    flow = Flow("t", debug=True, settle=settle, queue=queue)
    flow.connector("in", source, **options)
    flow.pipeline("p", *operators)
    for port in ("out", *ports):
        flow.connector(f"to_{port}", Out)
        flow.connect(f"p.{port} -> to_{port}")
    flow.connect("in -> p")
    context = FlowContext("t", debug=True, queue=queue)
    if clock is not None:
        context.now_ns = clock
    running = RunningFlow(flow.spec(), context)
    feed = running.graph.connectors["in"]
    assert isinstance(feed, Feed)
    kit = Kit(running, feed)
    for port in ("out", *ports):
        sink = running.graph.connectors[f"to_{port}"]
        assert isinstance(sink, Out)
        kit.sinks[port] = sink
    await running.start()
    try:
        yield kit
        assert running.error == ""
    finally:
        await running.stop()
    gc.collect()
    assert context.lost == []


async def passed(*operators: Any, values: Sequence[Any], **options: Any) -> Kit:
    """A flow that had these values, and has ended."""
    async with flow_of(*operators, **options) as kit:
        kit.feed.put(*values)
        await kit.finished()
    return kit
