"""Streaming reads: triggers, limits, restarts, new keys, losses."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import ended
from tests.waiting import eventually
from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Job:
    """A query, and the numbers that it has read, across restarts."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: str) -> None:
        self.spark = spark
        self.url = url
        self.checkpoint = checkpoint
        self.got: list[int] = []
        self.batches: dict[int, list[int]] = {}  # by batch ID
        self.fails: list[int] = []  # IDs of batches that are to fail once, after they were read
        self.query: StreamingQuery | None = None

    def start(self, now: bool = False, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        """``now``: the trigger availableNow. None for an option removes a default of this method."""
        defaults = {"url": self.url, "subscribe": "a", "startingOffsets": "earliest"}
        if "subscribePattern" in options:
            del defaults["subscribe"]
        options = {name: str(value) for name, value in (defaults | options).items() if value is not None}
        frame = self.spark.readStream.format("tidelog").schema("_key string, n int").options(**options).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self.checkpoint)
        trigger = {"availableNow": True} if now else trigger
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self.query

    def run(self, **options: Any) -> list[int]:
        """Read everything there is; returns the numbers read in this run."""
        before = len(self.got)
        ended(self.start(now=True, **options))
        return self.got[before:]

    def _take(self, frame: DataFrame, batch: int) -> None:
        numbers = [row["n"] for row in frame.collect()]
        if batch in self.fails:
            self.fails.remove(batch)
            raise RuntimeError("as asked for")
        self.batches[batch] = numbers
        self.got += numbers

    def sizes(self) -> list[int]:
        return [len(numbers) for numbers in self.batches.values() if numbers]

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def job(spark: SparkSession, tidelog_server: Server, checkpoint: str) -> Iterator[Job]:
    job = Job(spark, tidelog_server.url, checkpoint)
    yield job
    job.stop()


def append(client: Client, key: str, *numbers: int) -> str:
    """Append one entry a number; returns the last ID."""
    return str(client.tmappend(key, ["n"], [(number,) for number in numbers]).last)


def test_following(job: Job, client: Client) -> None:
    append(client, "a", 1, 2, 3)
    job.start()
    eventually(lambda: job.got == [1, 2, 3])
    append(client, "a", 4)
    eventually(lambda: job.got == [1, 2, 3, 4])
    append(client, "a", 5, 6)
    eventually(lambda: job.got == [1, 2, 3, 4, 5, 6])
    assert job.query is not None
    eventually(lambda: job.query and job.query.lastProgress and job.query.lastProgress.sources[0].latestOffset)


def test_latest_is_the_default(spark: SparkSession, job: Job, client: Client) -> None:
    append(client, "a", 1, 2, 3)
    job.start(startingOffsets=None)
    eventually(lambda: job.query and job.query.lastProgress)
    append(client, "a", 4)
    eventually(lambda: job.got == [4])


def test_available_now_ends_and_continues_where_it_was(job: Job, client: Client) -> None:
    append(client, "a", *range(5))
    assert job.run() == [0, 1, 2, 3, 4]
    assert job.run() == []
    append(client, "a", 5, 6)
    assert job.run() == [5, 6]


def test_once_and_processing_time(job: Job, client: Client) -> None:
    append(client, "a", *range(5))
    ended(job.start(trigger={"once": True}, maxOffsetsPerTrigger=2))
    assert job.sizes() == [5]  # the trigger once ignores the limit
    append(client, "a", *range(5, 8))
    job.start(trigger={"processingTime": "100 milliseconds"}, maxOffsetsPerTrigger=2)
    eventually(lambda: job.got == list(range(8)))
    assert job.sizes() == [5, 2, 1]


def test_at_most_so_many_entries_in_a_batch(job: Job, client: Client) -> None:
    append(client, "a", *range(100))
    append(client, "b", *range(1000, 1010))
    append(client, "c", 2000)
    got = job.run(subscribe="a,b,c", maxOffsetsPerTrigger=30)
    assert Counter(got) == Counter([*range(100), *range(1000, 1010), 2000])
    assert job.sizes() == [30, 30, 30, 21]
    assert 2000 in job.batches[0]  # every stream gets at least one
    assert any(number in job.batches[0] for number in range(1000, 1010))


