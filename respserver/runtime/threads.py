"""Work that a thread of the event loop's executor does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future as Ending
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do it in a thread. RuntimeError, MemoryError if there is none for it; then it is never done.

    An executor that can't start a thread keeps the work all the same: one that is busy now would do it later.
    """
    ending: Ending[T] = Ending()

    def run() -> None:
        if not ending.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            ending.set_exception(error)
        else:
            ending.set_result(result)

    loop = asyncio.get_running_loop()
    try:
        loop.run_in_executor(None, run)
    except (RuntimeError, MemoryError):
        if ending.cancel():  # else a thread has taken it at this moment
            raise
    return asyncio.wrap_future(ending, loop=loop)
