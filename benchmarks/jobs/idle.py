"""What jobs cost that have nothing to do: commands a second on the server, and cores of the engine's processes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.jobs import engines, idlejobs
from tidelog import Client
from tidelog.jobs import keys
from tidelog.testing import running_server

SETTLE: Final = 15.0  # seconds from when all run until it is measured


class Idle(NamedTuple):
    """A second."""

    commands: float
    cores: float
    by_command: Mapping[str, float]


def measure(jobs: int, seconds: float) -> Idle:
    """Of so many jobs on one engine."""
    names = [f"{idlejobs.PREFIX}_{number}" for number in range(jobs)]
    with running_server() as server, server.client() as client, tempfile.TemporaryDirectory() as folder:
        engines.add(server, *names, module=idlejobs.__name__)
        with engines.running(server, Path(folder)) as engine:
            engines.until(partial(_all_run, client, jobs), f"{jobs} jobs run", engine)
            time.sleep(SETTLE)
            calls, used, began = _calls(client), _cpu(engine.process.pid), time.monotonic()
            time.sleep(seconds)
            took = time.monotonic() - began
            now = _cpu(engine.process.pid)
            cores = sum(now[pid] - used.get(pid, 0.0) for pid in now) / took
            after = _calls(client)
    rates = {name: (count - calls.get(name, 0)) / took for name, count in after.items() if name != "info"}
    busy = {name: rate for name, rate in sorted(rates.items(), key=lambda each: -each[1]) if rate}
    return Idle(sum(busy.values()), cores, busy)


def _all_run(client: Client, jobs: int) -> bool:
    texts = client.redis.mget([keys.status(f"{idlejobs.PREFIX}-{number}") for number in range(jobs)])
    return all(text is not None and json.loads(text)["state"] == "running" for text in texts)


def _calls(client: Client) -> dict[str, int]:
    """How often each command was called."""
    found = client.redis.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(stats["calls"]) for name, stats in found.items()}


def _cpu(pid: int) -> dict[int, float]:
    """CPU seconds of a process and of each below it. Python workers that Spark ends meanwhile are left out."""
    import psutil  # of the extra demo; the other figures need none

    root = psutil.Process(pid)
    found: dict[int, float] = {}
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = times.user + times.system
    return found
