"""``Pace``: how much a worker prefetches if partitions have no owner (ordering "none"): about a second of work.

Rule 1: the first read requests as many entries as can be begun immediately. After that, the speed at which the entries
        in hand at a read were finished determines the size of the next read.
Rule 2: entries that wait for longer than that, because calls have become slow, are returned: other workers may be idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

WORK: Final = 1.0  # seconds of work that are taken ahead


class Pace:
    """Of one buffer. ``waiting``: what is in hand and not begun; ``least``: what could be begun at once; ``most``: the
    limit of all that is in hand.
    """

    __slots__ = ("_at", "_count", "_mark", "ahead", "least", "most", "waiting")

    def __init__(self, waiting: Callable[[], int], least: Callable[[], int], most: int) -> None:
        self.waiting = waiting
        self.least = least
        self.most = most
        self.ahead = 1  # entries that may wait
        self._mark = b""  # the last entry of a read; empty: none is measured
        self._at = 0.0
        self._count = 0  # entries that were in hand then

    def room(self, held: int, wanted: int) -> int:
        """How many entries may be read. 0 while more than half of what may wait does, so that they are read by many.

        Not so while somebody waits for ``wanted``, and there are fewer.
        """
        ahead, waiting = max(self.ahead, self.least(), wanted), self.waiting()
        return max(0, min(ahead - waiting, self.most - held)) if waiting * 2 <= ahead or waiting < wanted else 0

    def took(self, last: bytes, held: int, now: float) -> None:
        """A read has brought this entry as its last one."""
        if not self._mark:
            self._mark, self._at, self._count = last, now, held

    def left(self, held: dict[bytes, float]) -> None:
        """Entries were finished; these are in hand still."""
        if self._mark and self._mark not in held:
            seconds = max(time.monotonic() - self._at, 0.001)
            self.ahead = max(1, min(self.most, round(self._count / seconds * WORK)))
            self._mark = b""
