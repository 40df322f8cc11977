"""Spark's source and sink run with exactly the rights that docs/acl.md says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tests.tidelog.rightskit import granted
from tests.tidelog.spark.sparkkit import ended
from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Order(msgspec.Struct):
    id: int


def _stream(spark: SparkSession, folder: Path, schema: str, source: dict[str, str], sink: dict[str, str]) -> None:
    """All that is there, by a streaming query, written to another stream."""
    reader: Any = spark.readStream.format("tidelog").schema(schema).options(**source)
    writer: Any = reader.load().writeStream.format("tidelog").options(**sink)
    ended(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())


def test_a_stream(tidelog_server: Server, client: Client, spark: SparkSession, tmp_path: Path) -> None:
    for number in range(5):
        client.tappend("in", {"n": str(number)})
    with granted(tidelog_server, "Spark's source: a stream", S="in") as user:
        options = {"url": user.url, "subscribe": "in"}
        assert spark.read.format("tidelog").schema("n long").options(**options).load().count() == 5
        assert user.denied() == []
    with granted(tidelog_server, "Spark's sink: a stream", S="out") as user:
        rows: Any = spark.createDataFrame([(1,), (2,)], "n long")
        rows.write.format("tidelog").mode("append").options(url=user.url, key="out").save()
        source = {"url": tidelog_server.url, "subscribe": "in", "startingOffsets": "earliest"}
        _stream(spark, tmp_path / "c", "n long", source, {"url": user.url, "key": "out"})
        assert user.denied() == []
    assert client.tlen("out") == 7


def test_a_topic(tidelog_server: Server, client: Client, spark: SparkSession, tmp_path: Path) -> None:
    topic: Topic[Order] = Topic("orders", Order, partition_by="id", partitions=2, url=tidelog_server.url)
    topic.sync.send_many([Order(number) for number in range(10)])
    topic.sync.close()
    with granted(tidelog_server, "Spark's source: a topic", T="orders") as user:
        options = {"url": user.url, "topic": "orders"}
        assert spark.read.format("tidelog").schema("id long").options(**options).load().count() == 10
        source = {**options, "startingOffsets": "earliest"}
        _stream(spark, tmp_path / "c", "id long", source, {"url": tidelog_server.url, "key": "out"})
        assert user.denied() == []
    assert client.tlen("out") == 10
