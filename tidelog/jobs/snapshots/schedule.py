"""Determines when snapshots of a job's state are due.

Rule 1: Snapshots of all partitions are started with the first epoch after ``snapshot_epochs`` epochs or
        ``snapshot_every`` seconds. A job that has become idle gets one epoch without entries for this purpose.
        Otherwise inputs would be retained, and a recovery would replay, for as long as no entries arrive.
Rule 2: Separate processes create the snapshots and record the result on the server. The result is checked FIRST seconds
        after the start, then after twice as long each time, MOST at most, until each partition has its snapshot. If one
        has failed, snapshots of all partitions are due again; processes that have one do nothing. A process without a
        result may be slow: it counts as failed after SILENT seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog.jobs.declare import Job
from tidelog.jobs.snapshots.catalog import JobSnapshots, PartitionSnapshots

FIRST: Final = 2.0  # seconds
MOST: Final = 600.0
SILENT: Final = 900.0


class SnapshotSchedule:
    """The schedule of one job with a state and an object store; ``clock`` in seconds."""

    def __init__(self, job: Job, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._changed = 0  # epochs since the last start of snapshots
        self._at = clock()  # time of that start, or of the start of this engine
        # every partition must get a snapshot of this epoch or later; None: all have one
        self._wanted: int | None = None
        self._check_at = 0.0  # time of the next check, if one is needed
        self._pause = FIRST  # seconds before the next check
        self._failed = False  # a snapshot has failed

    def begin(self, epoch: int, partitions: int, records: JobSnapshots) -> None:
        """Start after ``epoch``; ``records``: the existing snapshots."""
        self._changed = max(0, epoch - _oldest(partitions, records))
        self._wanted, self._failed, self._pause = None, False, FIRST

    @property
    def due_in(self) -> float | None:
        """The seconds until snapshots are due; None if nothing has changed."""
        if self._failed:
            return 0.0
        if not self._changed:
            return None
        if self._changed >= self._job.snapshot_epochs:
            return 0.0
        return max(0.0, self._at + self._job.snapshot_every - self._clock())

    @property
    def check_in(self) -> float | None:
        """The seconds until the results must be checked; None if there is no need."""
        return None if self._wanted is None else max(0.0, self._check_at - self._clock())

    def check(self, partitions: int, records: JobSnapshots) -> None:
        """Record the results that the server has now (Rule 2)."""
        if self._wanted is None:
            return
        if _oldest(partitions, records) >= self._wanted:
            self._wanted, self._failed, self._pause = None, False, FIRST
            return
        failed = any(
            (record := records.of(at)).error and _newest(record) < self._wanted for at in range(partitions)
        )  # fmt: skip
        if failed or self._clock() >= self._at + SILENT:
            self._failed = True
        self._wait()

    def published(self, saved: bool, changed: bool, epoch: int) -> None:
        """Record a published epoch. ``saved``: it has started snapshots. ``changed``: it may have changed the state."""
        if saved:
            self._changed, self._at, self._failed = 0, self._clock(), False
            if self._wanted is None:
                self._wait()
            self._wanted = epoch - 1  # the copy may lack this epoch
        self._changed += changed

    def _wait(self) -> None:
        self._check_at, self._pause = self._clock() + self._pause, min(self._pause * 2, MOST)


def _oldest(partitions: int, records: JobSnapshots) -> int:
    """Return the epoch up to which every partition has a snapshot; 0 if one of them has none."""
    return min((_newest(records.of(at)) for at in range(partitions)), default=0)


def _newest(record: PartitionSnapshots) -> int:
    return max((kept.epoch for kept in record.kept), default=0)
