"""SQL over a stream: ``python -m benchmarks.sql [--rows N] [--rounds R]``.

Measures a query with a filter and a group by over N rows: ``tidelog sql`` over a stream, from the server and from
history objects in a directory, and pandas over a CSV file with the same rows. Each runs in a new process, as a user
would run them. Prints the seconds and their ratios, and CPU times.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidelog.testing import Server, running_server

BATCH = 5000  # rows per command
NODE = 1200  # entries: more than two nodes have
SOURCES = ("server", "direct")  # values of --history
CITIES = [f"city {number}" for number in range(50)]
QUERY = "select city, avg(celsius) as mean, count(*) as rows from weather where celsius > 15 group by city"
PANDAS = """
import sys
import pandas
rows = pandas.read_csv(sys.argv[1], usecols=["city", "celsius"])
found = rows[rows.celsius > 15].groupby("city").celsius.agg(["mean", "count"])
print(found["count"].sum())
"""


def fill(server: Server, file: Path, rows: int) -> None:
    """Append the rows to the stream, and write them to the file."""
    rng = random.Random(1)
    with server.client() as client, file.open("w") as out:
        out.write("id,city,celsius,sensor\n")
        for start in range(0, rows, BATCH):
            made = [
                (number, rng.choice(CITIES), round(rng.gauss(20, 8), 1), rng.randrange(1000))
                for number in range(start, min(rows, start + BATCH))
            ]
            client.tmappend("weather", ["id", "city", "celsius", "sensor"], made)
            out.writelines(",".join(map(str, row)) + "\n" for row in made)
        client.redis.execute_command("BGSAVE", "SCHEDULE")  # one may be running
        copied = 0
        while copied < rows - NODE:  # the last nodes stay on the server
            time.sleep(0.5)
            copied = client.redis.info("persistence")["tier_entries"]
        client.redis.config_set("tier-interval", 3600)  # no pass during the queries


def environment() -> dict[str, str]:
    """Return an environment in which bytecode is written, as that of an installation is."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def seconds(*command: str | Path) -> tuple[float, float]:
    """Run a program, and return its seconds and its CPU time."""
    before, began = os.times(), time.monotonic()
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL, env=environment())
    after = os.times()
    used = after.children_user - before.children_user + after.children_system - before.children_system
    return time.monotonic() - began, used


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(tier_url=folder, tier_after=0, tier_interval=1) as server,
    ):
        file = Path(folder, "weather.csv")
        fill(server, file, given.rows)
        theirs: list[tuple[float, float]] = []
        ours: dict[str, list[tuple[float, float]]] = {source: [] for source in SOURCES}
        cpu: dict[str, list[float]] = {source: [] for source in SOURCES}
        for number in range(given.rounds + 1):
            if number == 1:  # the first round warms up, and writes bytecode
                theirs.clear()
                for source in SOURCES:
                    ours[source].clear()
                    cpu[source].clear()
            for source in SOURCES:
                before = cpu_of(server.pid)
                words = ("-m", "tidelog.cli", "sql", QUERY, "--url", server.url, "--history", source)
                ours[source].append(seconds(*words))
                cpu[source].append(cpu_of(server.pid) - before)
            theirs.append(seconds("-c", PANDAS, file))
    took, used = (median(each[at] for each in theirs) for at in (0, 1))
    print(f"pandas {took:.1f} s, CPU time {used:.1f} s")
    for source in SOURCES:
        took, used = (median(each[at] for each in ours[source]) for at in (0, 1))
        pairs = list(zip(theirs, ours[source], strict=True))
        ratio, of_cpu = (median(other[at] / own[at] for other, own in pairs) for at in (0, 1))
        print(f"tidelog sql --history {source}: {took:.1f} s, {ratio:.2f} times as fast (floor 1, goal 5)")
        print(f"  CPU time {used:.1f} s, pandas / this: {of_cpu:.2f}")
        print(f"  CPU time of the server per query: {median(cpu[source]):.2f} s")


if __name__ == "__main__":
    main()
