"""What workers cost that have nothing to do, and how long an event takes from ``send`` to its handler then."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.client import Client
from tidelog.testing import running_server
from tidelog.workers import keys

PATIENCE = 60.0  # seconds
PROGRAM = """
import json, time
import msgspec
from tidelog.workers import App

class Ping(msgspec.Struct):
    sent: int

app = App("quiet", {url!r})
pings = app.topic("pings", Ping, partition_by="sent", partitions={partitions})
out = open({out!r}, "a", buffering=1)

@app.each(pings)
async def pong(ping: Ping) -> None:
    out.write(f"{{time.monotonic_ns() - ping.sent}}\\n")
"""


class Quiet(NamedTuple):
    """Commands a second of all workers together; milliseconds from ``send`` to the handler."""

    commands: float
    p50: float
    p99: float


def measure(workers: int = 4, partitions: int = 16, seconds: float = 30.0, events: int = 500) -> Quiet:
    """Of so many worker processes on a new server."""
    with tempfile.TemporaryDirectory() as folder, running_server() as server, server.client() as client:
        out = Path(folder) / "latencies"
        out.touch()
        (Path(folder) / "quietapp.py").write_text(PROGRAM.format(url=server.url, partitions=partitions, out=str(out)))
        with _running(workers, Path(folder)):
            _settled(client, workers)
            before, began = _commands(client), time.monotonic()
            time.sleep(seconds)
            commands = (_commands(client) - before - 1) / (time.monotonic() - began)
            found = _latencies(client, out, partitions, events)
    cuts = statistics.quantiles(found, n=100)
    return Quiet(commands, cuts[49] / 1e6, cuts[98] / 1e6)


@contextlib.contextmanager
def _running(workers: int, folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "tidelog.cli", "worker", "quietapp:app"]
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def _settled(client: Client, workers: int) -> None:
    """Wait until each worker has its partitions, and a while longer, until what they said has been heard."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        text = client.redis.get(keys.members("quiet", "pong"))
        if text and len(set(json.loads(text)["owners"]) - {None}) == workers:
            time.sleep(10)
            return
        time.sleep(0.1)
    raise TimeoutError("the workers did not share the partitions")


def _commands(client: Client) -> int:
    return int(client.redis.info("stats")["total_commands_processed"])


def _latencies(client: Client, out: Path, partitions: int, events: int) -> list[int]:
    for number in range(events):
        client.tappend(f"pings:{number % partitions}", {"sent": time.monotonic_ns()})
        time.sleep(0.02)
    end = time.monotonic() + PATIENCE
    while len(lines := out.read_text().split()) < events and time.monotonic() < end:
        time.sleep(0.05)
    return [int(line) for line in lines]
