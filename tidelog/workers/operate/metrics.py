"""``/metrics`` for Prometheus: the counters of a worker, and the progress of its partitions.

    tidelog_worker_events_total{app,processor,event}     event: fetched, finished, failed, retried, skipped, ...
    tidelog_worker_transactions_total{app,processor}
    tidelog_worker_calls_in_progress{app,processor}
    tidelog_worker_partitions{app,processor}             partitions that the worker owns
    tidelog_worker_in_flight{app,processor,partition}    events that are fetched and not acknowledged
    tidelog_worker_lease_held{app,worker}                1 or 0
    tidelog_worker_loop_delay_seconds{app,worker}        a histogram: the delay of the event loop
    tidelog_worker_server_up{app,worker}                 1 if the server has replied to this scrape
    tidelog_worker_lag_entries{app,processor,partition}      entries that were not delivered yet
    tidelog_worker_lag_seconds{app,processor,partition}      the age of the oldest unfinished entry
    tidelog_worker_pending_entries{app,processor,partition}  entries that were delivered and not acknowledged
    tidelog_worker_paused{app,processor,partition}           1 or 0

Rule 1: the counters are those of ``Stats``. Without scrapes, the only cost is a timer four times a second.
Rule 2: the last four are read from the server at each scrape, by the worker that owns the partition. With ordering
        "none" every worker has the same values for all partitions.
Rule 3: labels are declared names and partition numbers, so their number is bounded.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from tidelog.client.steps import drive
from tidelog.operating import metricsserver
from tidelog.topics import TopicError
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection
from tidelog.workers import logs
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.declare.builtin_middleware import EXTRA
from tidelog.workers.declare.errors import AppError
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.worker import Worker
from tidelog.workers.operate.status import AppStatus, PartitionStatus, read_status

log = logs.get(__name__)
ANSWER_MS: Final = 2000  # timeout of each reply during a scrape
PERIOD: Final = 0.25  # seconds between two measurements of the event loop's delay
BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
NOT_EVENTS: Final = ("transactions", "busy")


@contextmanager
def serving(worker: Worker, port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve ``/metrics`` of a worker and of the default registry; yields the port, which is free if ``port`` is 0.

    Must be used in the worker's event loop. Raises AppError without the extra ``workers``, and OSError if the port is
    in use.
    """
    try:
        import prometheus_client
    except ImportError:
        raise AppError(f"--metrics needs prometheus-client: {EXTRA}") from None
    collector = Collector(worker, prometheus_client)
    delays = asyncio.get_running_loop().create_task(collector.watch_loop())
    try:
        with metricsserver.serving(collector, port, host) as served:
            yield served
    finally:
        delays.cancel()
        collector.close()


