"""``/metrics`` for Prometheus, ``tidelog_gateway_*``. It has an address of its own, which needs no password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tidelog.gateway.counts import BUCKETS
from tidelog.gateway.site import GatewaySite
from tidelog.operating import metricsserver

ROUTE: Final = ("method", "path")


class GatewayMetrics:
    """The collector that Prometheus's registry calls at a scrape, in another thread."""

    def __init__(self, site: GatewaySite) -> None:
        self._site = site

    def describe(self) -> list[Any]:
        """Return nothing: the names are fixed."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return the current values of all metrics."""
        yield from self._requests()
        site, counts = self._site, self._site.counts
        for name, text, total in (
            ("appended_entries", "Entries that requests appended or delayed.", counts.appended),
            ("event_bytes", "Size of the event streams that were written.", counts.event_bytes),
            ("slow_readers", "Event streams that were closed because the client read nothing.", counts.slow_readers),
        ):
            yield CounterMetricFamily(f"tidelog_gateway_{name}", text, value=total)
        for name, text, value in (
            ("readers", "Open event streams, and requests that wait.", site.readers.used),
            ("group_readers", "Those of them that read as a member of a group.", site.group_readers.used),
            ("followed_streams", "Streams that are followed.", site.tails.count),
            ("users", "Users with connections to the server.", site.users.count),
            ("memory_bytes", "Memory that is reserved for bodies and pages in flight.", site.memory.used),
        ):
            yield GaugeMetricFamily(f"tidelog_gateway_{name}", text, value=value)

    def _requests(self) -> Iterator[Any]:
        counts = self._site.counts
        requests = CounterMetricFamily(
            "tidelog_gateway_requests", "Requests that have ended, by status.", labels=[*ROUTE, "status"]
        )
        for labels, number in list(counts.requests.items()):
            requests.add_metric(labels, number)
        yield requests
        durations = HistogramMetricFamily(
            "tidelog_gateway_request_seconds", "Duration of requests, without event streams.", labels=ROUTE
        )
        for route, found in list(counts.durations.items()):
            total, buckets = 0, []
            for bound, number in zip([*map(str, BUCKETS), "+Inf"], list(found.buckets), strict=True):
                total += number
                buckets.append((bound, total))
            durations.add_metric(route, buckets, found.seconds)
        yield durations


def serving(site: GatewaySite, port: int, host: str) -> AbstractContextManager[int]:
    """Serve the metrics; yields the port, which is free if ``port`` is 0. Raises OSError if it is in use."""
    return metricsserver.serving(GatewayMetrics(site), port, host)
