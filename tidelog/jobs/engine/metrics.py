"""``/metrics`` for Prometheus: the statuses of an engine's jobs, read when it is scraped.

    tidelog_job_state{job,engine,state}         1 for the current state: starting, running, failing, failed, ending
    tidelog_job_epoch{job,engine}               the last published epoch
    tidelog_job_rows_in_total{job,engine}       rows read since the job started on this engine
    tidelog_job_rows_out_total{job,engine}      rows written since then
    tidelog_job_dead_letters_total{job,engine}  entries sent to the dead-letter queue since then
    tidelog_job_recovered_epochs_total{job,engine}   epochs replayed by recoveries since then
    tidelog_job_restarts_total{job,engine}      restarts in this generation, on any engine
    tidelog_job_state_keys{job,engine}          keys in the state
    tidelog_job_state_bytes{job,engine}         size of the state on disk
    tidelog_job_lease_held{engine}              1 while the engine holds its lease

Rule 1: Nothing is counted for metrics, and a scrape sends no request to the server.
Rule 2: Labels are names of jobs, engines and states, so their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tidelog.jobs.engine.engine import Engine

STATES: Final = ("starting", "running", "failing", "failed", "ending")
COUNTERS: Final = {
    "rows_in": "Rows read since the job started on this engine.",
    "rows_out": "Rows written since the job started on this engine.",
    "dead_letters": "Entries sent to the dead-letter queue since the job started on this engine.",
    "recovered_epochs": "Epochs replayed by recoveries since the job started on this engine.",
    "restarts": "Restarts in this generation, on any engine.",
}
GAUGES: Final = {
    "epoch": "The last published epoch.", "state_keys": "Keys in the state.", "state_bytes": "Size of the state.",
}  # fmt: skip
_LABELS: Final = ["job", "engine"]


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
        counters = {
            name: self._core.CounterMetricFamily(f"tidelog_job_{name}", text, labels=_LABELS)
            for name, text in COUNTERS.items()
        }
        gauges = {
            name: self._core.GaugeMetricFamily(f"tidelog_job_{name}", text, labels=_LABELS)
            for name, text in GAUGES.items()
        }
        labels = [*_LABELS, "state"]
        states = self._core.GaugeMetricFamily("tidelog_job_state", "1 for the current state.", labels=labels)
        for status in self._engine.statuses():
            labels = [status.name, status.engine]
            for state in STATES:
                states.add_metric([*labels, state], float(status.state == state))
            values = {
                "rows_in": status.rows_in, "rows_out": status.rows_out, "dead_letters": status.dead,
                "recovered_epochs": status.recovered, "restarts": status.restarts,
            }  # fmt: skip
            for name, value in values.items():
                counters[name].add_metric(labels, value)
            gauges["epoch"].add_metric(labels, status.epoch)
            for name in ("keys", "bytes"):
                if name in status.facts:
                    gauges[f"state_{name}"].add_metric(labels, status.facts[name])
        lease = self._core.GaugeMetricFamily("tidelog_job_lease_held", "1 while the lease is held.", labels=["engine"])
        lease.add_metric([self._engine.settings.name], float(self._engine.lease_held))
        yield from (states, *counters.values(), *gauges.values(), lease)
