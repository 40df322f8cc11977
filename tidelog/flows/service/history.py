"""``FlowHistory``: takes samples of the figures of each flow, and stores them on the tidelog server.

Rule 1: a flow does not depend on its history. If the server does not reply or denies a call, this is logged once. The
        last hour is in memory, too.
Rule 2: the history on the server has a fixed number of entries per flow, and expires a week after the last one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidelog.flows.api.connectorcontext import BYTES
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service import samples, streamgroups
from tidelog.flows.service.host import DeployedFlow, FlowHost, worst
from tidelog.flows.service.samples import FlowSample
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import ReplyError, is_denied

log = logging.getLogger("tidelog.flows")

EVERY: Final = 10.0  # s
MEMORY: Final = 360  # samples of a flow: an hour
DENIED: Final = 60.0  # s after which a denied call is tried again
EXPIRY_EVERY: Final = 360  # samples after which the expiry time is renewed


class FlowTotals(NamedTuple):
    """Counters of a flow since its start."""

    events: int = 0  # that its sources have sent
    failed: int = 0  # failures of all entities; resulting dead letters are not counted
    bytes_in: int = 0  # that its sources have received
    bytes_out: int = 0  # that its sinks have sent

    def since(self, before: FlowTotals) -> FlowTotals:
        """Return the difference. A flow that was replaced counts from 0 again."""
        return FlowTotals(*(now - then if now >= then else now for now, then in zip(self, before, strict=True)))


def totals(chosen: Sequence[RunningFlow]) -> FlowTotals:
    sent = failed = received = written = 0
    for running in chosen:
        graph = running.graph
        sent += sum(node.counts.get("out", 0) for node in graph.sources.values())
        failed += sum(node.counts.get("unreadable", 0) for node in graph.sources.values())
        failed += sum(node.counts.get("failed", 0) for nodes in graph.operators.values() for node in nodes)
        failed += sum(node.counts.get(name, 0) for node in graph.sinks.values() for name in ("retried", "rejected"))
        received += sum(node.counts.get(BYTES, 0) for node in graph.sources.values())
        written += sum(node.counts.get(BYTES, 0) for node in graph.sinks.values())
    return FlowTotals(sent, failed, received, written)


def backlog(chosen: Sequence[RunningFlow]) -> int | None:
    """Return the number of events that sources could pull now, apart from consumer groups; None: unknown."""
    found = [
        each
        for running in chosen
        for node in running.graph.sources.values()
        for each in (node.source.lag, node.source.stored or None)
        if each is not None
    ]
    return sum(found) if found else None


class FlowHistory:
    """The history of the flows of a host: ``async with FlowHistory(host, "process"): ...``."""

    def __init__(self, host: FlowHost, process: str) -> None:
        self._host = host
        self._process = process
        self._memory: dict[str, deque[FlowSample]] = {}
        self._totals: dict[str, FlowTotals] = {}
        self._at = time.monotonic()  # when the last samples were taken
        self._turn = 0
        self._denied_until = 0.0  # monotonic
        self._task: asyncio.Task[None] | None = None
        self._trouble = FailureLog(log)

    async def __aenter__(self) -> FlowHistory:
        self._at = time.monotonic()
        self._task = asyncio.create_task(self._run(), name="flow history")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Must be called before the host is stopped."""
        await cancel_and_wait(self._task)

    def recent(self, name: str) -> Sequence[FlowSample]:
        """Return the samples of this process in the last hour, oldest first."""
        return tuple(self._memory.get(name, ()))

    async def chart(self, name: str, minutes: float) -> dict[str, Any]:
        """Return the figures of a flow in all processes as columns, and whether the server has stored them."""
        until = _now()
        since = until - round(minutes * 60_000)
        found, stored, desired = self.recent(name), False, self._host.desired
        if desired is not None:
            try:
                found, stored = await desired.drive(samples.read(desired.name, name, since)), True
            except (ReplyError, OSError) as error:
                log.debug("the history of %s can't be read: %s", name, text_of(error))
        return {"minutes": minutes, "stored": stored, "columns": samples.chart(found, since, until, EVERY)}

    async def take(self) -> None:
        """Take a sample of each flow, and store it."""
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        found = {}
        for deployed in list(self._host.flows.values()):
            if deployed.instances:
                found[deployed.name] = await self._sample(deployed, round(seconds, 3))
        for gone in self._memory.keys() - self._host.flows.keys():
            del self._memory[gone]
            self._totals.pop(gone, None)
        for name, sample in found.items():
            self._memory.setdefault(name, deque(maxlen=MEMORY)).append(sample)
        if found and self._host.desired is not None and now >= self._denied_until:
            expiry = self._turn % EXPIRY_EVERY == 0
            await self._host.desired.drive(samples.write(self._host.desired.name, found, expiry=expiry))
            self._trouble.succeeded()
        self._turn += 1

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            if self._host.problem:  # no flow has started yet
                continue
            try:
                await self.take()
            except (ReplyError, OSError) as error:
                self._trouble.warn(f"the history of flows is not stored: {text_of(error)}")
                if is_denied(error):  # each denial is an entry of ACL LOG
                    self._denied_until = time.monotonic() + DENIED
            except Exception:
                log.exception("no sample of the flows was taken")

    async def _sample(self, deployed: DeployedFlow, seconds: float) -> FlowSample:
        chosen = deployed.instances
        now = totals(chosen)
        since = now.since(self._totals.get(deployed.name, FlowTotals()))
        self._totals[deployed.name] = now
        unsettled = [each.unsettled() for each in chosen]
        oldest = max((each.oldest for each in unsettled if each.oldest is not None), default=None)
        sources = [node for running in chosen for node in running.graph.sources.values()]
        latencies = sorted(each for node in sources for each in node.latencies())
        return FlowSample(
            at=_now(), process=self._process, status=worst(each.status for each in chosen), seconds=seconds,
            **since._asdict(),
            unsettled=sum(each.count for each in unsettled), oldest_ms=None if oldest is None else round(1000 * oldest),
            lag=await self._lag(deployed), backlog=backlog(chosen),
            p50_ms=_quantile(latencies, 0.5), p99_ms=_quantile(latencies, 0.99),
        )  # fmt: skip

    async def _lag(self, deployed: DeployedFlow) -> int | None:
        """Return the lag of the flow's consumer groups in entries; None if it has none, or the server does not tell."""
        sources = [each for each in streamgroups.sources_of(deployed.spec) if each.group]
        if not sources or self._host.desired is None:
            return None
        try:
            return sum(each.lag for each in await self._host.desired.drive(streamgroups.states(sources)))
        except (ReplyError, OSError):
            return None


def _quantile(latencies: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted latencies, in ms."""
    return round(1000 * latencies[math.ceil(share * len(latencies)) - 1], 2) if latencies else None


def _now() -> int:
    return time.time_ns() // 1_000_000


def rates(recent: Iterable[FlowSample]) -> list[float]:
    """Return the events per second of samples."""
    return [round(each.events / each.seconds, 3) if each.seconds else 0.0 for each in recent]
