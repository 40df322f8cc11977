"""The longest stall of the event loop in the last ten minutes.

Decision: Redis keeps the maximum of each latency event until LATENCY RESET. A warning that depends on it would continue
until someone resets it, long after its reason has disappeared. So stalls expire, and CONFIG RESETSTAT removes them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW: Final = 600.0  # seconds


class RecentStalls:
    """Stalls of the last WINDOW seconds. It retains only those that no later stall exceeds: a few."""

    def __init__(self) -> None:
        self._stalls: deque[tuple[float, float]] = deque()  # loop time, seconds; the longest one first

    def add(self, now: float, seconds: float) -> None:
        """Add the time between two turns of the event loop."""
        while self._stalls and self._stalls[-1][1] <= seconds:
            self._stalls.pop()
        self._stalls.append((now, seconds))
        self.longest(now)

    def longest(self, now: float) -> float:
        """Return the seconds of the longest stall; 0 if there was none."""
        while self._stalls and self._stalls[0][0] < now - WINDOW:
            self._stalls.popleft()
        return self._stalls[0][1] if self._stalls else 0.0

    def reset(self) -> None:
        """Forget all stalls."""
        self._stalls.clear()
