"""How long to wait before connecting again."""

from __future__ import annotations

import random
from typing import Literal

from tidelog.options.structs import Struct
from tidelog.options.units import Duration


class Retry(Struct):
    """The option ``reconnect: {retry: {...}}``."""

    interval: Duration = Duration(0.5)  # before the first new try
    growth: float = 1.5  # each wait is so many times the one before
    max_interval: Duration = Duration(30.0)
    jitter: Literal["full", "none"] = "full"  # full: anything from none to the whole wait
    max_retries: int | None = None  # after so many in a row the connector has failed; None: for ever
    min_uptime: Duration = Duration(5.0)  # a connection that lasted so long begins the waits anew


class ReconnectDelays:
    """The waits of one connector."""

    def __init__(self, retry: Retry | None, chance: random.Random) -> None:
        self._retry = retry
        self._random = chance
        self.tries = 0  # in a row, without a connection that lasted

    def next(self) -> float | None:
        """Seconds until the next try; None: there is none."""
        retry = self._retry
        if retry is None or (retry.max_retries is not None and self.tries >= retry.max_retries):
            return None
        wait = min(retry.interval * retry.growth ** min(self.tries, 100), retry.max_interval)
        self.tries += 1
        return self._random.uniform(0, wait) if retry.jitter == "full" else wait

    def ended(self, uptime: float) -> None:
        """A connection ended that had lasted so many seconds."""
        if self._retry is not None and uptime >= self._retry.min_uptime:
            self.tries = 0
