"""Topics as a source: all partitions, those that are added while a query runs, and topics that are made anew."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.tidelog.spark.sparkkit import ended
from tests.waiting import eventually
from tidelog import Client, StreamId
from tidelog.spark import topicread
from tidelog.testing import Server
from tidelog.topics import Topic, admin, partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    Load = Callable[..., DataFrame]

SCHEMA = "_partition int, id long, item string, _key string"


class Order(msgspec.Struct):
    id: int
    item: str | None = None


def orders(server: Server, **options: Any) -> Topic[Order]:
    topic: Topic[Order] = Topic("orders", Order, **({"partition_by": "id"} | options), url=server.url)
    topic.sync.ready()
    return topic


@pytest.fixture
def topic(tidelog_server: Server) -> Iterator[Topic[Order]]:
    topic = orders(tidelog_server, partitions=4)
    yield topic
    topic.sync.close()


def send(topic: Topic[Order], *ids: int) -> None:
    topic.sync.send_many(Order(id, f"item {id}") for id in ids)  # noqa: A001


class TestBatch:
    def test_all_partitions_with_typed_columns(self, load: Load, topic: Topic[Order]) -> None:
        assert load(SCHEMA, topic="orders").collect() == []
        send(topic, *range(200))
        rows = load(SCHEMA, topic="orders").collect()
        assert sorted(map(tuple, rows)) == sorted(
            (partition_of(n, 4), n, f"item {n}", f"orders:{partition_of(n, 4)}") for n in range(200)
        )
        for at in range(4):
            ids = [row["id"] for row in rows if row["_partition"] == at]
            assert ids == sorted(ids)

    def test_the_default_row_and_a_copy_to_another_topic(
        self, load: Load, topic: Topic[Order], client: Client, tidelog_server: Server
    ) -> None:
        send(topic, *range(20))
        frame = load(topic="orders")
        assert frame.columns == ["_key", "_id", "_ts", "_partition", "fields"]
        for row in frame.collect():
            assert row["_partition"] == partition_of(int(row["fields"]["id"]), 4)
        typed = load(SCHEMA, topic="orders").write.format("tidelog").mode("append").option("url", tidelog_server.url)
        typed.option("topic", "copy").option("partitions", 3).option("partitionBy", "id").save()
        copied: Topic[Order] = Topic("copy", Order, partition_by="id", url=tidelog_server.url)
        assert copied.sync.ready().fields == {"id": "int", "item": "str"}
        found = [(at, copied.decode(entry, at).id) for at in range(3) for entry in client.trange(f"copy:{at}")]
        assert sorted(found) == sorted((partition_of(n, 3), n) for n in range(20))
        copied.sync.close()

    def test_where_to_begin_is_said_by_partition(self, load: Load, topic: Topic[Order], client: Client) -> None:
        send(topic, *range(100))
        one = client.trange("orders:1")
        begin = json.dumps({"orders:1": str(one[5].id)})
        rows = load(SCHEMA, topic="orders", startingOffsets=begin).collect()
        assert Counter(row["_partition"] for row in rows)[1] == len(one) - 5
        assert len(rows) == 95
        with pytest.raises(Exception, match="startingOffsets names key 'orders', which is no partition of the topic"):
            load(SCHEMA, topic="orders", startingOffsets=json.dumps({"orders": "1.0"})).collect()

    def test_packed_topics_have_one_column(self, load: Load, tidelog_server: Server) -> None:
        packed = orders(tidelog_server, partitions=2, codec="json")
        send(packed, 1, 2, 3)
        frame = load("_partition int, data string", topic="orders")
        rows = frame.selectExpr("from_json(data, 'id long, item string') as order", "_partition").collect()
        assert sorted((row["order"]["id"], row["_partition"]) for row in rows) == [
            (n, partition_of(n, 2)) for n in (1, 2, 3)
        ]
        with pytest.raises(Exception, match="there is a column id, and entries of topic 'orders' have one field, data"):
            load(SCHEMA, topic="orders").collect()
        packed.sync.close()

    @pytest.mark.parametrize(
        ("schema", "options", "message"),
        [
            (SCHEMA, {"topic": "none"}, r"topic names what is no topic here: 'none' \(failOnMissing=false"),
            (None, {"topic": "a b"}, "a name has 1 to 200 characters"),
            (None, {"topic": "orders", "subscribe": "a"}, "subscribe and topic contradict each other"),
            (None, {"topic": "orders", "partitionBy": "id"}, "partitionBy is an option of the sink"),
            ("_partition long", {"topic": "orders"}, "column _partition is bigint, .*: _partition is int"),
        ],
    )
    def test_what_cannot_be_read(
        self, load: Load, topic: Topic[Order], schema: str | None, options: dict[str, str], message: str
    ) -> None:
        send(topic, 1, 2, 3)
        with pytest.raises(Exception, match=message):
            load(schema, **options).collect()

    def test_a_topic_that_need_not_exist(self, load: Load, tidelog_server: Server) -> None:
        assert load(SCHEMA, topic="none", failOnMissing="false").collect() == []

    def test_a_field_of_a_stream_may_be_called_so(self, load: Load, client: Client) -> None:
        client.tappend("a", {"_partition": 7})
        assert load("_partition int", subscribe="a").collect()[0][0] == 7


class Job:
    """A query over topic ``orders``, and the (partition, id) that it has read, across restarts."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: str) -> None:
        self.spark = spark
        self.url = url
        self.checkpoint = checkpoint
        self.got: list[tuple[int, int]] = []
        self.query: StreamingQuery | None = None

    def start(self, now: bool = False, **options: str) -> StreamingQuery:
        settings = {"url": self.url, "topic": "orders", "startingOffsets": "earliest"} | options
        frame = self.spark.readStream.format("tidelog").schema(SCHEMA).options(**settings).load()
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", self.checkpoint)
        self.query = (writer.trigger(availableNow=True) if now else writer).start()
        return self.query

    def run(self, **options: str) -> list[tuple[int, int]]:
        """Read everything there is; returns what was read in this run."""
        before = len(self.got)
        ended(self.start(now=True, **options))
        return sorted(self.got[before:])

    def _take(self, frame: DataFrame, _: int) -> None:
        self.got += [(row["_partition"], row["id"]) for row in frame.collect()]


