"""Cancellations from inside: a connector awaits something that was cancelled, and nobody cancelled its task."""

from __future__ import annotations

import asyncio


def from_outside() -> bool:
    """In ``except CancelledError``: whether the task itself was cancelled. If not, it is an error like any other."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
