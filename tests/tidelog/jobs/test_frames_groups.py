"""Frame jobs over two groups of a cluster: each batch is published exactly once, whatever ends, moves, or is reset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.replication.clusters import Groups
from tests.tidelog.jobs import framekit as kit
from tests.tidelog.jobs.groupskit import PARTITIONS, Click, Total, check, entries, left, some, stages
from tests.tidelog.spark.conftest import spark  # noqa: F401 - fixtures
from tidelog import Client
from tidelog.client.dividedcommit import CommitMarker, DividedStager
from tidelog.client.publish import Publisher, StagedRows
from tidelog.client.steps import Steps
from tidelog.jobs import Job, JobError, job, keys
from tidelog.jobs.commits import CLOSED, commit_of
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.frames.errors import QueryError
from tidelog.jobs.frames.query import FrameRunner
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.slots import SLOTS, slot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HALF = f"{SLOTS // 2}-{SLOTS - 1}"


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    with Client(groups.url()) as client:
        yield client


@dataclass
class FrameJobs:
    """Two jobs: ``copying`` to two outputs in one query, and ``counting``, with a state of Spark's, in update mode."""

    name: str
    url: str
    folder: Path
    sent: int = 0
    runners: list[FrameRunner] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"url": self.url, "partitions": PARTITIONS}
        self.clicks: Topic[Click] = Topic(f"{self.name}-clicks", Click, partition_by="user", **options)
        self.copies: Topic[Click] = Topic(f"{self.name}-copies", Click, partition_by="user", **options)
        self.halves: Topic[Click] = Topic(f"{self.name}-halves", Click, partition_by="n", **options)
        self.totals: Topic[Total] = Topic(f"{self.name}-totals", Total, partition_by="user", **options)
        for topic in (self.clicks, self.copies, self.halves, self.totals):
            assert {slot_of(topic.stream(at)) * 2 // SLOTS for at in range(PARTITIONS)} == {0, 1}
        self.copying = job(
            inputs=[self.clicks], outputs=[self.copies, self.halves], name=f"{self.name}-copying", max_rows=20
        )(self._copies)
        self.counting = job(
            inputs=[self.clicks], outputs=[self.totals], name=f"{self.name}-counting", max_rows=20,
            options={"outputMode": "update"},
        )(self._totals)  # fmt: skip
        self.clicks.sync.ready()

    def _copies(self, clicks: DataFrame) -> dict[Topic[Any], DataFrame]:
        return {self.copies: clicks, self.halves: clicks.where("n % 2 = 0")}

    def _totals(self, clicks: DataFrame) -> DataFrame:
        return clicks.groupBy("user").count().withColumnRenamed("count", "clicks")

    def send(self, number: int) -> None:
        self.clicks.sync.send_many(some(self.sent, number))
        self.sent += number

    def runner(self, spark: SparkSession, job: Job, generation: int = 1) -> FrameRunner:  # noqa: F811
        access = replace(Access.of(self.url), retries=100, retry_ms=50)
        where = kit.where(self.url, self.folder, access=access, generation=generation, partitions=2)
        self.runners.append(FrameRunner(spark, job, where))
        return self.runners[-1]

    def start(self, spark: SparkSession) -> None:  # noqa: F811
        """Start both jobs, from their checkpoints."""
        self.stop()
        for each in (self.copying, self.counting):
            self.runner(spark, each).start()

    def drain(self, spark: SparkSession, client: Client, fault: Future[None] | None = None) -> None:  # noqa: F811
        """Wait until a fault is over, and both jobs have written everything, or more. Restart a query that fails."""

        def done() -> bool:
            for at, runner in enumerate(list(self.runners)):
                error = runner.poll().error
                if error is not None:
                    assert isinstance(error, QueryError | TryAgainError), error
                    self.failures.append(error)
                    runner.stop()
                    again = self.runner(spark, runner.job)
                    self.runners[at] = self.runners.pop()
                    again.start()
            if fault is not None and not fault.done():
                return False
            copied = [len(entries(client, topic)) for topic in (self.copies, self.halves)]
            last = {entry["user"]: int(entry["clicks"]) for entry in entries(client, self.totals)}
            return copied[0] >= self.sent and copied[1] >= self.sent // 2 and sum(last.values()) >= self.sent

        kit.until(done)
        if fault is not None:
            fault.result()

    def check(self, client: Client) -> None:
        check(client, self.copies, self.totals, self.sent)
        assert Counter(int(entry["n"]) for entry in entries(client, self.halves)) == Counter(range(0, self.sent, 2))

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()
        self.runners.clear()

    def close(self) -> None:
        self.stop()
        self.clicks.sync.close()


@pytest.fixture
def made(groups: Groups, tmp_path: Path) -> Iterator[Callable[[str], FrameJobs]]:
    jobs: list[FrameJobs] = []

    def make(name: str) -> FrameJobs:
        jobs.append(FrameJobs(name, groups.url(), tmp_path))
        return jobs[-1]

    yield make
    for each in jobs:
        each.close()


def test_leaders_are_killed_and_slots_move(
    spark: SparkSession, groups: Groups, client: Client, made: Callable[[str], FrameJobs]  # noqa: F811
) -> None:  # fmt: skip
    """The jobs begin in a cluster of two groups. They continue in one, and then in two again."""
    jobs = made("frames")
    before = stages(groups)
    jobs.send(40)
    jobs.start(spark)
    jobs.drain(spark, client)
    jobs.check(client)
    for runner in jobs.runners:
        fence = keys.fence(runner.job.name, 1)
        kit.until(partial(lambda runner, fence: runner.poll().batch == client.tfence(fence), runner, fence), runner)
        assert left(client, runner.job.name) == [1, 0]
    assert stages(groups) == before

    def restart() -> None:
        for node in groups.nodes:
            node.kill()
            node.start()
            groups.agree()

    faults: list[Callable[[], None]] = [
        restart,
        lambda: groups.move("0-5000", to="2"),
        lambda: groups.move("0-5000", HALF, to="1", at="2"),
    ]
    with ThreadPoolExecutor(1) as other:
        for fault in faults:
            jobs.send(80)
            done = other.submit(fault)
            jobs.drain(spark, client, done)
    jobs.check(client)
    jobs.start(spark)
    jobs.send(40)
    jobs.drain(spark, client)
    groups.move(HALF, to="2")
    jobs.send(40)
    jobs.drain(spark, client)
    jobs.check(client)
    assert stages(groups) == before


def decided(jobs: FrameJobs, groups: Groups) -> None:
    """Batch 0 of ``copying`` was decided, and its engine died before it published any row."""
    access = Access.of(groups.url())
    commit = commit_of(jobs.copying.name, 1)
    stager = DividedStager(access, "test", keys.prefix(jobs.copying.name), "q", 60_000)
    stager.stage(
        StagedRows(jobs.copies.stream(at).encode(), (b"user", b"n"), 1, b"$1\r\na\r\n$1\r\n%d\r\n" % at)
        for at in range(PARTITIONS)
    )
    stager.close()

    def failing(last: CommitMarker) -> Steps[None]:
        raise ConnectionError("the engine ends here")
        yield []

    commit._publish = failing  # type: ignore[method-assign]
    with Publisher(access, "test") as by, suppress(ConnectionError):
        by.run(commit.commit(0, "c", stager.stages))


def test_a_start_completes_what_was_decided(
    spark: SparkSession, groups: Groups, client: Client, made: Callable[[str], FrameJobs]  # noqa: F811
) -> None:  # fmt: skip
    jobs = made("decided")
    jobs.copies.use(sync=client)
    jobs.copies.sync.ready()
    decided(jobs, groups)
    assert not entries(client, jobs.copies)
    with pytest.raises(JobError, match="batch 0 was published, and there is no checkpoint"):
        jobs.runner(spark, jobs.copying).start()
    assert len(entries(client, jobs.copies)) == PARTITIONS
    assert left(client, jobs.copying.name) == [1, 0]


def test_the_next_generation_closes_the_former_one(
    spark: SparkSession, groups: Groups, client: Client, made: Callable[[str], FrameJobs]  # noqa: F811
) -> None:  # fmt: skip
    jobs = made("former")
    jobs.copies.use(sync=client)
    jobs.copies.sync.ready()
    decided(jobs, groups)
    jobs.runner(spark, jobs.copying, generation=2).start()
    assert len(entries(client, jobs.copies)) == PARTITIONS
    assert client.tfence(keys.fence(jobs.copying.name, 1)) == CLOSED
    with pytest.raises(SupersededError, match="generation 1 was closed by a later one"):
        jobs.runner(spark, jobs.copying).start()
