"""transformWithState, which needs protobuf: the extra ``spark`` brings it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.tidelog.spark.sparkkit import ended
from tidelog import Client
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(300)


def test_a_state_of_ones_own(spark: SparkSession, client: Client, tidelog_server: Server, checkpoint: str) -> None:
    pytest.importorskip("google.protobuf", reason="no protobuf here (pip install 'tidelog[spark]')")
    pd = pytest.importorskip("pandas")
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.seen = handle.getValueState("seen", "seen long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:  # noqa: N802
            seen = (self.seen.get()[0] if self.seen.exists() else 0) + sum(len(frame) for frame in rows)
            self.seen.update((seen,))
            yield pd.DataFrame({"sensor": [key[0]], "seen": [seen]})

        def close(self) -> None:
            pass

    def run() -> None:
        reader = spark.readStream.format("tidelog").schema("sensor string").option("url", tidelog_server.url)
        rows = reader.option("subscribe", "in").option("startingOffsets", "earliest").load()
        counts = rows.groupBy("sensor").transformWithStateInPandas(
            Count(), outputStructType="sensor string, seen long", outputMode="append", timeMode="none"
        )
        writer = counts.writeStream.format("tidelog").option("url", tidelog_server.url).option("key", "out")
        ended(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    try:
        for _ in range(2):
            client.tmappend("in", ["sensor"], [("a",), ("b",), ("a",)])
            run()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    rows = sorted((entry.text()["sensor"], int(entry.text()["seen"])) for entry in client.trange("out"))
    assert rows == [("a", 2), ("a", 4), ("b", 1), ("b", 2)]
