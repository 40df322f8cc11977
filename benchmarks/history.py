"""Spark scans of copied entries: ``python -m benchmarks.history [--rows N] [--rounds R] [--url URL]``.

Reads a stream of sensor readings from history objects and from the server, alternately, with one Spark task at a time.
Prints rows per second, rows per second of CPU time of Spark's processes, and the CPU time of the server
beyond what it uses when it is idle.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import measured

measured.import_from(measured.ROOT)

from benchmarks.spark import drain, session  # noqa: E402
from tidelog.testing import Server, running_server  # noqa: E402

BATCH = 10_000  # rows per command
SCHEMA = "_ts timestamp, sensor int, celsius double"
TICKS = os.sysconf("SC_CLK_TCK")


def fill(server: Server, rows: int) -> None:
    rng = random.Random(1)
    with server.client() as client:
        for start in range(0, rows, BATCH):
            values = [(number % 50, round(20 + rng.random(), 1)) for number in range(start, min(rows, start + BATCH))]
            client.tmappend("readings", ["sensor", "celsius"], values)
        client.redis.execute_command("SAVE")


def copied(server: Server) -> dict[str, Any]:
    with server.client() as client:
        found: dict[str, Any] = client.redis.info("persistence")
        return found


def precise(pid: int) -> float:
    """Return the CPU seconds of the living threads of a process, in nanoseconds rather than ticks."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def cpu(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def tree(pid: int, without: int) -> float:
    """Return the CPU seconds of a process and its descendants, without one of these."""
    total = cpu(pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if int(child) != without:
                total += tree(int(child), without)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", help="where to copy to; default: a temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder, running_server(
        tier_url=options.url or folder, tier_after=0, tier_interval=1, save=""
    ) as server:
        fill(server, options.rows)
        while copied(server)["tier_entries"] < options.rows * 0.99:
            time.sleep(0.5)
        found = copied(server)
        print(f"{found['tier_entries']:,} of {options.rows:,} rows are in objects of {found['tier_bytes']:,} bytes")
        with server.client() as client:
            client.redis.config_set("tier-interval", 3600)
        spark = session()
        figures: dict[str, list[tuple[float, float, float]]] = {"server": [], "direct": []}
        for number in range(options.rounds + 1):
            for history, mine in figures.items():
                reader = spark.read.format("tidelog").schema(SCHEMA).option("url", server.url)
                frame = reader.option("subscribe", "readings").option("history", history).load()
                before = time.perf_counter(), tree(os.getpid(), server.pid), precise(server.pid)
                drain(frame)
                after = time.perf_counter(), tree(os.getpid(), server.pid), precise(server.pid)
                time.sleep(after[0] - before[0])
                idle = precise(server.pid) - after[2]  # in the same time
                if number:  # the first round warms up
                    mine.append((after[0] - before[0], after[1] - before[1], after[2] - before[2] - idle))
        print("| | rows/s | rows per CPU second of Spark | CPU seconds of the server |\n|---|---|---|---|")
        for history, mine in figures.items():
            wall, own, other = (median(figure[at] for figure in mine) for at in range(3))
            print(f"| {history} | {options.rows / wall:,.0f} | {options.rows / own:,.0f} | {other:.4f} |")
        for what, at in (("seconds", 0), ("CPU seconds of Spark", 1), ("CPU seconds of the server", 2)):
            pairs = zip(figures["server"], figures["direct"], strict=True)
            print(f"{what}, direct / server: {median(other[at] / one[at] for one, other in pairs):.3f}")
        spark.stop()


if __name__ == "__main__":
    main()