def test_about_so_many_bytes_in_a_batch(job: Job, client: Client) -> None:
    for key, size in (("a", 40), ("b", 10)):
        client.tmappend(key, ["n", "text"], [(number, "x" * size) for number in range(100)])
    got = job.run(subscribe="a,b", maxBytesPerTrigger=1800)  # some 47 and 17 bytes an entry: 6,400 in all
    assert Counter(got) == Counter([*range(100)] * 2)
    assert 3 <= len(job.sizes()) <= 6
    append(client, "a", *range(50))
    job.batches.clear()
    job.run(subscribe="a,b", maxBytesPerTrigger=10**9, maxOffsetsPerTrigger=20)
    assert job.sizes() == [20, 20, 10]


def test_fewer_entries_in_a_batch_than_streams(job: Job, client: Client) -> None:
    for number in range(6):
        append(client, f"s{number}", number, number + 10)
    got = job.run(subscribePattern="s.", maxOffsetsPerTrigger=2)
    assert Counter(got) == Counter([*range(6), *range(10, 16)])
    assert set(job.sizes()) == {2}


def test_at_least_so_many_entries_in_a_batch_unless_that_takes_too_long(job: Job, client: Client) -> None:
    append(client, "a", 1)
    job.start(minOffsetsPerTrigger=5, maxTriggerDelay="3s")
    eventually(lambda: job.got == [1])  # the first batch does not wait, as in Kafka's source
    append(client, "a", 2)
    asked = time.monotonic()
    append(client, "a", 3, 4, 5, 6)
    eventually(lambda: len(job.got) == 6)
    assert time.monotonic() - asked < 2.5
    append(client, "a", 7)
    eventually(lambda: len(job.got) == 7)
    assert 7 in list(job.batches.values())[-1]
    assert time.monotonic() - asked > 2.5


def test_a_failed_batch_is_read_again_with_the_same_entries(job: Job, client: Client) -> None:
    append(client, "a", *range(10))
    job.fails = [1]
    query = job.start(now=True, maxOffsetsPerTrigger=4, minPartitions=3)
    with pytest.raises(Exception, match="as asked for"):
        ended(query)
    append(client, "a", *range(10, 20))
    job.run(maxOffsetsPerTrigger=100)
    assert job.batches == {0: [0, 1, 2, 3], 1: [4, 5, 6, 7], 2: list(range(8, 20))}


def test_new_keys_of_a_pattern_from_their_beginning(job: Job, client: Client) -> None:
    append(client, "t:1", 1, 2)
    query = job.start(subscribePattern="t:.*", startingOffsets="latest")
    eventually(lambda: query.lastProgress)
    append(client, "t:2", 3, 4)
    append(client, "u:2", 99)
    eventually(lambda: Counter(job.got) == Counter([3, 4]))
    append(client, "t:1", 5)
    eventually(lambda: Counter(job.got) == Counter([3, 4, 5]))
    query.processAllAvailable()  # until the batch is in the checkpoint: otherwise it would be read again
    job.stop()
    append(client, "t:3", 6)
    assert job.run(subscribePattern="t:.*", startingOffsets="latest") == [6]


def test_keys_that_come_and_go_in_subscribe(job: Job, client: Client) -> None:
    append(client, "a", 1)
    append(client, "b", 2)
    assert job.run(subscribe="a") == [1]
    assert job.run(subscribe="a,b") == [2]
    append(client, "a", 3)
    append(client, "b", 4)
    assert job.run(subscribe="b") == [4]
    assert job.run(subscribe="a,b") == [3]


