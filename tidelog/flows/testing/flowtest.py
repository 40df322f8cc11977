"""``FlowTest``, ``PipelineTest``: tests of a flow or of operators that feed events, read results and move the clock.

    with PipelineTest(op("where", "amount > `10`"), op("batch", count=100, timeout="500ms")) as test:
        test.feed({"amount": 5}, {"amount": 20})
        assert test.outputs() == []                     # the batch is not full
        test.advance(0.5)
        assert test.outputs() == [[{"amount": 20}]]
        assert test.settled == [("discard", 0), ("ok", 1)]

    with FlowTest(flow) as test:                        # all connectors of the flow are replaced
        test.feed({"amount": 20}, source="in")
        assert test.outputs("search") == [{"amount": 20}]
        assert not test.dead_letters()

Rule 1: The flow runs only within calls of the test. Each call returns when nothing more can happen at the current time.
Rule 2: Only ``advance`` and ``drain`` move the clock. ``loop.now_ns()`` follows it.
Rule 3: The flow is in debug mode: an event that is settled twice, or never, fails the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

from tidelog.flows.api.connector import DEFERRED, Deferred, Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK, REJECT, STATUSES, Token
from tidelog.flows.declare import Flow, Op, operator_spec
from tidelog.flows.runtime.runningflow import DrainReport, RunningFlow
from tidelog.flows.spec import ConnectorSpec, FlowSpec
from tidelog.flows.testing.virtualloop import BEGIN_NS, VirtualLoop
from tidelog.options.structs import Problems

T = TypeVar("T")

Status = Literal["ok", "discard", "reject", "retry"]


class DeadLetterEvent(NamedTuple):
    """An event that was rejected, and that its source would write to the dead-letter queue."""

    source: str  # name of the connector
    id: Any
    value: Any  # as it was fed
    reason: str


class _Replacement(Source, Sink):
    """A connector that returns the events that a test feeds, records their settlement, and stores written events."""

    owns_policy = True
    concurrency = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[Token] = []  # settled ones
        self.sent: dict[Any, Event] = {}  # by ID: copies of the events that were fed
        self.written: list[Event] = []
        self.answer: Callable[[Event], Status | None] = lambda _: "ok"
        self._waiting: list[Event] = []
        self._changed = asyncio.Event()

    def add(self, events: Sequence[Event]) -> None:
        self._waiting += events
        self.sent.update((each.id, each.remembered()) for each in events)
        self._changed.set()

    async def pull(self, limit: int) -> list[Event] | None:
        self._changed.clear()
        if not self._waiting and not await self.wait(self._changed.wait()):
            return []
        events, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        self.tokens += tokens

    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome]:
        self.written += events
        for event in events:
            status = self.answer(event)
            if status is not None:
                self.settle(event, status)
        return DEFERRED

    def settle(self, event: Event, status: Status) -> bool:
        return self.context.answer(event, STATUSES.index(status), "" if status == "ok" else "the test says so")


class FlowTest:
    """A flow under test. Its connectors are replaced by sources that the test feeds and sinks that it reads.

    seed: for all random decisions. begin_ns: the wall clock at the beginning, in ns since 1970.

    ``settled``: (status, ID) of the settled events, in the order of their settlement.
    IDs are numbers from 0, unless the fed Events have IDs. ``loop``: the clock and the random numbers.
    """

    def __init__(self, flow: Flow | FlowSpec, *, seed: int = 0, begin_ns: int = BEGIN_NS) -> None:
        self.spec = tested_spec(flow)
        self.loop = VirtualLoop(seed, begin_ns)
        self._number = 0
        self._closed = False
        context = FlowContext(
            self.spec.name, self.spec.server, debug=True, queue=self.spec.queue, now_ns=self.loop.now_ns,
            random=self.loop.random,
        )  # fmt: skip
        self.running = RunningFlow(self.spec, context)
        made: dict[str, Any] = self.running.graph.connectors
        self._sources: dict[str, _Replacement] = {name: made[name] for name in self.running.graph.sources}
        self._sinks: dict[str, _Replacement] = {name: made[name] for name in self.running.graph.sinks}
        self._run(self.running.start())

    # -- feeding and reading ---------------------------------------------------------------------------------
    def feed(self, *values: Any, source: str | None = None) -> None:
        """Feed values or Events. source: the name of the connector; optional if there is only one."""
        fed = self._source(source)
        events = []
        for value in values:
            event = value if isinstance(value, Event) else Event(value)
            if event.id is None:
                event.id = self._number
            self._number += 1
            events.append(event)
        fed.add(events)
        self.advance(0.0)

    def outputs(self, sink: str | None = None) -> list[Any]:
        """Return the values that have arrived at a sink."""
        return [each.value for each in self.output_events(sink)]

    def output_events(self, sink: str | None = None) -> list[Event]:
        """Return the events that have arrived at a sink, with meta, id and attempt."""
        return list(self._sink(sink).written)

    def dead_letters(self, source: str | None = None) -> list[DeadLetterEvent]:
        """Return the rejected events of a source, or of all sources. Events to retry are not sent again in a test."""
        sources = self._sources if source is None else {source: self._source(source)}
        return [
            DeadLetterEvent(name, each.key, made.sent[each.key].value, each.reason)
            for name, made in sources.items() for each in made.tokens if each.status == REJECT
        ]  # fmt: skip

    @property
    def settled(self) -> list[tuple[str, Any]]:
        return [(STATUSES[each.status], each.key) for source in self._sources.values() for each in source.tokens]

    @property
    def sinks(self) -> list[str]:
        """Return the names of the sinks."""
        return list(self._sinks)

    def reasons(self) -> dict[Any, str]:
        """Return the reasons of events that were not settled ok, by ID."""
        tokens = (each for source in self._sources.values() for each in source.tokens)
        return {each.key: each.reason for each in tokens if each.status != OK}

    # -- the behavior of sinks -------------------------------------------------------------------------------
    def answers(self, answer: Callable[[Event], Status | None], sink: str | None = None) -> None:
        """Let a sink settle its events by a function; None: by ``settle``. By default, all events are settled ok."""
        self._sink(sink).answer = answer

    def settle(self, event: Event, status: Status = "ok", sink: str | None = None) -> None:
        """Settle an event that was read and not settled."""
        if not self._sink(sink).settle(event, status):
            raise AssertionError(f"{event} was settled before, or never arrived")
        self.advance(0.0)

    def disconnect(self, connector: str | None = None) -> None:
        """Break the connection of a connector. It reconnects after the first delay of its ``reconnect`` option."""
        name = connector if connector is not None else self._sink(None).context.name
        self.running.graph.connections[name].lost(ConnectionError("the test says so"))
        self.advance(0.0)

    def trigger(self, kind: str = "test", sink: str | None = None) -> None:
        """Let a sink stop its sources for the reason ``kind:sink``."""
        self._sink(sink).context.trigger(kind)
        self.advance(0.0)

    def restore(self, kind: str = "test", sink: str | None = None, *, probe: bool = False) -> None:
        self._sink(sink).context.restore(kind, probe=probe)
        self.advance(0.0)

    def _source(self, name: str | None) -> _Replacement:
        return _one(self._sources, name, "source")

    def _sink(self, name: str | None) -> _Replacement:
        return _one(self._sinks, name, "sink")

    # -- time and the end ------------------------------------------------------------------------------------
    def advance(self, seconds: float) -> None:
        """Move the clock. Returns when nothing more can happen. Raises AssertionError if the flow has failed."""
        self.loop.run_for(seconds)
        if self.running.status == "failed":
            raise AssertionError(f"the flow failed: {self.running.error}")

    def active(self, source: str | None = None) -> set[str]:
        """Return the reasons for which a source is stopped."""
        names = [source] if source is not None else list(self._sources)
        return {each.reason for name in names for each in self.running.graph.sources[name].breaker.reasons}

    def drain(self, seconds: float | None = None) -> DrainReport:
        """Drain the flow, which moves the clock. No event can be fed afterwards."""
        return self._run(self.running.drain(seconds))

    def close(self) -> None:
        """Stop the flow. Raises AssertionError if it failed, or if events were settled twice or lost."""
        if self._closed:
            return
        self._closed = True
        try:
            self.advance(0.0)
            self._run(self.running.stop())
        finally:
            self._cancel()
            self.loop.close()

    def _run(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            return await work

        result = self.loop.run_until_complete(whole())
        self.advance(0.0)
        return result

    def _cancel(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except AssertionError as second:  # the error of the test itself is more specific
            error.add_note(str(second))


class PipelineTest(FlowTest):
    """A pipeline of operators under test.

    ``outputs()`` returns its output, ``outputs("err")`` the failed events, and ``outputs(port)`` those of another port.
    """

    def __init__(self, *operators: Op | Callable[..., Any], seed: int = 0, server: str | None = None) -> None:
        super().__init__(pipeline_flow(*operators, server=server), seed=seed)

    def _sink(self, name: str | None) -> _Replacement:
        return super()._sink("out" if name is None else name)


def tested_spec(flow: Flow | FlowSpec) -> FlowSpec:
    """Return the flow in debug mode, with connectors that are fed and read."""
    spec = flow.spec() if isinstance(flow, Flow) else flow
    replaced = {name: _replaced(each) for name, each in spec.connectors.items()}
    return replace(spec, connectors=replaced, debug=True, settle=True)


def pipeline_flow(*operators: Op | Callable[..., Any], server: str | None = None) -> Flow:
    """Return a flow with a pipeline, a source, and a sink for each port."""
    flow = Flow("test", server=server)
    flow.connector("in", "null")
    flow.pipeline("pipeline", *operators)
    flow.connect("in -> pipeline")
    for port in _ports(operators):
        flow.connector(port, "null")
        flow.connect(f"pipeline.{port} -> {port}")
    return flow


def _ports(operators: Sequence[Op | Callable[..., Any]]) -> list[str]:
    """Return the ports on which events are emitted. Problems of the operators are reported elsewhere."""
    made = [operator_spec(each, "", Problems()) for each in operators]
    named = sorted({port for each in made if each is not None for port in each.ports})
    last = made[-1] if made else None
    return [*([] if last is not None and last.last else ["out"]), "err", *named]


def _replaced(one: ConnectorSpec) -> ConnectorSpec:
    """Return a connector of the same name that is fed or read, with the same common options."""
    kept = {name: getattr(one.options, name) for name in ConnectorOptions.__struct_fields__}
    options = ConnectorOptions(**kept)
    return replace(one, make=_Replacement, options=options, is_source=True, is_sink=True)


def _one(known: dict[str, _Replacement], name: str | None, what: str) -> _Replacement:
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        text = f"which {what}? There are" if name is None else f"no {what} {name!r}: there are"
        raise ValueError(f"{text} {names}")
    return known[name]