class Collector:
    """The collector that Prometheus's registry calls at a scrape, in another thread. ``client``: the module."""

    def __init__(self, worker: Worker, client: Any) -> None:
        self._worker = worker
        self._core = client.metrics_core
        self._asking = threading.Lock()  # scrapes may overlap
        self._servers = LeaderConnection(worker.app.access.single_attempt(ANSWER_MS), "tidelog-metrics")
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._delays = 0.0  # seconds in total

    def close(self) -> None:
        with self._asking:
            self._servers.close()

    async def watch_loop(self) -> None:
        """Measure the delay of the event loop until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(PERIOD)
            delay = max(0.0, time.monotonic() - before - PERIOD)
            self._delays += delay
            self._buckets[next((at for at, most in enumerate(BUCKETS) if delay <= most), len(BUCKETS))] += 1

    def describe(self) -> list[Any]:
        """Return nothing: the names are fixed, and registration must not contact the server."""
        return []

    def collect(self) -> Iterator[Any]:
        """Return the current values of all metrics."""
        yield from self._counted()
        yield from self._own()
        with self._asking:
            seen = self._read_status()
        yield self._gauge("tidelog_worker_server_up", "1 if the server has replied to this scrape.", seen is not None)
        if seen is not None:
            yield from self._behind(seen)

    # -- this worker -----------------------------------------------------------------------------------------
    def _counted(self) -> Iterator[Any]:
        app, labels = self._worker.app.name, ["app", "processor"]
        events = self._core.CounterMetricFamily(
            "tidelog_worker_events", "Events, by outcome.", labels=[*labels, "event"]
        )
        transactions = self._core.CounterMetricFamily(
            "tidelog_worker_transactions", "Commits of a transactional processor.", labels=labels
        )
        busy = self._core.GaugeMetricFamily(
            "tidelog_worker_calls_in_progress", "Calls of user code in progress.", labels=labels
        )
        owned = self._core.GaugeMetricFamily("tidelog_worker_partitions", "Partitions owned.", labels=labels)
        in_flight = self._core.GaugeMetricFamily(
            "tidelog_worker_in_flight", "Events fetched and not acknowledged.", labels=[*labels, "partition"]
        )
        for name, executor in list(self._worker.executors.items()):
            stats = executor.stats
            for each in fields(Stats):
                if each.name not in NOT_EVENTS:
                    events.add_metric([app, name, each.name], getattr(stats, each.name))
            transactions.add_metric([app, name], stats.transactions)
            busy.add_metric([app, name], stats.busy)
            partitions = list(executor.partitions.items())
            owned.add_metric([app, name], len(partitions))
            for number, partition in partitions:
                in_flight.add_metric([app, name, str(number)], len(partition.buffer.in_flight))
        yield from (events, transactions, busy, owned, in_flight)

    def _own(self) -> Iterator[Any]:
        yield self._gauge("tidelog_worker_lease_held", "1 while the worker holds its lease.", self._worker.lease.held)
        counts, total = [], 0
        for most, count in zip([*BUCKETS, "+Inf"], list(self._buckets), strict=True):
            total += count
            counts.append((str(most), total))
        delays = self._core.HistogramMetricFamily(
            "tidelog_worker_loop_delay_seconds", "The delay of the event loop.", labels=["app", "worker"]
        )
        delays.add_metric(self._labels, counts, self._delays)
        yield delays

    def _gauge(self, name: str, text: str, value: float) -> Any:
        family = self._core.GaugeMetricFamily(name, text, labels=["app", "worker"])
        family.add_metric(self._labels, float(value))
        return family

    @property
    def _labels(self) -> list[str]:
        return [self._worker.app.name, self._worker.name]

    # -- the server ------------------------------------------------------------------------------------------
    def _read_status(self) -> AppStatus | None:
        try:
            operation = read_status(self._worker.app, [declared.name for declared in self._worker.declared])
            return drive(lambda calls: self._servers.ask(*calls), operation)
        except (OSError, ReplyError, TopicError, MembersError) as error:
            log.info("metrics: the progress of processors is unknown: %s", error)
            return None

    def _behind(self, seen: AppStatus) -> Iterator[Any]:
        labels = ["app", "processor", "partition"]
        families = {
            name: self._core.GaugeMetricFamily(f"tidelog_worker_{name}", text, labels=labels)
            for name, text in (
                ("lag_entries", "Entries that were not delivered yet."),
                ("lag_seconds", "Age of the oldest unfinished entry."),
                ("pending_entries", "Entries delivered and not acknowledged."),
                ("paused", "1 if the partition is paused."),
            )
        }
        for processor in seen.processors:
            executor = self._worker.executors.get(processor.name)
            for each in processor.partitions:
                if executor is None or each.partition not in executor.partitions:
                    continue
                for name, value in _figures(each, processor.halted is not None).items():
                    families[name].add_metric([seen.app, processor.name, str(each.partition)], value)
        yield from families.values()


def _figures(partition: PartitionStatus, halted: bool) -> dict[str, float]:
    return {
        "lag_entries": partition.lag,
        "lag_seconds": partition.lag_ms / 1000,
        "pending_entries": partition.pending,
        "paused": float(halted or partition.paused is not None),
    }
