"""Cancellation of tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

AGAIN: Final = 0.05  # seconds


async def cancel_and_wait(task: asyncio.Future[Any] | None) -> None:
    """Cancel a task and wait until it has ended; its result or error is dropped.

    The cancellation is repeated while the task is running: asyncio.wait_for of Python 3.11, which redis-py uses, loses
    a cancellation that arrives together with the result.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)
