"""Runs functions in threads of the event loop's executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future as Ending
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run ``work`` in a thread. Raises RuntimeError or MemoryError if no thread is available; ``work`` never runs then.

    An executor that can't start a thread still queues the work, so it must be cancelled: a busy thread would run it
    later.
    """
    ending: Ending[T] = Ending()

    def run() -> None:
        if not ending.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised to the code that awaits the future
            ending.set_exception(error)
        else:
            ending.set_result(result)

    loop = asyncio.get_running_loop()
    try:
        loop.run_in_executor(None, run)
    except (RuntimeError, MemoryError):
        if ending.cancel():  # otherwise a thread has just started to run it
            raise
    return asyncio.wrap_future(ending, loop=loop)
