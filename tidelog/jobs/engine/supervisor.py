"""``Supervisor``: runs the registry's jobs that are assigned to this engine, until it is stopped.

    follow   reads the registry and its changes
    rounds   update membership, assignment and claims (``JobOwnership``), and start and stop jobs
    report   writes statuses and events, at most once a second

Rule 1: A job runs from the acquisition of its claim until it is reassigned, lost, paused, removed or changed. It is
        released, or started again, after its previous execution has ended.
Rule 2: After the lease is lost, no job starts a new step, because each checks its claim before each step. Current steps
        are cancelled. The engine does not wait for steps whose generation has ended: they can't be published.
Rule 3: An unreachable server stops nothing here. Each of the three activities continues when the server is back.
Rule 4: ``stop`` drains: the engine leaves the membership, so that the other engines take over its jobs. Its jobs finish
        their current steps within ``grace`` seconds. Claims are released as the jobs end, and the lease last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.steps import Steps, checked, single
from tidelog.coordination import Keeper, Lease, LeaseLostError
from tidelog.jobs import keys
from tidelog.jobs.engine.connection import ANSWER_MS, LOST, EngineConnection
from tidelog.jobs.engine.execution import FIRST, MOST, JobExecution
from tidelog.jobs.engine.ownership import INTERVAL, JobOwnership, OwnershipChange
from tidelog.jobs.engine.runner import CreateRunner
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobRegistry, JobSpec
from tidelog.jobs.registry.status import Status, decoded
from tidelog.operating.errortexts import FailureLog
from tidelog.operating.tasks import set_within
from tidelog.transport.access import Access
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.transport.errors import DeniedError, ReplyError, is_denied, message_of

log = logging.getLogger(__name__)
RETRY: Final = 0.5  # seconds until the next round if there is nothing to wait for
BACKOFF: Final = Backoff(first=0.5, most=4.0)  # after errors of the server
REPORT: Final = 1.0  # seconds between two status updates
SNAPSHOTS: Final = 10  # updates between two checks for failing snapshots
FOLLOW_MS: Final = 2_000  # timeout of a TWAIT for the registry
THREADS: Final = 1000  # jobs that can execute a step at the same time


class Supervisor:
    """The engine ``name`` on the server of ``access``; ``create`` creates the runners of jobs.

    >>> supervisor = Supervisor(access, "e1", create, lease=10.0)
    >>> await supervisor.run()      # until stop(), which any task may call

    lease: seconds until the jobs of a dead engine are reassigned. grace: seconds within which jobs may finish their
    current step when they are to end. first, most: the shortest and longest delay before a failed job is retried.
    on_registry: called with the registry after each read; must return immediately.
    """

    def __init__(
        self, access: Access, name: str, create: CreateRunner, *, lease: float = 10.0, grace: float = 30.0,
        interval: float = INTERVAL, first: float = FIRST, most: float = MOST, wall: Callable[[], float] = time.time,
        on_registry: Callable[[JobRegistry], None] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.lease = Lease(keys.lease(name), name, lease, keys.EPOCHS)
        self.keeper = Keeper(access, self.lease, f"tidelog-jobs-lease:{name}")
        self.running: dict[str, JobExecution] = {}
        self.specs: dict[str, JobSpec] = {}  # as in the registry
        self._access = access
        self._own = JobOwnership(self.lease, interval=interval)
        self._create = create
        self._on_registry = on_registry
        self._grace, self._first, self._most, self._wall = grace, first, most, wall
        self._before: dict[str, Status | None] = {}  # the last status of a job, from any engine
        self._events: list[Call[Any]] = []  # to be sent in addition to the reports of running jobs
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._followed = False  # whether the registry was read
        self._waits_since: float | None = None  # monotonic time since which the lease has not been held
        self._reported_namesake = False
        self._trouble = FailureLog(log)
        self._delays = Delays(BACKOFF)  # after rounds that failed
        self._denied = ""  # the server's error, if it denies this engine access

    def _deny(self, said: str) -> None:
        """Stop without waiting, because the server denies this engine access. Only an administrator can change that."""
        self._denied = said
        self.stop()
        for job in self.running.values():
            job.lose()

    def stop(self) -> None:
        """Drain and stop. A second call does not wait for running jobs."""
        if self._stopping.is_set():
            for job in self.running.values():
                job.lose()
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Run until ``stop``. Raises DeniedError if the server denies a required permission or the login."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._lease_changed)

        unwatch = self.lease.watch(changed)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="job")
        line = EngineConnection(self._access, f"tidelog-jobs:{self.name}")
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._report_all(line))]
        self.keeper.start()
        log.info("engine %s: joining at %s", self.name, self._access.places)
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                await set_within(self._wake, await self._round(line, threads))
            await self._drain(line)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            unwatch()
            line.close()
            await asyncio.to_thread(self.keeper.stop)
            threads.shutdown(wait=False, cancel_futures=True)
            log.info("engine %s: has left", self.name)
        if self._denied:
            raise DeniedError(self._denied)

    # -- rounds ----------------------------------------------------------------------------------------------------
    async def _round(self, line: EngineConnection, threads: ThreadPoolExecutor) -> float:
        """Execute one round; return the seconds until the next one."""
        wanted = {name for name, spec in self.specs.items() if not spec.paused}
        try:
            if not self.lease.held:
                if self.keeper.denied:
                    self._deny(self.keeper.denied)
                    return 0.0
                await self._check_namesake(line)
                return RETRY
            self._waits_since = None
            if not self._followed:
                return RETRY
            change = await line.run(self._own.update(wanted))
            await self._read_statuses(line, change)
            self._act(threads)
            await self._report(line)  # before another engine takes over the jobs that ended
            await line.run(self._own.released([name for name in self._own.leaving if name not in self.running]))
        except LeaseLostError:
            return RETRY
        except (*LOST, JobError) as error:
            if is_denied(error):
                self._deny(message_of(error))
                return 0.0
            self._trouble.warn(f"engine {self.name}: {error}; retrying", _kind(error))
            return self._delays.next()
        except Exception:
            log.exception("engine %s: a round failed; retrying", self.name)
            return RETRY
        self._trouble.succeeded()
        self._delays.reset()
        return change.after

    async def _check_namesake(self, line: EngineConnection) -> None:
        """Log, once, that a live engine with the same name prevents this one from working."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since, self._reported_namesake = now, False
        if self._reported_namesake or now - self._waits_since < self.lease.ttl + 1:
            return
        (there,) = checked(await line.run(_asked(strings.get(self.lease.key))))
        if there is not None and not self.lease.held:
            self._reported_namesake = True
            log.warning(
                "engine %s: another live engine has the name %r: this one waits until it ends. Give each engine its"
                " own --name", self.name, self.name,
            )  # fmt: skip

    async def _read_statuses(self, line: EngineConnection, change: OwnershipChange) -> None:
        """Read the last statuses of the acquired jobs."""
        if change.acquired:
            (found,) = checked(await line.run(_asked(strings.mget(*[keys.status(name) for name in change.acquired]))))
            self._before |= {name: decoded(text) for name, text in zip(change.acquired, found, strict=True)}

    def _act(self, threads: ThreadPoolExecutor) -> None:
        """Start assigned jobs, and end those that are no longer assigned or have changed."""
        for name, job in self.running.items():
            claim, spec = self._own.claims.get(name), self.specs.get(name)
            if job.claim.lost or not job.claim.held:
                job.lose()
            elif spec is None or spec.generation != job.spec.generation:
                job.abort()
            elif claim is not job.claim or spec.revision != job.spec.revision:
                job.end()
        for name, claim in self._own.claims.items():
            if name not in self.running and claim.held and name in self.specs:
                spec = self.specs[name]
                self.running[name] = JobExecution(
                    spec, claim, self._create, threads, self._status(spec), partial(self._ended, name),
                    grace=self._grace, first=self._first, most=self._most, wall=self._wall,
                )  # fmt: skip

    def _status(self, spec: JobSpec) -> Status:
        """Return the initial status of a job, which continues its previous status."""
        before = self._before.pop(spec.name, None)
        status = Status(spec.name, self.name, spec.generation, spec.version)
        if before is not None and before.generation == spec.generation:
            status.restarts, status.epoch = before.restarts, before.epoch
            status.error, status.error_at = before.error, before.error_at
        moved = before is not None and before.engine != self.name
        said = {"kind": "moved" if moved else "start", "engine": self.name,
                "text": f"from {before.engine}" if moved and before else f"version {spec.version}"}  # fmt: skip
        self._events.append(calls.tappev(keys.events(spec.name), said, count=1000))
        return status

    def _ended(self, name: str) -> None:
        job = self.running.pop(name)
        self._before[name] = job.reporter.status
        if job.claim.held:
            job.reporter.set("stopped")
            self._events += job.reporter.due()
        else:  # the status belongs to another engine
            self._events += job.reporter.events
        self._wake.set()

    def _lease_changed(self) -> None:
        if not self.lease.held:
            dropped = self._own.drop()
            for job in self.running.values():
                job.lose()
            if dropped and not self._stopping.is_set():
                log.warning("engine %s: the lease is lost; %d jobs are stopped", self.name, len(dropped))
        self._wake.set()

    # -- the registry ---------------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        """Read the registry, then its changes."""
        line = EngineConnection(self._access, f"tidelog-jobs-registry:{self.name}", ANSWER_MS + FOLLOW_MS)
        found, trouble, delays = JobRegistry(), FailureLog(log), Delays(BACKOFF)
        try:
            while True:
                try:
                    found = await line.run(registry.read(found))
                    self.specs, self._followed = dict(found.specs), True
                    delays.reset()
                    trouble.succeeded()
                    if self._on_registry is not None:
                        self._on_registry(found)
                    self._wake.set()
                    await line.run(single(calls.twait({keys.REGISTRY: found.last}, block=FOLLOW_MS)))
                except (*LOST, JobError) as error:
                    if is_denied(error):
                        self._deny(message_of(error))
                        return
                    text = f"engine {self.name}: the registry cannot be read: {error}; retrying"
                    trouble.warn(text, _kind(error))
                    found = JobRegistry()  # the server may have lost entries that were read
                    await asyncio.sleep(delays.next())
                except Exception:  # without the registry, the engine would not notice any change
                    log.exception("engine %s: unexpected error while following the registry; retrying", self.name)
                    found = JobRegistry()
                    await asyncio.sleep(delays.next())
        finally:
            line.close()

    # -- status ---------------------------------------------------------------------------------------------------
    async def _report_all(self, line: EngineConnection) -> None:
        at = 0
        while True:
            await asyncio.sleep(REPORT)
            at += 1
            try:
                await self._report(line)
                if at % SNAPSHOTS == 0:
                    await self._check_snapshots(line)
            except Exception:
                log.exception("engine %s: the statuses of jobs could not be written", self.name)

    async def _check_snapshots(self, line: EngineConnection) -> None:
        """Report failing snapshots. Separate processes create them and record errors on the server."""
        jobs = [job for job in self.running.values() if job.spec.state]
        try:
            (texts,) = checked(await line.run(_asked(strings.mget(*[keys.snapshots(job.spec.name) for job in jobs]))))
        except LOST as error:
            log.debug("snapshots were not checked: %s", error)
            return
        for job, text in zip(jobs, texts, strict=True):
            job.reporter.snapshots(text)

    async def _report(self, line: EngineConnection) -> None:
        due, self._events = self._events, []
        for job in self.running.values():
            due += job.reporter.due()
        try:
            if due:
                await line.run(_asked(*due))
        except LOST as error:
            log.debug("statuses were not written: %s", error)

    # -- the end --------------------------------------------------------------------------------------------------
    async def _drain(self, line: EngineConnection) -> None:
        """Leave the membership: see Rule 4."""
        log.info("engine %s: leaving; %d jobs finish their current step", self.name, len(self.running))
        for job in self.running.values():
            job.end()
        left = False
        while self.lease.held and not self._denied and (self.running or self._own.leaving or not left):
            try:
                if not left:
                    await line.run(self._own.leave())
                    left = True
                await self._report(line)
                await line.run(self._own.released([name for name in self._own.leaving if name not in self.running]))
            except LeaseLostError:
                break
            except (*LOST, JobError) as error:
                log.warning("engine %s: %s; retrying until the lease expires", self.name, error)
                if not self.running and self.lease.tenure.until - self.lease.clock() < self.lease.ttl / 2:
                    break
            if self.running or not left:
                self._wake.clear()
                await set_within(self._wake, RETRY)
        while self.running:
            self._wake.clear()
            await set_within(self._wake, RETRY)
        if not self._denied:
            await self._report(line)


def _kind(error: Exception) -> str:
    """Return a key for an error, so that the many connection errors of one outage are logged once."""
    if isinstance(error, OSError):
        return "refused" if isinstance(error.__cause__, ReplyError) else "lost"
    return str(error)


def _asked(*sent: Call[Any]) -> Steps[list[Any]]:
    """Send calls whose errors are independent of each other."""
    return (yield list(sent))
