"""Merges the files of the log while a continuous backup follows it (see ``logmerge``).

Rule 1: a thread merges, so that the log is not delayed.
Rule 2: a failure is reported once, and the next attempt follows after RETRY seconds. The log does not depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from tidelog.backup.lock import TargetLock
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.logmerge import LogMerger
from tidelog.backup.targets import BackupError, target_at

EVERY: Final = 60.0  # seconds
RETRY: Final = 600.0  # seconds after a failure


class RecurringMerge:
    """The thread, which exists while files are merged."""

    def __init__(self, target: str, say: Callable[[str], None], stop: threading.Event) -> None:
        self._place = target_at(target)
        self._say = say
        self._stop = stop
        self._merger: LogMerger | None = None
        self._due = 0.0  # monotonic seconds
        self._failed = False  # the last attempt, which was reported
        self._thread: threading.Thread | None = None

    def add(self, chunk: LogChunk, lock: TargetLock) -> None:
        """Note a chunk that was written."""
        if self._merger is None or self._merger.log != chunk.log:
            self._merger = LogMerger(self._place, chunk.log, lock, self._stop.is_set)
        self._merger.add(chunk)

    def check(self) -> None:
        """Start the thread if it is time. Call this often."""
        if self._merger is None or time.monotonic() < self._due:
            return
        if self._thread is None or not self._thread.is_alive():
            self._due = time.monotonic() + EVERY
            self._thread = threading.Thread(target=self._run, args=(self._merger,), name="tidelog-merge", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, merger: LogMerger) -> None:
        try:
            merger.merge()
            self._failed = False
        except BackupError as error:
            if not self._failed and not self._stop.is_set():
                self._say(f"files of the log were not merged: {error}")
            self._failed = True
            self._due = time.monotonic() + RETRY
