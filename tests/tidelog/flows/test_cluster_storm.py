"""Flows in a cluster: slots move, and leaders and the process of the flows are killed. Nothing is lost."""

from __future__ import annotations

import os
import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.flows.clusterstorm import FlowStorm

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)


def seeded() -> random.Random:
    seed = int(os.environ.get("TIDELOG_SEED") or time.time_ns() % 1_000_000)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it if the test fails
    return random.Random(seed)


def test_the_process_is_killed_while_slots_move(groups: Groups, tmp_path: Path) -> None:
    """The storm in short."""
    with closing(FlowStorm(groups, tmp_path, seeded())) as storm:
        with storm.filling():
            storm.step("both")
        print(storm.check())


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_a_storm(tmp_path: Path) -> None:
    with (
        cluster() as servers,
        closing(FlowStorm(Groups(servers, members=2, group_lease=2000), tmp_path, seeded())) as storm,
    ):
        end = time.monotonic() + 60 * MINUTES
        with storm.filling(0.05):
            while time.monotonic() < end:
                storm.step()
                time.sleep(storm.chance.random())
        print(storm.check())
