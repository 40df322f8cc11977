"""Cancels tasks, and distinguishes the cancellation of a task from a cancelled future that the task awaits."""

from __future__ import annotations

import asyncio
from typing import Any


def from_outside() -> bool:
    """Return whether the task itself was cancelled, in ``except CancelledError``. If not, treat it as an ordinary
    error.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def cancel(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks once, and wait until they have ended, including their cleanup. None is ignored."""
    found = [each for each in tasks if each is not None]
    for each in found:
        each.cancel()
    await asyncio.gather(*found, return_exceptions=True)
