"""``RunnerFactory``: creates runners on this engine's Spark: drivers of batch jobs, and queries of frame jobs.

Rule 1: The code on this engine must declare the same inputs and the same state type as the job in the registry.
        Otherwise it would continue with the state and the positions of a different job.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidelog.client.entries import StreamId
from tidelog.client.publish import ReplicaAcks
from tidelog.coordination import Claim
from tidelog.jobs.declare import Job
from tidelog.jobs.engine.runner import Runner
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.epochs.outcome import EpochOutcome
from tidelog.jobs.epochs.sparktasks import SparkTasks
from tidelog.jobs.errors import JobError
from tidelog.jobs.loading import load
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import StepReport
from tidelog.jobs.registry.targets import type_name
from tidelog.jobs.task.plan import TaskSettings
from tidelog.spark.watch import NewEntryWatch
from tidelog.transport.access import Access
from tidelog.transport.waker import Waker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.jobs.frames.query import FrameRunner, FrameState

BLOCKED: Final = 1.0  # seconds until a blocked job checks again
SETTLE: Final = 1.0  # seconds from an epoch until the group of a stateless job is moved
LONGEST: Final = 300.0  # seconds until an idle job checks without a notification
SPARE_MS: Final = 60_000  # lifetime of stages beyond the longest epoch
LOOK: Final = 0.02  # seconds between two checks whether a leader has replied
POLL: Final = 1.0  # seconds between two polls of a frame job


class RunnerFactory:
    """Creates runners. ``spark``: the session, which may still be starting."""

    def __init__(self, settings: EngineSettings, spark: Future[SparkSession]) -> None:
        self._settings = settings
        self._spark = spark
        self._notifier = EntryNotifier(settings.access, f"tidelog-jobs-waker:{settings.name}")

    def __enter__(self) -> RunnerFactory:
        self._notifier.waker.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._notifier.waker.__exit__(*error)

    def create(self, spec: JobSpec, claim: Claim) -> Runner:  # noqa: ARG002 - has the signature ``runner.CreateRunner``
        """Create the runner of a job. Raises JobError if the code on this engine is not that of the job."""
        job = load(spec.target, self._settings.path, spec.version)
        _check(spec, job)
        settings = self._settings
        where = TaskSettings(
            spec.target, settings.path, settings.access, spec.generation, uuid4().hex, spec.partitions,
            settings.state_dir, spec.store or settings.store, version=spec.version,
            stage_ttl_ms=round(job.timeout * 1000) + SPARE_MS, copies=ReplicaAcks(settings.replicas),
        )  # fmt: skip
        spark = self._spark.result()
        if job.kind == "frame":
            from tidelog.jobs.frames.query import FrameRunner  # requires pyspark

            begun = replace(job, start=spec.start) if spec.start else job
            return FrameQuery(FrameRunner(spark, begun, where), spark)
        tasks = SparkTasks(spark, spec.name, timeout=job.timeout)
        return BatchRunner(Driver(job, where, tasks, spec.start or None), tasks, self._notifier)


class EntryNotifier:
    """Waits for new entries, for all jobs of an engine; used in its event loop."""

    def __init__(self, access: Access, name: str) -> None:
        self.waker = Waker(access, self._notify, name)
        self._access = access
        self._name = name
        self._events: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}

    async def wait(self, job: str, positions: Mapping[str, StreamId], divided: bool = False) -> None:
        """Return as soon as one of these streams has an entry after its ID in ``positions``.

        With several groups of a cluster, this may return without new entries, after some seconds.
        """
        if divided:
            await self._wait_at_all(positions)
            return
        event = asyncio.Event()
        mine = self._events[job] = (asyncio.get_running_loop(), event)
        self.waker.watch(job, positions)
        try:
            await event.wait()
        finally:
            if self._events.get(job) is mine:
                del self._events[job]
                self.waker.forget(job)

    async def _wait_at_all(self, positions: Mapping[str, StreamId]) -> None:
        ended = threading.Event()

        def watched() -> None:
            watch = NewEntryWatch(self._access, self._name)
            watch.begin(positions)
            if not watch.waits:
                ended.wait(BLOCKED)
            while watch.quiet() and not ended.wait(LOOK):
                pass
            watch.close()

        try:
            await asyncio.to_thread(watched)
        finally:
            ended.set()

    def _notify(self, job: str) -> None:
        """Called in the waker's thread."""
        found = self._events.get(job)
        if found is not None:
            loop, event = found
            loop.call_soon_threadsafe(event.set)


