"""Distinguishes the cancellation of a task from a cancelled future that the task awaits."""

from __future__ import annotations

import asyncio


def from_outside() -> bool:
    """Return whether the task itself was cancelled, in ``except CancelledError``. If not, treat it as an ordinary
    error.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
