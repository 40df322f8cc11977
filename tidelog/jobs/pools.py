"""``PoolNumbers``: which of an engine's jobs gets the next free core.

Spark's FAIR scheduling gives it to the pool that has the fewest tasks running. All pools here have the same weight and
no minimum share, which are Spark's defaults. Where several have as few, the one whose name is first wins. With one pool
a job, a busy job would always go before one that is behind it in the alphabet, and on few cores most picks are ties.

Rule 1: an epoch has a pool to itself, whose name is a number that goes up from epoch to epoch: of epochs that have as
        few tasks running, the one that began first wins. So jobs take turns.
Rule 2: Spark keeps a pool for ever. So numbers are used again when they have gone round.
Rule 3: a streaming query has a number from its beginning to its end: epochs pass it on both sides.
Rule 4: a job whose epoch took longer than its ``timeout`` gets one task less than there are cores, until WELL epochs
        were in time: if it hangs again, the others go on. Its partitions then share tasks.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark import SparkContext

LEAST: Final = 64  # numbers
WELL: Final = 20

_known: WeakKeyDictionary[Any, PoolNumbers] = WeakKeyDictionary()


class PoolNumbers:
    """Those of an engine. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = LEAST  # numbers go from 0 to below it
        self._next = 0
        self._used: set[int] = set()
        self._late: dict[str, int] = {}  # by job: epochs in time that it needs

    def take(self) -> int:
        """A number that nobody has, for ``pool``."""
        with self._lock:
            while len(self._used) * 2 >= self._size:
                self._size *= 2
            while self._next in self._used:
                self._next = (self._next + 1) % self._size
            taken = self._next
            self._used.add(taken)
            self._next = (taken + 1) % self._size
            return taken

    def give_back(self, number: int) -> None:
        with self._lock:
            self._used.discard(number)

    def width(self, job: str, partitions: int, cores: int) -> int:
        """How many tasks an epoch has."""
        with self._lock:
            return max(1, min(partitions, cores - 1)) if job in self._late else partitions

    def ended(self, job: str, late: bool) -> None:
        """An epoch has ended; ``late``: by its timeout."""
        with self._lock:
            if late:
                self._late[job] = WELL
            elif job in self._late:
                self._late[job] -= 1
                if not self._late[job]:
                    del self._late[job]


def pool(number: int) -> str:
    """The name of a pool."""
    return f"turn {number:06}"


def pools_of(context: SparkContext) -> PoolNumbers:
    """Those of a Spark context."""
    return _known.setdefault(context, PoolNumbers())
