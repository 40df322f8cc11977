"""How far a continuous backup is behind its server, and when the user is informed of it.

Rule 1: the target is up to date as of the last time at which the server reported the end of its log, if the log up to
        that end is at the target. Otherwise, it is behind since then, whatever the reason.
Rule 2: a slow target can block the thread that writes to it. Another thread therefore calls ``check``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SLACK: Final = 1.0  # seconds: a report follows if the target is behind by more than twice --lag and this
LONGEST: Final = 3600.0  # seconds between two reports at most


class LagMonitor:
    """Notes what arrives and what is stored, and reports with ``say``. Times are monotonic seconds."""

    def __init__(self, lag: float, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._lag = lag
        self._say = say
        self._clock = clock
        self._mutex = threading.Lock()
        self._ends: deque[tuple[float, int]] = deque()  # ends of the server's log that are not at the target yet
        self._stored = 0  # log offset up to which the log is at the target
        self._since = 0.0  # the target was up to date; 0: the log is not followed yet
        self._reported = 0.0  # seconds in the last report; 0: the target is not known to be behind
        self.activity = "waiting for the target"  # what the process waits for, for the report

    @property
    def following(self) -> bool:
        """Whether the log is followed."""
        return self._since > 0

    @property
    def behind(self) -> float:
        """Seconds since the target was up to date; 0 before the log is followed."""
        with self._mutex:
            return self._clock() - self._since if self._since else 0.0

    def begin(self, stored: int) -> None:
        """Note that the log is followed from a log offset on. Does nothing after a reconnection."""
        with self._mutex:
            if not self._since:
                self._stored, self._since = stored, self._clock()
                self._ends.clear()

    def pause(self) -> None:
        """Note that a base backup is taken. Until ``begin``, there is no log that could be behind."""
        with self._mutex:
            self._since = 0.0

    def arrived(self, end: int) -> None:
        """Note that the log of the server ends at this log offset."""
        with self._mutex:
            if end <= self._stored:
                self._since = self._clock()
            elif self._ends and self._ends[-1][1] == end:
                self._ends[-1] = self._clock(), end
            else:
                self._ends.append((self._clock(), end))

    def stored(self, offset: int) -> None:
        """Note that the log up to this log offset is at the target."""
        with self._mutex:
            self._stored = offset
            while self._ends and self._ends[0][1] <= offset:
                self._since = self._ends.popleft()[0]

    def check(self) -> None:
        """Report if the target is far behind, and again whenever that has doubled; then that it is no longer behind."""
        behind = self.behind
        if self._reported and behind <= self._lag + SLACK:
            self._say(f"the target has caught up: it is {behind:.1f} s behind the server")
            self._reported = 0.0
        elif behind > max(2 * self._lag + SLACK, min(2 * self._reported, self._reported + LONGEST)):
            self._say(f"the target is {behind:.0f} s behind the server (--lag {self._lag:g}): {self.activity}")
            self._reported = behind
