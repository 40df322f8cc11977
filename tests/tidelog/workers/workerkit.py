"""Workers in this event loop, and workers in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.waiting import eventually
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App, Retry, Worker

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0  # seconds
SOON = Retry(2, first=0.01, most=0.02)


class Order(msgspec.Struct):
    id: int
    key: str = "k"


def orders(app: App, partitions: int | None = 1) -> Topic[Any]:
    """A topic of an app, with records of the type Order."""
    return app.topic("orders", Order, partition_by="key", partitions=partitions)


@asynccontextmanager
async def working(app: App, name: str | None = None) -> AsyncIterator[Worker]:
    """A worker in this event loop; at the end it stops in order."""
    worker = Worker(app, name=name)
    task = asyncio.create_task(worker.run(signals=False))
    ready = asyncio.create_task(worker.ready.wait())
    try:
        await asyncio.wait({task, ready}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield worker
    finally:
        ready.cancel()
        worker.stop()
        await asyncio.wait_for(task, PATIENCE)


def pending(client: Client, app: App, processor: str) -> int:
    """How many messages of a processor are pending."""
    topic = app.processors[processor].topic
    group = app.processors[processor].group
    found = 0
    for number in range(topic.partitions):
        groups = {each.name: each for each in client.tgroup_list(topic.stream(number))}
        if group.encode() in groups:
            found += groups[group.encode()].pending
    return found


class Process:
    """``tidelog worker`` in a process of its own. ``source``: the module with ``app``, which finds URL in it."""

    def __init__(self, url: str, folder: Path, source: str, *options: str) -> None:
        (folder / "shopapp.py").write_text(f"URL = {url!r}\n{source}")
        path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self._log = folder / f"worker-{time.monotonic_ns()}.log"
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli", "worker", "shopapp:app", *options], cwd=folder,
                env=os.environ | {"PYTHONPATH": path}, stdout=out, stderr=out,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP; it stands still when this returns."""
        self._process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.pid}/stat")
        eventually(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def wait(self) -> int:
        """The exit status."""
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def process(server: Server, folder: Path, source: str, *options: str) -> AbstractContextManager[Process]:
    """A worker process, killed at the end if it still runs."""
    return started(server.url, folder, source, *options)


@contextmanager
def started(url: str, folder: Path, source: str, *options: str) -> Iterator[Process]:
    """The same, for servers with this URL."""
    made = Process(url, folder, source, *options)
    try:
        yield made
    except BaseException:
        print(made.log)
        raise
    finally:
        made.kill()
