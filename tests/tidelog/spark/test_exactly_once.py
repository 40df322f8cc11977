"""Streaming writes: each batch is written once, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import ROOT, ended
from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 100  # seconds

pytestmark = pytest.mark.timeout(300)  # JVMs that begin cold


def fill(client: Client, numbers: range) -> None:
    client.tmappend("in", ["n"], [(n,) for n in numbers])


def written(client: Client, key: str = "out") -> Counter[int]:
    return Counter(int(entry["n"]) for entry in client.trange(key))


def once(numbers: range) -> Counter[int]:
    return Counter(numbers)


def start(
    spark: SparkSession, url: str, checkpoint: str, name: str = "tidelog", pieces: int = 3,
    key: str = "out", kind: str = "key", **options: Any,
) -> StreamingQuery:  # fmt: skip
    """Copy the stream ``in`` to the stream ``key``, or the topic, as ``kind`` says, 100 entries a batch."""
    reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
    frame = reader.option("minPartitions", pieces).option("fetchOffset.numRetries", 60).load()
    writer = frame.writeStream.format(name).option("url", url).option(kind, key).options(**options)
    writer = writer.option("checkpointLocation", checkpoint).option("fetchOffset.numRetries", 60)
    return writer.trigger(availableNow=True).start()


def test_appending(spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str) -> None:
    fill(client, range(250))
    ended(start(spark, tidelog_server.url, checkpoint))
    assert written(client) == once(range(250))
    fill(client, range(250, 300))
    ended(start(spark, tidelog_server.url, checkpoint, maxlen="40"))
    assert written(client) == once(range(260, 300))
    assert client.redis.info("streams")["stages"] == 0


@pytest.mark.parametrize("kind", ["key", "topic"])
def test_the_driver_is_killed_before_and_after_publishing(
    spark: SparkSession, client: Client, tidelog_server: Server, tmp_path: Path, kind: str
) -> None:
    def there(name: str) -> Counter[int]:
        keys = [name] if kind == "key" else [f"{name}:{at}" for at in range(4)]
        return sum((written(client, key) for key in keys), Counter())

    fill(client, range(300))
    pauses = tmp_path / "pauses"
    pauses.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.tidelog.spark.driver", tidelog_server.url, str(tmp_path), kind],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_TEST_PAUSES": str(pauses)},
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 2 * PATIENCE
        while len(list(pauses.iterdir())) < 2:
            assert driver.poll() is None, "the driver ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # with its JVM
        driver.wait()
    assert (there("before").total(), there("after").total()) == (100, 200)
    for key in ("before", "after"):
        # The unfinished batch is run again, with other partitions than before.
        ended(start(spark, tidelog_server.url, str(tmp_path / key), pieces=7, key=key, kind=kind))
        assert there(key) == once(range(300))


def test_a_task_fails_after_it_has_staged(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    from tests.tidelog.spark.faulty import FailingSource

    spark.dataSource.register(FailingSource)
    fill(client, range(250))
    ended(start(spark, tidelog_server.url, checkpoint, "tidelog_failing"))
    assert written(client) == once(range(250))


def test_the_server_is_killed_again_and_again(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    fill(client, range(500))
    options: dict[str, Any] = {"fetchOffset.retryIntervalMs": "200"}
    query = start(spark, tidelog_server.url, checkpoint, **options)
    done = threading.Event()
    kills = []

    def disturb() -> None:
        while not done.wait(1.2):
            tidelog_server.kill()
            tidelog_server.start()
            kills.append(time.monotonic())

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        ended(query)
    finally:
        done.set()
        disturber.join()
    assert len(kills) > 1
    with tidelog_server.client() as again:
        assert written(again) == once(range(500))


def test_an_older_state_of_the_checkpoint_fails_the_query(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str, tmp_path: Path
) -> None:
    import shutil

    fill(client, range(100))
    ended(start(spark, tidelog_server.url, checkpoint))
    older = str(tmp_path / "older")
    shutil.copytree(checkpoint, older)
    fill(client, range(100, 300))
    ended(start(spark, tidelog_server.url, checkpoint))
    query = start(spark, tidelog_server.url, older)
    with pytest.raises(Exception, match="comes after a later one was published"):
        ended(query)
    assert written(client) == once(range(300))


def forget(checkpoint: str, folder: str, batch: int) -> None:
    """Remove what a checkpoint says of a batch."""
    for name in (f"{batch}", f".{batch}.crc"):
        (Path(checkpoint) / folder / name).unlink()


@pytest.mark.parametrize(
    ("check", "message"),
    [("auto", "Spark has planned it anew since"), ("rows", "was published before with 10 rows, now it has 20")],
)
def test_a_checkpoint_that_goes_back_by_one_batch_fails_the_query(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str, check: str, message: str
) -> None:
    def run(check: str = check) -> None:
        ended(start(spark, tidelog_server.url, checkpoint, fenceCheck=check))

    for begin in (0, 10):
        fill(client, range(begin, begin + 10))
        run()
    for folder in ("offsets", "commits"):
        forget(checkpoint, folder, 1)
    fill(client, range(20, 30))
    for _ in range(2):
        with pytest.raises(Exception, match=f"batch 1 of query .* {message}"):
            run()
        assert written(client) == once(range(20))
    fill(client, range(30, 40))
    run("none")  # what the message offers: the batch is skipped
    assert written(client) == once(range(20)) + once(range(30, 40))


def test_a_batch_that_is_run_again_is_skipped_by_each_check(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    total = 0
    for check in ("auto", "offsets", "rows", "none"):
        fill(client, range(total, total + 10))
        total += 10
        ended(start(spark, tidelog_server.url, checkpoint, fenceCheck=check))
        last = max(int(file.name) for file in (Path(checkpoint) / "commits").glob("[0-9]*"))
        forget(checkpoint, "commits", last)  # as if the driver had died after publishing
        ended(start(spark, tidelog_server.url, checkpoint, pieces=5, fenceCheck=check))
        assert written(client) == once(range(total))


def test_complete_mode_appends_the_whole_result(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    fill(client, range(150))
    url = tidelog_server.url
    reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).load()
    counts = frame.selectExpr("n % 2 as parity").groupBy("parity").count()
    writer = counts.writeStream.format("tidelog").option("url", url).option("key", "out").outputMode("complete")
    ended(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    rows = [entry.text() for entry in client.trange("out")]
    assert Counter(int(row["count"]) for row in rows) == Counter([50, 50, 75, 75])


def test_for_each_batch_with_a_version(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    fill(client, range(250))
    url = tidelog_server.url
    failed: list[int] = []

    def write(frame: Any, batch: int) -> None:
        writer = frame.write.format("tidelog").mode("append").option("url", url).option("key", "out")
        writer.option("txnAppId", "copy").option("txnVersion", batch).save()
        if batch == 1 and not failed:
            failed.append(batch)
            raise RuntimeError("as asked for")

    def run() -> None:
        reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
        frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        ended(writer.trigger(availableNow=True).start())

    with pytest.raises(Exception, match="as asked for"):
        run()
    run()
    assert written(client) == once(range(250))


def test_one_version_for_two_streams(
    spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str
) -> None:
    fill(client, range(250))
    url = tidelog_server.url
    failed: list[int] = []

    def write(frame: Any, batch: int) -> None:
        frames = {"out": frame, "double": frame.selectExpr("n * 2 as n"), "": frame.selectExpr("'each' as _key", "n")}
        for key, rows in frames.items():
            writer = rows.write.format("tidelog").mode("append").option("url", url)
            writer = writer.option("key", key) if key else writer
            writer.option("txnAppId", "copy").option("txnVersion", batch).save()
            if batch == 1 and key == "double" and not failed:
                failed.append(batch)
                raise RuntimeError("as asked for")

    def run() -> None:
        reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
        frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100).load()
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        ended(writer.trigger(availableNow=True).start())

    with pytest.raises(Exception, match="as asked for"):
        run()
    run()
    assert written(client) == written(client, "each") == once(range(250))
    assert written(client, "double") == once(range(0, 500, 2))
