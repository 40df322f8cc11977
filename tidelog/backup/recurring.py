"""Takes further base backups while a continuous backup follows the log.

A restore replays the log after a base backup, and ``--keep`` removes the log before the oldest one. Both need a new
base backup now and then.

Rule 1: a thread takes it on a connection of its own, so that the log is not delayed.
Rule 2: only one base backup is taken at a time. ``--keep`` would remove the files of another one, which no manifest
        names yet.
Rule 3: a failure is reported, and the next attempt follows after RETRY seconds. The log does not depend on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Final

import redis

from tidelog.backup.lock import TargetLock
from tidelog.backup.retention import prune
from tidelog.backup.source import BackupSource
from tidelog.backup.take import take_base
from tidelog.backup.targets import BackupError, BackupStoppedError, target_at
from tidelog.operating.tables import size

RETRY: Final = 600.0  # seconds


class RecurringBase:
    """The thread, which exists while a base backup is taken."""

    def __init__(
        self, url: str, target: str, every: float, keep: int | None, say: Callable[[str], None], stop: threading.Event,
        history: str = "",
    ) -> None:  # fmt: skip
        """``every``: seconds between two base backups; 0: none are taken. ``history``: see ``take``."""
        self._history = history
        self._url = url
        self._target = target
        self._every = every
        self._keep = keep
        self._say = say
        self._stop = stop
        self._cancelled = threading.Event()
        self._due = 0.0  # Unix seconds
        self._thread: threading.Thread | None = None

    @property
    def scheduled(self) -> bool:
        """Whether the time of the newest base backup is known."""
        return self._due > 0

    def taken(self, ms: int) -> None:
        """Note the time (ms since the epoch) of the newest base backup."""
        self._due = ms / 1000 + self._every

    def check(self, lock: TargetLock) -> None:
        """Start the thread if a base backup is due. Call this often."""
        if not self._every or time.time() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = time.time() + max(self._every, RETRY)  # if this attempt fails, or the process hangs
        self._thread = threading.Thread(target=self._run, args=(lock,), name="tidelog-base", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def cancel(self) -> None:
        """Let the thread take no base backup, and wait until it has ended."""
        self._cancelled.set()
        self.finish()
        self._cancelled.clear()

    def _run(self, lock: TargetLock) -> None:
        try:
            self._take(lock)
        except BackupStoppedError:
            pass
        except (BackupError, redis.RedisError, OSError) as error:
            self._due = time.time() + min(self._every, RETRY)
            self._say(f"no new base backup was taken: {error}")

    def _take(self, lock: TargetLock) -> None:
        place, began = target_at(self._target), datetime.now(UTC)
        with closing(BackupSource(self._url, False, None, self._stop, not self._history)) as source:
            base, new_bytes = take_base(source, self._url, began, place, lock, self._report, self._history)
        self.taken(int(began.timestamp() * 1000))
        self._say(f"base backup {base.name}: {size(base.size)}, of which {size(new_bytes)} are new, verified")
        if self._keep:
            prune(place, self._keep, lock)

    def _report(self, *_: object) -> None:
        if self._stop.is_set() or self._cancelled.is_set():
            raise BackupStoppedError
