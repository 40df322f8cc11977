"""The Spark source over two groups of a cluster: ``python -m benchmarks.clusterspark [--rows N] [--rounds R]``.

Spark reads a topic of one group and a topic of two groups, with the same rows and partitions, in turns. The table has
the CPU time per row, with all threads: of the busiest server, of all servers, and of Spark (JVM and Python); and the
rows per second. Spark and the servers share the cores of the machine. The rate that servers can supply is therefore
derived: one row per CPU time of the busiest server. It assumes a core for each server, and that Spark is not the
limit. What a server without requests takes of a core is measured before each read and subtracted, because it does not
grow with the rows: a member of a group renews its lease, for example. The last line has the CPU time of Spark
relative to that of the server, which says how many cores Spark needs to reach this limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import measured

measured.import_from(measured.ROOT)

import msgspec  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from benchmarks.clustersend import PARTITIONS, cluster, even_names  # noqa: E402
from benchmarks.cputime import TICKS, Meter  # noqa: E402
from benchmarks.spark import drain, session  # noqa: E402
from benchmarks.sparksources import SCHEMA  # noqa: E402
from tidelog.spark import native  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic  # noqa: E402

CHUNK = 20_000  # records per send_many
IDLE = 2.0  # seconds for which servers without requests are measured


class Row(msgspec.Struct):
    n: int
    s: str


class Figures(NamedTuple):
    """Microseconds of CPU time per row: of the busiest server, of all, of Spark. Then rows per second, and the share
    of a core that all servers take without requests."""

    busiest: float
    servers: float
    spark: float
    rate: float
    idle: float


def url_of(servers: list[Server]) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


def fill(servers: list[Server], name: str, rows: int) -> None:
    topic: Topic[Row] = Topic(name, Row, partition_by="n", partitions=PARTITIONS, url=url_of(servers))
    topic.sync.ready()
    for start in range(0, rows, CHUNK):
        topic.sync.send_many([Row(n, f"text {n % 10_000}") for n in range(start, min(start + CHUNK, rows))])
    topic.sync.close()


def spark_seconds(servers: set[int]) -> float:
    """Return the CPU time of this process and its descendants without the servers, also of those that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        own = fields[11:13] if pid == os.getpid() else fields[11:15]
        ticks[pid] = sum(map(int, own))
    found, added = {os.getpid()}, {os.getpid()}
    while added:
        added = {pid for pid, parent in parents.items() if parent in added} - servers - found
        found |= added
    return sum(ticks[pid] for pid in found) / TICKS


def read(spark: SparkSession, servers: list[Server], name: str, rows: int) -> Figures:
    """Read the topic once."""
    options: dict[str, Any] = {"url": url_of(servers), "topic": name}
    frame = spark.read.format("tidelog").schema(SCHEMA).options(**options).load()
    pids = {server.pid for server in servers}
    idle = idle_shares(servers)
    meters = [Meter(server.pid) for server in servers]
    before, began = spark_seconds(pids), time.perf_counter()
    drain(frame)
    seconds = time.perf_counter() - began
    spent = [meter.spent().whole - share * seconds for meter, share in zip(meters, idle, strict=True)]
    used = [each / rows * 1e6 for each in spent]
    return Figures(max(used), sum(used), (spark_seconds(pids) - before) / rows * 1e6, rows / seconds, sum(idle))


def idle_shares(servers: list[Server]) -> list[float]:
    """Return the share of a core that each server takes without requests, after it has finished earlier work."""
    for server in servers:
        Meter(server.pid).settled()
    meters, began = [Meter(server.pid) for server in servers], time.perf_counter()
    time.sleep(IDLE)
    seconds = time.perf_counter() - began
    return [meter.spent().whole / seconds for meter in meters]


def report(found: list[tuple[Figures, Figures]]) -> None:
    """Print the medians, and of the ratios of the pairs the median, the least, and the greatest."""
    for at, what in enumerate(("CPU of the busiest server, us/row", "CPU of all servers, us/row",
                               "CPU of Spark, us/row", "rows/s, measured",
                               "cores that all servers take without requests")):  # fmt: skip
        one, two = (median(pair[side][at] for pair in found) for side in (0, 1))
        print(f"{what}: {one:,.3f} with one group, {two:,.3f} with two: {spread([b[at] / a[at] for a, b in found])}")
    print(
        "rows/s that the servers can supply with two groups, relative to one (a core for each server, Spark is not the"
        f" limit): {spread([one.busiest / two.busiest for one, two in found])}"
    )
    print(f"CPU of Spark relative to the server of one group: {spread([one.spark / one.busiest for one, _ in found])}")


def spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2, help="that Spark runs at the same time")
    given = parser.parse_args()
    with ExitStack() as stack:
        sides = [cluster(stack, 1), cluster(stack, 2)]
        name = next(even_names())
        for side in sides:
            fill(side, name, given.rows)
            with side[0].client() as client:
                compiled = client.redis.info("server")["tidelog_compiled"]
        how = ", ".join(f"{what} {'compiled' if yes else 'interpreted'}"
                        for what, yes in (("server", compiled), ("reading into Arrow", native())))  # fmt: skip
        print(f"{given.rows:,} rows in {PARTITIONS} partitions, {given.tasks} tasks, {measured.described()}: {how}")
        spark = session(tasks=given.tasks)
        for side in sides:
            frame = spark.read.format("tidelog").schema(SCHEMA).options(url=url_of(side), topic=name).load()
            if frame.count() != given.rows:  # this warms up, too
                sys.exit("Spark has not read all rows")
        found = []
        for number in range(given.rounds):
            order = sides if number % 2 == 0 else sides[::-1]
            pair = [read(spark, side, name, given.rows) for side in order]
            found.append((pair[0], pair[1]) if number % 2 == 0 else (pair[1], pair[0]))
        spark.stop()
    report(found)


if __name__ == "__main__":
    main()
