"""The time limit of calls to an object store.

Rule: a call that does not return in time is abandoned in a thread of its own, because a read of a directory or a driver
that hangs can't be cancelled. The thread is a daemon, so the process can end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from tidelog.history.errors import HistoryError

T = TypeVar("T")

VARIABLE: Final = "TIDELOG_HISTORY_TIMEOUT"  # in the environment: seconds; Spark has the option historyTimeout
SECONDS: Final = 60.0


def default_seconds() -> float:
    """Return the limit that the environment sets, or SECONDS. Raises HistoryError if it is no positive number."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise HistoryError(f"{VARIABLE} must be a positive number of seconds: {text!r}")
    return seconds


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a function. Raises what it raises, or TimeoutError if it has not returned in time."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="tidelog-history-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
