"""Events a second of one worker: a topic is filled, then a worker in a process of its own works it off.

CPU is that of the worker's process from the first event on, and of the server while the worker ran: on a machine that
has other things to do, they say more than the seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.workers.modes import Order
from tidelog.testing import Server, running_server
from tidelog.topics import Topic


class Load(NamedTuple):
    """What a worker is given."""

    events: int
    keys: int
    partitions: int
    take: int


class Rate(NamedTuple):
    """What came of it. CPU is in seconds an event."""

    events: float  # a second
    worker: float
    server: float
    acknowledged: int
    repeated: int


def fill(server: Server, load: Load) -> Topic[Order]:
    """The topic, with its events."""
    orders: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=load.partitions, url=server.url)
    orders.sync.send_many(
        Order(number, f"key-{number % load.keys}", "tea", number % 7, 2.5) for number in range(load.events)
    )
    return orders


def measure(mode: str, load: Load, profile: Path | None = None) -> Rate:
    """One worker, on a new server."""
    with running_server() as server:
        fill(server, load).close_sync()
        before = cpu(server)
        command = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else [])]
        command += ["-m", "benchmarks.workers.modes", server.url, mode, f"--events={load.events}"]
        command += [f"--partitions={load.partitions}", f"--take={load.take}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        used = cpu(server) - before
    return Rate(
        found["events"] / found["seconds"], found["cpu"] / load.events, used / load.events, found["acknowledged"],
        found["repeated"],
    )  # fmt: skip


def sending(load: Load) -> float:
    """Records a second of ``send_many``."""
    with running_server() as server:
        fill(server, load._replace(events=1000)).close_sync()
        began = time.perf_counter()
        fill(server, load).close_sync()
        return load.events / (time.perf_counter() - began)


def middle(rates: Sequence[Rate]) -> Rate:
    """The one with the median of events a second."""
    return sorted(rates)[len(rates) // 2]


def cpu(server: Server) -> float:
    """CPU seconds that the server has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