class BatchRunner:
    """Runs a batch job: calls its driver when there are new entries."""

    def __init__(self, driver: Driver, tasks: SparkTasks, notifier: EntryNotifier) -> None:
        self._driver = driver
        self._tasks = tasks
        self._notifier = notifier
        self._again: float | None = None  # seconds until the next step without new entries
        self._waiting = ""

    def prepare(self) -> StepReport:
        self._driver.prepare()
        return StepReport(self._driver.epoch, more=True, version=self._driver.job.version)

    def step(self) -> StepReport:
        outcome = self._driver.step()
        self._again = outcome.again
        if outcome.published and self._again is None:  # the next step computes when a source is due, or moves the group
            job = self._driver.job
            self._again = 0.0 if job.is_source else None if job.stateful else SETTLE
        return self._reported(outcome)

    async def wait(self) -> None:
        if self._waiting:  # blocked although there are new entries
            await asyncio.sleep(self._again or BLOCKED)
            return
        try:
            async with asyncio.timeout(LONGEST if self._again is None else self._again):
                await self._notifier.wait(self._driver.job.name, self._driver.positions(), self._driver.divided)
        except TimeoutError:
            pass

    def cancel(self) -> None:
        self._tasks.cancel()

    def close(self) -> None:
        self._driver.close()

    def _reported(self, outcome: EpochOutcome) -> StepReport:
        facts: dict[str, Any] = {}
        if outcome.published:
            facts = {"keys": outcome.keys, "bytes": outcome.bytes, "seconds": dict(outcome.seconds),
                     "slowest": dict(outcome.slowest)}  # fmt: skip
        notes: tuple[tuple[str, str], ...] = ()
        if outcome.waiting != self._waiting:
            self._waiting = facts["waiting"] = outcome.waiting
            if outcome.waiting:
                notes = (("waiting", outcome.waiting),)
        return StepReport(
            outcome.epoch, outcome.more, outcome.rows_in, outcome.rows_out, outcome.dead, outcome.recovered, facts,
            notes, outcome.version,
        )  # fmt: skip


class FrameQuery:
    """Runs a frame job: polls its streaming query, which runs by itself."""

    def __init__(self, query: FrameRunner, spark: SparkSession) -> None:
        self._query = query
        self._spark = spark
        self._seen: FrameState | None = None

    def prepare(self) -> StepReport:
        # Spark looks for a writer's format in the session that is active in this thread, which has none so far.
        java: Any = self._spark._jvm
        java.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._spark._jsparkSession)
        self._query.start()
        return self.step()

    def step(self) -> StepReport:
        seen, before = self._query.poll(), self._seen
        self._seen = seen
        if seen.error is not None:
            raise seen.error
        if seen.state == "stopped":
            raise RuntimeError(f"the query of job {self._query.job.name!r} ended unexpectedly")
        facts = {"query": seen.state, "watermark": seen.watermark, "out": dict(seen.rows_out)}
        out = sum(seen.rows_out.values()) - (sum(before.rows_out.values()) if before else 0)
        rows_in = seen.rows_in - (before.rows_in if before else 0)
        version = self._query.job.version
        batch = 0 if seen.batch is None else seen.batch
        return StepReport(batch, rows_in=rows_in, rows_out=out, facts=facts, version=version)

    async def wait(self) -> None:
        await asyncio.sleep(POLL)

    def cancel(self) -> None:
        self._query.cancel()

    def close(self) -> None:
        self._query.stop()


def _check(spec: JobSpec, job: Job) -> None:
    """Raise JobError if the code on this engine declares a different job."""
    here = JobSpec(spec.name, spec.target, job.kind, inputs=tuple(topic.name for topic in job.inputs),
                partitions=spec.partitions, state=type_name(job.state))  # fmt: skip
    differences = spec.differences(here)
    if job.name != spec.name:
        differences = [f"its name was {spec.name} and is now {job.name}"]
    if differences:
        raise JobError(
            f"job {spec.name!r}: the code on this engine declares a different job: {'; '.join(differences)}. Install"
            f" the registered code on this machine and restart the engine. If this code is the newer one, reset the"
            f" job: tidelog jobs reset {spec.name} --to earliest"
        )
