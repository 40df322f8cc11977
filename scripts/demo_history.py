"""The demo of history in an object store (scripts/demo --history). Its exit code is 1 if a guarantee is violated.

A year of hourly temperatures of two cities is loaded for many stations, 20 million rows in all. The server moves them
to history objects in a directory (``tier-free yes``). Spark and ``tidelog sql`` then run the same query over all rows,
and read the objects without the server. For comparison, ``tidelog sql`` also reads all rows from the server. At the
end, the demo compares the results with the rows that were loaded, and plots them, with the CPU time of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

os.environ.setdefault("MPLBACKEND", "Agg")

import tidelog

sys.path.append(str(Path(__file__).parent.parent))
os.environ["PYTHONPATH"] = str(Path(tidelog.__file__).parent.parent)  # for Spark's workers

from scripts.demo_cleanup import cleanup
from scripts.demo_clusterprograms import start, stop
from scripts.demo_historyplot import plot
from scripts.demo_historyrows import STREAM, Reading, Rows, Total, real_readings
from scripts.demo_historywatch import Watch
from scripts.demo_output import demo, promise, say, title, which_tidelog
from tidelog.testing import Server, running_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog import Client

ROWS: Final = 20_000_000
MOST: Final = 200_000_000
QUERY: Final = (
    "select city, month(date) as month, count(*) as number, sum(cast(round(temp * 10) as bigint)) as tenths "
    f"from {STREAM} group by city, month(date)"
)
SCHEMA: Final = "city string, date timestamp, temp double"
NODE: Final = 1000  # more entries than two nodes have: this many can stay on the server
ROW_BYTES: Final = 30  # disk space of a row in the store, the objects, and the cache together, at most
OTHER_BYTES: Final = 600_000_000  # the server's log, and Spark's files
LOADED: Final = 60_000  # rows that are loaded and moved per second, on two idle cores
READ: Final = 300_000  # rows that each of the queries reads per second

T = TypeVar("T")
MakeSpark = Callable[[], AbstractContextManager["SparkSession"]]


# -- the scenes --------------------------------------------------------------------------------------------------
def play(readings: Sequence[Reading], count: int, spark: MakeSpark | None, picture: Path) -> None:
    """Play all scenes. Without ``spark``, only SQL is used."""
    rows = Rows(readings, count)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    try:
        announce(rows, folder)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
        for name in ("server", "objects"):
            (folder / name).mkdir()
        title("1. A server that moves its history to a directory")
        options: dict[str, Any] = {"tier_url": str(folder / "objects"), "tier_after": 0, "tier_interval": 1}
        with (
            running_server(folder / "server", tier_free="yes", **options) as server,
            cleanup(folder, server.pid),
            server.client() as client,
            closing(Watch(server.pid, folder)) as watch,
        ):
            say(f"tidelog-server --tier-url {folder}/objects --tier-after 0 --tier-interval 1 --tier-free yes")
            say(which_tidelog(client))
            watch.start()
            scenes(server, client, watch, rows, spark, picture)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def announce(rows: Rows, folder: Path) -> None:
    """Print what the demo needs. Ends the demo if there is not enough disk space."""
    need, free = ROW_BYTES * rows.count + OTHER_BYTES, shutil.disk_usage(folder).free
    minutes = (rows.count / LOADED + 3 * rows.count / READ + 30) / 60
    say(f"{rows.count:,} rows: {len(rows.readings):,} measurements, each {rows.stations:,} times with shifted times")
    say(f"Time: about {minutes:.0f} min on two idle cores. Disk space: at most {need / 1e9:.1f} GB in {folder.parent}")
    if free < need:
        sys.exit(f"only {free / 1e9:.1f} GB are free there: set TMPDIR to another directory, or --rows to less")


def scenes(
    server: Server, client: Client, watch: Watch, rows: Rows, spark: MakeSpark | None, picture: Path
) -> None:  # fmt: skip
    title(f"2. {rows.count:,} rows are loaded, and move to the directory meanwhile")
    load(server, client, watch, rows)
    title("3. The same query over all rows, from the objects")
    say(QUERY)
    results: dict[str, list[Total]] = {}
    if spark is not None:
        say("a JVM starts for Spark, which takes a while")
        results["Spark"] = with_spark(server, watch, rows, spark)
    results["tidelog sql"] = with_sql(server, watch, rows, "direct")
    title("4. For comparison: the same query over the same rows, which the server reads")
    results["from the server"] = with_sql(server, watch, rows, "server")
    title("5. Are the totals exact?")
    reckon(rows, results)
    *direct, served = watch.phases[1:]
    for phase in direct:
        part = phase.server / served.server
        say(f"{phase.name}: {phase.server:.2f} CPU s of the server, {part:.1%} of those of the read from the server")
    say(f"the files of the demo had at most {watch.disk / 1e6:,.0f} MB")
    plot(watch.samples, watch.phases, results, picture)


def load(server: Server, client: Client, watch: Watch, rows: Rows) -> None:
    """Load all rows, and wait until those that can be moved are moved."""
    loaded = 0

    def progress() -> str:
        found = tiering(watching)
        done = f"loaded {loaded:11,}   copied {found['tier_entries']:11,}   nodes moved {found['tier_freed_nodes']:7,}"
        return f"{done}   the copier uses {watch.samples[-1].copier:.1f} cores"

    with server.client() as watching, watch.phase("load and move", rows.count, progress) as phase:
        for number, call in rows.calls():
            client.run(call)
            loaded += number
        took = time.monotonic()
        client.redis.execute_command("BGSAVE", "SCHEDULE")  # the copier reads what a checkpoint contains
        found = wait_until_moved(client, rows.count)
    loading = phase.seconds - (time.monotonic() - took)
    say(f"loaded in {loading:.0f} s, {rows.count / loading:,.0f} rows/s; moved {phase.seconds - loading:.0f} s later")
    copied, size = found["tier_entries"], found["tier_bytes"]
    say(f"{found['tier_objects']} objects of {size / 1e6:,.1f} MB have {copied:,} rows: {size / copied:.1f} bytes each")
    nodes, freed = found["tier_freed_nodes"], found["tier_freed_bytes"]
    say(f"{nodes:,} nodes with {freed / 1e6:,.1f} MB have left the server's store")
    promise(client.tlen(STREAM) == rows.count, f"the stream still has all {rows.count:,} entries")
    client.redis.config_set("tier-interval", 3600)  # no pass during the queries


def tiering(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = client.redis.info("persistence")
    return found


def wait_until_moved(client: Client, count: int) -> dict[str, Any]:
    """Wait until a complete pass has nothing to do."""
    before: tuple[int, int] = (-1, -1)
    while True:
        found = wait_for_pass(client)
        now = found["tier_entries"], found["tier_freed_nodes"]
        if now == before and found["tier_entries"] >= count - NODE:
            return found
        before = now


def wait_for_pass(client: Client) -> dict[str, Any]:
    """Wait until another pass has ended. A pass can take minutes; the server reports an error if its helper hangs."""
    passes = tiering(client)["tier_passes"]
    while (found := tiering(client))["tier_passes"] == passes:
        if found["tier_last_status"] != "ok":
            promise(False, f"the history is copied; the error is {found['tier_last_error']}")
        time.sleep(0.2)
    return found


# -- the queries -------------------------------------------------------------------------------------------------
def with_spark(server: Server, watch: Watch, rows: Rows, make: MakeSpark) -> list[Total]:
    with make() as spark:
        tracker = spark.sparkContext.statusTracker()

        def progress() -> str:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = [f"{each.numCompletedTasks} of {each.numTasks} tasks" for each in stages if each is not None]
            return f"Spark: {', '.join(tasks) or 'no task yet'}"

        reader = spark.read.format("tidelog").schema(SCHEMA).option("url", server.url).option("subscribe", STREAM)
        reader.option("history", "direct").load().createOrReplaceTempView(STREAM)
        with watch.phase("Spark, from objects", rows.count, progress) as phase:
            found = in_thread(lambda: spark.sql(QUERY).collect())
    say(f"Spark: {phase.summary}")
    return sorted(Total(row["city"], row["month"], row["number"], row["tenths"]) for row in found)


def in_thread(function: Callable[[], T]) -> T:
    """Return the result of a function. At Ctrl-C, this does not wait for it.

    In the main thread, Ctrl-C would interrupt a call of Spark with another call that cancels all jobs.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001 - raised by result()
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future.result()


