"""Engines that run the measured jobs, each a process of its own; and what the jobs' replay logs say of their epochs.

All goes through ``tidelog jobs`` and what is on the server: times are those of the markers, which are published in one
step with the outputs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyspark

import tidelog
from benchmarks import measured
from benchmarks.jobs import defined, loads
from tidelog import Client
from tidelog.jobs import keys
from tidelog.jobs.replaylog.marker import read_marker
from tidelog.testing import Server

MODULE: Final = defined.__name__
PATIENCE: Final = 600.0  # seconds for anything here
LOOK: Final = 0.05


class Epoch(NamedTuple):
    """An epoch of all partitions: when it was published, rows in, rows out."""

    number: int
    ms: int
    rows: int
    out: int


def described() -> str:
    """What is measured, for people."""
    return f"tidelog {tidelog.__version__} from {measured.described()}, Spark {pyspark.__version__}"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tidelog.cli", "jobs", *words]


def environment(server: Server) -> dict[str, str]:
    ours = {"TIDELOG_URL": server.url, "PYTHONPATH": measured.PYTHONPATH, "PYSPARK_PYTHON": sys.executable}
    return os.environ | ours


def add(server: Server, *names: str, module: str = MODULE, store: str = "") -> None:
    """Add jobs of a module to the registry. CalledProcessError."""
    words = command("add", *(f"{module}:{name}" for name in names), *(["--store", store] if store else []))
    subprocess.run(words, env=environment(server), check=True, stdout=subprocess.DEVNULL)


class Engine:
    """An engine, and all processes below it. It may be killed with them."""

    def __init__(
        self, server: Server, folder: Path, name: str, also: Mapping[str, str], options: tuple[str, ...]
    ) -> None:  # fmt: skip
        folder.mkdir(exist_ok=True)
        self.log = folder / f"{name}.log"
        words = ("engine", "--master", f"local[{loads.PARTITIONS}]", "--name", name, "--state-dir", str(folder / name))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command(*words, *options), env=environment(server) | dict(also), stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def check(self) -> None:
        """RuntimeError if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the engine ended with {self.process.returncode}: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """SIGKILL, to the JVM and Python workers too."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Stop in order; what does not is killed."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        try:
            self.kill()
        except ProcessLookupError:
            self.process.wait()


@contextmanager
def running(
    server: Server, folder: Path, name: str = "one", *, most: int | None = None, also: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Iterator[Engine]:  # fmt: skip
    """An engine whose log and state are in a folder. most: rows of a batch in a partition. also: its environment."""
    variables = {} if most is None else {defined.MOST: str(most)}
    engine = Engine(server, folder, name, variables | dict(also or {}), options)
    try:
        yield engine
    finally:
        engine.close()


def until(true: Callable[[], bool], what: str, engine: Engine, patience: float = PATIENCE) -> None:
    """Wait. TimeoutError, which shows the engine's log; RuntimeError if the engine ends."""
    end = time.monotonic() + patience
    while not true():
        engine.check()
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {patience:g} s; the engine says: {engine.log.read_text()[-3000:]}")
        time.sleep(LOOK)


def server_ms(client: Client) -> float:
    """The server's clock, ms since 1970."""
    seconds, micros = client.redis.time()
    return seconds * 1000 + micros / 1000


def epochs(client: Client, job: str, partitions: int = loads.PARTITIONS) -> list[Epoch]:
    """All epochs in the job's replay log."""
    found: dict[int, Epoch] = {}
    for partition in range(partitions):
        log = keys.log(job, partition)
        for entry in client.trange(log):
            marker = read_marker(log, entry)
            rows = sum(span.rows for span in marker.inputs.values())
            before = found.get(marker.epoch, Epoch(marker.epoch, 0, 0, 0))
            found[marker.epoch] = Epoch(
                marker.epoch, max(before.ms, entry.id.ms), before.rows + rows, before.out + marker.rows
            )  # fmt: skip
    return [found[number] for number in sorted(found)]


def done(client: Client, job: str, rows: int) -> bool:
    """Whether so many rows were read, in all epochs together."""
    return sum(epoch.rows for epoch in epochs(client, job)) >= rows


def rate(found: list[Epoch], warm: int) -> tuple[float, int]:
    """Rows a second of all epochs but the first ``warm``, and how many these are. ValueError if there is none."""
    counted = found[warm:]
    if not counted or warm < 1:
        raise ValueError(f"{len(found)} epochs, the first {warm} of which don't count: send more rows")
    return sum(epoch.rows for epoch in counted) / (counted[-1].ms - found[warm - 1].ms) * 1000, len(counted)
