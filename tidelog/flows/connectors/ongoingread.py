"""A read of a peer that continues while the pull that began it is interrupted. The next pull returns its result.

A cancelled read could lose data that the peer has already sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tidelog.transport.cancellation import cancel_and_wait

T = TypeVar("T")


class OngoingRead(Generic[T]):
    """The reads of one source, one at a time. ``wait`` is its ``Source.wait``."""

    def __init__(self, wait: Callable[[Awaitable[object]], Awaitable[bool]]) -> None:
        self._wait = wait
        self._task: asyncio.Future[T] | None = None

    async def result(self, start: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of the read in progress, or of a new one. Return None if the pull was interrupted."""
        if self._task is None:
            self._task = asyncio.ensure_future(start())
        task = self._task
        try:
            await self._wait(asyncio.shield(task))
        finally:
            if task.done():
                self._task = None
        return task.result() if task.done() else None

    async def cancel(self) -> None:
        """Cancel the read in progress. Its result or error is dropped."""
        task, self._task = self._task, None
        await cancel_and_wait(task)
        if task is not None and not task.cancelled():
            task.exception()  # otherwise, asyncio would log that it was never retrieved
