"""The time limit of calls to an object store, as the environment sets it."""

from __future__ import annotations

import os
import threading
from typing import Final

from tidelog.history.errors import HistoryError

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
