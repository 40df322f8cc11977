"""The thread that moves batches from the WAL to the journal.

It is separate from the log, so that a simulation without threads can run the same rounds at times of its choice.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class FlushedLog(Protocol):
    """The part of a log that the thread uses."""

    def wait_for_batches(self) -> None: ...
    def flush_round(self) -> float | None: ...


class JournalThread(threading.Thread):
    """Runs the rounds of one log until it is closed."""

    def __init__(self, log: FlushedLog) -> None:
        super().__init__(name="tidelog-journal", daemon=True)
        self._log = log

    def run(self) -> None:
        while True:
            self._log.wait_for_batches()
            pause = self._log.flush_round()
            if pause is None:
                return
            if pause:
                time.sleep(pause)

    def await_round(self, changed: threading.Condition) -> None:
        """Wake the thread, and wait until it has changed something, for at most a second. ``changed`` is held."""
        changed.notify_all()
        changed.wait(1.0)
