"""The sink in a cluster of two groups: each batch is written exactly once to all groups, whatever is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.spark.sparkkit import QUERY_SECONDS, ROOT, ended
from tests.waiting import eventually
from tidelog import Client
from tidelog.client.dividedcommit import CommitMarker, DividedCommit, DividedStager
from tidelog.client.publish import StagedRows
from tidelog.client.steps import Steps
from tidelog.transport.slots import slot_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark.sql.types import LongType, StructField, StructType

from tidelog.spark.options import for_sink
from tidelog.spark.optionvalues import STREAM, OptionValues
from tidelog.spark.sink import Staged, TidelogStreamWriter, publisher

A, B = keys_of_both(8)
ROWS = 100
STEPS = ("9", "11")  # before the decision, and between it and the publication


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with cluster() as servers:
        groups = Groups(servers)
        with Client(url_of(groups)) as client:
            client.tmappend("in", ["n"], [(n,) for n in range(ROWS)])
        yield groups


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    with Client(url_of(groups)) as client:
        yield client


def url_of(groups: Groups) -> str:
    return f"redis://127.0.0.1:{groups.nodes[0].port}"


def start(
    spark: SparkSession, url: str, checkpoint: str, columns: str = "n", pieces: int = 2, **options: Any
) -> StreamingQuery:  # fmt: skip
    """Copy the stream ``in``, 50 entries a batch."""
    reader = spark.readStream.format("tidelog").schema("n long").option("url", url).option("subscribe", "in")
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 50)
    reader = reader.option("fetchOffset.retryIntervalMs", "100").option("fetchOffset.numRetries", "600")
    frame = reader.option("minPartitions", pieces).load().selectExpr(*columns.split("|"))
    writer = frame.writeStream.format("tidelog").option("url", url).options(**options)
    writer = writer.option("fetchOffset.retryIntervalMs", "100").option("fetchOffset.numRetries", "600")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def topic(name: str) -> dict[str, Any]:
    assert {slot_of(f"{name}:{at}") // 8192 for at in range(4)} == {0, 1}
    return {"topic": name, "partitions": 4, "partitionBy": "n"}


def written(client: Client, *keys: str) -> Counter[int]:
    return Counter(int(entry["n"]) for key in keys for entry in client.trange(key))


def of_topic(client: Client, name: str) -> Counter[int]:
    return written(client, *[f"{name}:{at}" for at in range(4)])


def stages(groups: Groups) -> int:
    return sum(int(node.redis.info("streams")["stages"]) for node in groups.nodes)


def test_a_topic_and_streams_on_both_groups(
    spark: SparkSession, groups: Groups, client: Client, tmp_path: Path
) -> None:
    ended(start(spark, url_of(groups), str(tmp_path / "topic"), **topic("out")))
    assert of_topic(client, "out") == Counter(range(ROWS))
    named = f"n|if(n % 2 = 0, '{A[0]}', '{B[0]}') as _key"
    ended(start(spark, url_of(groups), str(tmp_path / "named"), columns=named))
    assert [written(client, key) for key in (A[0], B[0])] == [Counter(range(0, ROWS, 2)), Counter(range(1, ROWS, 2))]
    assert [int(entry["n"]) for entry in client.trange(A[0])] == list(range(0, ROWS, 2)), "in order"
    ended(start(spark, url_of(groups), str(tmp_path / "one"), key=B[1], maxlen=20))
    assert written(client, B[1]) == Counter(range(ROWS - 20, ROWS))
    assert stages(groups) == 0


@pytest.mark.long(short=True)
def test_the_driver_is_killed_between_steps(
    spark: SparkSession, groups: Groups, client: Client, tmp_path: Path
) -> None:
    names = [f"step{step}" for step in STEPS]
    pauses = tmp_path / "pauses"
    pauses.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.tidelog.spark.clusterdriver", url_of(groups), str(tmp_path), ",".join(STEPS)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TIDELOG_TEST_PAUSES": str(pauses)},
        cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(
            lambda: driver.poll() is not None or len(list(pauses.iterdir())) == len(STEPS), seconds=QUERY_SECONDS
        )  # fmt: skip
        assert driver.poll() is None, "the driver ended"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # with its JVM
        driver.wait()
    assert [of_topic(client, name).total() for name in names] == [50] * len(names)
    for name in names:  # the unfinished batch is run again, with other tasks than before
        ended(start(spark, url_of(groups), str(tmp_path / name), pieces=3, **topic(name)))
        assert of_topic(client, name) == Counter(range(ROWS))


def test_a_leader_is_killed_again_and_again(spark: SparkSession, groups: Groups, checkpoint: str) -> None:
    query = start(spark, url_of(groups), checkpoint, **topic("killed"))
    try:
        for node in groups.nodes * 4:
            if query.isActive:  # what is killed after the end shows nothing
                node.kill()
                node.start()
                groups.agree()
        ended(query)
    finally:
        query.stop()
    with Client(url_of(groups)) as client:
        assert of_topic(client, "killed") == Counter(range(ROWS))


def test_batch_writes(spark: SparkSession, groups: Groups, client: Client) -> None:
    """Each batch write is published once; the writes of one machine share a fence."""
    frame = spark.range(40).selectExpr("id as n", f"if(id % 2 = 0, '{A[2]}', '{B[2]}') as _key")
    writer = frame.write.format("tidelog").mode("append").option("url", url_of(groups))
    writer.save()
    writer.save()
    assert written(client, A[2], B[2]) == Counter(2 * list(range(40)))
    fence = f"spark-tidelog-sink:jobs:{socket.gethostname()}:0"
    assert client.tfence(fence) == 2
    once = writer.option("txnAppId", "app").option("txnVersion", 7)
    once.save()
    once.save()
    writer.option("txnVersion", 6).save()  # an earlier version is skipped
    assert written(client, A[2], B[2]) == Counter(3 * list(range(40)))
    other = frame.where("n < 20").write.format("tidelog").mode("append").option("url", url_of(groups))
    with pytest.raises(Exception, match="was published before with 40 rows, now it has 20"):
        other.option("txnAppId", "app").option("txnVersion", 7).save()
    assert written(client, A[2], B[2]) == Counter(3 * list(range(40)))


def test_a_batch_in_foreach_batch(spark: SparkSession, groups: Groups, client: Client, tmp_path: Path) -> None:
    def write(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("tidelog").mode("append").option("url", url_of(groups)).options(**topic("each"))
        for _ in range(2):
            writer.option("txnAppId", "each").option("txnVersion", batch).save()

    reader = spark.readStream.format("tidelog").schema("n long").option("url", url_of(groups)).option("subscribe", "in")
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 50).load()
    ended(
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert of_topic(client, "each") == Counter(range(ROWS))


def test_a_commit_that_failed_after_its_decision_is_completed(groups: Groups, client: Client) -> None:
    """Spark calls abort() when commit() raises. The decided rows must remain: the next run publishes them."""
    sink = for_sink(OptionValues({"url": url_of(groups), "key": A[3], "fetchOffset.numRetries": "0"}), STREAM)
    stager = DividedStager(sink.access, "test", sink.name(), "q", sink.stage_ttl_ms)
    stager.stage([StagedRows(key.encode(), (b"n",), 1, b"$1\r\n7\r\n") for key in (A[3], B[3])])
    stager.close()
    done = [Staged("q", 0, (), {A[3].encode(): 1, B[3].encode(): 1}, stager.stages)]
    writer = TidelogStreamWriter(sink, StructType([StructField("n", LongType())]))
    fence = sink.name("query", "q")
    commit = DividedCommit(sink.name(), fence)

    def failing(last: CommitMarker) -> Steps[None]:
        raise ConnectionError("a leader is away")
        yield []

    commit._publish = failing  # type: ignore[method-assign]
    with publisher(sink) as by:
        with pytest.raises(ConnectionError):
            by.run(commit.commit(0, "c", done[0].divided))
        writer.abort(done, 0)
        by.run(DividedCommit(sink.name(), fence).recover())
    assert written(client, A[3], B[3]) == Counter({7: 2})


def test_the_rows_of_a_failed_batch_are_dropped(groups: Groups) -> None:
    sink = for_sink(OptionValues({"url": url_of(groups), "key": A[4]}), STREAM)
    before = stages(groups)
    stager = DividedStager(sink.access, "test", sink.name(), "q", sink.stage_ttl_ms)
    stager.stage([StagedRows(key.encode(), (b"n",), 1, b"$1\r\n7\r\n") for key in (A[4], B[4])])
    stager.close()
    assert stages(groups) == before + 2
    writer = TidelogStreamWriter(sink, StructType([StructField("n", LongType())]))
    writer.abort([Staged("q", 0, (), {}, stager.stages), None], 0)
    assert stages(groups) == before