@pytest.fixture
def job(spark: SparkSession, tidelog_server: Server, checkpoint: str) -> Iterator[Job]:
    job = Job(spark, tidelog_server.url, checkpoint)
    yield job
    if job.query is not None:
        job.query.stop()


def placed(partitions: int, *ids: int) -> list[tuple[int, int]]:
    return sorted((partition_of(id, partitions), id) for id in ids)  # noqa: A001


class TestStreaming:
    def test_a_topic_that_grows_while_it_is_read(
        self, job: Job, topic: Topic[Order], client: Client, tidelog_server: Server
    ) -> None:
        send(topic, *range(20))
        job.start()
        eventually(lambda: sorted(job.got) == placed(4, *range(20)))
        admin.grow(client, "orders", 8)
        grown = orders(tidelog_server)
        send(grown, *range(100, 140))
        eventually(lambda: sorted(job.got) == sorted(placed(4, *range(20)) + placed(8, *range(100, 140))))
        grown.sync.close()

    def test_what_a_restart_reads(self, job: Job, topic: Topic[Order], client: Client, tidelog_server: Server) -> None:
        send(topic, *range(20))
        assert job.run() == placed(4, *range(20))
        assert job.run() == []
        send(topic, 20, 21)
        admin.grow(client, "orders", 8)
        grown = orders(tidelog_server)
        send(grown, *range(30, 60))
        assert job.run() == sorted(placed(4, 20, 21) + placed(8, *range(30, 60)))
        grown.sync.close()

    def test_a_topic_that_was_deleted_and_made_anew(
        self, job: Job, topic: Topic[Order], client: Client, tidelog_server: Server, tmp_path: Path
    ) -> None:
        send(topic, *range(20))
        job.run()
        admin.delete(client, "orders")
        with pytest.raises(Exception, match=r"topic 'orders' was deleted \(its ID was \w+\).*Start with a new"):
            job.run()
        again = orders(tidelog_server, partitions=4)
        send(again, *range(100, 120))
        with pytest.raises(Exception, match=r"topic 'orders' was deleted and made anew: .*Start with a new"):
            job.run()
        assert len(job.got) == 20
        job.run(failOnDataLoss="false")
        assert set(job.got) == {*placed(4, *range(20)), *placed(4, *range(100, 120))}
        send(again, 200)
        assert job.run() == placed(4, 200)
        job.checkpoint = str(tmp_path / "another")
        assert job.run() == placed(4, *range(100, 120), 200)
        again.sync.close()

    def test_a_topic_that_is_replaced_while_it_is_read(
        self, job: Job, topic: Topic[Order], client: Client, tidelog_server: Server
    ) -> None:
        send(topic, *range(20))
        query = job.start()
        eventually(lambda: len(job.got) == 20)
        admin.delete(client, "orders")
        again = orders(tidelog_server, partitions=4)
        send(again, *range(100, 120))
        with pytest.raises(Exception, match="topic 'orders' was deleted"):
            ended(query)
        assert len(job.got) == 20
        again.sync.close()

    def test_a_topic_that_is_replaced_while_an_offset_is_made(
        self, topic: Topic[Order], client: Client, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next question notices it: an offset never has the mark of a topic that was not compared."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable
        from pyspark.sql.types import StructType

        from tidelog.spark.offsets import Offsets, TopicChangedError
        from tidelog.spark.source import TidelogDataSource

        monkeypatch.setattr(topicread, "FACTS_FOR", 0.0)
        given = {"url": tidelog_server.url, "topic": "orders", "startingOffsets": "earliest"}
        reader = TidelogDataSource(given).streamReader(StructType().add("id", "long"))
        lasts = Offsets.lasts

        def replaced(offsets: Offsets, fresh: bool = False) -> dict[str, StreamId]:
            monkeypatch.setattr(Offsets, "lasts", lasts)
            admin.delete(client, "orders")
            orders(tidelog_server, partitions=4).sync.close()
            return offsets.lasts(fresh)

        monkeypatch.setattr(Offsets, "lasts", replaced)
        try:
            offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            with pytest.raises(TopicChangedError, match="topic 'orders' was deleted and made anew"):
                reader.latestOffset(offset, ReadAllAvailable())
        finally:
            reader.stop()

    def test_a_topic_that_is_made_later(self, job: Job, tidelog_server: Server) -> None:
        with pytest.raises(Exception, match="topic names what is no topic here: 'orders'"):
            job.run()
        query = job.start(failOnMissing="false")
        eventually(lambda: query.lastProgress)
        made = orders(tidelog_server, partitions=2)
        send(made, *range(10))
        eventually(lambda: sorted(job.got) == placed(2, *range(10)))
        made.sync.close()

    def test_limits_and_lag_count_all_partitions(self, spark: SparkSession, job: Job, topic: Topic[Order]) -> None:
        from tidelog.spark.lag import Lag

        send(topic, *range(100))
        lag = Lag(url=job.url)
        query = job.start(now=True, maxOffsetsPerTrigger="40")
        ended(query)
        assert sorted(job.got) == placed(4, *range(100))
        sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        assert sizes == [40, 40, 20]
        behind = lag.count(query.recentProgress[0])
        lag.close()
        assert set(behind) == {f"orders:{at}" for at in range(4)}
        assert sum(behind.values()) == 60
