"""A key that programs for Redis Streams write to, read by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.tidelog.spark.sparkkit import ended
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BEGIN = 1_700_000_000_000


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Any]:
    """redis-py, as a program for Redis Streams has it."""
    with redis.Redis(port=tidelog_server.port) as client:
        yield client


class Follower:
    """A streaming query that reads what is new, and ends; its checkpoint lasts."""

    def __init__(self, spark: SparkSession, url: str, checkpoint: str) -> None:
        self.spark, self.url, self.checkpoint = spark, url, checkpoint

    def run(self) -> list[tuple[str, int]]:
        """IDs and numbers of what was new."""
        got: list[tuple[str, int]] = []

        def take(frame: DataFrame, batch: int) -> None:
            got.extend((row["_id"], row["n"]) for row in frame.collect())

        options = {"url": self.url, "subscribe": "s", "startingOffsets": "earliest"}
        stream = self.spark.readStream.format("tidelog").schema("_id string, n int").options(**options).load()
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", self.checkpoint)
        ended(query.trigger(availableNow=True).start())
        return got


@pytest.fixture
def follower(spark: SparkSession, tidelog_server: Server, checkpoint: str) -> Follower:
    return Follower(spark, tidelog_server.url, checkpoint)


def test_a_key_written_by_xadd(load: Callable[..., DataFrame], follower: Follower, client: Any) -> None:
    for number in range(500):
        client.xadd("s", {"n": number, "of": "redis"}, id=f"{BEGIN + number // 3}-{number % 3}")
    client.xdel("s", *[f"{BEGIN + number // 3}-{number % 3}" for number in range(0, 500, 5)])
    client.xtrim("s", maxlen=300, approximate=False)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "c", {"s": ">"}, count=10)
    expected = [number for number in range(500) if number % 5][-300:]

    rows = load(subscribe="s", schema="_key string, _id string, n int, of string").collect()
    assert [row["n"] for row in rows] == expected
    assert [row["_id"] for row in rows] == [f"{BEGIN + number // 3}.{number % 3}" for number in expected]
    assert {(row["_key"], row["of"]) for row in rows} == {("s", "redis")}
    assert load(subscribe="s").filter(f"_id >= '{BEGIN + 150}.0'").count() == sum(n >= 450 for n in expected)

    assert [number for _, number in follower.run()] == expected
    client.xadd("s", {"n": 500}, id=f"{BEGIN + 500}-0")
    assert follower.run() == [(f"{BEGIN + 500}.0", 500)]


def test_the_entry_read_last_is_deleted(follower: Follower, client: Any) -> None:
    for number in range(3):
        client.xadd("s", {"n": number}, id=f"{BEGIN + number}-0")
    assert len(follower.run()) == 3
    client.xdel("s", f"{BEGIN + 2}-0")
    client.xadd("s", {"n": 3}, id=f"{BEGIN + 3}-0")
    assert follower.run() == [(f"{BEGIN + 3}.0", 3)]
