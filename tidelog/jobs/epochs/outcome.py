"""The result of an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.jobs.epochs.precheck import Precheck
from tidelog.jobs.replaylog.positions import JobPositions
from tidelog.jobs.task.plan import TaskResult


@dataclass(frozen=True)
class EpochOutcome:
    """The result of one step."""

    epoch: int  # the last published one
    published: bool = False  # by this step
    more: bool = False  # there are more entries to read
    again: float | None = None  # seconds until the next step without new entries; None: no limit
    waiting: str = ""  # why nothing was done although there are new entries
    rows_in: int = 0
    rows_out: int = 0
    dead: int = 0  # entries sent to the dead-letter queue
    keys: int = 0  # in the state of all partitions
    bytes: int = 0  # of the state on disk
    recovered: int = 0  # epochs replayed before, in all partitions
    seconds: Mapping[str, float] = field(default_factory=dict)  # of the driver: ask, tasks, publish, after
    slowest: Mapping[str, float] = field(default_factory=dict)  # longest duration of each phase of tasks
    version: str = ""  # of the code that the tasks ran


IDLE: Final = EpochOutcome(0)


class PhaseTimer:
    """Measures consecutive phases, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """End the current phase, which has this name."""
        now = time.perf_counter()
        self.seconds[name] = now - self._at
        self._at = now


def done(
    before: JobPositions, now: JobPositions, results: Sequence[TaskResult], seen: Precheck, timer: PhaseTimer
) -> EpochOutcome:
    """Return the outcome of a published epoch.

    There is more to do if a task reports that, or if the entries that existed at its start were not all read.
    """
    markers = [marker for marker in now.lasts if marker is not None]
    slowest: dict[str, float] = {}
    for result in results:
        for phase, seconds in result.seconds.items():
            slowest[phase] = max(seconds, slowest.get(phase, 0.0))
    return EpochOutcome(
        now.epoch,
        published=True,
        more=any(result.more for result in results) or (now.starts != before.starts and now.has_new(seen.lasts)),
        rows_in=sum(span.rows for marker in markers for span in marker.inputs.values()),
        rows_out=sum(marker.rows for marker in markers),
        dead=sum(result.dead for result in results),
        keys=sum(result.keys for result in results),
        bytes=sum(result.bytes for result in results),
        recovered=sum(result.recovered for result in results),
        seconds=timer.seconds,
        slowest=slowest,
        version=", ".join(sorted({result.marker.version for result in results if result.marker is not None})),
    )
