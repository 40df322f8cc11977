"""The Spark source and sink: ``python -m benchmarks.spark``. Rows a second on one core, latency, what a limit costs.

Everything in one run on one machine: the source beside Spark's rate for a source that only makes rows up (the
ceiling), with and without its compiled part, and beside one with redis-py; the sink beside redis-py in foreachBatch.
Spark runs one task at a time.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession

from benchmarks import measured

measured.import_from(measured.ROOT)

from benchmarks.sparksources import (  # noqa: E402
    SCHEMA,
    ByHiredis,
    Compiled,
    Synthetic,
    WithRedisPy,
    append_with_redis_py,
)
from tidelog import Client  # noqa: E402
from tidelog.spark import native  # noqa: E402
from tidelog.testing import running_server  # noqa: E402

WAIT = 300  # seconds for one query


def session(tasks: int = 1) -> SparkSession:
    python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": measured.PYTHONPATH}  # of Spark's workers
    os.environ |= {**python, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings = {
        "spark.master": f"local[{tasks}]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.Builder()
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for source in (Synthetic, ByHiredis, Compiled, WithRedisPy):
        spark.dataSource.register(source)
    return spark


def rates(run: Callable[[], object], rows: int, runs: int) -> list[float]:
    """Rows a second of each run but the first, which warms up."""
    figures = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        run()
        figures.append(rows / (time.perf_counter() - started))
    return figures[1:]


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def fill(client: Client, key: str, rows: int) -> None:
    for start in range(0, rows, 10_000):
        client.tmappend(key, ["n", "s"], [(n, f"text {n % 10_000}") for n in range(start, start + 10_000)])


def follow(spark: SparkSession, url: str, key: str, **options: Any) -> float:
    """Seconds in which a streaming query has read what is there."""
    reader = spark.readStream.format("tidelog").schema(SCHEMA).option("url", url).option("subscribe", key)
    frame = reader.options(startingOffsets="earliest", **options).load()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as checkpoint:
        started = time.perf_counter()
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination(WAIT)
        return time.perf_counter() - started


def latencies(spark: SparkSession, client: Client, url: str, number: int) -> list[float]:
    """Milliseconds from an append to its row in foreachBatch, one row a second."""
    taken: list[float] = []

    def take(frame: DataFrame, _: int) -> None:
        rows = frame.collect()
        now = time.time() * 1000
        taken.extend(now - int(row["_id"].partition(".")[0]) for row in rows)

    reader = spark.readStream.format("tidelog").option("url", url).option("subscribe", "slow").load()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as checkpoint:
        query = reader.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
        while not query.lastProgress:
            time.sleep(0.05)
        for _ in range(number + 3):
            client.tappend("slow", {"n": 1})
            time.sleep(1)
        query.stop()
    return taken[3:]


class Report:
    """Lines of a Markdown table, and the figures for ``--json``."""

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {}

    def say(self, name: str, figures: list[float], unit: str = "rows/s") -> None:
        self.figures[name] = figures
        form = ",.2f" if unit == "s" else ",.0f"
        spread = f"{min(figures):{form}}-{max(figures):{form}}"
        click.echo(f"| {name} | {median(figures):{form}} ({spread}) | {unit} |")


def source(report: Report, spark: SparkSession, url: str, rows: int, runs: int) -> None:
    """Rows a second read from stream ``rows``."""
    made_up = spark.read.format("synthetic").option("rows", rows).load()
    report.say("source: made up (the ceiling)", rates(partial(drain, made_up), rows, runs))
    for columns, schema in (("two typed columns", SCHEMA), ("default row", "")):
        for way, name in {"compiled": "tidelog_compiled", "by hiredis": "tidelog_by_hiredis"}.items():
            if way == "compiled" and not native():
                click.echo("NOTE: tidelog.arrow._rows is not built here: nothing is read through it", err=True)
                continue
            reader = spark.read.format(name).option("url", url).option("subscribe", "rows")
            frame = (reader.schema(schema) if schema else reader).load()
            report.say(f"source: tidelog, {columns}, {way}", rates(partial(drain, frame), rows, runs))
    by_hand = spark.read.format("with_redis_py").option("url", url).option("subscribe", "rows").load()
    report.say("source: redis-py", rates(partial(drain, by_hand), rows, runs))


def sink(report: Report, spark: SparkSession, url: str, rows: int, runs: int) -> None:
    """Rows a second written to streams of their own."""
    out = spark.range(0, rows, 1, 1).selectExpr("id as n", "concat('text ', id % 10000) as s").cache()
    out.count()
    writer = out.write.format("tidelog").mode("append").option("url", url).option("key", "out")
    report.say("sink: tidelog", rates(writer.save, rows, runs))
    topic = out.write.format("tidelog").mode("append").option("url", url).option("topic", "shared")
    topic = topic.option("partitions", 16).option("partitionBy", "s")
    report.say("sink: tidelog, a topic of 16 partitions", rates(topic.save, rows, runs))
    put = partial(append_with_redis_py, url, "out2")
    report.say("sink: redis-py in foreachBatch", rates(lambda: out.foreachPartition(put), rows, runs))


def streaming(report: Report, spark: SparkSession, url: str, rows: int, runs: int) -> None:
    """Seconds of a streaming query over stream ``rows``, with a limit on each batch and without."""
    for name, options in (("none", {}), ("100,000", {"maxOffsetsPerTrigger": 100_000})):
        seconds = [follow(spark, url, "rows", **options) for _ in range(runs)]
        report.say(f"stream of {rows:,} rows, limit {name}", seconds, "s")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=1_000_000, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
@click.option("--seconds", default=30, show_default=True, help="For the latencies.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write them there too.")
def main(rows: int, runs: int, seconds: int, json_file: Path | None) -> None:
    """Measure the Spark source and sink of an installed tidelog, or of the checkout where none is installed."""
    spark = session()
    report = Report()
    with running_server(appendfsync="everysec") as server, server.client() as client:
        info = client.redis.info("server")
        parts = {"server": bool(info["tidelog_compiled"]), "reading into Arrow": native()}
        how = ", ".join(f"{part} {'compiled' if compiled else 'interpreted'}" for part, compiled in parts.items())
        click.echo(f"tidelog {info['tidelog_version']} from {measured.described()}: {how}\n")

        fill(client, "rows", rows)
        click.echo("| what | median (min-max) | |\n|---|---|---|")
        source(report, spark, server.url, rows, runs)
        sink(report, spark, server.url, rows, runs)
        client.redis.delete("out", "out2", *(f"shared:{at}" for at in range(16)))
        streaming(report, spark, server.url, rows, runs)

        started = time.perf_counter()
        for _ in range(1000):
            client.tseek("rows", "0", rows // 2)
        report.say("TSEEK, with its round trip", [(time.perf_counter() - started) * 1000], "us")
        if seconds:
            late = latencies(spark, client, server.url, seconds)
            report.say("latency at 1 row a second, p50", [median(late)], "ms")
            report.say("latency at 1 row a second, p95", [quantiles(late, n=20)[-1]], "ms")
    spark.stop()
    if json_file:
        json_file.write_text(json.dumps(report.figures, indent=2))


if __name__ == "__main__":
    main()
