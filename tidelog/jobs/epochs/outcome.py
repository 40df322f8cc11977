"""What a driver is told about where it runs, and what it tells about an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.publish import NO_REPLICA_ACKS, ReplicaAcks
from tidelog.jobs.epochs.precheck import Precheck
from tidelog.jobs.replaylog.positions import Positions
from tidelog.jobs.task.plan import TaskResult


@dataclass(frozen=True)
class DriverOptions:
    """Of an engine, for all its jobs. As in ``plan.Where``."""

    state_dir: str
    store: str = ""
    path: tuple[str, ...] = ()
    cache: int = 64 << 20
    stage_ttl_ms: int = 600_000
    version: str = ""
    copies: ReplicaAcks = NO_REPLICA_ACKS


@dataclass(frozen=True)
class EpochOutcome:
    """What one step did."""

    epoch: int  # the last one that was published
    published: bool = False  # by this step
    more: bool = False  # there is more to do now
    again: float | None = None  # step again after so many seconds, though nothing be new; None: when there are news
    waiting: str = ""  # why nothing was done though there was something to do
    rows_in: int = 0
    rows_out: int = 0
    dead: int = 0  # entries that went to the dead letters
    keys: int = 0  # in the state, all partitions
    bytes: int = 0  # of the state on disk
    recovered: int = 0  # epochs that were replayed before, all partitions
    seconds: Mapping[str, float] = field(default_factory=dict)  # of the driver: ask, tasks, publish, after
    slowest: Mapping[str, float] = field(default_factory=dict)  # of tasks, each phase's longest: read, call, ...
    version: str = ""  # of the code that tasks ran


IDLE: Final = EpochOutcome(0)


class PhaseTimer:
    """Seconds of phases, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        """The phase that ends now."""
        now = time.perf_counter()
        self.seconds[name] = now - self._at
        self._at = now


def done(
    before: Positions, now: Positions, results: Sequence[TaskResult], seen: Precheck, timer: PhaseTimer
) -> EpochOutcome:
    """An epoch that was published. There is more if a task says so, or did not read what was there when it began."""
    markers = [marker for marker in now.lasts if marker is not None]
    slowest: dict[str, float] = {}
    for result in results:
        for phase, seconds in result.seconds.items():
            slowest[phase] = max(seconds, slowest.get(phase, 0.0))
    return EpochOutcome(
        now.epoch,
        published=True,
        more=any(result.more for result in results) or (now.starts != before.starts and now.news(seen.lasts)),
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
