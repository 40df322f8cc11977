"""Which executor a task runs on, and which one it should run on: ``executor_<host>_<id>``, as Spark writes it.

A task's Python worker is not told that. It is below its executor's process, whose command line says it, on YARN,
Kubernetes and standalone clusters, where there is /proc. With a local master there is no executor, and no place.

Rule 1: a partition goes back to where it was: its state is there.
Rule 2: an executor gets no more than its share of a job's partitions, and not much more than its share of all. What is
        more may run anywhere, as often as it takes. Else those that come later, or come back, would get nothing.
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

ABOVE: Final = 6  # processes from a worker to its executor: a daemon has forked it, which a shell may have started
LOOK: Final = 5.0  # seconds between two looks at how many executors there are

_known: WeakKeyDictionary[Any, TaskPlacement] = WeakKeyDictionary()


class TaskPlacement:
    """Where the partitions of all jobs of an engine are. For any thread.

    executors: how many there are. clock: monotonic seconds.
    """

    def __init__(self, executors: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._executors, self._clock = executors, clock
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._number = 1
        self._looked = -float("inf")
        self._lock = threading.Lock()

    def wanted(self, job: str, number: int) -> tuple[str, ...]:
        """Where each partition of a job should run; empty: anywhere."""
        with self._lock:
            mine = self._jobs.get(job, ())
            if len(mine) != number or not any(mine):
                return ("",) * number
            if self._clock() >= self._looked + LOOK:
                self._looked = self._clock()
                self._number = max(1, self._executors())
            self._jobs[job] = kept = self._kept(mine)
            return kept

    def ran(self, job: str, places: Sequence[str]) -> None:
        with self._lock:
            self._jobs[job] = tuple(places)

    def forget(self, job: str) -> None:
        with self._lock:
            self._jobs.pop(job, None)

    def _kept(self, mine: tuple[str, ...]) -> tuple[str, ...]:
        """Rule 2."""
        all_of = Counter(place for places in self._jobs.values() for place in places if place)
        fair = -(-all_of.total() // self._number)
        most, most_of_all = -(-len(mine) // self._number), fair + max(1, fair // 4)
        kept: list[str] = []
        for place in mine:
            over = kept.count(place) >= most or all_of[place] > most_of_all
            all_of[place] -= over
            kept.append("" if over else place)
        return tuple(kept)


def placement_of(context: SparkContext) -> TaskPlacement:
    """Those of a Spark context."""
    weak = proxy(context)

    def executors() -> int:
        status: Any = weak._jsc.sc().getExecutorMemoryStatus()
        return int(status.size()) - 1  # the driver is one of them

    return _known.setdefault(context, TaskPlacement(executors))


def this_executor() -> str:
    """Of the executor above this process; empty if there is none."""
    return _place(os.getppid())


@lru_cache(maxsize=1)  # another parent means that the executor has ended
def _place(pid: int) -> str:
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
    """An RDD without rows, of a partition for each place; empty: anywhere."""
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
    """Use up the one that Spark's makeRDD needs."""
    for _ in rows:
        pass
    return iter(())
