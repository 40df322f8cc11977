"""``Cleanup``: removes states and snapshots of generations that are over, after a reset or when a job was removed.

Rule 1: a generation is over when the registry says so (``told``) and its fence on the server is closed, at the moment
        of sweeping. Of the generation that goes on nothing is touched, and nothing of jobs that the registry does not
        know: they may be another server's. In the object store, one of the generation's topics must be this server's:
        two servers may have jobs of one name.
Rule 2: it is swept after WAIT seconds, and once more after AGAIN: an engine, a task or a maker of snapshots that does
        not know yet that it is over may leave something behind. What fails, or is in use, is tried every AGAIN seconds.
Rule 3: all of it happens in a thread of its own, in portions: jobs wait for none of it, and no failure ends anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.client import calls, strings
from tidelog.client.steps import Steps, checked
from tidelog.jobs import keys
from tidelog.jobs.engine.connection import LOST, EngineConnection
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.epochs.placement import located_rdd
from tidelog.jobs.errors import JobError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import CLOSED, JobRegistry
from tidelog.jobs.snapshots import SnapshotError
from tidelog.jobs.snapshots.cleanup import clear as clear_objects
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.store import StoreError
from tidelog.jobs.store.cleanup import clear
from tidelog.jobs.store.statedir import expanded
from tidelog.topics import TopicError
from tidelog.topics.settings import key_of, read_settings
from tidelog.transport.access import Access
from tidelog.transport.call import Call

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT: Final = 60.0  # seconds
AGAIN: Final = 3600.0
PASS: Final = 0.5  # seconds between two portions of one job
PORTIONS: Final = 100  # of one job and object store at a time

log = logging.getLogger(__name__)

#: Clears the disks of the machines where tasks run, of the generations up to one, by job; whether all is gone.
Disks = Callable[[Mapping[str, int]], bool]


class Cleanup:
    """Sweeps from ``__enter__`` to ``__exit__``, which does not wait for what is under way.

    store: URL of the engine's object store, empty if it has none.
    """

    def __init__(
        self, access: Access, name: str, store: str, disks: Disks, *, wait: float = WAIT, again: float = AGAIN
    ) -> None:
        self._access, self._name, self._store, self._disks = access, name, store, disks
        self._wait, self._again = wait, again
        self._changed = threading.Condition()
        self._over: dict[str, int] = {}  # by job: its newest generation that is over
        self._stores: dict[str, str] = {}  # by job: its own object store
        self._due: dict[str, list[float]] = {}  # by job: when, monotonic
        self._ended = False

    def __enter__(self) -> Cleanup:
        threading.Thread(target=self._run, name="sweeping", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def told(self, known: JobRegistry) -> None:
        """Take in which jobs there are. In any thread; returns at once."""
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
        for names in self._turns():
            try:
                failed = self._swept(names)
            except Exception:
                log.exception("engine %s: what is over could not be removed", self._name)
                failed = names
            with self._changed:
                for name in failed:
                    self._due.setdefault(name, []).append(time.monotonic() + self._again)

    def _turns(self) -> Iterator[set[str]]:
        """The jobs that are due, each time that some are, until the end."""
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

    def _swept(self, names: Collection[str]) -> set[str]:
        """Sweep; returns the jobs of which something is left."""
        line = EngineConnection(self._access, f"tidelog-jobs-sweeping:{self._name}")
        try:
            over, stores = self._closed(line, names)
        except (*LOST, JobError) as error:
            log.info("engine %s: what is over is not removed yet: %s", self._name, error)
            return set(names)
        finally:
            line.close()
        left: set[str] = set()
        for name, newest in over.items():
            for url in stores[name]:
                try:
                    done = self._cleared(url, name, newest)
                except (*LOST, SnapshotError, JobError) as error:
                    log.warning("job %s: what is over is not removed: %s", name, error)
                    done = False
                left |= set() if done else {name}
        try:
            if over and not self._disks(over):
                left |= set(over)
        except Exception as error:  # noqa: BLE001 - of Spark, too
            log.warning("engine %s: states that are over are not removed: %s", self._name, str(error)[:1000])
            left |= set(over)
        return left

    def _closed(self, line: EngineConnection, names: Collection[str]) -> tuple[dict[str, int], dict[str, set[str]]]:
        """Rule 1: what is over of these jobs, and the URLs of their object stores."""
        with self._changed:
            over = {name: self._over[name] for name in sorted(names) if name in self._over}
        fences = line.drive(_asked([calls.tfence(keys.fence(name, newest)) for name, newest in over.items()]))
        closed = {name: over[name] for name, fence in zip(over, fences, strict=True) if fence == CLOSED}
        stores = {}
        for name in closed:
            with self._changed:
                own = self._stores.get(name)
            if own is None:  # removed before this engine began
                spec = line.drive(registry.removed(name))
                own = spec.store if spec is not None else ""
            stores[name] = {self._store, own} - {""}
        return closed, stores

    def _cleared(self, url: str, name: str, newest: int) -> bool:
        """Portion by portion, and no more than PORTIONS."""
        objects = ObjectStore(url)
        for _ in range(PORTIONS):
            if clear_objects(objects, name, newest, self._ours):
                return True
            with self._changed:
                if self._changed.wait_for(lambda: self._ended, PASS):
                    return False
        return False

    def _ours(self, topics: Mapping[str, str]) -> bool:
        """Whether one of these topics is on the server, by its ID."""
        line = EngineConnection(self._access, f"tidelog-jobs-sweeping:{self._name}")
        try:
            texts = line.drive(_asked([strings.get(key_of(topic)) for topic in topics])) if topics else []
            there = [
                None if text is None else read_settings(name, text) for name, text in zip(topics, texts, strict=True)
            ]
        except TopicError as error:
            raise JobError(str(error)) from None
        finally:
            line.close()
        return any(facts is not None and facts.id == topics[name] for name, facts in zip(topics, there, strict=True))


def _asked(asked: Iterable[Call[Any]]) -> Steps[list[Any]]:
    return checked((yield list(asked)))


def disks_of(settings: EngineSettings, spark: Future[SparkSession]) -> Disks:
    """The disks of an engine: of this machine, or of those that have executors now."""
    if settings.master == "local" or settings.master.startswith("local["):
        return lambda over: clear(Path(expanded(settings.state_dir)), over)
    return lambda over: _on_machines(spark.result(), _Clear(settings.state_dir, dict(over)))


@dataclass(frozen=True)
class _Clear:
    """What runs in a Python worker of Spark's."""

    state_dir: str
    over: dict[str, int]

    def __call__(self, rows: Iterable[Any]) -> Iterator[bool]:
        for _ in rows:
            raise AssertionError("there are no rows")
        try:
            yield clear(Path(expanded(self.state_dir)), self.over)
        except (OSError, StoreError) as error:
            log.warning("states that are over are not removed: %s", error)
            yield False


def _on_machines(spark: SparkSession, work: _Clear) -> bool:
    """One task for each machine that has executors; where it runs, Spark decides in the end."""
    context = spark.sparkContext
    java: Any = context
    known = str(java._jsc.sc().getExecutorMemoryStatus().keySet().mkString(" "))
    hosts = sorted({each.rpartition(":")[0] for each in known.split()})
    context.setLocalProperty("spark.scheduler.pool", "tidelog sweeping")
    return all(located_rdd(context, hosts).mapPartitions(work).collect())
