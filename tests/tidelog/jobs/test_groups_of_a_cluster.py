"""Jobs over two groups of a cluster: each epoch is published exactly once, whatever ends, moves, or is reset."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.replication.cluster import Node, cluster
from tests.replication.clusters import Groups
from tests.tidelog.jobs.groupskit import (
    PARTITIONS,
    CountJob,
    KilledError,
    entries,
    killed,
    left,
    on_both,
    stages,
)
from tidelog import Client
from tidelog.client.alone import run_alone
from tidelog.client.dividedcommit import DividedCommit
from tidelog.client.entries import StreamId
from tidelog.jobs import keys
from tidelog.jobs.commits import CLOSED, commit_of
from tidelog.jobs.engine.connection import EngineConnection
from tidelog.jobs.engine.factory import EntryNotifier
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.registry import registry, resets
from tidelog.jobs.registry.targets import describe
from tidelog.options.start import StartPosition
from tidelog.transport.access import Access
from tidelog.transport.slots import SLOTS, slot_of

MOST = 20  # more steps than a commit has


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    with Client(groups.url()) as client:
        yield client


@pytest.fixture
def made(groups: Groups, tmp_path: Path) -> Iterator[Callable[[str], CountJob]]:
    jobs: list[CountJob] = []

    def make(name: str) -> CountJob:
        jobs.append(CountJob(name, groups.url(), tmp_path))
        assert on_both(jobs[-1])
        return jobs[-1]

    yield make
    for each in jobs:
        each.close()


def at_step(driver: Driver, after: int, then: Callable[[], None] | None = None) -> None:
    """Let the next commit of a driver end after a number of its steps, or call ``then`` there."""
    plain = driver.publisher.run

    def run(steps: object) -> object:
        if getattr(steps, "__name__", "") == DividedCommit.commit.__name__:
            driver.publisher.run = plain  # type: ignore[method-assign]
            return plain(killed(steps, after, then))  # type: ignore[arg-type]
        return plain(steps)  # type: ignore[arg-type]

    driver.publisher.run = run  # type: ignore[assignment, method-assign]


def test_rows_and_markers_on_both_groups(groups: Groups, client: Client, made: Callable[[str], CountJob]) -> None:
    job = made("both")
    driver = job.driver()
    for _ in range(3):
        job.send()
        job.drain(driver)
        job.check(client)
    assert driver.divided
    assert client.tfence(keys.fence("both", 1)) == driver.epoch
    assert [client.tlen(keys.log("both", at)) for at in range(4)] == [driver.epoch] * 4
    assert left(client, "both") == [1, 0]
    assert stages(groups) == 0
    other = job.driver(folder="another disk")  # its state is recovered from the log
    job.send()
    job.drain(other)
    job.check(client)


def test_the_driver_ends_after_each_step(groups: Groups, client: Client, made: Callable[[str], CountJob]) -> None:
    job = made("steps")
    job.send()
    for after in range(MOST):
        driver = job.driver()
        at_step(driver, after)
        try:
            job.drain(driver)
        except KilledError:
            job.send(20)
            continue
        break
    assert 8 < after < MOST
    job.check(client)
    assert left(client, "steps") == [1, 0]


def test_two_drivers(client: Client, made: Callable[[str], CountJob]) -> None:
    """One pauses after each of its steps in turn, while the other one publishes this epoch and the next ones."""
    job = made("rivals")
    first, second = job.driver(), job.driver(folder="second")
    for pause in range(9):
        job.send(20)

        def others() -> None:
            job.drain(second)
            job.send(20)
            job.drain(second)

        at_step(first, pause, others)
        try:
            first.step()
        except (SupersededError, TryAgainError):
            pass
        job.drain(first)
        job.check(client)


def test_a_leader_is_killed_meanwhile(groups: Groups, client: Client, made: Callable[[str], CountJob]) -> None:
    job = made("leaders")
    driver = job.driver()
    job.send(20)
    job.drain(driver)
    for pause, node in zip((9, 11), groups.nodes, strict=True):  # before the decision, and after it
        restarted = threading.Event()

        def restart(node: Node = node, restarted: threading.Event = restarted) -> None:
            node.kill()
            node.start()
            groups.agree()
            restarted.set()

        job.send(20)
        at_step(driver, pause, restart)
        job.drain(driver)
        assert restarted.is_set()
        job.check(client)


def test_slots_move_meanwhile(tmp_path: Path) -> None:
    """A job of one group continues when another group gets half of its slots, and when all are moved back."""
    with cluster() as servers:
        groups = Groups(servers, divide=False)
        with closing(CountJob("moves", groups.url(), tmp_path)) as job, Client(groups.url()) as client:
            driver = job.driver()
            job.send()
            job.drain(driver)
            assert not driver.divided
            half = f"{SLOTS // 2}-{SLOTS - 1}"
            for at, to, divided in (("1", "2", True), ("2", "1", False)):
                moved = threading.Event()

                def move(at: str = at, to: str = to, moved: threading.Event = moved) -> None:
                    try:
                        groups.move(half, to=to, at=at)
                    finally:
                        moved.set()

                job.send(200)
                mover = threading.Thread(target=move)
                mover.start()
                while not moved.is_set():
                    job.drain(driver)
                mover.join()
                other = job.driver()  # as after a restart of the engine
                job.send()
                job.drain(other)
                job.check(client)
                assert other.divided == divided
                driver = job.driver()


def test_a_reset_completes_what_was_decided(
    groups: Groups, client: Client, made: Callable[[str], CountJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between the decision and the publication, and the job is reset at its latest entries."""
    job = made("reset")
    with closing(EngineConnection(Access.of(groups.url()), "test")) as line:
        target = f"tests.tidelog.jobs.declared:{job.name}"
        run_alone(client, registry.change(registry.add(line.drive(describe(job.job, target))), "test"))
        job.send(14)
        after = 0
        while client.tfence(keys.fence("reset", 1)) is None:
            after += 1
            driver = job.driver()
            at_step(driver, after)
            with pytest.raises(KilledError):
                driver.step()
        assert len(entries(client, job.copies)) < job.sent, "not published yet"
        run_alone(client, resets.reset("reset", StartPosition("latest"), "test"))
        assert client.tfence(keys.fence("reset", 1)) == CLOSED
        job.check(client)
        with pytest.raises(SupersededError):
            job.driver().prepare()
        job.send()
        second = job.driver(generation=2, start="latest", folder="new")
        second.prepare()
        run_alone(client, registry.change(registry.remove("reset"), "test"))
        with pytest.raises(SupersededError):
            second.step()


