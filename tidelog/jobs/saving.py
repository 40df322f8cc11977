"""When snapshots of a job's state are due.

Rule 1: a snapshot is begun with the first epoch after ``snapshot_epochs`` epochs or ``snapshot_every`` seconds, for all
        partitions. A job that has become idle gets an epoch without entries for it, once: else inputs would be kept,
        and a recovery would replay, for as long as nothing comes.
Rule 2: what can't be made is tried again when the next one is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidelog.jobs.declare import Job
from tidelog.jobs.snapshots.records import Records


class Saving:
    """The snapshots of one job with a state and an object store; ``clock`` in seconds."""

    def __init__(self, job: Job, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._changed = 0  # epochs since the last snapshot was begun
        self._at = clock()  # when that was, or when this engine began

    def begin(self, epoch: int, partitions: int, records: Records) -> None:
        """The job goes on after ``epoch``; ``records`` say which snapshots there are."""
        newest = [max((kept.epoch for kept in records.of(at).kept), default=0) for at in range(partitions)]
        self._changed = max(0, epoch - min(newest, default=0))

    @property
    def left(self) -> float | None:
        """Seconds until one is due; None if nothing has changed."""
        if not self._changed:
            return None
        if self._changed >= self._job.snapshot_epochs:
            return 0.0
        return max(0.0, self._at + self._job.snapshot_every - self._clock())

    def published(self, saved: bool, changed: bool) -> None:
        """An epoch was published. ``saved``: it has begun snapshots. ``changed``: it may have changed the state."""
        if saved:
            self._changed, self._at = 0, self._clock()
        self._changed += changed
