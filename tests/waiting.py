"""Waiting for conditions: ``eventually`` blocks, ``until`` runs in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 60.0  # seconds until a test fails
PAUSE: Final = 0.005  # seconds between two checks


def eventually(met: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
    """Wait until a condition holds; returns its value. The test fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := met()):
        assert time.monotonic() < deadline, what or "the condition did not become true"
        time.sleep(PAUSE)
    return value


async def until(met: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
    """The same in an event loop. The condition may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not (value := await _value(met)):
        assert time.monotonic() < deadline, what or "the condition did not become true"
        await asyncio.sleep(PAUSE)
    return value


async def _value(met: Callable[[], Any]) -> Any:
    value = met()
    return await value if inspect.isawaitable(value) else value
