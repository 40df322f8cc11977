"""The whole, as processes, in a storm: a chain of three jobs puts out what a model says, and remembers it."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.storm import Storm
from tests.tidelog.jobs.stormengine import LEASE
from tests.tidelog.jobs.stormjobs import PARTITIONS, model
from tests.tidelog.spark.sparkkit import require_spark
from tidelog.jobs.state import State
from tidelog.jobs.store import StateStore, StateVersion, StoreError
from tidelog.testing import Server
from tidelog.topics import partition_of

pytestmark = pytest.mark.slow
MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
ACTIONS = {
    "worker": 10, "server": 6, "reply": 6, "links": 4, "delete": 4, "truncate": 4, "snapshot": 4, "maker": 3,
    "pause": 2, "zombie": 2, "late": 3, "jvm": 0.7, "driver": 0.7, "engine": 1, "everything": 0.3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def spark() -> None:
    require_spark()


@contextmanager
def blowing(server: Server, folder: Path) -> Iterator[tuple[Storm, random.Random]]:
    seed = int(os.environ.get("TIDELOG_SEED") or time.time_ns() % 1_000_000)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    chance = random.Random(seed)
    storm = Storm(server, folder, chance)
    try:
        storm.begin()
        yield storm, chance
        storm.calm()
        check(storm)
    except BaseException:
        print(storm.counts)
        print(storm.logs()[-200_000:])
        raise
    finally:
        storm.close()


@pytest.mark.timeout(400)
def test_a_short_storm(tidelog_server: Server, tmp_path: Path) -> None:
    """Each thing that may happen, and some at once, in any order; then an engine stands still, and one is killed."""
    with blowing(tidelog_server, tmp_path) as (storm, chance):
        steps = [
            ("worker",), ("worker",), ("worker", "worker"), ("reply",), ("reply", "links"), ("delete",), ("truncate",),
            ("worker", "truncate"), ("server",), ("server", "worker"), ("server", "delete"), ("maker",),
        ]  # fmt: skip
        chance.shuffle(steps)
        for step in steps:
            storm.settle(chance.uniform(0.1, 0.8))
            storm.act(*step)
        storm.progress()
        storm.at_last("snapshot")
        storm.act("late")
        storm.settle(LEASE * 2.5 + 1.0)
        storm.progress()
        storm.act("coma", chance.choice(["worker", "server", "delete"]))
        storm.progress()  # on the other engine; then the one that stood still goes on with what it had begun
        storm.wake()
        storm.settle(1.0)
        storm.engines = 1
        storm.act("engine", "delete")


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 900)
def test_a_storm(tidelog_server: Server, tmp_path: Path) -> None:
    end = time.monotonic() + MINUTES * 60
    with blowing(tidelog_server, tmp_path) as (storm, chance):
        while time.monotonic() < end:
            for _ in range(chance.randrange(1, 9)):
                names = chance.choices(list(ACTIONS), list(ACTIONS.values()), k=chance.choice([1, 1, 2]))
                storm.act(*dict.fromkeys(names))
                storm.settle(chance.choice([0.0, 0.1, 0.5, 1.5, 4.0]) * chance.random())
            storm.progress()


def check(storm: Storm) -> None:
    """All rows are the model's, the states are, and the replay logs tell of each epoch once."""
    clicks = [storm.rows(f"clicks:{at}") for at in range(2)]
    numbers = Counter(row["number"] for partition in clicks for row in partition)
    assert len(numbers) == numbers.total() >= storm.sent
    wanted = list(model(clicks))
    totals = [storm.rows(f"totals:{at}") for at in range(2)]
    for rows, right in zip(totals, wanted, strict=True):
        assert [(row["user"], row["number"], int(row["count"])) for row in rows] == right
    alarms = [storm.rows(f"alarms:{at}") for at in range(3)]
    raised = Counter((f"l{count % 7}", user, count) for rows in wanted for user, _, count in rows if count % 3 == 0)
    assert Counter((row["level"], row["user"], int(row["count"])) for rows in alarms for row in rows) == raised
    tallies: list[list[dict[str, str]]] = [storm.rows(f"tallies:{at}") for at in range(2)]
    known: list[Counter[str]] = []
    by_level: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for at, rows in enumerate(alarms):
        assert {partition_of(row["level"].encode(), 3) for row in rows} <= {at}
        known.append(Counter())
        for row in rows:
            known[at][row["level"]] += 1
            by_level[row["level"]].append((row["user"], row["count"], known[at][row["level"]]))
    found: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for rows in tallies:
        for row in rows:
            found[row["level"]].append((row["user"], row["count"], int(row["total"])))
    assert found == by_level

    users = [Counter(user for user, _, _ in rows) for rows in wanted]
    for name, right_states in (("count", users), ("tally", known)):
        for at, right_state in enumerate(right_states):
            assert state_of(storm, name, at) == dict(right_state)
    in_out = {"count": (clicks, totals), "alarm": (totals, alarms), "tally": (alarms, tallies)}
    for name in PARTITIONS:
        logs = [each for each in storm.followed if each.name == name]
        assert len({each.epoch for each in logs}) == 1
        if not any(each.missed for each in logs):
            read, put = in_out[name]
            assert [each.rows_in for each in logs] == [len(rows) for rows in read]
            assert sum(each.rows_out for each in logs) == sum(map(len, put))
    lost, missed = storm.said("had been published, but its reply was lost"), sum(each.missed for each in storm.followed)
    print(f"{storm.counts}; epochs {storm.epochs}, {sum(map(len, clicks))} clicks, {len(raised)} alarms; {lost} replies"
          f" lost, {storm.held} publishes late, {missed} markers not seen")  # fmt: skip
    assert not storm.wrong, "\n".join(storm.wrong)


def state_of(storm: Storm, name: str, partition: int) -> dict[str, Any]:
    """What a partition remembers, from the store that is at the epoch that was published last."""
    (log,) = [each for each in storm.followed if (each.name, each.partition) == (name, partition)]
    there = []
    for path in (path for folder in storm.states() for path in folder.glob(f"{name}/1/{partition}/*/")):
        try:
            store = StateStore.open(path)
        except StoreError as error:
            there.append(f"{path}: {error}")
            continue
        with store:
            there.append(f"{path}: {store.version}")
            if store.version == StateVersion(log.epoch, log.run):
                return {key.decode(): value for key, value in State(store.begin(0), int, job=name).scan()}
    raise AssertionError(f"no store of {name}, partition {partition} is at epoch {log.epoch} of {log.run}: {there}")
