"""The declarations of metrics, and the texts that name them: INFO, docs, dashboards, and alert rules."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from respserver.metrics import infofields
from respserver.metrics.families import COUNTER, FAMILIES, HISTOGRAM, MetricFamily
from tests.wire.rawclient import Raw
from tidelog.testing import running_server

ROOT = Path(__file__).resolve().parents[3]
BY_NAME = {family.name: family for family in FAMILIES.values()}
ALERTS = ROOT / "packaging/prometheus/tidelog-alerts.yml"
DASHBOARDS = sorted((ROOT / "packaging/grafana").glob("*.json"))
NAMES = re.compile(r"\btidelog_\w+")


def family_of(name: str) -> MetricFamily | None:
    """The family of a sample."""
    found = BY_NAME.get(name)
    if found is not None and found.kind != HISTOGRAM:
        return found
    base = BY_NAME.get(re.sub(r"_(bucket|sum|count)$", "", name))
    return base if base is not None and base.kind == HISTOGRAM and base.name != name else None


def test_names_follow_prometheus() -> None:
    assert len(BY_NAME) == len(FAMILIES) > 100
    for family in FAMILIES.values():
        assert re.fullmatch(r"tidelog_[a-z][a-z0-9_]*", family.name)
        assert (family.kind == COUNTER) == family.name.endswith("_total")
        assert not re.search(r"_(ms|us|kb|mb|percent|sum|count|bucket)(_|$)", family.name)
        assert re.fullmatch(r"[^\"\\\n]+\.", family.help), family.help
        assert "le" not in family.labels
        assert len(set(family.labels)) == len(family.labels)


@pytest.mark.parametrize("mode", [{}, {"replicaof": "127.0.0.1 1"}, {"group": "g", "replica_acks": "insync"}])
def test_every_field_of_info_is_a_metric_or_has_a_reason(mode: dict[str, str], tmp_path: Path) -> None:
    """Fields with a number or a name in their name (commands, errors, replicas) are in ``values``."""
    if "group" in mode:
        mode = {**mode, "coordinator": f"file://{tmp_path}/store"}
    with running_server(**mode) as server, Raw(server.port) as c:
        c("SET", "k", "v")
        text = c("INFO", "everything").decode()
    names = {line.partition(":")[0] for line in text.split("\r\n") if line and not line.startswith("#")}
    single = {
        name for name in names if not re.match(r"(cmdstat|errorstat|latency_percentiles_usec)_|slave\d|db0", name)
    }
    assert single - infofields.FIELDS.keys() - infofields.OMITTED.keys() == set()
    assert infofields.FIELDS.keys() & infofields.OMITTED.keys() == set()


def test_fields_fit_their_metrics() -> None:
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for name, field in infofields.FIELDS.items():
        assert len(field.labels) == len(FAMILIES[field.metric].labels), name
        assert (field.metric, field.labels) not in seen, name
        seen.add((field.metric, field.labels))


def test_the_docs_list_all_metrics() -> None:
    script = runpy.run_path(str(ROOT / "scripts/metrics_reference.py"))
    text = (ROOT / "docs/monitoring.md").read_text()
    assert script["page"](text) == text, "run scripts/metrics_reference.py"
    assert all(f"| `{name}` |" in text for name in BY_NAME)


def _expressions(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """All queries of a dashboard, each with its legend."""
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"], ""


def _check(expression: str) -> set[str]:
    """Check the metrics and labels of a query; returns the labels that its results can have."""
    names = set(NAMES.findall(expression))
    labels = {"instance", "job"}
    for name in names:
        family = family_of(name)
        assert family is not None, f"there is no metric {name}: {expression}"
        labels.update(family.labels)
        if name.endswith("_bucket"):
            labels.add("le")
    used = {each for part in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expression) for each in part.split(", ")}
    used.update(re.findall(r"[{,](\w+)=~?\"", expression))
    assert used <= labels, expression
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing), expression
    return labels


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboards_name_metrics_that_exist(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    found = list(_expressions(board))
    assert len(found) > 15
    for expression, legend in found:
        labels = _check(expression)
        assert NAMES.search(expression)
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels, legend
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_alert_rules_name_metrics_that_exist() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names)) > 15
    for rule in rules:
        labels = _check(rule["expr"])
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        text = " ".join(rule["annotations"].values())
        assert rule["annotations"]["summary"]
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels, text


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="there is no metric tidelog_nope"):
        _check("rate(tidelog_nope[5m])")
    with pytest.raises(AssertionError, match="there is no metric tidelog_command_duration_seconds:"):
        _check("tidelog_command_duration_seconds > 1")
    with pytest.raises(AssertionError, match="nope"):
        _check("sum by (nope) (tidelog_streams)")
