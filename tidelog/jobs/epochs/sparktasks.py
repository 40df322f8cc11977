"""``SparkTasks``: the tasks of an epoch as one Spark job of exactly as many tasks. ``session``: the Spark of an engine.

Rule 1: one job, one stage, one task for each plan (or for several, Rule 4), no shuffle, nothing read by the JVM. The
        plans are part of the function, which Spark sends once to each executor; the answers come back by ``collect``.
Rule 2: a task uses up its (empty) input before it does anything: else Spark ends its Python worker with the task, and
        forks another one for the next.
Rule 3: Spark may run a task again, with the same plan, while the first attempt still runs or was lost. Each attempt
        gets a run of its own: the state that one of them stored must not pass for what the other one published.
Rule 4: a job's epochs are a job group, which can be cancelled alone, and each is a FAIR pool of its own (``turns``). A
        job that has hung before leaves a core to the others.
Rule 5: on a cluster, a partition goes back to the executor that had it, or to its host, where its state is. That is a
        preference: where they are gone, or busy for longer than ``spark.locality.wait``, another one gets it, and
        recovers its state.
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
from tidelog.jobs.pools import pool, pools_of
from tidelog.jobs.task.plan import TaskPlan, TaskResult

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

TARGET: Final = "tidelog.jobs.task.task:run"
LONGEST: Final = 86_400.0  # seconds
TEXT: Final = 4000  # characters of an error of Spark's that are kept

#: What an engine's session has unless it is told otherwise. A driver that runs for months keeps little of each job.
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

#: The JVM's part of the text of an error: of no use to who wrote a function.
_NO_STACK: Final = re.compile(r"(?m)^(\tat .*|\t\.\.\. \d+ more|Driver stacktrace:)\n?")

_modules = 0  # of this process when its objects were frozen


def session(master: str = "local[*]", options: Mapping[str, str] | None = None) -> SparkSession:
    """The Spark session of this process. ``options`` are Spark's settings, and go before SETTINGS.

    Tasks run with the Python that ``spark.pyspark.python`` or ``PYSPARK_PYTHON`` names; without them with the one of
    this process, which then must be at the same path where tasks run.
    """
    from pyspark.sql import SparkSession  # here: an engine makes one, and other modules are imported without Spark

    settings = {"spark.master": master, "spark.app.name": "tidelog jobs", **SETTINGS}
    given = (options or {}).get("spark.pyspark.python")  # which only spark-submit heeds
    os.environ["PYSPARK_PYTHON"] = given or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.Builder()
    for name, value in (settings | dict(options or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class SparkTasks:
    """Runs the tasks of one job's epochs; call it with the plans, as ``driver.Tasks``. For one thread at a time.

    target: ``module:function`` that runs a plan in a task. timeout: seconds after which an epoch is ended: the user's
    function may hang, and holds up whatever else needs its core.
    """

    def __init__(self, spark: SparkSession, name: str, target: str = TARGET, timeout: float = LONGEST) -> None:
        self._timeout = timeout
        self._context = spark.sparkContext
        self._name = name
        self._target = target
        self._group = f"tidelog job {name}"
        self._bases: dict[tuple[str, ...], RDD[Any]] = {}  # by where each task should run: an RDD without rows
        self._places = placement_of(self._context)
        self._turns = pools_of(self._context)
        self._cancelled = False

    def __call__(self, plans: Sequence[TaskPlan]) -> list[TaskResult]:
        """What the tasks answer, in the order of the plans. TryAgainError where Spark gives up, or after ``cancel``."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if self._cancelled:
            raise TryAgainError(f"job {self._name!r}: cancelled")
        width = self._turns.width(self._name, len(plans), self._context.defaultParallelism)
        wide = width == len(plans)
        places = self._places.wanted(self._name, len(plans)) if wide else ("",) * width
        base = self._bases.get(places)
        if base is None:
            self._bases = {places: located_rdd(self._context, places)}
            base = self._bases[places]
        self._context.setJobGroup(self._group, f"job {self._name}")  # of this thread, as is the pool
        turn = self._turns.take()
        self._context.setLocalProperty("spark.scheduler.pool", pool(turn))
        late = threading.Event()
        limit = threading.Timer(self._timeout, self._end_late, (late,))
        limit.daemon = True
        limit.start()
        try:
            shares = [list(plans[at::width]) for at in range(width)]
            answers = base.mapPartitionsWithIndex(_Task(self._target, pickle.dumps(shares))).collect()
        except (Py4JError, PySparkException) as error:
            said = getattr(error, "java_exception", None)
            text = _NO_STACK.sub("", str(said.getMessage() if said is not None else error)).rstrip()
            what = "cancelled" if self._cancelled else f"its tasks failed: {text[:TEXT]}"
            if late.is_set():
                what = f"an epoch took longer than {self._timeout:g} seconds (timeout) and was ended"
            raise TryAgainError(f"job {self._name!r}: {what}") from None
        finally:
            limit.cancel()
            self._turns.give_back(turn)
            self._turns.ended(self._name, late.is_set())
        results = sorted((pickle.loads(answer) for answer in answers), key=lambda each: int(each[1].partition))
        self._places.ran(self._name, [place for place, _ in results] if wide else [])
        return [result for _, result in results]

    def _end_late(self, late: threading.Event) -> None:
        late.set()
        self._context.cancelJobGroup(self._group)

    def cancel(self) -> None:
        """End what runs, in any thread; nothing runs any more."""
        self._cancelled = True
        self._places.forget(self._name)
        self._context.cancelJobGroup(self._group)


@dataclass(frozen=True)
class _Task:
    """What runs in a Python worker of Spark's."""

    target: str
    shares: bytes  # the plans of each task

    def __call__(self, index: int, rows: Iterable[Any]) -> Iterator[bytes]:
        for _ in rows:  # Rule 2
            raise AssertionError("there are no rows")
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
    """Leave what was imported out of garbage collections: Spark makes one after every task, of 10 ms and more."""
    global _modules
    if _modules != len(sys.modules):
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)
