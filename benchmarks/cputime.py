"""What a server's process has taken of a core: to the nanosecond, and how much of it in the kernel.

The kernel keeps the whole exactly, for all threads with those that have ended. User and system it tells apart by
samples, one each 1 to 10 ms: a run of a second or more is long enough for that.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")
QUIET = 0.01  # share of a core below which a server has finished what it was given
LOOK = 0.1  # seconds between two looks
PATIENCE = 5.0  # seconds until a server that is never quiet is taken as it is


class Spent(NamedTuple):
    """Seconds of a core."""

    user: float
    system: float

    @property
    def whole(self) -> float:
        return self.user + self.system


class Meter:
    """Counts from when it was made. A child (a rewrite of Redis's AOF) counts when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._threads, self._ticks = self._read()

    def _read(self) -> tuple[float, list[int]]:
        """Seconds of all threads; then ticks: user, system, and those of children that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        # The clock of another process, as clock_getcpuclockid() makes it, which Python does not have.
        return time.clock_gettime((~self.pid << 3) | 2), [int(field) for field in fields[11:15]]

    def spent(self) -> Spent:
        threads, now = self._read()
        user, system, child_user, child_system = (one - two for one, two in zip(now, self._ticks, strict=True))
        whole = threads - self._threads
        share = user / (user + system) if user + system else 0.0
        return Spent(whole * share + child_user / TICKS, whole * (1 - share) + child_system / TICKS)

    def settled(self) -> Spent:
        """What was spent once the server is quiet: work that it has put off belongs to what it was given."""
        spent = self.spent()
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            began, before = time.monotonic(), spent
            time.sleep(LOOK)
            spent = self.spent()
            if spent.whole - before.whole < QUIET * (time.monotonic() - began):
                break
        return spent
