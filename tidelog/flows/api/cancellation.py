"""Distinguishes the cancellation of a task from a cancelled future that the task awaits."""

from __future__ import annotations

import asyncio


def from_outside() -> bool:
    """In ``except CancelledError``: whether the task itself was cancelled. If not, treat the exception as an ordinary
    error.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
