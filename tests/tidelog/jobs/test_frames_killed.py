"""Invariant: whenever a frame job's driver is killed, its outputs are what they would be if it had not been.

Two jobs in one driver: one that splits its input into two outputs, and one that counts, with a state of Spark's. Each
kill costs a cold start of a JVM. test_frames.py has one kill in each test run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs import framekit as kit
from tests.tidelog.jobs.enginekit import ROOT
from tests.tidelog.spark.sparkkit import require_spark
from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import Topic

KILLS = 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200 + 150 * KILLS)]
OUTPUTS: list[Topic[Any]] = [kit.odd, kit.even, kit.tallies]
STEP = 20  # records that are sent together


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    """The topics of the kit are for one server after the other."""
    require_spark()
    yield
    for topic in (kit.clicks, *OUTPUTS):
        topic.forget_settings()


class Driver:
    """A driver in a process, which says what it says in a file."""

    def __init__(self, server: Server, folder: Path, number: int) -> None:
        self.log = folder / f"driver-{number}.log"
        command = [sys.executable, "-m", "tests.tidelog.jobs.framekit", server.url, str(folder / "checkpoints"), "all"]
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, start_new_session=True, stdout=said,
                stderr=said,
            )  # fmt: skip

    def until(self, met: Callable[[], bool]) -> None:
        kit.until(lambda: met() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)  # with its JVM
        self.process.wait()


def put_out(client: Client) -> int:
    return sum(client.tlen(topic.stream(at)) for topic in OUTPUTS for at in range(topic.declared.partitions or 1))


@pytest.mark.long
def test_the_driver_is_killed_at_random_moments(tidelog_server: Server, client: Client, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    sent: list[int] = []

    def send() -> None:
        users = [chance.randrange(40) for _ in range(STEP)]
        kit.send(client, kit.clicks, map(kit.click, users))
        sent.extend(users)

    send()
    for number in range(KILLS + 1):
        driver = Driver(tidelog_server, tmp_path, number)
        try:
            driver.until(partial(lambda before: put_out(client) > before, put_out(client)))
            if number == KILLS:
                driver.until(lambda: complete(client, sent))
                break
            end = time.monotonic() + chance.uniform(0.1, 3.0)  # a batch takes some tenths of a second
            while time.monotonic() < end:
                send()
                time.sleep(0.05)
        finally:
            driver.kill()
        send()
    split = kit.users(client, kit.odd) + kit.users(client, kit.even)
    assert split == Counter(sent)
    assert all(user % 2 for user in kit.users(client, kit.odd))
    tallies = [(tally.user, tally.clicks) for tally in kit.records(client, kit.tallies)]
    assert len(set(tallies)) == len(tallies)  # nothing was put out twice
    last: dict[int, int] = {}
    for user, clicks in tallies:
        assert clicks > last.get(user, 0)
        last[user] = clicks
    assert last == Counter(sent)


def complete(client: Client, sent: list[int]) -> bool:
    """Whether all that was sent was put out by both jobs; more than that counts as well."""
    split = kit.users(client, kit.odd).total() + kit.users(client, kit.even).total()
    last = {tally.user: tally.clicks for tally in kit.records(client, kit.tallies)}
    return split >= len(sent) and sum(last.values()) >= len(sent)
