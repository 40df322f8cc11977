"""``metrics``: the metrics of the flows in this process as events, at a fixed interval.

    tidelog_flow        {flow}                   status, unsettled, oldest (s), reasons (why sources are stopped)
    tidelog_entity      {flow, entity, kind}     counters since the start of the flow: in, out, ok, ...
    tidelog_channel     {flow, channel}          passed, dropped, waiting

Values have the form of the codec ``influx``: measurement, tags, fields, timestamp.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from tidelog.flows.api.connector import Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.options.units import PositiveDuration

_RUNNING: Final = "running"  # the key in ``FlowContext.shared``: running flows by alias


class MetricsOptions(ConnectorOptions, kw_only=True):
    """Options of ``metrics``."""

    interval: PositiveDuration = PositiveDuration(10.0)  # Time between two measurements. The first one is immediate.
    flows: list[str] | None = None  # Names of flows. `null`: all flows of the process.


class MetricsSource(Source):
    """Produces metrics. Failed events are not retried, because the next ones have newer values."""

    type = "metrics"
    Options = MetricsOptions
    remembers = False

    def __init__(self, options: MetricsOptions) -> None:
        super().__init__()
        self._options = options
        self._ready: deque[Event] = deque()
        self._next = 0.0  # loop time of the next measurement
        self._number = 0

    async def pull(self, limit: int) -> list[Event] | None:
        loop = asyncio.get_running_loop()
        if not self._ready:
            rest = self._next - loop.time()
            if rest > 0 and not await self.wait(asyncio.sleep(rest)):
                return []
            self._next = loop.time() + self._options.interval
            self._look()
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def _look(self) -> None:
        running: Mapping[str, Any] = self.context.flow_context.shared.get(_RUNNING, {})
        now_ns = self.context.flow_context.now_ns()
        for alias, one in sorted(running.items()):
            if self._options.flows is None or alias.partition(".")[0] in self._options.flows:
                for measurement, tags, fields in _figures(one):
                    self._number += 1
                    value = {
                        "measurement": f"tidelog_{measurement}", "tags": {"flow": alias, **tags}, "fields": fields,
                        "timestamp": now_ns,
                    }  # fmt: skip
                    self._ready.append(Event(value, None, self._number, ingest_ns=now_ns))


def _figures(one: Any) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    """Return (measurement, tags, fields) of a running flow."""
    unsettled = one.unsettled()
    reasons = sorted({each.reason for active in one.reasons().values() for each in active})
    fields = {"status": one.status, "unsettled": unsettled.count, "oldest": unsettled.oldest or 0.0}
    found: list[tuple[str, dict[str, str], dict[str, Any]]] = [("flow", {}, {**fields, "reasons": " ".join(reasons)})]
    for node in (each for each in one.graph.nodes if each.counts):
        found.append(("entity", {"entity": node.name, "kind": node.kind}, dict(node.counts)))  # noqa: PERF401
    for channel in one.graph.channels:
        fields = {"passed": channel.passed, "dropped": channel.dropped, "waiting": channel.events}
        found.append(("channel", {"channel": channel.name}, fields))
    return found
