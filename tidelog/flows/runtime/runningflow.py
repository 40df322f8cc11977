"""``RunningFlow``: one instance of a flow: start, pause, drain, stop, state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from tidelog.flows.api.breaker import BreakerReason
from tidelog.flows.api.errors import FlowError
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import API, DISCONNECTED, FAILED, STARTING, WINDOW_FULL, Trigger
from tidelog.flows.runtime.graph import Graph, build
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.sinknode import SinkNode
from tidelog.flows.runtime.sourcenode import SourceNode
from tidelog.flows.spec import FlowSpec
from tidelog.operating.errortexts import summary_of

log = logging.getLogger("tidelog.flows")

RUNNING = "running"  # key in the shared data of the process: its running flows by alias
PLACES: Final = 3  # maximum number of positions in the detail of a full window
CLOSING: Final = 5.0  # s for cancelled tasks to close their resources

Status: TypeAlias = Literal["initializing", "running", "paused", "draining", "drained", "stopped", "failed"]


@dataclass(frozen=True)
class UnsettledSummary:
    """The events in flight."""

    count: int
    oldest: float | None  # s
    where: dict[str, int]  # events in each entity and in the channel before it
    stored: dict[str, int] = field(default_factory=dict)  # stored by sources such as a wal, and not in flight


@dataclass(frozen=True)
class DrainReport:
    """The result of a drain."""

    settled: int  # events that were settled during the drain
    abandoned: dict[str, int]  # unsettled events by source; redelivered if the source can do so
    seconds: float

    @property
    def complete(self) -> bool:
        return not any(self.abandoned.values())


class RunningFlow:
    """One instance of a flow: ``running = RunningFlow(spec, FlowContext("orders")); await running.start()``."""

    def __init__(self, spec: FlowSpec, context: FlowContext) -> None:
        self.spec = spec
        self.context = context
        self._error = ""  # why an entity failed
        self._state: Status = "initializing"
        self._paused = spec.paused
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._changed = asyncio.Event()
        context.changed = self._changed.set
        context.end = self.end
        self.graph: Graph = build(spec, context)

    @property
    def alias(self) -> str:
        return self.context.flow

    @property
    def status(self) -> Status:
        if self._state != "running":
            return self._state
        if self.failed_connectors:
            return "failed"
        if self._paused:
            return "paused"
        sources = self.graph.sources.values()
        if any(not each.connection.connects for each in sources):
            return "initializing"
        reasons = (each.reason for node in sources for each in node.breaker.reasons)
        return "initializing" if any(each.startswith(STARTING) for each in reasons) else "running"

    @property
    def paused(self) -> bool:
        """Whether the flow runs and was paused."""
        return self._paused and self._state == "running"

    @property
    def ended(self) -> bool:
        """Whether no part of the flow runs any more. A flow with a failed connector may still settle the events in
        flight.
        """
        return self._state in ("failed", "stopped", "drained")

    @property
    def failed_connectors(self) -> dict[str, str]:
        """The errors of failed connectors by name: sources that are not reconnected, and sinks that block a source.

        A sink that has never connected is not one of them, because the sources still wait for their start.
        """
        found = {}
        sources = self.graph.sources
        for name, connection in self.graph.connections.items():
            if not connection.failed:
                continue
            reason = f"{DISCONNECTED}:{name}"
            holds_up = any(reason in each.breaker for each in sources.values())
            if holds_up or (name in sources and not sources[name].exhausted):
                found[name] = connection.error
        return found

    @property
    def error(self) -> str:
        """Why the flow has failed."""
        return self._error or "; ".join(f"{name}: {error}" for name, error in self.failed_connectors.items())

    async def start(self) -> None:
        """Start sinks, operators and sources. Returns immediately; ``status`` reports when all sinks are connected."""
        self._state = "running"
        self.context.shared.setdefault(RUNNING, {})[self.alias] = self
        if self._paused:
            await self.pause()
        for node in self.graph.nodes:
            task = asyncio.get_running_loop().create_task(node.main(), name=f"{self.alias}/{node.name}")
            task.add_done_callback(partial(self._node_ended, node))
            self._tasks.append(task)
        sinks = [name for name in self.graph.connections if name in self.graph.sinks]
        for name in sorted(self.graph.connections, key=lambda each: each not in sinks):
            self.graph.connections[name].begin()
        for line in self.graph.operators.values():
            for operator in line:
                operator.begin()
        for source in self.graph.sources.values():
            source.begin()

    # -- pause -----------------------------------------------------------------------------------------------
    async def pause(self, connector: str | None = None) -> None:
        """Pause the flow or one connector. After this, paused sources send no events. Events in flight continue."""
        entities = self._entities(connector)
        if connector is None:
            self._paused = True
        for each in entities:
            each.pause(connector or API)

    async def resume(self, connector: str | None = None) -> None:
        """Resume the flow or one connector. A connector that was paused separately stays paused when its flow is
        resumed.
        """
        entities = self._entities(connector)
        if connector is None:
            self._paused = False
        for each in entities:
            each.resume(connector or API)

    def _entities(self, connector: str | None) -> list[SourceNode | SinkNode]:
        """Return the entities of one connector, or those that are paused with the flow: its sources."""
        if connector is None:
            return list(self.graph.sources.values())
        if connector not in self.graph.connectors:
            raise FlowError(f"flow {self.alias!r} has no connected connector {connector!r}")
        return [entities[connector] for entities in (self.graph.sources, self.graph.sinks) if connector in entities]

    # -- the end ---------------------------------------------------------------------------------------------
    def end(self) -> None:
        """Stop reading, as if all sources had ended. ``finished`` returns when all events are settled."""
        self.context.draining = True
        for operator in (each for line in self.graph.operators.values() for each in line):
            operator.wake()
        for source in self.graph.sources.values():
            source.drain()

    async def drain(self, timeout: float | None = None) -> DrainReport:  # noqa: ASYNC109 - the caller needs the report
        """Stop reading, wait until all events are settled or ``timeout`` has elapsed, then stop the flow."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        before = self._settled()
        if self._state == "running":
            self._state = "draining"
            self.end()
        try:
            async with asyncio.timeout(self.spec.drain_timeout if timeout is None else timeout):
                await self.finished()
        except TimeoutError:
            pass
        abandoned = {name: each.unsettled + each.kept for name, each in self.graph.sources.items()}
        report = DrainReport(self._settled() - before, abandoned, loop.time() - begun)
        await self.stop("drained")
        return report

    async def finished(self) -> None:
        """Wait until all sources have ended, or the flow drains, and all events are settled. Also returns if the flow
        has failed.
        """
        while not self._finished():
            self._changed.clear()
            sinks = (each for each in self.graph.sinks.values() if not each.drained.is_set())
            waits = [asyncio.ensure_future(each.drained.wait()) for each in sinks]
            waits.append(asyncio.ensure_future(self._changed.wait()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()

    def _finished(self) -> bool:
        if self.ended:
            return True
        sources = self.graph.sources.values()
        sinks = (each for each in self.graph.sinks.values() if each.authoritative)
        return (
            all(each.at_rest for each in sources)
            and all(each.drained.is_set() for each in sinks)
        )  # fmt: skip

    def _settled(self) -> int:
        counts = [node.counts for node in self.graph.sources.values()]
        return sum(each.get(name, 0) for each in counts for name in ("ok", "discard", "dead"))

    async def stop(self, state: Status = "stopped") -> None:
        """Stop immediately; events in flight stay unsettled. Can be called several times."""
        if not self.ended:
            self._state = state
        ending: list[asyncio.Task[Any]] = [*self._tasks]
        for node in self.graph.nodes:
            ending += node.end()
        for task in self._tasks:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=CLOSING)
        self._tasks.clear()
        await asyncio.gather(*(each.end() for each in self.graph.connections.values()))
        self.context.given_up.stop()
        for each in self.graph.channels:
            each.items.clear()
        running: dict[str, RunningFlow] = self.context.shared.get(RUNNING, {})
        if running.get(self.alias) is self:
            del running[self.alias]
        for node in self.graph.nodes:
            node.forget()
        self._changed.set()

    def _node_ended(self, node: FlowNode, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        node.error = error
        self._error = f"{node.name}: {summary_of(error)}"
        log.error("%s: %s failed: %s", self.alias, node.name, self._error, exc_info=error)
        self._state = "failed"
        for source in self.graph.sources.values():
            source.breaker.trigger(Trigger(f"{FAILED}:{node.name}", self.context.version(), self._error), 0.0)
        self._changed.set()

    # -- state -----------------------------------------------------------------------------------------------
    def reasons(self) -> dict[str, tuple[BreakerReason, ...]]:
        """Return the reasons for which the flow does not send, by source."""
        found = {name: tuple(map(self._detailed, each.reasons())) for name, each in self.graph.sources.items()}
        if any(each.reason.startswith(WINDOW_FULL) for reasons in found.values() for each in reasons):
            where = sorted(self.unsettled().where.items(), key=lambda each: -each[1])[:PLACES]
            places = "".join(f"; {count:,} at {name}" for name, count in where)
            for name, reasons in found.items():
                found[name] = tuple(
                    each._replace(detail=each.detail + places) if each.reason.startswith(WINDOW_FULL) else each
                    for each in reasons
                )
        return found

    def _detailed(self, reason: BreakerReason) -> BreakerReason:
        """Return a reason with the error of the sink that has not connected yet, which changes with each attempt."""
        kind, _, owner = reason.reason.partition(":")
        sink = self.graph.sinks.get(owner)
        if kind != STARTING or sink is None or reason.detail:
            return reason
        return reason._replace(detail=sink.connection.error)

    def unsettled(self) -> UnsettledSummary:
        where: dict[str, int] = {}
        for node in self.graph.nodes:
            count = sum(each.events for each in node.inputs) + node.held
            if node.name in self.graph.sinks and node is self.graph.sinks[node.name]:
                count += self.graph.sinks[node.name].in_flight
            if count:
                where[node.name] = where.get(node.name, 0) + count
        for line in self.graph.operators.values():
            for each in line:
                if kept := each.operator.kept():
                    where[each.name] = where.get(each.name, 0) + kept
        sources = self.graph.sources.values()
        ages: Iterable[float] = (age for each in sources if (age := each.oldest()) is not None)
        stored = {name: count for name, each in self.graph.sources.items() if (count := each.source.stored)}
        return UnsettledSummary(sum(each.unsettled for each in sources), max(ages, default=None), where, stored)
