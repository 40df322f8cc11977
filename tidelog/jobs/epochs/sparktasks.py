"""``SparkTasks``: runs the tasks of an epoch as one Spark job. ``session``: the Spark session of an engine.

Batch jobs are plain Spark jobs, not streaming queries. A query plans each micro-batch, passes rows through the JVM, and
polls its source in a separate Python process; 200 queries would mean 200 polling processes. The tasks of an epoch read
from the server directly into Arrow, and a job without new entries has no task: one TWAIT serves many jobs.

Rule 1: One job, one stage, one task for each plan (or for several plans, Rule 4), no shuffle, no data in the JVM. The
        plans are part of the function, which Spark sends once to each executor; ``collect`` returns the results.
Rule 2: A task consumes its (empty) input first. Otherwise Spark ends its Python worker after the task and forks a new
        one for the next task.
Rule 3: Spark may repeat a task with the same plan while the first attempt still runs or is lost, on another machine or
        the same one. Both attempts commit epoch N to a store, and one is published. Each attempt therefore has its own
        run, which the marker contains, so the store of the other attempt is recognized as unpublished.
Rule 4: A job's epochs form a job group, which can be cancelled separately, and each epoch has its own FAIR pool
        (``pools``). A job that has exceeded its timeout leaves one core to the others.
Rule 5: On a cluster, a partition is assigned to its former executor, or to its host, where its state is. This is only a
        preference: if they are gone, or busy for longer than ``spark.locality.wait``, another executor runs the task
        and recovers the state.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from tidelog.jobs.epochs.placement import located_rdd, placement_of, this_executor
from tidelog.jobs.errors import TryAgainError
from tidelog.jobs.pools import pool_name, pools_of
from tidelog.jobs.task.plan import TaskPlan, TaskResult

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

TARGET: Final = "tidelog.jobs.task.task:run"
LONGEST: Final = 86_400.0  # seconds
TEXT: Final = 4000  # maximum number of characters of a Spark error

#: The default settings. A driver that runs for months must not accumulate data about each job.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.scheduler.mode": "FAIR",
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}

#: The JVM stack trace in an error text, which does not help the author of a function.
_NO_STACK: Final = re.compile(r"(?m)^(\tat .*|\t\.\.\. \d+ more|Driver stacktrace:)\n?")

_modules = 0  # number of modules of this process when its objects were last frozen


def session(master: str = "local[*]", options: Mapping[str, str] | None = None) -> SparkSession:
    """Return the Spark session of this process. ``options`` are Spark settings that override SETTINGS.

    Tasks run with the Python that ``spark.pyspark.python`` or ``PYSPARK_PYTHON`` names. The default is the Python of
    this process, which must then exist at the same path on the executors.
    """
    from pyspark.sql import SparkSession  # here, so that this module can be imported without Spark

    settings = {"spark.master": master, "spark.app.name": "tidelog jobs", **SETTINGS}
    given = (options or {}).get("spark.pyspark.python")  # read only by spark-submit
    os.environ["PYSPARK_PYTHON"] = given or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.Builder()
    for name, value in (settings | dict(options or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class SparkTasks:
    """Runs the tasks of one job's epochs. Call it with the plans, as ``driver.Tasks``; one thread at a time.

    target: ``module:function`` that executes a plan in a task. timeout: seconds after which an epoch is cancelled,
    because a function that hangs blocks its core for everything else.
    """

    def __init__(self, spark: SparkSession, name: str, target: str = TARGET, timeout: float = LONGEST) -> None:
        self._timeout = timeout
        self._context = spark.sparkContext
        self._name = name
        self._target = target
        self._group = f"tidelog job {name}"
        self._bases: dict[tuple[str, ...], RDD[Any]] = {}  # by preferred executors: an RDD without rows
        self._places = placement_of(self._context)
        self._pools = pools_of(self._context)
        self._cancelled = False

    def __call__(self, plans: Sequence[TaskPlan]) -> list[TaskResult]:
        """Return the results in the order of the plans. Raises TryAgainError if Spark gives up, or after ``cancel``."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if self._cancelled:
            raise TryAgainError(f"job {self._name!r}: cancelled")
        width = self._pools.width(self._name, len(plans), self._context.defaultParallelism)
        wide = width == len(plans)
        places = self._places.wanted(self._name, len(plans)) if wide else ("",) * width
        base = self._bases.get(places)
        if base is None:
            self._bases = {places: located_rdd(self._context, places)}
            base = self._bases[places]
        self._context.setJobGroup(self._group, f"job {self._name}")  # per thread, like the pool
        number = self._pools.acquire()
        self._context.setLocalProperty("spark.scheduler.pool", pool_name(number))
        late = threading.Event()
        limit = threading.Timer(self._timeout, self._cancel_late, (late,))
        limit.daemon = True
        limit.start()
        try:
            shares = [list(plans[at::width]) for at in range(width)]
            answers = base.mapPartitionsWithIndex(_Task(self._target, pickle.dumps(shares))).collect()
        except (Py4JError, PySparkException) as error:
            java_error = getattr(error, "java_exception", None)
            text = _NO_STACK.sub("", str(java_error.getMessage() if java_error is not None else error)).rstrip()
            what = "cancelled" if self._cancelled else f"its tasks failed: {text[:TEXT]}"
            if late.is_set():
                what = f"an epoch took longer than {self._timeout:g} seconds (timeout) and was cancelled"
            raise TryAgainError(f"job {self._name!r}: {what}") from None
        finally:
            limit.cancel()
            self._pools.release(number)
            self._pools.ended(self._name, late.is_set())
        results = sorted((pickle.loads(answer) for answer in answers), key=lambda each: int(each[1].partition))
        self._places.ran(self._name, [place for place, _ in results] if wide else [])
        return [result for _, result in results]

    def _cancel_late(self, late: threading.Event) -> None:
        late.set()
        self._context.cancelJobGroup(self._group)

    def cancel(self) -> None:
        """Cancel the current epoch; nothing runs afterwards. May be called in any thread."""
        self._cancelled = True
        self._places.forget(self._name)
        self._context.cancelJobGroup(self._group)


@dataclass(frozen=True)
class _Task:
    """The function that runs in Spark's Python workers."""

    target: str
    shares: bytes  # the pickled plans of each task

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        for _ in rows:  # Rule 2
            raise AssertionError("the RDD has no rows")
        mine: list[TaskPlan] = pickle.loads(self.shares)[index]
        for plan in mine:
            named = replace(plan, where=replace(plan.where, run=f"{plan.where.run}.{uuid4().hex[:8]}"))  # Rule 3
            for each in reversed(named.where.path):
                if each not in sys.path:
                    sys.path.insert(0, each)
            module, _, function = self.target.partition(":")
            result = getattr(importlib.import_module(module), function)(named)
            _freeze()
            yield pickle.dumps((this_executor(), result))


def _freeze() -> None:
    """Exclude imported objects from garbage collection: Spark collects after every task, which takes 10 ms or more."""
    global _modules
    if _modules != len(sys.modules):
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
