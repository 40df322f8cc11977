"""How long an entry takes from its append to the output that it causes, at a steady rate.

Both times are in IDs that the server gives: that of the entry when it was appended, that of the output when it was
published, and so visible. So no clock but the server's is read, and nobody polls.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.jobs import engines, loads
from tidelog import Client
from tidelog.testing import Server, running_server
from tidelog.topics.partition import partition_of

PATIENCE: Final = 120.0  # seconds
WARM: Final = 5.0  # seconds that don't count
RATE: Final = 100  # entries a second
FIRST: Final = loads.Load(loads.PARTITIONS * 10, loads.PARTITIONS * 10, 1)  # before it begins


class Late(NamedTuple):
    """Milliseconds."""

    p50: float
    p95: float
    entries: int


def measure(command: Sequence[str], seconds: float) -> Late:
    """Of a way to count by key that ``command`` runs, with the URL of a new server in the place of ``URL``.

    It must say READY on a line of its own when it has worked off what is there.
    """
    with running_server() as server, server.client() as client:
        loads.fill(server, FIRST)
        with following([server.url if word == "URL" else word for word in command]):
            return _measured(server, client, seconds)


def measure_ours(seconds: float) -> Late:
    """Of our job that counts by key, on an engine."""
    with running_server() as server, server.client() as client, tempfile.TemporaryDirectory() as folder:
        loads.fill(server, FIRST)
        engines.add(server, "count")
        with engines.running(server, Path(folder)) as engine:
            engines.until(partial(engines.done, client, "count", FIRST.rows), "the first entries", engine)
            return _measured(server, client, seconds)


def _measured(server: Server, client: Client, seconds: float) -> Late:
    sent = _send(server, seconds + WARM)
    shown = _shown(client, set(sent))
    counted = list(sent)[int(WARM * RATE) :]
    cuts = statistics.quantiles([shown[key] - sent[key] for key in counted], n=20)
    return Late(cuts[9], cuts[18], len(counted))


@contextmanager
def following(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process from its READY on; it is ended at the end, with all that it has started, and its temporary files are
    removed. RuntimeError if it ends before.
    """
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
            env=os.environ | {"TMPDIR": folder, "SPARK_LOCAL_DIRS": folder},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            if not any(line.strip() == "READY" for line in process.stdout):
                raise RuntimeError(f"it ended before it was ready: {' '.join(command)}")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                pass
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a JVM would go on writing
            process.wait()
            process.stdout.close()


def _send(server: Server, seconds: float) -> dict[str, int]:
    """Append entries with new keys; the time of each."""
    sent: dict[str, int] = {}
    with server.client() as client:
        began = time.monotonic()
        for number in range(int(seconds * RATE)):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            key = f"late-{number}"
            stream = loads.clicks.stream(partition_of(key, loads.PARTITIONS))
            sent[key] = client.tappend(stream, {"n": number, "key": key, "price": 50}).ms
    return sent


def _shown(client: Client, wanted: set[str]) -> dict[str, int]:
    """The time of the output of each key, when all are there. TimeoutError."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found: dict[str, int] = {}
        for partition in range(loads.PARTITIONS):
            for entry in client.trange(loads.totals.stream(partition)):
                found.setdefault(entry.text()["key"], entry.id.ms)
        if wanted <= found.keys():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{len(wanted - found.keys())} of {len(wanted)} entries have no output")
