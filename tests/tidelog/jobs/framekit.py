"""Frame jobs for tests, and the driver that they kill.

python -m tests.tidelog.jobs.framekit URL DIRECTORY [all]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidelog import Client
from tidelog.jobs import Job, job
from tidelog.jobs.task.plan import TaskSettings
from tidelog.topics import Topic
from tidelog.transport.access import Access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.jobs.frames.query import FrameRunner, FrameState

PATIENCE = 100.0  # seconds


class Click(msgspec.Struct):
    user: int
    page: str
    at: datetime | None = None


class Total(msgspec.Struct):
    user: int
    clicks: int


class Hour(msgspec.Struct):
    start: datetime
    page: str
    clicks: int


class Line(msgspec.Struct):
    item: str
    price: float | None = None


class Basket(msgspec.Struct):
    user: int
    lines: list[Line]
    tags: dict[str, str] = {}


class Bought(msgspec.Struct):
    user: int
    page: str
    item: str


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=2)
odd: Topic[Click] = Topic("odd", Click, partition_by="user", partitions=2)
even: Topic[Total] = Topic("even", Total, partition_by="user", partitions=3)
tallies: Topic[Total] = Topic("tallies", Total, partition_by="user", partitions=2)
hours: Topic[Hour] = Topic("hours", Hour, partition_by="page", partitions=2)
baskets: Topic[Basket] = Topic("baskets", Basket, partition_by="user", partitions=2, codec="msgpack+zstd")
bought: Topic[Bought] = Topic("bought", Bought, partition_by="user", partitions=2, codec="json")


@job(inputs=[clicks], outputs=[odd, even], max_rows=50)
def split(clicks: DataFrame) -> dict[Topic[Any], DataFrame]:
    return {
        even: clicks.where("user % 2 = 0").selectExpr("user", "length(page) as clicks"),
        odd: clicks.where("user % 2 = 1"),
    }


@job(inputs=[clicks], outputs=[hours])
def per_hour(clicks: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    counts = clicks.withWatermark("at", "10 minutes").groupBy(f.window("at", "1 hour"), "page").count()
    return counts.selectExpr("window.start as start", "page", "count as clicks")


@job(inputs=[clicks], outputs=[odd, even])
def twice(clicks: DataFrame) -> dict[Topic[Any], DataFrame]:
    return {odd: clicks, even: clicks.selectExpr("user", "1 as clicks")}


@job(inputs=[clicks], outputs=[even], options={"outputMode": "update", "trigger": "100 milliseconds"})
def counted(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").count().withColumnRenamed("count", "clicks")


@job(inputs=[clicks], outputs=[tallies], max_rows=50, options={"outputMode": "update"})
def tallied(clicks: DataFrame) -> DataFrame:
    return clicks.groupBy("user").count().withColumnRenamed("count", "clicks")


@job(inputs=[clicks, baskets], outputs=[bought])
def join(clicks: DataFrame, baskets: DataFrame) -> DataFrame:
    lines = baskets.selectExpr("user", "explode(lines) as line").selectExpr("user as buyer", "line.item as item")
    return clicks.join(lines, clicks["user"] == lines["buyer"]).select("user", "page", "item")


def where(url: str, directory: str | Path, **changes: Any) -> TaskSettings:
    given: dict[str, Any] = {
        "target": "", "path": (), "access": replace(Access.of(url), retries=20, retry_ms=200), "generation": 1,
        "run": "r", "partitions": 2, "state_dir": str(directory),
    }  # fmt: skip
    return TaskSettings(**given | changes)


@contextmanager
def running(spark: SparkSession, job: Job, place: TaskSettings) -> Iterator[FrameRunner]:
    from tidelog.jobs.frames.query import FrameRunner

    runner = FrameRunner(spark, job, place)
    runner.start()
    try:
        yield runner
    finally:
        runner.stop()


def until(met: Callable[[], object], *runners: FrameRunner) -> None:
    """Wait, polling the runners as a supervisor does; a query that fails raises its error."""
    deadline = time.monotonic() + PATIENCE
    while not met():
        for runner in runners:
            if error := runner.poll().error:
                raise error
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failed(runner: FrameRunner) -> FrameState:
    """Wait until the query has failed."""
    deadline = time.monotonic() + PATIENCE
    while runner.poll().state != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return runner.poll()


def send(client: Client, topic: Topic[Any], records: Iterable[Any]) -> None:
    topic.use(sync=client)
    topic.sync.ready()
    topic.sync.send_many(records)


def records(client: Client, topic: Topic[Any], partitions: int | None = None) -> list[Any]:
    """All records, one partition after the other."""
    count = partitions or topic.declared.partitions or 1
    return [topic.decode(entry, at) for at in range(count) for entry in client.trange(topic.stream(at))]


def users(client: Client, topic: Topic[Any]) -> Counter[int]:
    return Counter(record.user for record in records(client, topic))


def click(user: int) -> Click:
    return Click(user, "p" * (user % 5))


def main(url: str, directory: str, which: str = "") -> None:
    from tests.tidelog.spark.sparkkit import new_session

    spark, place = new_session(), where(url, directory)
    with ExitStack() as ends:
        runners = [ends.enter_context(running(spark, job, place)) for job in (split, tallied)[: 2 if which else 1]]
        while all(runner.poll().error is None for runner in runners):
            time.sleep(0.05)
        raise SystemExit(f"{[runner.poll().error for runner in runners]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
