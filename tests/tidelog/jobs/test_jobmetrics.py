"""The metrics of an engine's jobs."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

prometheus_client = pytest.importorskip("prometheus_client")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[jobs]')")

from tests.tidelog.jobs.enginekit import ROOT  # noqa: E402
from tidelog.jobs.engine.engine import Engine  # noqa: E402
from tidelog.jobs.engine.metrics import JobMetrics  # noqa: E402
from tidelog.jobs.registry.status import Status  # noqa: E402


def scraped(*statuses: Status) -> str:
    engine: Any = SimpleNamespace(statuses=lambda: list(statuses), settings=SimpleNamespace(name="e1"), lease_held=True)
    registry = prometheus_client.CollectorRegistry()
    registry.register(JobMetrics(cast(Engine, engine)))
    return str(prometheus_client.generate_latest(registry).decode())


def test_a_scrape() -> None:
    status = Status("count", "e1", 1, state="running", epoch=7, rows_in=30, dead=2, facts={"keys": 5, "query": "idle"})
    text = scraped(status, Status("lead", "e1", 1))
    for line in (
        'tidelog_job_state{engine="e1",job="count",state="running"} 1.0',
        'tidelog_job_state{engine="e1",job="count",state="failed"} 0.0',
        'tidelog_job_state{engine="e1",job="lead",state="starting"} 1.0',
        'tidelog_job_epoch{engine="e1",job="count"} 7.0',
        'tidelog_job_rows_in_total{engine="e1",job="count"} 30.0',
        'tidelog_job_dead_letters_total{engine="e1",job="count"} 2.0',
        'tidelog_job_state_keys{engine="e1",job="count"} 5.0',
        'tidelog_job_lease_held{engine="e1"} 1.0',
    ):
        assert f"{line}\n" in text
    assert "tidelog_job_state_bytes{" not in text  # a job without state


def test_the_documentation_lists_every_metric() -> None:
    names = set(re.findall(r"^# TYPE (\w+)", scraped(), re.MULTILINE))
    assert names == set(re.findall(r"`(tidelog_job_\w+)", (ROOT / "docs" / "jobs.md").read_text()))
