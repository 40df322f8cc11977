"""Two streaming queries on tidelog streams: windows over event time, with exactly-once results in other streams.

    pip install 'tidelog[spark]'
    tidelog-server --port 6379 &
    python examples/spark_windows.py redis://localhost:6379 /tmp/checkpoints

If an input stream does not exist, the script fills it: a year of temperatures for ``sf_temps``, and a few seconds of
this machine's load for ``machine``. To use your own data, first run:

    tidelog load sf_temps sf-temps.csv             # fields: temp, date (2010/01/01 00:00:00)

The time of a row in ``sf_temps`` is a text field. In ``machine`` (fields: cpu, memory), it is the time in the ID of the
entry. Append more rows and run the script again: each query continues, and writes the result of each window once.
"""

from __future__ import annotations

import math
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from tidelog import Client

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def session() -> SparkSession:
    """Return a local session. Its Python workers must use an interpreter with tidelog, which is this one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.Builder().master("local[2]").appName("tidelog windows")
    for name, value in {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    import tidelog.spark

    tidelog.spark.register(spark)
    return spark


def weeks(spark: SparkSession, url: str) -> DataFrame:
    """Return the lowest, mean, and highest temperature of each week. Rows may be up to two days late."""
    temps = (
        spark.readStream.format("tidelog")
        .schema("temp double, date string")
        .option("url", url)
        .option("subscribe", "sf_temps")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 2000)
        .load()
    )
    timed = temps.select("temp", F.to_timestamp("date", "yyyy/MM/dd HH:mm:ss").alias("at"))
    windows = timed.withWatermark("at", "2 days").groupBy(F.window("at", "7 days"))
    return windows.agg(
        F.min("temp").alias("low"), F.round(F.avg("temp"), 2).alias("mean"), F.max("temp").alias("high"),
        F.count("*").alias("rows"),
    ).select(F.col("window.start").alias("week"), "low", "mean", "high", "rows")  # fmt: skip


def seconds(spark: SparkSession, url: str) -> DataFrame:
    """Return the mean load of a machine in windows of two seconds."""
    machine = (
        spark.readStream.format("tidelog")
        .schema("_ts timestamp, cpu double, memory double")
        .option("url", url)
        .option("subscribe", "machine")
        .option("startingOffsets", "earliest")
        .load()
    )
    windows = machine.withWatermark("_ts", "500 milliseconds").groupBy(F.window("_ts", "2 seconds"))
    return windows.agg(F.round(F.avg("cpu"), 2).alias("cpu"), F.count("*").alias("rows")).select(
        F.col("window.start").alias("at"), "cpu", "rows"
    )


def into(frame: DataFrame, url: str, key: str, checkpoints: str, until_read: bool) -> StreamingQuery:
    """Write finished windows to a stream, exactly once. ``until_read``: stop when all existing entries were read."""
    writer = (
        frame.writeStream.format("tidelog")
        .outputMode("append")
        .option("url", url)
        .option("key", key)
        .option("checkpointLocation", f"{checkpoints}/{key}")
    )
    return (writer.trigger(availableNow=True) if until_read else writer.trigger(processingTime="1 second")).start()


def fill(url: str) -> None:
    """Fill the streams that do not exist."""
    with Client(url) as client:
        if not client.tlen("sf_temps"):
            rows = []
            for hour in range(365 * 24):
                at = datetime(2010, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
                temp = 55 - 6 * math.cos(hour / 8760 * math.tau) - 5 * math.cos(hour / 24 * math.tau)
                rows.append((f"{temp:.1f}", f"{at:%Y/%m/%d %H:%M:%S}"))
            client.tmappend("sf_temps", ["temp", "date"], rows)
        if not client.tlen("machine"):
            print("measuring this machine's load for 8 s")  # noqa: T201 - a program for the terminal
            for _ in range(80):
                client.tappend("machine", {"cpu": round(os.getloadavg()[0] * 100 / (os.cpu_count() or 1)), "memory": 0})
                time.sleep(0.1)


def main(url: str, checkpoints: str) -> None:
    fill(url)
    spark = session()
    for query in (
        into(weeks(spark, url), url, "sf_temps:weeks", checkpoints, until_read=True),
        into(seconds(spark, url), url, "machine:seconds", checkpoints, until_read=True),
    ):
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
