"""Waiting for events, and tasks in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, up to this many seconds; None: without limit. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    return event.is_set()


class BackgroundTasks:
    """Tasks that nobody awaits. They are referenced until they end. ``ended`` is called with each task that ends."""

    def __init__(self, ended: Callable[[asyncio.Task[Any]], None] | None = None) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self._ended = ended

    def spawn(self, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        """Start a task. The options are those of ``asyncio.create_task``."""
        task = asyncio.create_task(work, **options)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if self._ended is not None:
            task.add_done_callback(self._ended)
        return task
