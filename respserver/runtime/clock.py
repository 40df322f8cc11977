"""The server's clocks: wall-clock time and monotonic time. Tests replace them."""

from __future__ import annotations

import time


class Clock:
    """Both clocks. ``now`` returns ms since the epoch; ``mono`` returns ms since some time and never decreases."""

    by_hand = False  # a test moves the clock, and runs the periodic work and ticks itself

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def mono(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def micros(self) -> int:
        return time.time_ns() // 1_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
