"""When snapshots of a job's state are due.

Rule 1: a snapshot is begun with the first epoch after ``snapshot_epochs`` epochs or ``snapshot_every`` seconds, for all
        partitions. A job that has become idle gets an epoch without entries for it, once: else inputs would be kept,
        and a recovery would replay, for as long as nothing comes.
Rule 2: processes of their own make them, and tell the server. What they told is looked at FIRST seconds after they were
        begun, then after twice as long each time, MOST at most, until each partition has its snapshot. Where one has
        failed by then, snapshots are due again, for all partitions; those that have theirs do nothing. One that says
        nothing may be slow: that counts as a failure after SILENT seconds.
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
    """The snapshots of one job with a state and an object store; ``clock`` in seconds."""

    def __init__(self, job: Job, clock: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._clock = clock
        self._changed = 0  # epochs since the last snapshot was begun
        self._at = clock()  # when that was, or when this engine began
        self._wanted: int | None = None  # each partition's newest is to be of this epoch or later; None: it is
        self._look_at = 0.0  # when the next look is due, if one is wanted
        self._pause = FIRST  # seconds before it
        self._failed = False  # another one is due

    def begin(self, epoch: int, partitions: int, records: JobSnapshots) -> None:
        """The job goes on after ``epoch``; ``records`` say which snapshots there are."""
        self._changed = max(0, epoch - _oldest(partitions, records))
        self._wanted, self._failed, self._pause = None, False, FIRST

    @property
    def left(self) -> float | None:
        """Seconds until one is due; None if nothing has changed."""
        if self._failed:
            return 0.0
        if not self._changed:
            return None
        if self._changed >= self._job.snapshot_epochs:
            return 0.0
        return max(0.0, self._at + self._job.snapshot_every - self._clock())

    @property
    def look(self) -> float | None:
        """Seconds until the records are to be looked at; None if they need not be."""
        return None if self._wanted is None else max(0.0, self._look_at - self._clock())

    def looked(self, partitions: int, records: JobSnapshots) -> None:
        """What the server knows of the snapshots now (Rule 2)."""
        if self._wanted is None:
            return
        if _oldest(partitions, records) >= self._wanted:
            self._wanted, self._failed, self._pause = None, False, FIRST
            return
        told = any(
            (record := records.of(at)).error and _newest(record) < self._wanted for at in range(partitions)
        )  # fmt: skip
        if told or self._clock() >= self._at + SILENT:
            self._failed = True
        self._wait()

    def published(self, saved: bool, changed: bool, epoch: int) -> None:
        """An epoch was published. ``saved``: it has begun snapshots. ``changed``: it may have changed the state."""
        if saved:
            self._changed, self._at, self._failed = 0, self._clock(), False
            if self._wanted is None:
                self._wait()
            self._wanted = epoch - 1  # what was copied may lack this epoch
        self._changed += changed

    def _wait(self) -> None:
        self._look_at, self._pause = self._clock() + self._pause, min(self._pause * 2, MOST)


def _oldest(partitions: int, records: JobSnapshots) -> int:
    """The epoch that each partition has a snapshot of, or a later one; 0: one of them has none."""
    return min((_newest(records.of(at)) for at in range(partitions)), default=0)


def _newest(record: PartitionSnapshots) -> int:
    return max((kept.epoch for kept in record.kept), default=0)
