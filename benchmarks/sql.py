"""SQL over a stream: ``python -m benchmarks.sql [--rows N] [--rounds R]``.

Measures a query with a filter and a group by over N rows: ``tidelog sql`` over a stream, and pandas over a CSV file
with the same rows. Both run in a new process, as a user would run them. Prints the seconds and their ratio, and the CPU
time of the server.
"""

from __future__ import annotations

import argparse
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


def seconds(*command: str | Path) -> float:
    before = time.monotonic()
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - before


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        file = Path(folder, "weather.csv")
        fill(server, file, given.rows)
        ours, theirs, cpu = [], [], []
        for _ in range(given.rounds):
            before = cpu_of(server.pid)
            ours.append(seconds("-m", "tidelog.cli", "sql", QUERY, "--url", server.url))
            cpu.append(cpu_of(server.pid) - before)
            theirs.append(seconds("-c", PANDAS, file))
    ratio = median(theirs) / median(ours)
    print(f"tidelog sql {median(ours):.1f} s, pandas {median(theirs):.1f} s: {ratio:.2f} times as fast (floor 1)")
    print(f"CPU time of the server per query: {median(cpu):.1f} s")


if __name__ == "__main__":
    main()
