"""Workers on real input: scripts/demo --workers runs it. It ends with status 1 if a guarantee is violated.

Three worker processes share the readings of two cities, hourly for a year (vega_datasets). One is killed, and one is
paused for longer than its lease and then resumed. At the end, the demo checks that nothing was lost, duplicated, or out
of order.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).parent.parent))

from examples.workers_readings import Converted, Reading, app
from scripts.demo_output import demo, promise, say, title, which_tidelog
from tidelog import Client
from tidelog.client.steps import run
from tidelog.testing import Server, running_server
from tidelog.topics import Topic
from tidelog.workers.operate.status import AppStatus, ProcessorStatus, read_status

LEASE: Final = 2.0  # seconds
EVERY: Final = 0.1  # seconds between two polls
BATCH: Final = 50  # readings per send
PATIENCE: Final = 90.0  # timeout of each step, in seconds
NOBODY: Final = "·"


def real_readings() -> list[Reading]:
    """Return a year of hourly readings in San Francisco and Seattle, ordered by time."""
    from vega_datasets import local_data

    found = []
    for city, source in (("San Francisco", local_data.sf_temps), ("Seattle", local_data.seattle_temps)):
        with open(source.filepath, newline="") as file:
            for row in csv.DictReader(file):
                day, clock = row["date"].split(" ")
                found.append((row["date"], Reading(f"{city} {day}", int(clock[:2]), float(row["temp"]))))
    return [reading for _, reading in sorted(found, key=lambda pair: pair[0])]


class Workers:
    """Three worker processes, A, B, and C, and their logs."""

    def __init__(self, url: str, folder: Path) -> None:
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        environment = os.environ | {
            "TIDELOG_URL": url, "LEASE": str(LEASE), "PYTHONPATH": str(Path(__file__).parent.parent),
        }  # fmt: skip
        command = [sys.executable, "-m", "tidelog.cli", "worker", "examples.workers_readings:app"]
        for name in "ABC":
            with (folder / name).open("wb") as log:
                self.processes[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def letter(self, worker: str | None) -> str:
        """Return the letter of a worker, whose name contains its process ID."""
        for name, process in self.processes.items():
            if worker is not None and f"-{process.pid}-" in worker:
                return name
        return NOBODY

    def send(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def log(self, name: str) -> str:
        return (self._folder / name).read_text(errors="replace")

    def close(self) -> None:
        """Stop the workers with SIGTERM, and kill those that do not stop."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Watch:
    """Polls the app continuously, displays it, and records the owners."""

    def __init__(self, client: Client, workers: Workers, total: int) -> None:
        self.seen: AppStatus = run(client, read_status(app))
        self.owners: list[str] = []  # a string for each poll: the owner of each partition of ``convert``
        self.marks: dict[int, str] = {}  # number of the poll: event
        self._client = client
        self._workers = workers
        self._total = total
        self._terminal = sys.stdout.isatty()

    def until(self, true: Any, what: str) -> None:
        """Poll until ``true()``, and display the progress."""
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                promise(False, f"{what} within {PATIENCE:g} s; the log of A ends: {self._workers.log('A')[-2000:]}")
            time.sleep(EVERY)
            self.look()

    def look(self) -> None:
        self.seen = run(self._client, read_status(app))
        self.owners.append("".join(self._workers.letter(each.owner) for each in self.of("convert").partitions))
        if self._terminal:
            done = [f"{name} {self.finished(name):6,}" for name in ("convert", "publish")]
            print(f"\r   {self.owners[-1]}   {'   '.join(done)} of {self._total:,}", end="", flush=True)

    def happened(self, what: str) -> None:
        self.marks[len(self.owners)] = what
        if self._terminal:
            print("\r\x1b[K", end="")

    def of(self, name: str) -> ProcessorStatus:
        return next(each for each in self.seen.processors if each.name == name)

    def finished(self, name: str) -> int:
        return sum(each.finished for each in self.of(name).partitions)

    @property
    def idle(self) -> bool:
        return all(
            sum(each.added for each in of.partitions) >= self._total and not any(p.unfinished for p in of.partitions)
            for of in self.seen.processors
        )

    def shared_by(self, names: str) -> bool:
        """Return whether exactly these workers own all partitions of both processors."""
        found = [[self._workers.letter(each.owner) for each in of.partitions] for of in self.seen.processors]
        return all(set(owners) == set(names) for owners in found)

    def picture(self) -> None:
        """Draw the owner of each partition of ``convert``, one column for two polls."""
        count = len(self.of("convert").partitions)
        columns = [owners.ljust(count, NOBODY) for owners in self.owners[::2]]
        for partition in range(count):
            say(f"partition {partition}  " + "".join(column[partition] for column in columns))
        line = [" "] * len(columns)
        for at, what in self.marks.items():
            line[min(at // 2, len(columns) - 1)] = what
        say("             " + "".join(line))


def sending(server: Server, rows: Sequence[Reading], seconds: float) -> threading.Thread:
    """Send the readings from a thread, spread over that many seconds."""
    pause = seconds * BATCH / len(rows)

    def send() -> None:
        topic: Topic[Reading] = Topic("readings", Reading, partition_by="day", partitions=8, url=server.url)
        for at in range(0, len(rows), BATCH):
            topic.sync.send_many(rows[at : at + BATCH])
            time.sleep(pause)
        topic.sync.close()

    return threading.Thread(target=send, daemon=True)


@contextmanager
def working(url: str) -> Iterator[Workers]:
    with tempfile.TemporaryDirectory(prefix="tidelog-demo-") as folder:
        workers = Workers(url, Path(folder))
        try:
            yield workers
        finally:
            workers.close()


# -- the scenes --------------------------------------------------------------------------------------------------
def play(rows: Sequence[Reading], seconds: float) -> None:
    """Play all scenes; ``seconds`` is the duration of the sending."""
    title("1. A server, three workers, two processors of one topic with 8 partitions")
    with running_server() as server, server.client() as client, working(server.url) as workers:
        say(which_tidelog(client))
        watch = Watch(client, workers, len(rows))
        watch.until(lambda: watch.of("convert").partitions and watch.shared_by("ABC"), "all three have joined")
        for name, process in workers.processes.items():
            owned = [str(at) for at, owner in enumerate(watch.owners[-1]) if owner == name]
            say(f"worker {name}: process {process.pid}, partitions {', '.join(owned)}")
        disaster(server, workers, watch, rows, seconds)
        title("3. Who owned which partition, from the left to the right; K: A is killed, P: B is paused, G: B goes on")
        watch.picture()
        reckon(client, rows)


def disaster(server: Server, workers: Workers, watch: Watch, rows: Sequence[Reading], seconds: float) -> None:
    title(f"2. {len(rows):,} readings are sent; a worker is killed, another one paused")
    sender = sending(server, rows, seconds)
    sender.start()
    quarter = len(rows) // 4
    watch.until(lambda: watch.finished("convert") >= quarter, "a quarter is converted")
    watch.happened("K")
    workers.send("A", signal.SIGKILL)
    workers.processes["A"].wait()
    killed = time.monotonic()
    say(f"kill -9 worker A after {watch.finished('convert'):,} readings")
    watch.until(lambda: watch.shared_by("BC"), "the others have what A had")
    watch.happened(" ")
    say(f"B and C have its partitions {time.monotonic() - killed:.1f} s later (lease: {LEASE:g} s)")
    watch.happened("P")
    workers.send("B", signal.SIGSTOP)
    paused = time.monotonic()
    say(f"kill -STOP worker B after {watch.finished('convert'):,} readings")
    watch.until(lambda: watch.shared_by("C"), "C has everything")
    say(f"C has everything {time.monotonic() - paused:.1f} s later")
    watch.until(lambda: time.monotonic() > paused + 1.5 * LEASE, "the pause is over")
    watch.happened("G")
    workers.send("B", signal.SIGCONT)
    say("kill -CONT worker B: it still has events in hand that are C's by now")
    watch.until(lambda: watch.shared_by("BC"), "B has joined again")
    say("B has found that its lease is lost, dropped them, and joined again")
    watch.until(lambda: not sender.is_alive() and watch.idle, "everything is processed")
    watch.happened(" ")
    say(f"all {len(rows):,} readings are processed by both")


def reckon(client: Client, rows: Sequence[Reading]) -> None:
    title("4. Was anything lost, duplicated, or out of order?")
    wanted: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        wanted.setdefault(row.day, []).append((row.hour, round((row.fahrenheit - 32) / 1.8, 2)))
    found: dict[str, list[tuple[int, float]]] = {}
    for each in _records(client, "converted", Converted):
        found.setdefault(each.day, []).append((each.hour, each.celsius))
    count, total = sum(map(len, found.values())), sum(value for day in found.values() for _, value in day)
    expected = sum(value for day in wanted.values() for _, value in day)
    say(f"convert (transactional): {count:,} readings of {len(found):,} days, the sum is {total:,.2f} °C")
    promise(count == len(rows) and round(total, 2) == round(expected, 2), f"each counts once: {expected:,.2f} °C")
    promise(found == wanted, "the hours of each day are in order")
    hours: dict[str, list[int]] = {}
    noted = 0
    for reading in _records(client, "published", Reading):
        noted += 1
        day = hours.setdefault(reading.day, [])
        if reading.hour not in day:
            day.append(reading.hour)
    say(f"publish (at least once): {noted:,} notes, {noted - len(rows):,} of them again, after the kill and the pause")
    same = hours == {day: list(dict.fromkeys(hour for hour, _ in pairs)) for day, pairs in wanted.items()}
    promise(same, "no reading is missing, and the hours of each day came in order")


def _records(client: Client, name: str, kind: type[Any]) -> Iterator[Any]:
    topic: Topic[Any] = Topic(name, kind, partition_by="day", partitions=8)
    for at in range(8):
        for page in client.pages(topic.stream(at)):
            yield from (topic.decode(entry, at) for entry in page)


def main() -> None:
    with demo("Nothing is left running, nothing is left on disk."):
        play(real_readings(), seconds=10.0)


if __name__ == "__main__":
    main()
