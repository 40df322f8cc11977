"""``PoolNumbers``: Spark scheduler pools that give the next free core to the job whose epoch started first.

Spark's FAIR scheduling gives a free core to the pool with the fewest running tasks. All pools here have Spark's default
weight and minimum share. Among pools with equally few tasks, the one whose name sorts first wins. With one pool per
job, a busy job would always precede those after it in the alphabet, and on few cores most decisions are ties.

Rule 1: Each epoch has its own pool, named by a number that increases from epoch to epoch. Among epochs with equally few
        running tasks, the one that started first wins, so jobs share the cores in turn.
Rule 2: Spark never deletes a pool. Numbers are therefore reused cyclically.
Rule 3: A streaming query has one number from start to end, so epochs before and after it get their share.
Rule 4: After an epoch of a job exceeded its ``timeout``, its epochs use one task fewer than there are cores, until WELL
        epochs were in time: if it hangs again, other jobs can continue. Its partitions then share tasks.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark import SparkContext

LEAST: Final = 64  # fewest numbers
WELL: Final = 20  # epochs

_known: WeakKeyDictionary[Any, PoolNumbers] = WeakKeyDictionary()


class PoolNumbers:
    """The pool numbers of an engine. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = LEAST  # numbers are below it
        self._next = 0
        self._used: set[int] = set()
        self._late: dict[str, int] = {}  # by job: how many epochs in time are still required

    def acquire(self) -> int:
        """Return an unused number, for ``pool_name``."""
        with self._lock:
            while len(self._used) * 2 >= self._size:
                self._size *= 2
            while self._next in self._used:
                self._next = (self._next + 1) % self._size
            taken = self._next
            self._used.add(taken)
            self._next = (taken + 1) % self._size
            return taken

    def release(self, number: int) -> None:
        with self._lock:
            self._used.discard(number)

    def width(self, job: str, partitions: int, cores: int) -> int:
        """Return the number of tasks of an epoch."""
        with self._lock:
            return max(1, min(partitions, cores - 1)) if job in self._late else partitions

    def ended(self, job: str, late: bool) -> None:
        """Record the end of an epoch; ``late``: by its timeout."""
        with self._lock:
            if late:
                self._late[job] = WELL
            elif job in self._late:
                self._late[job] -= 1
                if not self._late[job]:
                    del self._late[job]


def pool_name(number: int) -> str:
    """Return the name of a pool."""
    return f"turn {number:06}"


def pools_of(context: SparkContext) -> PoolNumbers:
    """Return the pool numbers of a Spark context."""
    return _known.setdefault(context, PoolNumbers())
