"""The server's clocks: the one that clients see, and one that is never set. Tests hand in another."""

from __future__ import annotations

import time


class Clock:
    """Both in ms as integers; ``now`` since the epoch, ``mono`` since some moment."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def mono(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def micros(self) -> int:
        """Microseconds since the epoch."""
        return time.time_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        """Stop everything for so long (DEBUG SLEEP)."""
        time.sleep(seconds)
