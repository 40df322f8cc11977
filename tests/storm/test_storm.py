"""Storms: short ones always, long ones with TIDELOG_LONG. ``TIDELOG_SEED`` and ``TIDELOG_FAULTS`` choose others."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storm import clusters
from tests.storm.run import Plan, Result, StormError, run

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
FAULTS = int(os.environ.get("TIDELOG_FAULTS") or 1_000_000)
SEED = int(os.environ.get("TIDELOG_SEED") or (time.time_ns() % 1_000_000 if MINUTES else 1))


@pytest.fixture
def top() -> Iterator[Path]:
    """A directory that is kept if the test fails."""
    made = Path(tempfile.mkdtemp(prefix="tidelog-storm-"))
    yield made
    if (made / "fine").exists():
        shutil.rmtree(made)


def storm(plan: Plan, top: Path) -> Result:
    print(plan)
    result = clusters.run(plan, top) if plan.groups else run(plan, top)
    print(result)
    (top / "fine").touch()
    assert result.acknowledged > 50, "hardly any work: the storm shows too little"
    return result


def needs_power_losses(result: Result) -> None:
    if result.lossy:
        pytest.skip(f"the storm passed, but without power losses: {result.lossy}")


def needs_etcd(coordinator: str) -> None:
    if coordinator == "etcd" and shutil.which("etcd") is None:
        pytest.skip("no etcd here (Debian: apt-get install etcd-server)")


@pytest.mark.timeout(600)  # on a busy machine, it waits for minutes until all members are in sync
@pytest.mark.parametrize("coordinator", ["file", "etcd"])
def test_a_short_storm(coordinator: str, top: Path) -> None:
    needs_etcd(coordinator)
    needs_power_losses(storm(Plan(SEED, coordinator, seconds=6.0, round_seconds=6.0), top))


@pytest.mark.timeout(600)
def test_a_short_storm_in_a_cluster(top: Path) -> None:
    result = storm(Plan(SEED, seconds=4.0, round_seconds=4.0, groups=(2, 1)), top)
    assert result.moves["MOVE done"] > 0
    needs_power_losses(result)


@pytest.mark.timeout(600)
def test_a_short_storm_in_a_cluster_with_an_object_store(top: Path) -> None:
    result = storm(Plan(SEED, seconds=8.0, round_seconds=8.0, groups=(2, 1), history="directory"), top)
    assert result.history["objects linked"] > 0
    assert result.history["objects deleted"] == result.history["objects"] > 0
    needs_power_losses(result)


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
@pytest.mark.parametrize("coordinator", ["file", "etcd"])
def test_a_storm(coordinator: str, top: Path) -> None:
    needs_etcd(coordinator)
    needs_power_losses(storm(Plan(SEED, coordinator, FAULTS, seconds=MINUTES * 30), top))


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
@pytest.mark.parametrize(("coordinator", "groups"), [("file", (2, 2, 1)), ("etcd", (2, 3))])
def test_a_storm_in_a_cluster(coordinator: str, groups: tuple[int, ...], top: Path) -> None:
    needs_etcd(coordinator)
    needs_power_losses(storm(Plan(SEED, coordinator, FAULTS, seconds=MINUTES * 30, groups=groups), top))


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
@pytest.mark.parametrize("history", ["directory", "s3"])
def test_a_storm_in_a_cluster_with_an_object_store(history: str, top: Path) -> None:
    plan = Plan(SEED, "file", FAULTS, seconds=MINUTES * 30, groups=(2, 3), history=history)
    needs_power_losses(storm(plan, top))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_group_without_acknowledgements_of_replicas_loses_data(top: Path) -> None:
    """The storm detects it."""
    plan = Plan(SEED, kinds=("kill", "power", "isolate"), seconds=240.0, settings=(("replica-acks", "0"),))
    with pytest.raises(StormError, match=r"gone|goes back|come again|has the ID|twice|differ"):
        run(plan, top)
    (top / "fine").touch()
