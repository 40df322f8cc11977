"""Time limits of calls that can't be cancelled, such as those of a driver of an object store.

Rule: a call that does not return in time is abandoned in a thread of its own, because a read of a directory or a driver
that hangs can't be cancelled. The thread is a daemon, so the process can end.

The server has its own copy (``persistence.tiering.objectstore``), because the two share no code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class OverdueError(TimeoutError):
    """Raised if a call has not returned in time. It may still take effect."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a function. Raises what it raises, or OverdueError if it has not returned in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="object store", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise OverdueError
    return results[0]
