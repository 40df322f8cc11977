"""``running_engine``: runs a complete engine for a test, on ``local[2]``, with a server of ``tidelog.testing``.

    with running_server() as server, running_engine(server, count, lead) as engine:
        ...                                    # send
        engine.idle()                          # wait until everything that was sent has been read
        engine.kill()                          # SIGKILL, including Spark's processes

The engine is a separate process that runs the registry's jobs, so a test can also use ``tidelog jobs``.

Rule 1: The process has its own session, so that everything it has started ends with it. It ends if this process ends,
        even by SIGKILL (``attached``).
Rule 2: Jobs are idle if, at one time, all entries have been read. ``idle`` therefore checks twice and requires that no
        epoch was published between the checks: a job's outputs may be another's inputs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from tidelog.client import Client
from tidelog.client.alone import run_alone
from tidelog.client.steps import run
from tidelog.jobs.declare import Job
from tidelog.jobs.engine.connection import EngineConnection
from tidelog.jobs.errors import JobError
from tidelog.jobs.loading import load
from tidelog.jobs.registry import registry, targets
from tidelog.jobs.registry.overview import JobOverview, JobsOverview, overview
from tidelog.operating import attached
from tidelog.testing import Server
from tidelog.transport.access import Access

PATIENCE: Final = 120.0  # seconds: a cold start of a JVM, on a busy machine
STOP: Final = 60.0
POLL: Final = 0.1
LOGGED: Final = 4000  # characters of the log in error texts


class EngineTest:
    """An engine under test, created by ``running_engine``. ``folder`` contains its log and its state; it is removed."""

    def __init__(self, server: Server, command: Sequence[str], folder: Path) -> None:
        self.server = server
        self.folder = folder
        self._command = command
        self._log = folder / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The log of the engine so far."""
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the engine, or restart it with the existing state after it was stopped or killed."""
        if not self.running:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                    env=os.environ | {"PYTHONPATH": f"{os.getcwd()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
                )  # fmt: skip

    def stop(self) -> None:
        """Send SIGTERM, so that current epochs are finished. After STOP seconds, the process is killed."""
        if self._process is None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to all its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdin is not None  # noqa: S101 - a pipe
            self._process.stdin.close()
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP, to all its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, number)

    # -- status --------------------------------------------------------------------------------------------------
    def status(self) -> dict[str, JobOverview]:
        """Return what ``tidelog jobs status`` shows, by name."""
        return {each.spec.name: each for each in self._overview().jobs}

    def idle(self, timeout: float = PATIENCE) -> None:
        """Return when all jobs that are not paused have read all entries; the progress of frame jobs is that of their
        groups.

        Raises JobError with the error of a failed job, or if the engine has ended; TimeoutError names the jobs that
        lag.
        """
        end = time.monotonic() + timeout
        before: list[int | None] | None = None
        while True:
            jobs = [each for each in self._overview().jobs if not each.spec.paused]
            self._check(jobs)
            epochs = [part.epoch for each in jobs for part in each.partitions]
            left = [f"{each.spec.name}: {each.state}, {each.lag} unread entries" for each in jobs if not _idle(each)]
            if not left and epochs == before:
                return
            before = None if left else epochs
            if time.monotonic() > end:
                raise TimeoutError(f"not idle after {timeout:g} s: {'; '.join(left)}\n{self.log[-LOGGED:]}")
            time.sleep(POLL)

    def _check(self, jobs: Sequence[JobOverview]) -> None:
        if not self.running:
            raise JobError(f"the engine is not running; its log:\n{self.log[-LOGGED:]}")
        for each in jobs:
            if each.state == "failed" and each.report is not None:
                raise JobError(f"job {each.spec.name!r} has failed: {each.report.error}")

    def _overview(self) -> JobsOverview:
        with closing(EngineConnection(Access.of(self.server.url), "tidelog-jobs-test")) as line:
            return line.drive(overview())


@contextmanager
def running_engine(
    server: Server, *jobs: Job | str, name: str = "test", store: str = "", lease: float = 10.0,
    master: str = "local[2]", options: Sequence[str] = (),
) -> Iterator[EngineTest]:  # fmt: skip
    """Run an engine with these jobs until the end of the context.

    jobs: Jobs, each an attribute of a module that can be imported, or their names, ``module:attribute``. They are added
    to the registry; existing jobs continue. store: URL of an object store for snapshots. options: more options of
    ``tidelog jobs engine``.

    The engine uses the ``sys.path`` of this process. Raises JobError for jobs that can't be added. The engine may not
    be ready when the context is entered: ``idle`` waits for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="tidelog-engine-"))
    path = tuple(dict.fromkeys(os.path.abspath(each) for each in sys.path if Path(each or ".").is_dir()))
    command = [
        sys.executable, "-P", attached.__file__, "tidelog.cli", "jobs", "engine", "--url", server.url, "--name", name,
        "--master", master, "--state-dir", str(folder / "state"), "--store", store, "--lease", str(lease), *options,
        *(word for each in path for word in ("--path", each)),
    ]  # fmt: skip
    engine = EngineTest(server, command, folder)
    try:
        _add(server, jobs, store)
        engine.start()
        yield engine
        engine.stop()
    finally:
        engine.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _add(server: Server, jobs: Sequence[Job | str], store: str) -> None:
    with Client(server.url) as client:
        for each in jobs:
            target = each if isinstance(each, str) else _target(each)
            job = load(target) if isinstance(each, str) else each
            spec = run(client, targets.describe(job, target, store))
            run_alone(client, registry.change(registry.add(spec), "a test"))


def _target(job: Job) -> str:
    """Return ``module:attribute`` of a job. Raises JobError if no module contains it."""
    module = job.function.__module__
    for name, value in vars(sys.modules[module]).items():
        if value is job:
            return f"{module}:{name}"
    raise JobError(f"job {job.name!r} is not an attribute of the module {module}: an engine could not import it")


def _idle(job: JobOverview) -> bool:
    return job.state == "running" and not job.lag
