"""A process that runs one of Spark's own ways over a filled topic: prints one line of JSON.

    python -m benchmarks.jobs.peers redis://localhost:6379 pandas --batch 50000

The query reads the topic ``clicks`` with the source, and writes with the sink, exactly once. The first batches, in
which the JVM and Python warm up, don't count: rows a second are of all after them, from the end of the last that does
not count to the end of the last.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from benchmarks.jobs import keyed, loads, session

NAMES = (*keyed.WAYS, "stateless")
WAIT = 3600  # seconds for one query


def source(spark: SparkSession, url: str, schema: str, batch: int | None) -> DataFrame:
    """The topic ``clicks`` as a stream."""
    reader = spark.readStream.format("tidelog").schema(schema).option("url", url).option("topic", loads.clicks.name)
    reader = reader.option("startingOffsets", "earliest")
    return (reader if batch is None else reader.option("maxOffsetsPerTrigger", batch)).load()


def counting(spark: SparkSession, url: str, way: str, batch: int | None) -> Any:
    """A writer of running counts into the topic ``totals``.

    The built-in aggregate needs the output mode update, which Python's data sources don't have: it is written by
    foreachBatch, exactly once too, by an epoch of a fence.
    """
    counted = keyed.count(source(spark, url, "key string", batch), way)
    if way != "built-in":
        return counted.writeStream.format("tidelog").outputMode("append").option("topic", loads.totals.name)

    def write(frame: DataFrame, number: int) -> None:
        into = frame.write.format("tidelog").mode("append").option("url", url).option("topic", loads.totals.name)
        into.option("txnAppId", "built-in").option("txnVersion", number).save()

    return counted.writeStream.outputMode("update").foreachBatch(write)


def filtering(spark: SparkSession, url: str, batch: int | None) -> Any:
    """A writer of two outputs at once. An entry's partition is that of its key already, so it need not be hashed."""
    frame = source(spark, url, "_partition int, n long, key string, price long", batch)
    name = F.when(F.col("price") < loads.CHEAP, "cheap:").when(F.col("price") >= loads.DEAR, "dear:")
    routed = frame.select(F.concat(name, F.col("_partition").cast("string")).alias("_key"), "n", "key", "price")
    return routed.where("_key is not null").writeStream.format("tidelog").outputMode("append")


def writer(spark: SparkSession, url: str, name: str, batch: int | None, checkpoint: str) -> Any:
    made = filtering(spark, url, batch) if name == "stateless" else counting(spark, url, name, batch)
    return made.option("url", url).option("checkpointLocation", checkpoint)


def ended(progress: Any) -> float:
    """When a batch ended, in seconds since 1970."""
    began = datetime.fromisoformat(progress.timestamp).timestamp()
    return began + float(progress.durationMs["triggerExecution"]) / 1000


def rate(batches: Sequence[Any], warm: int) -> tuple[float, int]:
    """Rows a second of the batches that count, and how many there were: 0 if there is none."""
    with_rows = [each for each in batches if each.numInputRows]
    counted = with_rows[warm:]
    if not counted:
        return 0.0, 0
    seconds = ended(counted[-1]) - ended(with_rows[warm - 1])
    return sum(each.numInputRows for each in counted) / seconds, len(counted)


def measure(url: str, name: str, batch: int, warm: int, checkpoint: str | None) -> dict[str, Any]:
    """Work off the topic. checkpoint: of a run before this one, which is gone on with."""
    spark = session.new_session()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        query = writer(spark, url, name, batch, checkpoint or folder).trigger(availableNow=True).start()
        query.awaitTermination(WAIT)
        batches = query.recentProgress
    spark.stop()
    rows, count = rate(batches, warm)
    return {"name": name, "rate": rows, "batches": count}


def follow(url: str, name: str, ready: Callable[[], None]) -> None:
    """Run the query without end, as fast as it goes; ``ready`` is called when its first batch is through."""
    spark = session.new_session()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        query = writer(spark, url, name, None, folder).start()
        while query.isActive and not any(each.numInputRows for each in query.recentProgress):
            time.sleep(0.05)
        ready()
        query.awaitTermination()


@click.command()
@click.argument("url")
@click.argument("name", type=click.Choice(NAMES))
@click.option("--batch", default=50_000)
@click.option("--warm", default=2, type=click.IntRange(min=1))
@click.option("--checkpoint", type=click.Path(file_okay=False))
@click.option("--follow", "following", is_flag=True, help="Without end: for latencies. Says READY.")
def main(url: str, name: str, batch: int, warm: int, checkpoint: str | None, following: bool) -> None:
    if following:
        follow(url, name, lambda: print("READY", flush=True))
    else:
        print(json.dumps(measure(url, name, batch, warm, checkpoint)))


if __name__ == "__main__":
    main()
