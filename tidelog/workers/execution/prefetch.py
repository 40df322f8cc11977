"""``PrefetchLimit``: how much a worker reads ahead if partitions have no owner: about a second of work.

Rule 1: the first read requests as many entries as can be started immediately. After that, the rate at which the entries
        in flight at a read were finished determines the size of the next read.
Rule 2: entries that wait for longer, because calls have become slow, are returned: other workers may be idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import Final

WORK: Final = 1.0  # seconds of work that are read ahead


class PrefetchLimit:
    """The limit of one buffer.

    ``waiting``: returns the entries in flight that are not started; ``least``: how many can be started immediately;
    ``most``: the limit for all entries in flight.
    """

    __slots__ = ("_at", "_count", "_mark", "ahead", "least", "most", "waiting")

    def __init__(self, waiting: Callable[[], int], least: Callable[[], int], most: int) -> None:
        self.waiting = waiting
        self.least = least
        self.most = most
        self.ahead = 1  # entries that may wait
        self._mark = b""  # the last entry of the read that is measured; empty: none
        self._at = 0.0
        self._count = 0  # entries in flight after that read

    def room(self, held: int, wanted: int) -> int:
        """Return how many entries may be read.

        0 while more than half of the allowed entries wait, so that entries are read in large groups, unless a consumer
        waits for ``wanted`` entries and there are fewer.
        """
        ahead, waiting = max(self.ahead, self.least(), wanted), self.waiting()
        return max(0, min(ahead - waiting, self.most - held)) if waiting * 2 <= ahead or waiting < wanted else 0

    def took(self, last: bytes, held: int, now: float) -> None:
        """Record a read whose last entry is ``last``."""
        if not self._mark:
            self._mark, self._at, self._count = last, now, held

    def left(self, held: Container[bytes]) -> None:
        """Measure the rate after entries were finished; ``held``: the remaining entries in flight."""
        if self._mark and self._mark not in held:
            seconds = max(time.monotonic() - self._at, 0.001)
            self.ahead = max(1, min(self.most, round(self._count / seconds * WORK)))
            self._mark = b""
