"""``Cleanup``: removes the states and snapshots of former generations, after a reset or the removal of a job.

Rule 1: A generation has ended if the registry says so (``update``) and its fence on the server is closed at the time of
        the cleanup. The current generation is not touched, nor are jobs that the registry does not contain: they may
        belong to another server. In the object store, one of the generation's topics must belong to this server, since
        two servers may have jobs with the same name.
Rule 2: The cleanup runs after WAIT seconds and again after AGAIN seconds, because an engine, a task or a snapshot
        process that has not noticed the end of the generation may leave files. Files that are in use or cannot be
        removed are retried every AGAIN seconds.
Rule 3: The cleanup runs in its own thread, in portions. No job waits for it, and no failure stops anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.client import calls
from tidelog.client.steps import Steps, checked
from tidelog.jobs import keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.engine.connection import LOST, EngineConnection
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.epochs.placement import located_rdd
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobRegistry
from tidelog.jobs.snapshots import SnapshotError
from tidelog.jobs.snapshots.cleanup import clear as clear_objects
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.store import StoreError
from tidelog.jobs.store.cleanup import clear
from tidelog.jobs.store.statedir import expanded
from tidelog.jobs.topics import facts_now, read_now
from tidelog.topics import TopicError
from tidelog.transport.access import Access
from tidelog.transport.call import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT: Final = 60.0  # seconds
AGAIN: Final = 3600.0
PASS: Final = 0.5  # seconds between two portions of a job
PORTIONS: Final = 100  # maximum number of portions of a job and object store at a time

log = logging.getLogger(__name__)

#: Removes the generations of each job up to the given one from the disks of executors; returns whether all are removed.
Disks = Callable[[Mapping[str, int]], bool]


class Cleanup:
    """Runs from ``__enter__`` to ``__exit__``, which does not wait for the current portion.

    store: URL of the engine's object store, empty if it has none.
    """

    def __init__(
        self, access: Access, name: str, store: str, disks: Disks, *, wait: float = WAIT, again: float = AGAIN
    ) -> None:
        self._access, self._name, self._store, self._disks = access, name, store, disks
        self._wait, self._again = wait, again
        self._changed = threading.Condition()
        self._over: dict[str, int] = {}  # by job: its newest ended generation
        self._stores: dict[str, str] = {}  # by job: its own object store
        self._due: dict[str, list[float]] = {}  # by job: monotonic times
        self._ended = False

    def __enter__(self) -> Cleanup:
        threading.Thread(target=self._run, name="cleanup", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def update(self, known: JobRegistry) -> None:
        """Record which generations have ended. May be called in any thread; returns immediately."""
        over = {name: spec.generation - 1 for name, spec in known.specs.items() if spec.generation > 1} | known.gone
        with self._changed:
            before, self._over = self._over, over
            self._stores |= {name: spec.store for name, spec in known.specs.items()}
            now = time.monotonic()
            for name in over:
                if over[name] > before.get(name, 0):
                    self._due[name] = [now + self._wait, now + self._again]
            self._changed.notify_all()

    # -- in the thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        for names in self._due_jobs():
            try:
                failed = self._clean(names)
            except Exception:
                log.exception("engine %s: former generations could not be removed", self._name)
                failed = names
            with self._changed:
                for name in failed:
                    self._due.setdefault(name, []).append(time.monotonic() + self._again)

    def _due_jobs(self) -> Iterator[set[str]]:
        """Yield the due jobs whenever there are any, until the cleanup ends."""
        while True:
            with self._changed:
                while not self._ended:
                    now = time.monotonic()
                    names = {name for name, times in self._due.items() if min(times) <= now}
                    if names:
                        break
                    soonest = min((min(times) for times in self._due.values()), default=None)
                    self._changed.wait(None if soonest is None else soonest - now)
                if self._ended:
                    return
                for name in names:
                    left = [at for at in self._due.pop(name) if at > now]
                    if left:
                        self._due[name] = left
            yield names

    def _clean(self, names: Collection[str]) -> set[str]:
        """Clean up these jobs; return those with remaining files."""
        try:
            with closing(self._connection()) as line:
                over, stores = self._ended_generations(line, names)
        except (*LOST, JobError) as error:
            log.info("engine %s: former generations are not removed yet: %s", self._name, error)
            return set(names)
        left: set[str] = set()
        for name, newest in over.items():
            for url in stores[name]:
                try:
                    done = self._clear_objects(url, name, newest)
                except (*LOST, SnapshotError, JobError) as error:
                    log.warning("job %s: former generations are not removed: %s", name, error)
                    done = False
                left |= set() if done else {name}
        try:
            if over and not self._disks(over):
                left |= set(over)
        except Exception as error:  # noqa: BLE001 - including errors of Spark
            log.warning("engine %s: states of former generations are not removed: %s", self._name, str(error)[:1000])
            left |= set(over)
        return left

    def _ended_generations(
        self, line: EngineConnection, names: Collection[str]
    ) -> tuple[dict[str, int], dict[str, set[str]]]:
        """Return the ended generations of these jobs and the URLs of their object stores (Rule 1)."""
        with self._changed:
            over = {name: self._over[name] for name in sorted(names) if name in self._over}
        fences = line.drive(_replies([calls.tfence(keys.fence(name, newest)) for name, newest in over.items()]))
        closed = {name: over[name] for name, fence in zip(over, fences, strict=True) if fence == CLOSED}
        stores = {}
        for name in closed:
            with self._changed:
                own = self._stores.get(name)
            if own is None:  # removed before this engine started
                spec = line.drive(registry.removed(name))
                own = spec.store if spec is not None else ""
            stores[name] = {self._store, own} - {""}
        return closed, stores

    def _clear_objects(self, url: str, name: str, newest: int) -> bool:
        """Remove objects in up to PORTIONS portions; return whether all are removed."""
        objects = ObjectStore(url)
        for _ in range(PORTIONS):
            if clear_objects(objects, name, newest, self._is_ours):
                return True
            with self._changed:
                if self._changed.wait_for(lambda: self._ended, PASS):
                    return False
        return False

    def _is_ours(self, topics: Mapping[str, str]) -> bool:
        """Return whether one of these topics, given with its ID, is on the server."""
        if not topics:
            return False
        with closing(self._connection()) as line:
            texts = line.drive(_replies(facts_now(list(topics))))
        try:
            there = read_now(list(topics), texts)
        except TopicError as error:
            raise JobError(str(error)) from None
        return any(facts is not None and facts.id == topics[name] for name, facts in there.items())

    def _connection(self) -> EngineConnection:
        return EngineConnection(self._access, f"tidelog-jobs-cleanup:{self._name}")


def _replies(requests: Iterable[Call[Any]]) -> Steps[list[Any]]:
    return checked((yield list(requests)))


def disks_of(settings: EngineSettings, spark: Future[SparkSession]) -> Disks:
    """Return the function that cleans up an engine's disks: of this machine, or of the current executors."""
    if settings.master == "local" or settings.master.startswith("local["):
        return lambda over: clear(Path(expanded(settings.state_dir)), over)
    return lambda over: _on_machines(spark.result(), _Clear(settings.state_dir, dict(over)))


@dataclass(frozen=True)
class _Clear:
    """The function that runs in Spark's Python workers."""

    state_dir: str
    over: dict[str, int]

    def __call__(self, rows: Iterable[Any]) -> Iterator[bool]:
        for _ in rows:
            raise AssertionError("the RDD has no rows")
        try:
            yield clear(Path(expanded(self.state_dir)), self.over)
        except (OSError, StoreError) as error:
            log.warning("states of former generations are not removed: %s", error)
            yield False


def _on_machines(spark: SparkSession, work: _Clear) -> bool:
    """Run one task for each machine with executors; Spark makes the final choice of machines."""
    context = spark.sparkContext
    java: Any = context
    known = str(java._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" "))
    hosts = sorted({each.rpartition(":")[0] for each in known.split()})
    context.setLocalProperty("spark.scheduler.pool", "tidelog cleanup")
    return all(located_rdd(context, hosts).mapPartitions(work).collect())
