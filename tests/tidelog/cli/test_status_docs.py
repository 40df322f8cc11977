"""docs/status.md names each field of the JSON that status commands print, and no other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec

from tidelog.cli.status import to_json
from tidelog.flows.service.streamgroups import GroupState
from tidelog.jobs.registry.overview import JobOverview, JobsOverview
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import Status
from tidelog.operating.throughput import Throughput
from tidelog.workers.operate.status import AppStatus, MemberStatus, PartitionStatus, ProcessorStatus

TEXT = (Path(__file__).parents[3] / "docs" / "status.md").read_text()


def documented(title: str) -> set[str]:
    part = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def names(kind: type, prefix: str) -> set[str]:
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
    return {f"{prefix}{field.name}" for field in fields}


def test_apps() -> None:
    printed = msgspec.json.decode(
        to_json(AppStatus("a", 0, None, [ProcessorStatus("p", "t", "key", [], [], None, {})]), None)
    )
    assert documented("Apps") == {
        *printed, *(f"processors.{name}" for name in printed["processors"][0]),
        *names(MemberStatus, "processors.members."), *names(PartitionStatus, "processors.partitions."),
    }  # fmt: skip


def test_jobs() -> None:
    look = msgspec.json.decode(JobsOverview(1, (JobOverview(JobSpec("a", "m:a"), "", None),)).to_json())
    found = {*look, *(f"jobs.{name}" for name in look["jobs"][0]), *names(Status, "jobs.status.")}
    assert documented("Jobs") == found
    row = next(line for line in TEXT.splitlines() if line.startswith("| `jobs.job` |"))
    assert names(JobSpec, "") == set(re.findall(r"`(\w+)`", row))


def test_flows() -> None:
    responses = {f"flows.{name}" for name in ("flow", "connectors", "breaker", "unsettled", "groups")}
    assert documented("Flows") == {
        "at", "flows", *responses, *names(Throughput, "flows."), *names(GroupState, "flows.groups."),
    }  # fmt: skip
