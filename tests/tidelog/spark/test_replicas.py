"""Leaders and replicas: which server Spark reads from, and what happens when it lags, goes away or hands over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import eventually
from tidelog.testing import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    """A leader and a replica that follows it."""
    with running_server() as leader, running_server(replicaof=f"127.0.0.1 {leader.port}") as replica:
        eventually(lambda: info(replica)["master_link_status"] == "up")
        yield leader, replica


def info(server: Server) -> dict[str, Any]:
    with server.client() as client:
        return dict(client.redis.info("replication"))


def ranges(server: Server) -> int:
    """How many TRANGE a server has answered."""
    with server.client() as client:
        return int(client.redis.info("commandstats").get("cmdstat_trange", {"calls": 0})["calls"])


def numbers(spark: SparkSession, url: str, **options: str) -> Counter[int]:
    reader = spark.read.format("tidelog").schema("n int").option("url", url).option("subscribe", "a").options(**options)
    return Counter(row["n"] for row in reader.load().collect())


def append(server: Server, *values: int) -> None:
    with server.client() as client:
        client.tmappend("a", ["n"], [(value,) for value in values])


def test_reading_from_replicas(spark: SparkSession, pair: tuple[Server, Server]) -> None:
    leader, replica = pair
    with leader.client() as client:
        client.redis.flushall()
    append(leader, *range(500))
    for url in (leader.url, f"{leader.url},{replica.url}", f"{replica.url},{leader.url}"):
        # Each read asks the leader for one entry, to look at its names.
        before = ranges(leader), ranges(replica)
        assert numbers(spark, url, readFrom="replica", minPartitions="2") == Counter(range(500))
        assert (ranges(leader), ranges(replica)) == (before[0] + 1, before[1] + 2)
        assert numbers(spark, url) == Counter(range(500))
        assert (ranges(leader), ranges(replica)) == (before[0] + 3, before[1] + 2)


def test_a_replica_that_lags_or_is_gone_is_passed_over(spark: SparkSession, pair: tuple[Server, Server]) -> None:
    leader, replica = pair
    urls = f"{leader.url},{replica.url}"
    with leader.client() as client, replica.client() as follower:
        client.redis.flushall()
        append(leader, *range(10))
        eventually(lambda: follower.tlen("a") == 10)
        follower.redis.slaveof("127.0.0.1", 1)  # from here on its leader is a server that does not exist, so it lags
        append(leader, *range(10, 20))
        assert numbers(spark, urls, readFrom="replica") == Counter(range(20))
        replica.kill()
        assert numbers(spark, urls, readFrom="replica") == Counter(range(20))
        replica.start()


def test_the_leader_is_found_after_it_handed_over(spark: SparkSession) -> None:
    with running_server() as one, running_server(replicaof=f"127.0.0.1 {one.port}") as two:
        append(one, *range(10))
        eventually(lambda: info(two)["master_link_status"] == "up")
        with one.client() as client:
            client.redis.execute_command("FAILOVER")
        eventually(lambda: info(two)["role"] == "master")
        append(two, *range(10, 20))
        frame = spark.createDataFrame([(20,)], "n int")
        frame.write.format("tidelog").mode("append").option("url", f"{one.url},{two.url}").option("key", "a").save()
        assert numbers(spark, f"{one.url},{two.url}") == Counter(range(21))


def test_a_password(spark: SparkSession) -> None:
    with running_server(requirepass="secret") as server:
        with server.client(password="secret") as client:
            client.tappend("a", {"n": 1})
        assert numbers(spark, server.url, password="secret") == Counter([1])
        with pytest.raises(Exception, match="NOAUTH"):
            numbers(spark, server.url)
