"""``/metrics`` for Prometheus, ``tidelog_flow_*``. The existing counters of flows are read at each scrape.

Rule 1: Labels are names in declarations and names of counters, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tidelog.flows.api.connectorcontext import BYTES
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.service.host import ORDER, FlowHost

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BASE: Final = ["flow", "instance"]


class FlowMetrics:
    """The metrics of one host."""

    def __init__(self, host: FlowHost) -> None:
        self._host = host
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Any]:
        """Return no descriptions, because the names are independent of the collected data."""
        return []

    def collect(self) -> Iterator[Any]:
        status = _gauge("status", "1 for the current status of the instance.", "status")
        events = _counter("events", "Counters of entities.", "entity", "kind", "event")
        sizes = _counter("bytes", "Bytes that a source has received, or a sink has sent.", "entity", "kind")
        waiting = _gauge("waiting_events", "Events in a channel.", "channel")
        passed = _counter("channel_events", "Events that passed a channel.", "channel")
        dropped = _counter("channel_dropped", "Events dropped before a sink with authoritative: false.", "channel")
        unsettled = _gauge("unsettled_events", "Events in flight.")
        oldest = _gauge("oldest_unsettled_seconds", "Age of the oldest event in flight.")
        breaker = _gauge("breaker", "1 for each active reason.", "source", "reason")
        blocked = _counter("blocked_seconds", "Time for which a function blocked the process.", "entity", "function")
        connected = _gauge("connected", "1 while the connector is connected.", "connector")
        for deployed in self._host.flows.values():
            for running in deployed.instances:
                base = [deployed.name, running.alias]
                for one_status in ORDER:
                    status.add_metric([*base, one_status], float(running.status == one_status))
                _events(events, sizes, base, running)
                _channels(waiting, passed, dropped, base, running)
                found = running.unsettled()
                unsettled.add_metric(base, found.count)
                oldest.add_metric(base, found.oldest or 0.0)
                for source, reasons in running.reasons().items():
                    for one in reasons:
                        breaker.add_metric([*base, source, one.reason], 1.0)
                for name, connection in running.graph.connections.items():
                    connected.add_metric([*base, name], float(connection.connected))
                for each in tuple(self._host.watchdog.blocked.values()):
                    if each.times and each.call.flow == running.alias:
                        blocked.add_metric([*base, each.call.entity, each.call.function], each.seconds)
        yield from (status, events, sizes, waiting, passed, dropped, unsettled, oldest, breaker, blocked, connected)


def _events(events: CounterMetricFamily, sizes: CounterMetricFamily, base: list[str], running: RunningFlow) -> None:
    for node in running.graph.nodes:
        for name, count in node.counts.items():
            if name == BYTES:
                sizes.add_metric([*base, node.name, node.kind], count)
            else:
                events.add_metric([*base, node.name, node.kind, name], count)


def _channels(
    waiting: GaugeMetricFamily, passed: CounterMetricFamily, dropped: CounterMetricFamily, base: list[str],
    running: RunningFlow,
) -> None:  # fmt: skip
    for channel in running.graph.channels:
        labels = [*base, channel.name]
        waiting.add_metric(labels, channel.events)
        passed.add_metric(labels, channel.passed)
        if not channel.authoritative:
            dropped.add_metric(labels, channel.dropped)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tidelog_flow_{name}", text, labels=[*_BASE, *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"tidelog_flow_{name}", text, labels=[*_BASE, *labels])
