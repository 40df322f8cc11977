"""``JobExecution``: the execution of one job on this engine, from its claim to its end.

    starting -> running -> ending          failing: the error may be temporary; retried with increasing delays
                                           failed: retrying does not help; until the job is changed or resumed

Rule 1: No call of the runner starts unless the claim is held.
Rule 2: A waiting job uses no thread; each call of the runner has its own thread. A stuck job blocks no other job.
Rule 3: ``end`` lets the current call finish for ``grace`` seconds. After that, or when the claim is lost, the call is
        cancelled. If it does not end within CANCELLED seconds, it is abandoned; the fence rejects its publications.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from tidelog.coordination import Claim
from tidelog.jobs.engine.runner import CreateRunner, Runner
from tidelog.jobs.errors import JobError, SupersededError, TryAgainError
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import Status, StatusReporter
from tidelog.operating.errortexts import summary_of, text_of, traceback_of
from tidelog.operating.tasks import set_within
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.leader import UnreachableError

T = TypeVar("T")
log = logging.getLogger(__name__)
FIRST: Final = 0.5  # seconds until the first retry; doubled each time
MOST: Final = 30.0
CANCELLED: Final = 10.0


class _EndingError(Exception):
    """The job must end."""


class JobExecution:
    """Runs ``spec`` under ``claim``; ``ended`` is called in the event loop when the execution has ended."""

    def __init__(
        self, spec: JobSpec, claim: Claim, create: CreateRunner, threads: Executor, status: Status,
        ended: Callable[[], None], *, grace: float = 30.0, first: float = FIRST,
        most: float = MOST, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.claim = claim
        self.reporter = StatusReporter(status, wall)
        self._create = create
        self._threads = threads
        self._grace = grace
        self._delays = Delays(Backoff(first, max(first, most), jitter=0.2))
        self._ending = asyncio.Event()
        self._lost = asyncio.Event()
        self._runner: Runner | None = None
        self._task = asyncio.create_task(self._run(), name=f"job {spec.name}")
        self._task.add_done_callback(lambda _: ended())

    @property
    def done(self) -> bool:
        return self._task.done()

    def end(self) -> None:
        """End soon, after the current call."""
        if not self._ending.is_set():
            self.reporter.set("ending")
        self._ending.set()

    def lose(self) -> None:
        """End immediately, because the claim is lost."""
        self._lost.set()
        self.end()
        self._cancel()

    def abort(self) -> None:
        """End without finishing the current call, whose output can no longer be published. The claim is still held."""
        if not self._lost.is_set():
            self.lose()

    def _cancel(self) -> None:
        if self._runner is not None:
            try:
                self._runner.cancel()
            except Exception:
                log.exception("job %s: cancelling failed", self.spec.name)

    # -- attempts -------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        again = False
        while not self._ending.is_set():
            try:
                await self._attempt(again)
            except _EndingError:
                break
            except JobError as error:
                self._failed("failed", error)
                await self._ending.wait()
            except SupersededError as error:
                log.info("job %s: %s; starting again from what was published", self.spec.name, error)
                self.reporter.event("superseded", str(error))
                again = await self._later(immediately=True)
            except Exception as error:  # noqa: BLE001 - of a function, Spark or the server: may be temporary
                self._failed("failing", error)
                again = await self._later()
        if self.claim.held:
            self.reporter.event("stop")

    async def _attempt(self, again: bool) -> None:
        """Create a runner and run the job until an error occurs."""
        self.reporter.status.restarts += again
        self.reporter.set("starting")
        try:
            self._runner = runner = await self._in_thread(lambda: self._create(self.spec, self.claim))
            report = await self._in_thread(runner.prepare)
            self.reporter.record(report)
            self.reporter.set("running")
            while True:
                if not report.more:
                    await self._unless_ending(runner.wait())
                report = await self._in_thread(runner.step)
                self.reporter.record(report)
                self._delays.reset()
        finally:
            await self._close()

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        closing = asyncio.get_running_loop().run_in_executor(self._threads, runner.close)
        done, _ = await asyncio.wait([closing], timeout=CANCELLED)
        if not done:
            log.error("job %s: closing takes too long; continuing without it", self.spec.name)
            closing.add_done_callback(_forget)
        elif (failed := closing.exception()) is not None:
            log.error("job %s: closing failed: %s", self.spec.name, summary_of(failed))

    def _failed(self, state: str, error: Exception) -> None:
        """Report an error, with its traceback unless its text is sufficient."""
        plain = isinstance(error, JobError | TryAgainError | UnreachableError)
        text = text_of(error) if plain else traceback_of(error).rstrip()
        log.error("job %s: %s: %s", self.spec.name, state, text)
        self.reporter.set(state, text)
        self.reporter.event("failure" if state == "failing" else "failed", text)

    async def _later(self, immediately: bool = False) -> bool:
        """Wait before the next attempt; returns True. ``immediately``: no delay, unless attempts have failed."""
        delay = self._delays.next()
        await set_within(self._ending, 0 if immediately and self._delays.failures == 1 else delay)
        return True

    # -- calls of the runner -----------------------------------------------------------------------------------
    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Call a method of the runner in a thread. Raises _EndingError if the call is abandoned or must not start."""
        if self._ending.is_set() or not self.claim.held:
            raise _EndingError

        def held() -> T:
            if not self.claim.held:  # the thread started late
                raise _EndingError
            return call()

        future = asyncio.get_running_loop().run_in_executor(self._threads, held)
        try:
            await self._first_of(future)
            if not future.done():
                self._cancel()
                await asyncio.wait([future], timeout=CANCELLED)
            if not future.done():
                log.error("job %s: does not end; its current call is abandoned", self.spec.name)
                self.reporter.event("stuck", "it did not end when requested")
                self._runner = None  # it cannot be closed during a call
                raise _EndingError
        finally:
            future.add_done_callback(_forget)
        return _result(future, self._ending.is_set())

    async def _first_of(self, future: asyncio.Future[Any]) -> None:
        """Wait until the future is done, or the job is to end and its grace has expired, or the claim is lost."""
        ending = asyncio.create_task(self._ending.wait())
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait([future, ending], return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                await asyncio.wait([future, lost], timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            lost.cancel()

    async def _unless_ending(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait([task, ending], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _EndingError
            await task
        finally:
            ending.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])


def _result(future: asyncio.Future[T], ending: bool) -> T:
    """Return the result of a call. While the job is ending, an error counts as the effect of the cancellation."""
    if ending and future.exception() is not None and not isinstance(future.exception(), JobError):
        raise _EndingError
    return future.result()


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
