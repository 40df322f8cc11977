"""Token buckets, each stored as the time at which it will be full again (the generic cell rate algorithm).

A bucket holds ``burst`` tokens and receives ``rate`` per second. Taking a token moves the time by ``1 / rate``, and is
possible if the bucket would then be full within ``burst / rate``. A full bucket is equivalent to none, so buckets that
were not used for some time need not be stored.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec

EventRate: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e12)]  # events per second, or in another time


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate at which buckets are filled."""

    step: float  # s per token
    burst: float  # s until an empty bucket is full

    @classmethod
    def of(cls, rate: float, burst: float) -> Rate:
        """Return the Rate for ``rate`` tokens per second and ``burst`` tokens in a full bucket."""
        return cls(1 / rate, burst / rate)

    def taken(self, full: float, now: float) -> float | None:
        """Return the time at which the bucket will be full after a token is taken. Return None if there is no token."""
        later = max(full, now) + self.step
        return later if later <= now + self.burst + 1e-9 else None

    def wait(self, full: float, now: float) -> float:
        """Return the seconds until a token is available."""
        return max(full + self.step - self.burst - now, 0.0)


class Buckets:
    """The most recently used buckets, by key. A forgotten bucket is full when it is used again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._full: OrderedDict[str, float] = OrderedDict()  # by key: event loop time at which the bucket is full
        self.forgotten = 0  # number of forgotten buckets that were not full

    def __len__(self) -> int:
        return len(self._full)

    def take(self, key: str, rate: Rate, now: float) -> bool:
        """Take a token. Return whether there was one."""
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
