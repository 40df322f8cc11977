"""The clock and the random numbers of ``now()`` and ``uuid()``: those of the event loop, if it has any.

The loop of tests has a virtual clock and seeded random numbers. Thus expressions use them without being notified.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

_system: Final = random.SystemRandom()


def now_ns() -> int:
    """Return the time in ns since 1970."""
    try:
        found = asyncio.get_running_loop().now_ns()  # type: ignore[attr-defined] # the virtual loop has it
    except (RuntimeError, AttributeError):
        return time.time_ns()
    return int(found)


def random_bytes(count: int) -> bytes:
    try:
        source = asyncio.get_running_loop().random  # type: ignore[attr-defined] # the virtual loop has it
    except (RuntimeError, AttributeError):
        source = _system
    found: bytes = source.randbytes(count)
    return found
