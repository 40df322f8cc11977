"""``/metrics`` for Prometheus: the statuses of an engine's jobs, read when it is scraped. docs/jobs.md lists them.

Rule 1: Nothing is counted for metrics, and a scrape sends no request to the server.
Rule 2: Labels are names of jobs, engines and states, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from tidelog.jobs.engine.engine import Engine
from tidelog.jobs.registry.status import Status

STATES: Final = ("starting", "running", "failing", "failed", "ending")
COUNTER: Final = "CounterMetricFamily"
GAUGE: Final = "GaugeMetricFamily"
#: The metrics of a job: how each is read from its status, None if it has none.
METRICS: Final[Sequence[tuple[str, str, str, Callable[[Status], float | None]]]] = (
    (COUNTER, "rows_in", "Rows read since the job started on this engine.", attrgetter("rows_in")),
    (COUNTER, "rows_out", "Rows written since the job started on this engine.", attrgetter("rows_out")),
    (COUNTER, "dead_letters", "Entries sent to the dead-letter queue since the job started on this engine.",
     attrgetter("dead")),
    (COUNTER, "recovered_epochs", "Epochs replayed by recoveries since the job started on this engine.",
     attrgetter("recovered")),
    (COUNTER, "restarts", "Restarts in this generation, on any engine.", attrgetter("restarts")),
    (GAUGE, "epoch", "The last published epoch.", attrgetter("epoch")),
    (GAUGE, "state_keys", "Keys in the state.", lambda status: status.facts.get("keys")),
    (GAUGE, "state_bytes", "Size of the state.", lambda status: status.facts.get("bytes")),
)  # fmt: skip


class JobMetrics:
    """The collector of an engine."""

    def __init__(self, engine: Engine) -> None:
        from prometheus_client import metrics_core  # here, so that engines without metrics do not need it

        self._core = metrics_core
        self._engine = engine

    def describe(self) -> list[Any]:
        """Return nothing: the names are constant, and nothing is read at registration."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all metrics."""
        statuses, gauge = self._engine.statuses(), self._core.GaugeMetricFamily
        states = gauge("tidelog_job_state", "1 for the current state.", labels=["job", "engine", "state"])
        for status in statuses:
            for state in STATES:
                states.add_metric([status.name, status.engine, state], float(status.state == state))
        yield states
        for family, name, text, read in METRICS:
            metric = getattr(self._core, family)(f"tidelog_job_{name}", text, labels=["job", "engine"])
            for status in statuses:
                if (value := read(status)) is not None:
                    metric.add_metric([status.name, status.engine], value)
            yield metric
        lease = gauge("tidelog_job_lease_held", "1 while the lease is held.", labels=["engine"])
        lease.add_metric([self._engine.settings.name], float(self._engine.lease_held))
        yield lease
