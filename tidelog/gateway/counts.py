"""``GatewayCounts``: counters of a gateway, which ``metrics`` exports.

Rule 1: labels are methods and paths of routes, and statuses, so their number is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # s, upper bounds
DISCONNECTED: Final = "disconnected"  # in place of a status: the client has gone
OTHER: Final = "other"  # in place of a method or a path that no route has


@dataclass(slots=True)
class Durations:
    """A histogram. ``buckets``: the number of requests in each bucket, and above the last bound."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0  # total

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class GatewayCounts:
    """The counters since the start. Only the event loop changes them; other threads may read them."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by method, path of the route, status
        self.durations: dict[tuple[str, str], Durations] = {}  # by method, path of the route
        self.appended = 0  # entries, including those that are delayed
        self.event_bytes = 0  # bytes of event streams
        self.slow_readers = 0  # event streams that were closed because nothing was read

    def ended(self, method: str, path: str, status: str, seconds: float | None) -> None:
        """Count a request. seconds: None if the client determined the duration: event streams, disconnections."""
        self.requests[method, path, status] += 1
        if seconds is not None:
            self.durations.setdefault((method, path), Durations()).add(seconds)
