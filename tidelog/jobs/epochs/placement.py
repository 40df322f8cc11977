"""The executors on which tasks run and should run: ``executor_<host>_<id>``, in Spark's notation.

Spark does not tell a Python worker its executor. But the executor's process is an ancestor of the worker, and its
command line contains host and ID on YARN, Kubernetes and standalone clusters, if there is /proc. With a local master
there is no executor.

Rule 1: A partition is assigned to its former executor, which has its state.
Rule 2: An executor gets at most its share of a job's partitions, and not much more than its share of all partitions.
        The rest may run anywhere in each epoch. Otherwise, executors that join later, or return, would get none.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, proxy

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

# maximum number of processes from a worker up to its executor: a daemon forks it, and a shell may start the daemon
ABOVE: Final = 6
REFRESH: Final = 5.0  # seconds between two queries for the number of executors

_known: WeakKeyDictionary[Any, TaskPlacement] = WeakKeyDictionary()


class TaskPlacement:
    """The executors of the partitions of all jobs of an engine. Thread-safe.

    executors: returns the number of executors. clock: monotonic seconds.
    """

    def __init__(self, executors: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._executors, self._clock = executors, clock
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._number = 1
        self._refreshed = -float("inf")
        self._lock = threading.Lock()

    def wanted(self, job: str, number: int) -> tuple[str, ...]:
        """Return the preferred executor of each partition of a job; empty: any."""
        with self._lock:
            mine = self._jobs.get(job, ())
            if len(mine) != number or not any(mine):
                return ("",) * number
            if self._clock() >= self._refreshed + REFRESH:
                self._refreshed = self._clock()
                self._number = max(1, self._executors())
            self._jobs[job] = retained = self._limited(mine)
            return retained

    def ran(self, job: str, places: Sequence[str]) -> None:
        with self._lock:
            self._jobs[job] = tuple(places)

    def forget(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    def _limited(self, mine: tuple[str, ...]) -> tuple[str, ...]:
        """Apply Rule 2."""
        all_of = Counter(place for places in self._jobs.values() for place in places if place)
        fair = -(-all_of.total() // self._number)
        most, most_of_all = -(-len(mine) // self._number), fair + max(1, fair // 4)
        retained: list[str] = []
        for place in mine:
            over = retained.count(place) >= most or all_of[place] > most_of_all
            all_of[place] -= over
            retained.append("" if over else place)
        return tuple(retained)


def placement_of(context: SparkContext) -> TaskPlacement:
    """Return the placement of a Spark context."""
    weak = proxy(context)

    def executors() -> int:
        status: Any = weak._jsc.sc().getExecutorMemoryStatus()
        return int(status.size()) - 1  # the driver is one of them

    return _known.setdefault(context, TaskPlacement(executors))


def this_executor() -> str:
    """Return the executor above this process; empty if there is none."""
    return _executor_above(os.getppid())


@lru_cache(maxsize=1)  # if the parent changes, the executor has ended
def _executor_above(pid: int) -> str:
    for _ in range(ABOVE):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            said = dict(pairwise(words))
            if "--executor-id" in said and "--hostname" in said:
                return f"executor_{said['--hostname']}_{said['--executor-id']}"
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return ""
    return ""


def located_rdd(context: SparkContext, places: Sequence[str]) -> RDD[Any]:
    """Return an RDD without rows that has one partition for each location; an empty location: anywhere."""
    anywhere: RDD[Any] = context.parallelize([], len(places))
    if not any(places):
        return anywhere
    from pyspark import RDD
    from pyspark.serializers import NoOpSerializer

    jvm: Any = context._jvm
    scala: Any = context._jsc.sc()
    rows = [jvm.scala.Tuple2(bytearray(), jvm.PythonUtils.toSeq([place] if place else [])) for place in places]
    made = scala.makeRDD(jvm.PythonUtils.toSeq(rows), anywhere._jrdd.classTag())
    return RDD(made.toJavaRDD(), context, NoOpSerializer()).mapPartitions(_none)


def _none(rows: Iterable[Any]) -> Iterator[Any]:
    """Consume the row that Spark's makeRDD requires."""
    for _ in rows:
        pass
    return iter(())
