"""A streaming query through a failover by real Sentinels: nothing is lost, nothing is there twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.replication.cluster import connect
from tests.replication.sentinels import SERVICE, watched_pair
from tests.tidelog.spark.sparkkit import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 100  # seconds
ROWS = 1500

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_the_leader_is_killed_in_the_middle_of_a_query(spark: SparkSession, tmp_path: Path, checkpoint: str) -> None:
    with watched_pair(tmp_path) as (watch, leader, replica):
        with connect(leader.port) as client:
            client.execute_command("TMAPPEND", "in", "FIELDS", 1, "n", "VALUES", *range(ROWS))
            assert client.wait(1, 10_000) == 1
        options = {
            "sentinels": ",".join(f"127.0.0.1:{port}" for port in watch.ports), "sentinelMaster": SERVICE,
            "fetchOffset.retryIntervalMs": "200", "fetchOffset.numRetries": "300",
        }  # fmt: skip
        reader = spark.readStream.format("tidelog").schema("n long").options(**options).option("subscribe", "in")
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 100)
        writer = reader.option("minPartitions", 2).load().writeStream.format("tidelog").options(**options)
        writer = writer.option("key", "out").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            with connect(leader.port) as client:
                deadline = time.monotonic() + PATIENCE
                while client.execute_command("TLEN", "out") < 500:
                    assert query.isActive, query.exception()
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            leader.kill()
            ended(query)
        finally:
            query.stop()
        assert watch.leader_port() == replica.port
        rows = replica.say("TRANGE", "out", "-", "+")
        assert Counter(int(row[2]) for row in rows) == Counter(range(ROWS))
