"""Token buckets, each a single number: the time at which it will be full again (the generic cell rate algorithm).

A bucket has ``burst`` tokens and gets ``rate`` a second. Taking one puts the time ``1 / rate`` further on; it may be
taken if the bucket would then be full within ``burst / rate``. A full bucket is the same as none, so those that were
not used for a while need not be kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast buckets of a kind fill."""

    step: float  # s until one more may be taken
    burst: float  # s until an empty bucket is full

    @classmethod
    def of(cls, rate: float, burst: float) -> Rate:
        """rate: a second; burst: how many at once."""
        return cls(1 / rate, burst / rate)

    def taken(self, full: float, now: float) -> float | None:
        """The new time at which it is full, after one was taken; None: there is none to take."""
        later = max(full, now) + self.step
        return later if later <= now + self.burst + 1e-9 else None

    def wait(self, full: float, now: float) -> float:
        """Seconds until one may be taken."""
        return max(full + self.step - self.burst - now, 0.0)


class Buckets:
    """A bucket for each key; of at most so many, those used last. One that is forgotten begins full."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._full: OrderedDict[str, float] = OrderedDict()  # s of the loop's clock
        self.forgotten = 0  # that were not full

    def __len__(self) -> int:
        return len(self._full)

    def take(self, key: str, rate: Rate, now: float) -> bool:
        """Whether there was one."""
        later = rate.taken(self._full.get(key, 0.0), now)
        if later is None:
            return False
        self._full[key] = later
        self._full.move_to_end(key)
        if len(self._full) > self._most:
            _, full = self._full.popitem(last=False)
            self.forgotten += full > now
        return True

    def wait(self, key: str, rate: Rate, now: float) -> float:
        return rate.wait(self._full.get(key, 0.0), now)