def test_the_next_generation_closes_the_former_one(
    groups: Groups, client: Client, made: Callable[[str], CountJob]
) -> None:
    """The program that resets a job can die after it has changed the registry, while the old driver is in a commit."""
    job = made("former")
    job.send()
    old, second = job.driver(), job.driver(generation=2, start="latest")
    before = stages(groups)
    at_step(old, 4, second.prepare)
    with pytest.raises((SupersededError, TryAgainError)):
        old.step()
    assert client.tfence(keys.fence("former", 1)) == CLOSED
    assert not entries(client, job.copies)
    assert left(client, "former") == [1, 0]
    assert stages(groups) == before
    with pytest.raises(SupersededError):
        old.step()


def test_the_record_of_an_epoch_has_the_slot_of_the_fence() -> None:
    assert {slot_of(key) for key in commit_of("both", 1).keys} == {slot_of(keys.fence("both", 1))}


def test_an_idle_job_waits_at_both_groups(client: Client, made: Callable[[str], CountJob]) -> None:
    job = made("idle")

    async def waits() -> None:
        notifier = EntryNotifier(job.access, "test")
        with notifier.waker:
            for at in range(PARTITIONS):
                positions = {job.clicks.stream(each): StreamId(0) for each in range(at, PARTITIONS)}
                waiting = asyncio.create_task(notifier.wait("idle", positions, divided=True))
                await asyncio.to_thread(client.tappend, job.clicks.stream(at), {"user": "a", "n": "1"})
                async with asyncio.timeout(60):
                    await waiting

    asyncio.run(waits())
