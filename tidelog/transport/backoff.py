"""Exponential backoff: one set of names and one formula for every retry of the package.

    delay n = min(most, first * growth ** (n - 1)), shortened by up to the fraction ``jitter`` at random

A loop that retries has a constant ``Backoff`` and keeps the state in ``Delays``::

    BACKOFF: Final = Backoff(first=0.1, most=5.0)

    delays = Delays(BACKOFF)
    while True:
        try:
            ...
            delays.reset()
        except ConnectionError:
            await asyncio.sleep(delays.next())

If the caller counts failures itself, ``Backoff.delay(failures)`` is sufficient. Options that users write have the same
names: see ``tidelog.options.retry.RetryOptions``.

Jitter only shortens a delay, so ``most`` is a limit that holds. Clients that failed at the same time therefore do not
return at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

EXPONENT: Final = 100  # larger exponents would overflow a float


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays between attempts. Raises ValueError for values out of range."""

    first: float = 0.1  # seconds before the first further attempt
    most: float = 5.0  # seconds: the maximum delay
    growth: float = 2.0  # factor between consecutive delays
    jitter: float = 0.0  # 0 to 1: the fraction by which a delay may be shortened
    attempts: int | None = None  # further attempts after the first; None: no limit

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.most:
            raise ValueError(f"first must be from 0 to most ({self.most:g} s): {self.first:g} s")
        if not 1 <= self.growth <= 1000:
            raise ValueError(f"growth must be from 1 to 1000: {self.growth:g}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1: {self.jitter:g}")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts must be at least 1: {self.attempts}")

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after this number of failed attempts, from 1.

        ``chance`` returns a number from 0 to 1.
        """
        delay = min(self.most, self.first * self.growth ** min(failures - 1, EXPONENT))
        return delay * (1 - self.jitter * chance()) if self.jitter else delay


class Delays:
    """The state of one series of attempts."""

    __slots__ = ("backoff", "failures", "_chance")

    def __init__(self, backoff: Backoff, chance: Callable[[], float] = random.random) -> None:
        self.backoff = backoff
        self.failures = 0  # failed attempts since the last success
        self._chance = chance

    @property
    def exhausted(self) -> bool:
        """Whether all attempts have failed, so that there is no further one."""
        return self.backoff.attempts is not None and self.failures >= self.backoff.attempts

    def next(self) -> float:
        """Record a failed attempt; returns the seconds until the next one."""
        self.failures += 1
        return self.backoff.delay(self.failures, self._chance)

    def reset(self) -> None:
        """Record a success: the next delay is the first one again."""
        self.failures = 0