def test_the_server_is_killed_under_a_running_query(job: Job, client: Client, tidelog_server: Server) -> None:
    append(client, "a", *range(1000))
    options: dict[str, Any] = {"fetchOffset.numRetries": 40, "fetchOffset.retryIntervalMs": 250}
    query = job.start(maxOffsetsPerTrigger=100, **options)
    eventually(lambda: len(job.got) >= 200)
    tidelog_server.kill()
    time.sleep(0.3)
    tidelog_server.start()
    with tidelog_server.client() as again:
        append(again, "a", *range(1000, 1500))
    eventually(lambda: len(job.got) >= 1500)
    assert query.isActive
    assert job.got == list(range(1500))


# -- losses -------------------------------------------------------------------------------------------------------
def lose(client: Client, how: str) -> None:
    """Lose what the job would read next."""
    match how:
        case "evicted":
            append(client, "a", *range(10, 20))
            client.ttrim("a", count=5)
        case "deleted":
            client.redis.delete("a")
        case "deleted and filled again":
            client.redis.delete("a")
            append(client, "a", *range(15, 20))
        case "shorter than before":
            client.redis.delete("a")
            client.tread("a", "0", 0, group="g")  # an empty stream, whose last ID is 0.0


@pytest.mark.parametrize("how", ["evicted", "deleted", "deleted and filled again", "shorter than before"])
def test_data_loss_fails_the_query_or_is_skipped(job: Job, client: Client, how: str) -> None:
    last = append(client, "a", *range(10))
    job.run()
    lose(client, how)
    query = job.start(now=True)
    with pytest.raises(Exception, match="data loss in stream 'a'") as error:
        ended(query)
    text = str(error.value)
    assert how in text
    assert f"what follows ID {last} was wanted" in text
    assert "failOnDataLoss=false" in text
    if how == "evicted":
        assert f"the first ID there is {client.trange('a', count=1)[0].id}" in text
    assert job.got == list(range(10))
    there = [int(entry["n"]) for entry in client.trange("a")]
    assert job.run(failOnDataLoss="false") == there
    append(client, "a", 30)
    assert job.run(failOnDataLoss="false") == [30]


def test_a_key_of_a_pattern_is_deleted(job: Job, client: Client) -> None:
    append(client, "t:1", 1)
    append(client, "t:2", 2)
    job.run(subscribePattern="t:.*")
    client.redis.delete("t:1")
    query = job.start(now=True, subscribePattern="t:.*")
    with pytest.raises(Exception, match="data loss in stream 't:1': it was deleted"):
        ended(query)
    append(client, "t:2", 3)
    assert job.run(subscribePattern="t:.*", failOnDataLoss="false") == [3]


def test_what_the_checkpoint_holds(job: Job, client: Client, checkpoint: str) -> None:
    last = append(client, "a", 1, 2)
    job.run()
    with open(f"{checkpoint}/offsets/0") as file:
        assert json.loads(file.read().splitlines()[-1]) == {"a": last}


def test_how_far_a_query_is_behind(
    spark: SparkSession, job: Job, client: Client, tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    from tidelog.spark.lag import Lag

    reports: list[dict[str, int]] = []

    class Watched(Lag):
        def report(self, query: str, name: str | None, behind: Any) -> None:
            reports.append(dict(behind))

    lag = Watched(url=tidelog_server.url)
    spark.streams.addListener(lag)
    try:
        append(client, "a", *range(50))
        job.start(trigger={"processingTime": "100 milliseconds"}, maxOffsetsPerTrigger=20)
        eventually(lambda: len(reports) >= 3)
        assert reports[:3] == [{"a": 30}, {"a": 10}, {"a": 0}]
        assert job.query is not None
        assert lag.behind[job.query.id] == {"a": 0}
        tidelog_server.stop()
        job.stop()
        eventually(lambda: not lag.behind)
    finally:
        spark.streams.removeListener(lag)


def test_a_stream_that_does_not_exist_yet(job: Job, client: Client) -> None:
    job.start()
    eventually(lambda: job.query and job.query.lastProgress)
    append(client, "a", 1)
    eventually(lambda: job.got == [1])
    assert job.query is not None
    job.query.stop()
    job.checkpoint += "2"
    with pytest.raises(Exception, match="subscribe names what is no stream here: 'b'"):
        ended(job.start(subscribe="a,b", failOnMissing="true"))
