"""The Spark pipeline on real input: scripts/demo --spark runs it. It ends with status 1 if a guarantee is violated.

Host metrics and San Francisco's temperatures are appended to streams. examples/spark_windows.py aggregates them in
windows, and the exactly-once sink writes the results to other streams. The server is killed in between. At the end, the
demo plots the result.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt
from vega_datasets import local_data

import tidelog

sys.path.append(str(Path(__file__).parent.parent))
os.environ["PYTHONPATH"] = str(Path(tidelog.__file__).parent.parent)  # for Spark's workers

from examples import spark_windows
from scripts.demo import Sampler
from scripts.demo_output import demo, hushed, promise, say, sparkline, title, which_tidelog
from tidelog.testing import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidelog import Client

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
LATE = timedelta(days=2)  # the watermark of the example
LATEST = 25.0  # seconds of host metrics


def load(server: Server, client: Client) -> None:
    title("1. Load a data set: tidelog load sf_temps sf-temps.csv")
    say(f"A server runs; {which_tidelog(client)}")
    words = ["load", "sf_temps", local_data.sf_temps.filepath, "--url", server.url]
    subprocess.run([sys.executable, "-P", "-m", "tidelog.cli", *words], check=True)


def expected_weeks(client: Client) -> dict[datetime, list[float]]:
    """Compute the temperatures of each week without Spark. As in Spark, weeks are counted from the epoch."""
    found: dict[datetime, list[float]] = {}
    for entry in client.trange("sf_temps"):
        row = entry.text()
        at = datetime.strptime(row["date"], "%Y/%m/%d %H:%M:%S").replace(tzinfo=UTC)
        found.setdefault(EPOCH + (at - EPOCH) // WEEK * WEEK, []).append(float(row["temp"]))
    return found


def weeks(spark: SparkSession, server: Server, client: Client, checkpoints: str) -> list[dict[str, Any]]:
    title("2. A streaming job: windows of a week by event time, watermark 2 days, into sf_temps:weeks")
    query = spark_windows.into(
        spark_windows.weeks(spark, server.url), server.url, "sf_temps:weeks", checkpoints, until_read=True
    )
    query.awaitTermination()
    say(f"batches of {[batch.numInputRows for batch in query.recentProgress if batch.numInputRows]} rows")
    rows: list[dict[str, Any]] = [entry.text() for entry in client.trange("sf_temps:weeks")]
    rows.sort(key=lambda row: row["week"])
    means = [float(row["mean"]) for row in rows]
    say(f"{len(rows)} weeks, means {min(means):.0f} to {max(means):.0f} °F   {sparkline(means)}")
    whole = expected_weeks(client)
    for row in rows:
        values = whole[datetime.fromisoformat(row["week"])]
        same = (float(row["low"]), float(row["high"]), int(row["rows"])) == (min(values), max(values), len(values))
        near = math.isclose(float(row["mean"]), sum(values) / len(values), abs_tol=0.006)
        if not (same and near):
            promise(False, f"the week of {row['week']} is {values}, not {row}")
    promise(len({row["week"] for row in rows}) == len(rows), "each week is there once")
    latest = max(whole) + timedelta(hours=len(whole[max(whole)]) - 1)
    over = {week for week in whole if week + WEEK <= latest - LATE}
    found = {datetime.fromisoformat(row["week"]) for row in rows}
    promise(found == over, "all weeks that are over, with the values that plain Python finds")
    return rows


def machine(spark: SparkSession, server: Server, client: Client, checkpoints: str) -> list[dict[str, Any]]:
    title("3. A job that goes on: this machine's load in windows of 2 s, into machine:seconds; the server is killed")

    def start() -> StreamingQuery:
        frame = spark_windows.seconds(spark, server.url)
        return spark_windows.into(frame, server.url, "machine:seconds", checkpoints, until_read=False)

    query = start()
    began = time.monotonic()
    while client.tlen("machine:seconds") < 2 and time.monotonic() < began + LATEST:
        time.sleep(0.2)
    say(f"first windows after {time.monotonic() - began:.0f} s; kill -9 of the server, and it starts again")
    spark.sparkContext.setLogLevel("OFF")  # Spark logs stack traces of failures and of cancelled tasks
    hushed(spark.sparkContext)
    server.kill()
    server.start()
    time.sleep(4)
    promise(query.isActive, f"the job is still there{f': {error}' if (error := query.exception()) else ''}")
    say("the job ends in the middle of its work, and is started again from its checkpoint")
    query.stop()
    query = start()
    had = client.tlen("machine:seconds")
    while client.tlen("machine:seconds") < had + 2 and time.monotonic() < began + 3 * LATEST:
        time.sleep(0.2)
    query.stop()
    rows: list[dict[str, Any]] = [entry.text() for entry in client.trange("machine:seconds")]
    rows.sort(key=lambda row: row["at"])  # Spark returns the rows of a batch in any order
    times = Counter(row["at"] for row in rows)
    say(f"{len(rows)} windows   {sparkline(float(row['cpu']) for row in rows)}")
    promise(max(times.values()) == 1, "no window is there twice")
    counted = Counter(entry.id.ms // 2000 * 2000 for entry in client.trange("machine"))
    same = all(int(row["rows"]) == counted[round(_moment(row["at"]).timestamp() * 1000)] for row in rows)
    promise(same, "each has every measurement of its two seconds, before and after the kill")
    return rows


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def plot(client: Client, by_week: list[dict[str, Any]], by_second: list[dict[str, Any]], path: Path) -> None:
    """Plot input and windows, one picture for each query."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 8), layout="constrained")
    temps = [entry.text() for entry in client.trange("sf_temps")]
    at = [datetime.strptime(row["date"], "%Y/%m/%d %H:%M:%S").replace(tzinfo=UTC) for row in temps]
    above.plot(at, [float(row["temp"]) for row in temps], color="0.8", linewidth=0.6, label="sf_temps: every hour")
    middle = [_moment(row["week"]) + WEEK / 2 for row in by_week]
    above.fill_between(middle, [float(row["low"]) for row in by_week], [float(row["high"]) for row in by_week],
                       color="tab:blue", alpha=0.15, label="sf_temps:weeks: low to high")  # fmt: skip
    above.plot(middle, [float(row["mean"]) for row in by_week], color="tab:blue", label="sf_temps:weeks: mean")
    above.set(title="San Francisco 2010, windows of a week", ylabel="°F")
    load = client.trange("machine")
    below.plot([e.id.time for e in load], [float(e["cpu"]) for e in load], color="0.8", linewidth=0.8, label="machine")
    begins = [_moment(row["at"]) for row in by_second]
    below.step(begins, [float(row["cpu"]) for row in by_second], where="post", color="tab:red", label="machine:seconds")
    below.set(title="This machine's load, windows of 2 seconds", ylabel="CPU %")
    for axes in (above, below):
        axes.legend(loc="upper right")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spark", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument("--plot", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-spark.png")
    args = parser.parse_args()
    with (
        demo(f"Input and windows are drawn in {args.plot}"),
        tempfile.TemporaryDirectory(prefix="tidelog-demo-") as folder,
        running_server() as server,
        server.client() as client,
    ):
        sampler = Sampler(server)
        try:
            load(server, client)
            spark = spark_windows.session()
            by_week = weeks(spark, server, client, folder)
            by_second = machine(spark, server, client, folder)
        finally:
            sampler.stop()
        plot(client, by_week, by_second, args.plot)
        spark.stop()


if __name__ == "__main__":
    main()
