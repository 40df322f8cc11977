"""What tests of engines share: a runner that keeps a diary on the server, engines in this process and in others.

    python -m tests.tidelog.jobs.enginekit URL NAME LEASE

is an engine of such runners, which drains at SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from tidelog.client.client import Client
from tidelog.client.steps import Steps
from tidelog.client.steps import run as run_steps
from tidelog.coordination import Claim
from tidelog.jobs.engine.connection import EngineConnection
from tidelog.jobs.engine.runner import Runner
from tidelog.jobs.engine.supervisor import Supervisor
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import Decide, JobSpec
from tidelog.jobs.registry.status import StepReport
from tidelog.transport.access import Access

ROOT = Path(__file__).parents[3]
DIARY = "diary"  # a stream: engine, job, epoch of the claim, revision, what


class Diarist:
    """A runner that writes into the diary what is asked of it; each step is an entry."""

    def __init__(self, url: str, engine: str, spec: JobSpec, claim: Claim, pause: float = 0.02) -> None:
        self.engine, self.spec, self.claim = engine, spec, claim
        self.pause = pause
        self.client = Client(url)
        self.cancelled = threading.Event()

    def prepare(self) -> StepReport:
        self.write("prepare")
        return StepReport()

    def step(self) -> StepReport:
        self.write("step")
        return StepReport(epoch=1, rows_in=1)

    async def wait(self) -> None:
        await asyncio.sleep(self.pause)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.write("close")
        self.client.close()

    def write(self, what: str) -> None:
        facts: dict[str, str | int] = {
            "engine": self.engine, "job": self.spec.name, "claim": self.claim.epoch, "what": what,
            "revision": self.spec.revision, "generation": self.spec.generation,
        }  # fmt: skip
        self.client.tappend(DIARY, facts)


class Idle(Diarist):
    """One that never has anything to do."""

    async def wait(self) -> None:
        await asyncio.Event().wait()


def diary(client: Client, job: str | None = None) -> list[dict[str, str]]:
    return [
        facts | {"id": str(entry.id)}
        for page in client.pages(DIARY)
        for entry in page
        if (facts := entry.text()) and job in (None, facts["job"])
    ]


def change(client: Client, decide: Decide, **options: Any) -> registry.JobRegistry:
    line = EngineConnection(Access((url_of(client),)), "test")
    try:
        return line.drive(registry.change(decide, **options))[0]
    finally:
        line.close()


def add(client: Client, *names: str) -> None:
    for name in names:
        change(client, registry.add(JobSpec(name, f"module:{name}")))


def fold(client: Client) -> registry.JobRegistry:
    steps: Steps[registry.JobRegistry] = registry.read()
    return run_steps(client, steps)


def url_of(client: Client) -> str:
    options = client.redis.connection_pool.connection_kwargs
    return f"redis://{options['host']}:{options['port']}"


def supervisor(url: str, name: str, lease: float, made: type[Diarist] = Diarist, **options: Any) -> Supervisor:
    def make(spec: JobSpec, claim: Claim) -> Runner:
        return made(url, name, spec, claim)

    return Supervisor(Access((url,)), name, options.pop("make", make), lease=lease, **options)


@asynccontextmanager
async def supervised(url: str, name: str = "e1", lease: float = 5.0, **options: Any) -> AsyncIterator[Supervisor]:
    """A supervisor in this process. It is drained at the end, unless it has ended."""
    it = supervisor(url, name, lease, **options)
    task = asyncio.create_task(it.run())
    try:
        yield it
    finally:
        it.stop()
        await task


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def soon(met: Callable[[], Any], seconds: float = 30) -> Any:
    """What the condition says when it holds."""
    deadline = time.monotonic() + seconds
    while not (found := await asyncio.to_thread(met)):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return found


@contextmanager
def engine(url: str, name: str, lease: float) -> Iterator[subprocess.Popen[str]]:
    """An engine of diarists in a process of its own."""
    command = [sys.executable, "-m", "tests.tidelog.jobs.enginekit", url, name, str(lease)]
    with subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def main(url: str, name: str, lease: str) -> None:
    it = supervisor(url, name, float(lease))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, it.stop)
    await it.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
