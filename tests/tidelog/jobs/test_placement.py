"""Partitions go back to where they were, but not too many to one executor."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import pytest

from tidelog.jobs.epochs.placement import REFRESH, TaskPlacement, this_executor


class Cluster:
    """Runs tasks as Spark does: where it is said, if that one is there, else anywhere."""

    def __init__(self, *executors: str) -> None:
        self.executors = list(executors)
        self.now = 0.0
        self.looks = 0
        self.moved = 0
        self.random = random.Random(1)
        self.places = TaskPlacement(self._number, lambda: self.now)

    def _number(self) -> int:
        self.looks += 1
        return len(self.executors)

    def epoch(self, job: str, number: int) -> list[str]:
        self.now += 1
        before = self.places._jobs.get(job, ("",) * number)
        wanted = self.places.wanted(job, number)
        ran = [place if place in self.executors else self.random.choice(self.executors) for place in wanted]
        self.moved += sum(old not in ("", new) for old, new in zip(before, ran, strict=True))
        self.places.ran(job, ran)
        return ran


def test_a_partition_stays_where_it_is() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.places.ran("count", ["a", "b", "b", "c", "a", "c"])
    for _ in range(100):
        assert cluster.epoch("count", 6) == ["a", "b", "b", "c", "a", "c"]
    assert cluster.looks == -(-100 // REFRESH)
    assert cluster.places.wanted("count", 4) == ("",) * 4  # it has other partitions now


def test_the_partitions_of_a_job_are_shared_by_those_that_come() -> None:
    cluster = Cluster("a")
    assert cluster.epoch("count", 8) == ["a"] * 8
    cluster.executors += ["b", "c", "d"]
    for _ in range(60):
        ran = cluster.epoch("count", 8)
    assert Counter(ran) == dict.fromkeys("abcd", 2)
    moved = cluster.moved
    for _ in range(60):
        assert cluster.epoch("count", 8) == ran
    assert cluster.moved == moved


def test_jobs_of_one_partition_are_shared_too() -> None:
    cluster = Cluster("a")
    for at in range(100):
        cluster.epoch(f"job{at}", 1)
    cluster.executors += ["b"]
    for _ in range(20):
        places = Counter(cluster.epoch(f"job{at}", 1)[0] for at in range(100))
    assert max(places.values()) <= 63
    moved = cluster.moved
    for at in range(100):
        cluster.epoch(f"job{at}", 1)
    assert cluster.moved == moved <= 100


def test_those_of_an_executor_that_is_gone_stay_where_they_went() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.places.ran("count", ["a", "b", "c", "a", "b", "c"])
    cluster.executors.remove("c")
    for _ in range(20):
        ran = cluster.epoch("count", 6)
    assert Counter(ran) == {"a": 3, "b": 3}
    assert cluster.moved <= 4


def test_a_local_master_is_not_asked() -> None:
    cluster = Cluster("")
    for _ in range(10):
        assert cluster.epoch("count", 3) == ["", "", ""]
    assert cluster.looks == 0
    cluster.places.forget("count")
    cluster.places.forget("count")


def test_a_process_knows_the_executor_above_it() -> None:
    ask = "from tidelog.jobs.epochs.placement import this_executor; print(this_executor())"
    shell = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[-1]])"  # as the daemon is
    command = [sys.executable, "-c", shell, "--executor-id", "7", "--hostname", "10.0.0.3", ask]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "executor_10.0.0.3_7\n"
    assert this_executor() == ""


@pytest.mark.parametrize("number", [1, 2, 5])
def test_all_partitions_stay_on_the_only_executor(number: int) -> None:
    cluster = Cluster("a")
    for _ in range(10):
        assert cluster.epoch("count", number) == ["a"] * number
        assert cluster.places.wanted("count", number) == ("a",) * number
