"""``RetryOptions``: the options of everything that is retried, in files and as keyword arguments.

Subclass it to change defaults or to add options::

    class ReconnectOptions(RetryOptions):
        first: Duration = Duration(0.5)
        min_uptime: Duration = Duration(5.0)

    delay = options.backoff.delay(failures)
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tidelog.options.structs import Struct
from tidelog.options.units import Duration
from tidelog.transport.backoff import Backoff


class RetryOptions(Struct):
    """How often and when a failed attempt is repeated."""

    attempts: Annotated[int, msgspec.Meta(ge=1)] | None = None  # Maximum number of further attempts. `null`: unlimited.
    first: Duration = Duration(0.5)  # Delay before the first further attempt.
    most: Duration = Duration(30.0)  # Maximum delay.
    growth: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 2.0  # Factor between consecutive delays.
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1  # Maximum random fraction by which a delay is shortened.

    def __post_init__(self) -> None:
        if self.first > self.most:
            raise ValueError(f"first is {self.first:g} s: it must be at most {self.most:g} s, the value of most")

    @property
    def backoff(self) -> Backoff:
        """The delays that these options describe."""
        return Backoff(self.first, self.most, self.growth, self.jitter, self.attempts)
