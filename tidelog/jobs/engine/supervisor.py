"""``Supervisor``: runs on this engine what of the registry's jobs should be here, until it is told to stop.

    follow   the registry is followed: which jobs there are
    turns    who is there, what should be here, what is claimed (``JobOwnership``); jobs are begun and ended
    tell     statuses and events are written, once a second if there is anything to write

Rule 1: a job runs from when its claim is taken until it is left, lost, paused, removed or changed. It is released, or
        begun again, when what ran before has ended.
Rule 2: when the lease is lost, no job begins anything more from that moment: each asks its claim before each step. What
        runs is cancelled.
        What can't be published any more, because its generation has ended, is not waited for.
Rule 3: a server that is away stops nothing here: each of the three goes on when it is back.
Rule 4: ``stop`` drains: the engine leaves, so that others know what will be theirs; jobs finish what they do, at most
        ``grace`` seconds; claims are released as their jobs end, the lease last.
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
from tidelog.jobs.engine.ownership import LOOK, JobOwnership, OwnershipChange
from tidelog.jobs.engine.runner import Make
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobRegistry, JobSpec
from tidelog.jobs.registry.status import Status, decoded
from tidelog.operating.errortexts import FailureLog
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.errors import DeniedError, ReplyError, is_denied, message_of

log = logging.getLogger(__name__)
AGAIN: Final = 0.5  # seconds until what failed for the server's sake is tried again, twice as many each time,
MOST_PAUSE: Final = 4.0  # up to this
TELL: Final = 1.0  # seconds between two rounds of statuses
SNAPSHOTS: Final = 10  # rounds between two looks whether snapshots fail
FOLLOW_MS: Final = 2_000  # that one TWAIT for the registry lasts
THREADS: Final = 1000  # jobs that can be at work at the same time


class Supervisor:
    """The engine ``name`` on the server of ``access``; ``make`` makes what runs a job.

    >>> supervisor = Supervisor(access, "e1", make, lease=10.0)
    >>> await supervisor.run()      # until stop(), which any task may call

    lease: seconds after which the jobs of an engine that has died are others'. grace: seconds for which jobs may finish
    what they do when they are to end. first, most: seconds until a job that failed is tried again. told: called with
    the registry when it was read, and with each change; it returns at once.
    """

    def __init__(
        self, access: Access, name: str, make: Make, *, lease: float = 10.0, grace: float = 30.0, look: float = LOOK,
        first: float = FIRST, most: float = MOST, wall: Callable[[], float] = time.time,
        told: Callable[[JobRegistry], None] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.lease = Lease(keys.lease(name), name, lease, keys.EPOCHS)
        self.keeper = Keeper(access, self.lease, f"tidelog-jobs-lease:{name}")
        self.running: dict[str, JobExecution] = {}
        self.specs: dict[str, JobSpec] = {}  # as the registry has them
        self._access = access
        self._own = JobOwnership(self.lease, look=look)
        self._make = make
        self._told = told
        self._grace, self._first, self._most, self._wall = grace, first, most, wall
        self._before: dict[str, Status | None] = {}  # what was said last about a job, by whatever engine
        self._said: list[Call[Any]] = []  # to be sent, besides what running jobs say
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._followed = False  # whether the registry was read
        self._waits_since: float | None = None  # monotonic: the lease is not held since then
        self._told_of_namesake = False
        self._trouble = FailureLog(log)
        self._pause = 0.0  # seconds after the last turn, if it failed
        self._denied = ""  # what the server said, where it denies this engine what it needs

    def _deny(self, said: str) -> None:
        """Only people can mend that: nothing is waited for."""
        self._denied = said
        self.stop()
        for job in self.running.values():
            job.lose()

    def stop(self) -> None:
        """Drain, and end. The second time: end without waiting for what runs."""
        if self._stopping.is_set():
            for job in self.running.values():
                job.lose()
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Take part until ``stop``. Raises DeniedError if the server denies a required permission or the login."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._lease_changed)

        unwatch = self.lease.watch(changed)
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="job")
        line = EngineConnection(self._access, f"tidelog-jobs:{self.name}")
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._tell_all(line))]
        self.keeper.start()
        log.info("engine %s: taking part at %s", self.name, self._access.places)
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                await self._idle(await self._turn(line, threads))
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

    # -- turns ----------------------------------------------------------------------------------------------------
    async def _turn(self, line: EngineConnection, threads: ThreadPoolExecutor) -> float:
        """Look, take, begin, end, release; returns the seconds until the next turn."""
        wanted = {name for name, spec in self.specs.items() if not spec.paused}
        try:
            if not self.lease.held:
                if self.keeper.denied:
                    self._deny(self.keeper.denied)
                    return 0.0
                await self._look_for_namesake(line)
                return AGAIN
            self._waits_since = None
            if not self._followed:
                return AGAIN
            view = await line.run(self._own.turn(wanted))
            await self._ask_before(line, view)
            self._act(threads)
            await self._tell(line)  # what ended says so before another engine has it
            await line.run(self._own.released([name for name in self._own.leaving if name not in self.running]))
        except LeaseLostError:
            return AGAIN
        except (*LOST, JobError) as error:
            if is_denied(error):
                self._deny(message_of(error))
                return 0.0
            self._trouble.warn(f"engine {self.name}: {error}; trying again until it succeeds", _kind(error))
            self._pause = min(MOST_PAUSE, self._pause * 2) or AGAIN
            return self._pause
        except Exception:
            log.exception("engine %s: a turn failed; trying again", self.name)
            return AGAIN
        self._trouble.well()
        self._pause = 0.0
        return view.after

    async def _look_for_namesake(self, line: EngineConnection) -> None:
        """Say why this engine does nothing, once: another one has its lease, longer than a dead one could."""
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since, self._told_of_namesake = now, False
        if self._told_of_namesake or now - self._waits_since < self.lease.ttl + 1:
            return
        (there,) = checked(await line.run(_asked(strings.get(self.lease.key))))
        if there is not None and not self.lease.held:
            self._told_of_namesake = True
            log.warning(
                "engine %s: another engine has the name %r, and lives: this one waits until it ends. Give each engine a"
                " --name of its own", self.name, self.name,
            )  # fmt: skip

    async def _ask_before(self, line: EngineConnection, view: OwnershipChange) -> None:
        """What was said last about the jobs that are begun."""
        if view.acquired:
            (found,) = checked(await line.run(_asked(strings.mget(*[keys.status(name) for name in view.acquired]))))
            self._before |= {name: decoded(text) for name, text in zip(view.acquired, found, strict=True)}

    def _act(self, threads: ThreadPoolExecutor) -> None:
        """Begin what should run, and end what should not, or not like that."""
        for name, job in self.running.items():
            claim, spec = self._own.claims.get(name), self.specs.get(name)
            if job.claim.lost or not job.claim.held:
                job.lose()
            elif spec is None or spec.generation != job.spec.generation:
                job.cut()
            elif claim is not job.claim or spec.revision != job.spec.revision:
                job.end()
        for name, claim in self._own.claims.items():
            if name not in self.running and claim.held and name in self.specs:
                spec = self.specs[name]
                self.running[name] = JobExecution(
                    spec, claim, self._make, threads, self._status(spec), partial(self._ended, name),
                    grace=self._grace, first=self._first, most=self._most, wall=self._wall,
                )  # fmt: skip

    def _status(self, spec: JobSpec) -> Status:
        """The status of a job that begins here, after what was said before."""
        before = self._before.pop(spec.name, None)
        status = Status(spec.name, self.name, spec.generation, spec.version)
        if before is not None and before.generation == spec.generation:
            status.restarts, status.epoch = before.restarts, before.epoch
            status.error, status.error_at = before.error, before.error_at
        moved = before is not None and before.engine != self.name
        said = {"kind": "moved" if moved else "start", "engine": self.name,
                "text": f"from {before.engine}" if moved and before else f"version {spec.version}"}  # fmt: skip
        self._said.append(calls.tappev(keys.events(spec.name), said, count=1000))
        return status

    def _ended(self, name: str) -> None:
        job = self.running.pop(name)
        self._before[name] = job.teller.status
        if job.claim.held:
            job.teller.set("stopped")
            self._said += job.teller.due()
        else:  # the status is another engine's
            self._said += job.teller.events
        self._wake.set()

    def _lease_changed(self) -> None:
        if not self.lease.held:
            dropped = self._own.drop()
            for job in self.running.values():
                job.lose()
            if dropped and not self._stopping.is_set():
                log.warning("engine %s: the lease is lost; %d jobs are dropped", self.name, len(dropped))
        self._wake.set()

    async def _idle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    # -- the registry ---------------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        """Read the registry, then what is new in it."""
        line = EngineConnection(self._access, f"tidelog-jobs-registry:{self.name}", ANSWER_MS + FOLLOW_MS)
        found, trouble, pause = JobRegistry(), FailureLog(log), AGAIN
        try:
            while True:
                try:
                    found = await line.run(registry.read(found))
                    self.specs, self._followed, pause = dict(found.specs), True, AGAIN
                    trouble.well()
                    if self._told is not None:
                        self._told(found)
                    self._wake.set()
                    await line.run(single(calls.twait({keys.REGISTRY: found.last}, block=FOLLOW_MS)))
                except (*LOST, JobError) as error:
                    if is_denied(error):
                        self._deny(message_of(error))
                        return
                    text = f"engine {self.name}: the registry can't be read: {error}; trying again"
                    trouble.warn(text, _kind(error))
                    found = JobRegistry()  # the server may have lost what was read
                    await asyncio.sleep(pause)
                    pause = min(MOST_PAUSE, pause * 2)
        finally:
            line.close()

    # -- status ---------------------------------------------------------------------------------------------------
    async def _tell_all(self, line: EngineConnection) -> None:
        at = 0
        while True:
            await asyncio.sleep(TELL)
            at += 1
            try:
                await self._tell(line)
                if at % SNAPSHOTS == 0:
                    await self._look_at_snapshots(line)
            except Exception:
                log.exception("engine %s: what jobs do could not be told", self.name)

    async def _look_at_snapshots(self, line: EngineConnection) -> None:
        """Processes of their own make them, which tell the server when they can't."""
        jobs = [job for job in self.running.values() if job.spec.state]
        try:
            (texts,) = checked(await line.run(_asked(strings.mget(*[keys.snapshots(job.spec.name) for job in jobs]))))
        except LOST as error:
            log.debug("snapshots were not looked at: %s", error)
            return
        for job, text in zip(jobs, texts, strict=True):
            job.teller.snapshots(text)

    async def _tell(self, line: EngineConnection) -> None:
        due, self._said = self._said, []
        for job in self.running.values():
            due += job.teller.due()
        try:
            if due:
                await line.run(_asked(*due))
        except LOST as error:
            log.debug("statuses were not written: %s", error)

    # -- the end --------------------------------------------------------------------------------------------------
    async def _drain(self, line: EngineConnection) -> None:
        """Leave: see Rule 4."""
        log.info("engine %s: leaving; %d jobs finish what they do", self.name, len(self.running))
        for job in self.running.values():
            job.end()
        left = False
        while self.lease.held and not self._denied and (self.running or self._own.leaving or not left):
            try:
                if not left:
                    await line.run(self._own.leave())
                    left = True
                await self._tell(line)
                await line.run(self._own.released([name for name in self._own.leaving if name not in self.running]))
            except LeaseLostError:
                break
            except (*LOST, JobError) as error:
                log.warning("engine %s: %s; trying again until the lease ends", self.name, error)
                if not self.running and self.lease.tenure.until - self.lease.clock() < self.lease.ttl / 2:
                    break
            if self.running or not left:
                self._wake.clear()
                await self._idle(AGAIN)
        while self.running:
            self._wake.clear()
            await self._idle(AGAIN)
        if not self._denied:
            await self._tell(line)


def _kind(error: Exception) -> str:
    """An outage has many errors of the connection: they are logged as one."""
    if isinstance(error, OSError):
        return "refused" if isinstance(error.__cause__, ReplyError) else "lost"
    return str(error)


def _asked(*sent: Call[Any]) -> Steps[list[Any]]:
    """Calls whose errors don't matter to each other."""
    return (yield list(sent))
