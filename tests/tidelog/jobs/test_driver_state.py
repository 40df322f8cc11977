"""Drivers with the real tasks, in threads: a job with state, rivals, and attempts that fail."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.countjob import Click, clicks, count, totals
from tidelog import Client
from tidelog.jobs import keys
from tidelog.jobs.epochs.driver import Driver, Tasks
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.task import task
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult, TaskSettings
from tidelog.testing import Server
from tidelog.transport.access import Access

TARGET = "tests.tidelog.jobs.countjob:count"


def send(server: Server, users: Sequence[str]) -> None:
    with clicks.elsewhere(server.url):
        clicks.sync.send_many(Click(user, at) for at, user in enumerate(users))


def driver(server: Server, state: Path, tasks: Tasks) -> Driver:
    access = Access((server.url,), retry_ms=5)
    return Driver(count, TaskSettings(TARGET, (), access, 1, "", 0, str(state)), tasks)


def one(plan: TaskPlan) -> TaskResult:
    """Run a task in a thread that ends: its connection, which it keeps for the next one, is closed."""
    try:
        return task.run(plan)
    finally:
        task.connection_to(plan.where.access).close()


def in_threads(plans: Sequence[TaskPlan]) -> list[TaskResult]:
    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(one, plans))


def until_idle(drive: Driver) -> None:
    while drive.step().published:
        pass


def seen(client: Client, server: Server) -> dict[str, list[int]]:
    """All totals of each user, in the order in which they were put out."""
    found: dict[str, list[int]] = {}
    with totals.elsewhere(server.url):
        totals.sync.ready()
        for at in range(3):
            for entry in client.trange(totals.stream(at)):
                total = totals.decode(entry, at)
                found.setdefault(total.user, []).append(total.clicks)
    return found


def check(client: Client, server: Server, users: Sequence[str]) -> None:
    """Each click was counted once, and each total put out once."""
    found = seen(client, server)
    assert {user: all_[-1] for user, all_ in found.items()} == Counter(users)
    assert all(sorted(set(all_)) == all_ for all_ in found.values())
    epochs = [[int(entry["epoch"]) for entry in client.trange(keys.log("count", at))] for at in range(2)]
    assert epochs[0] == epochs[1] == list(range(1, len(epochs[0]) + 1))


@pytest.fixture
def users() -> list[str]:
    dice = random.Random(7)
    return [f"user {dice.randrange(40)}" for _ in range(2000)]


def test_a_job_that_moves_between_disks(
    client: Client, tidelog_server: Server, tmp_path: Path, users: list[str]
) -> None:  # fmt: skip
    """Whoever takes over has old state, no state, or that of an epoch that another one published."""
    drives = [driver(tidelog_server, tmp_path / str(at), in_threads) for at in range(3)]
    for at in range(10):
        send(tidelog_server, users[at * 200 : at * 200 + 200])
        drive = drives[at * 5 % 3]
        try:
            until_idle(drive)
        except SupersededError:  # it learns so that it was not the last one
            until_idle(drive)
    check(client, tidelog_server, users)
    for drive in drives:
        drive.close()


@pytest.mark.slow
def test_rivals_whose_tasks_fail(client: Client, tidelog_server: Server, tmp_path: Path, users: list[str]) -> None:
    met: Counter[str] = Counter()
    trouble: list[BaseException] = []
    stop = threading.Event()

    def flaky(seed: int) -> Tasks:
        dice = random.Random(seed)

        def tasks(plans: Sequence[TaskPlan]) -> Sequence[TaskResult]:
            results: list[Any] = in_threads(plans)
            if dice.random() < 0.3:  # the state is stored, and nobody is told
                lost = dice.randrange(len(results))
                results[lost] = TaskResult(lost, failure=TaskFailure("", "lost"))
            return results

        return tasks

    def engine(number: int) -> None:
        drive = driver(tidelog_server, tmp_path / str(number), flaky(number))
        try:
            while True:
                last = stop.is_set()
                try:
                    if not drive.step().published and last:
                        return
                except (SupersededError, TryAgainError) as error:
                    met[type(error).__name__] += 1
        except BaseException as error:
            trouble.append(error)
            raise
        finally:
            drive.close()

    send(tidelog_server, users[:100])
    threads = [threading.Thread(target=engine, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for at in range(100, 2000, 100):
        send(tidelog_server, users[at : at + 100])
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not trouble
    assert met["SupersededError"] > 3
    assert met["TryAgainError"] > 3
    check(client, tidelog_server, users)
