"""Rows a second of a filled topic: our job and Spark's own ways, one after the other, on one server.

After each way its outputs are checked, and deleted for the next one. A rate leaves out the first WARM batches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.jobs import engines, loads
from benchmarks.jobs.keyed import WAYS
from benchmarks.jobs.loads import Load
from tidelog import Client
from tidelog.testing import Server, running_server

OURS: Final = "tidelog"
WARM: Final = 2
STATELESS: Final = {"stateless": "source, DataFrame, sink"}


def keyed(load: Load, ways: Sequence[str], runs: int) -> dict[str, float]:
    """Running counts: the median rate of our job and of each of the ``ways`` in ``keyed.WAYS``."""
    return _medians(load, ("count", loads.check_totals), {way: WAYS[way] for way in ways}, runs)


def stateless(load: Load, runs: int) -> dict[str, float]:
    """A filter with two outputs."""
    return _medians(load, ("split", loads.check_filtered), STATELESS, runs)


def peer(server: Server, name: str, load: Load, *options: str) -> float:
    """The rate of one of Spark's own ways. RuntimeError with what it said, if it fails."""
    command = [sys.executable, "-m", "benchmarks.jobs.peers", server.url, name, f"--batch={load.batch}", *options]
    done = subprocess.run([*command, f"--warm={WARM}"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return float(found["rate"])


def ours(server: Server, client: Client, job: str, load: Load, read: int = 0) -> float:
    """The rate of our job. read: rows that an engine has read before this one."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
        engines.add(server, job)
        with engines.running(server, Path(folder), most=load.most) as engine:
            all_read = partial(engines.done, client, job, load.rows + read)
            engines.until(all_read, f"{load.rows:,} rows", engine)
        return engines.rate(engines.epochs(client, job), WARM)[0]


def emptied(client: Client) -> None:
    """Delete what is in the outputs."""
    for topic in (loads.totals, loads.cheap, loads.dear):
        client.redis.delete(*map(topic.stream, range(loads.PARTITIONS)))


def _medians(
    load: Load, job: tuple[str, Callable[[Client, Load], None]], ways: dict[str, str], runs: int
) -> dict[str, float]:
    name, check = job
    rates: dict[str, list[float]] = {title: [] for title in (OURS, *ways.values())}
    for _ in range(runs):
        with running_server() as server, server.client() as client:
            loads.fill(server, load)
            rates[OURS].append(ours(server, client, name, load))
            check(client, load)
            for way, title in ways.items():
                emptied(client)
                rates[title].append(peer(server, way, load))
                check(client, load)
    return {title: statistics.median(found) for title, found in rates.items()}