def with_sql(server: Server, watch: Watch, rows: Rows, history: str) -> list[Total]:
    words = ("sql", QUERY, "--json", "--history", history)
    say(f"$ tidelog sql '...' --json --history {history}")
    where = "from objects" if history == "direct" else "from the server"
    with watch.phase(f"SQL, {where}", rows.count, lambda: f"tidelog sql, {where}") as phase:
        process = start((*words, "--url", server.url), subprocess.PIPE)
        try:
            assert process.stdout is not None
            with process.stdout:
                lines = process.stdout.read().decode().splitlines()
            status = process.wait()
        finally:
            stop(process)
    if status:
        promise(False, f"tidelog sql succeeds; its exit code is {status}: {lines[-5:]}")
    say(f"SQL: {phase.summary}")
    found = [json.loads(line) for line in lines]
    return sorted(Total(row["city"], row["month"], row["number"], int(row["tenths"])) for row in found)


def reckon(rows: Rows, results: dict[str, list[Total]]) -> None:
    wanted = rows.totals()
    count, tenths = sum(total.rows for total in wanted), sum(total.tenths for total in wanted)
    for name, totals in results.items():
        promise(totals == wanted, f"{name}: {count:,} rows, {len(totals)} totals, the sum is {tenths / 10:,.1f} °F")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--history", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="rows to load (20 million)")
    parser.add_argument(
        "--plot", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-history.png", metavar="FILE",
        help="the PNG file of the plot",
    )  # fmt: skip
    args = parser.parse_args()
    if not 10_000 <= args.rows <= MOST:
        parser.error(f"--rows must be between 10,000 and {MOST:,}")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.exit("Spark needs Java 17 or newer, which was not found (Debian: apt-get install openjdk-17-jre-headless)")
    from examples import spark_windows  # here: the tests without Spark don't need it

    with demo(f"The totals, and the CPU time of the server: {args.plot}"):
        play(real_readings(), args.rows, spark_windows.session, args.plot)


if __name__ == "__main__":
    main()
