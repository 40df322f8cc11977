"""Cancellation of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
AGAIN: Final = 0.05  # seconds
_running: Final = set[asyncio.Task[Any]]()  # event loops have weak references only


async def cancel_and_wait(task: asyncio.Future[Any] | None) -> None:
    """Cancel a task and wait until it has ended; its result or error is dropped.

    The cancellation is repeated while the task is running: asyncio.wait_for of Python 3.11, which redis-py uses, loses
    a cancellation that arrives together with the result.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=AGAIN)


def in_own_task(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Do work over redis-py in a task of its own, and return its result as a future.

    A cancellation of a task that awaits the future is not lost, as it can be within redis-py (see ``cancel_and_wait``).
    The work is then cancelled, too.
    """
    task = asyncio.get_running_loop().create_task(work)
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    _running.add(task)

    def done(task: asyncio.Task[T]) -> None:
        _running.discard(task)
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(task.result())

    task.add_done_callback(done)
    future.add_done_callback(lambda ended: ended.cancelled() and task.cancel())
    return future
