"""namePrefix: the names of the sink's stages, fences and claims, for users whose rights are limited to a prefix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import ended
from tests.tidelog.spark.test_exactly_once import fill, forget, once, start, written
from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

FORMER = "%R~spark-tidelog-sink:*"


@pytest.fixture
def tenant(client: Client, tidelog_server: Server) -> Iterator[str]:
    """A user who may write ``ten:*`` and read ``in``; the URL to log in by."""
    rules = ("on", ">secret", "resetkeys", "~ten:*", "%R~in", "+@stream", "+@string", "+@connection", "+@keyspace")
    client.redis.execute_command("ACL", "SETUSER", "ten", *rules)
    yield tidelog_server.url.replace("redis://", "redis://ten:secret@")
    client.redis.execute_command("ACL", "DELUSER", "ten")


def run(spark: SparkSession, url: str, checkpoint: str, **options: Any) -> None:
    ended(start(spark, url, checkpoint, key="ten:out", **options))


def test_a_query_of_a_limited_user(spark: SparkSession, client: Client, tenant: str, checkpoint: str) -> None:
    fill(client, range(50))
    with pytest.raises(Exception, match="NOPERM"):
        run(spark, tenant, checkpoint)
    run(spark, tenant, checkpoint, namePrefix="ten:")
    forget(checkpoint, "commits", 0)
    run(spark, tenant, checkpoint, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(50))


def test_a_query_that_has_run_without_the_prefix(
    spark: SparkSession, client: Client, tidelog_server: Server, tenant: str, checkpoint: str
) -> None:
    """Its former fence still keeps a batch from being written twice."""
    for begin in (0, 50):
        fill(client, range(begin, begin + 50))
        run(spark, tidelog_server.url, checkpoint)
    forget(checkpoint, "commits", 1)
    with pytest.raises(Exception, match=r"NOPERM batch 1 of query .* is the first one with namePrefix"):
        run(spark, tenant, checkpoint, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(100))
    run(spark, tidelog_server.url, checkpoint, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(100))
    client.redis.execute_command("ACL", "SETUSER", "ten", FORMER)
    fill(client, range(100, 150))
    run(spark, tenant, checkpoint, namePrefix="ten:")
    client.redis.execute_command("ACL", "SETUSER", "ten", "resetkeys", "~ten:*", "%R~in")
    fill(client, range(150, 200))
    run(spark, tenant, checkpoint, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(200))


def test_batch_writes_of_a_limited_user(
    spark: SparkSession, client: Client, tidelog_server: Server, tenant: str
) -> None:
    def write(url: str, rows: int, **options: str) -> None:
        writer = spark.range(rows).selectExpr("id AS n").write.format("tidelog").mode("append")
        writer.option("url", url).option("key", "ten:out").options(**options).save()

    with pytest.raises(Exception, match="NOPERM"):
        write(tenant, 5)
    write(tenant, 5, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(5))
    write(tidelog_server.url, 5, txnAppId="app", txnVersion="1")
    client.redis.execute_command("ACL", "SETUSER", "ten", FORMER)
    for version in ("1", "2", "2"):
        write(tenant, 7, txnAppId="app", txnVersion=version, namePrefix="ten:")
    assert written(client, "ten:out") == once(range(5)) + once(range(5)) + once(range(7))
    client.redis.execute_command("ACL", "SETUSER", "ten", "resetkeys", "~ten:*")
    write(tenant, 7, txnAppId="app", txnVersion="2", namePrefix="ten:")
    assert written(client, "ten:out") == once(range(5)) + once(range(5)) + once(range(7))
