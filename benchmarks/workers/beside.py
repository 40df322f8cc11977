"""Other libraries' workers, each with the same no-op, one process, over redis-server on this machine."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import redis

from benchmarks.peers import programs
from benchmarks.servers import free_port

FOLDER = Path(".bench") / "peers"  # of the virtual environments
PATIENCE = 30.0  # seconds


class Beside(NamedTuple):
    """A library, its version, and the median of its events a second."""

    name: str
    version: str
    events: float


def measure(runs: int) -> Iterator[Beside]:
    """Each library. FileNotFoundError without redis-server."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise FileNotFoundError("no redis-server here (Debian: apt-get install redis-server)")
    for library in programs.LIBRARIES:
        python = programs.installed(library, FOLDER)
        rates = []
        for _ in range(runs):
            with served(binary) as url:
                rates.append(programs.rate(library, python, url))
        yield Beside(library.name, programs.version(library, python), statistics.median(rates))


@contextlib.contextmanager
def served(binary: str) -> Iterator[str]:
    """The URL of an empty redis-server: what it writes is not on disk when it answers, as its default is."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "--port", str(port), "--dir", folder, "--appendonly", "yes", "--save", ""]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + PATIENCE
            while time.monotonic() < end:
                with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
                    client.ping()
                    break
                time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()
