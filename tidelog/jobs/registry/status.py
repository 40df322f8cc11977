"""What an engine says about its jobs: the status of each, and its events.

    job:<name>:status    JSON of ``Status``, for a minute; written when it changes, and every REFRESH seconds
    job:<name>:events    stream: kind, text, engine; the newest thousand

Rule 1: nothing depends on either. What can't be written is left out, and the next one says more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidelog.client import calls
from tidelog.jobs import keys
from tidelog.transport.call import Call

KEPT_MS: Final = 60_000
REFRESH: Final = 25.0  # seconds: 200 jobs that idle cost 8 commands a second
EVENTS: Final = 1000
WINDOW: Final = 5.0  # seconds over which rates are measured
TEXT: Final = 20_000  # characters of an event

log = logging.getLogger(__name__)


class Status(msgspec.Struct):
    """What the engine of a job says about it. Times in ms since 1970, by the engine's clock."""

    name: str
    engine: str
    generation: int
    version: str = ""  # of the code that runs; the registry says which one was added
    state: str = "starting"  # starting, running, failing (it is tried again), failed, ending
    at: int = 0
    since: int = 0  # when this engine began to run it
    epoch: int = 0
    last_epoch_at: int = 0
    rows_in: int = 0  # since then
    rows_out: int = 0
    dead: int = 0
    in_rate: float = 0.0  # rows a second, of the last few seconds
    out_rate: float = 0.0
    recovered: int = 0  # epochs replayed
    restarts: int = 0  # in this generation, on whatever engine
    error: str = ""  # the last one
    error_at: int = 0
    facts: dict[str, Any] = {}  # what the runner says: keys, bytes, ...


@dataclass(frozen=True)
class StepReport:
    """What one call of a job's runner did (``engine.runner``)."""

    epoch: int = 0  # the last one that was published; 0: none
    more: bool = False  # there is more to do: no need to wait
    rows_in: int = 0  # by this call
    rows_out: int = 0
    dead: int = 0  # entries that went to the dead letters, by this call
    recovered: int = 0  # epochs that were replayed
    facts: Mapping[str, Any] = field(default_factory=dict)  # for ``status``: keys, bytes, ...
    notes: tuple[tuple[str, str], ...] = ()  # events to be kept: kind, text
    version: str = ""  # of the code that ran; several with commas, while workers change over


def version_text(version: str, added: str) -> str:
    """Which code runs, for people."""
    if version == added:
        return f"version {version} runs, as added"
    return f"version {version} runs, not version {added}, which was added; tidelog jobs add registers what runs"


class StatusReporter:
    """Keeps the status of one job, and says when it is to be written. ``wall``: seconds since 1970."""

    def __init__(self, status: Status, wall: Callable[[], float]) -> None:
        self.status = status
        self._added = status.version
        self.events: list[Call[Any]] = []  # to be sent
        self._wall = wall
        self._written = 0.0  # when; 0: the status has changed since
        self._steps: deque[tuple[float, int, int]] = deque()  # of the window: when, rows in, rows out
        self._snapshot_error = ""
        status.since = self._now()

    def did(self, report: StepReport) -> None:
        """Take in what a call of the runner did."""
        now, status = self._wall(), self.status
        if report.epoch != status.epoch:
            status.epoch, status.last_epoch_at = report.epoch, self._now()
        status.rows_in += report.rows_in
        status.rows_out += report.rows_out
        status.dead += report.dead
        status.recovered += report.recovered
        status.facts |= report.facts
        if report.rows_in or report.rows_out:
            self._steps.append((now, report.rows_in, report.rows_out))
        if report.recovered:
            self.tell("recovered", f"{report.recovered} epochs replayed")
        for kind, text in report.notes:
            self.tell(kind, text)
        if report.version and report.version != status.version:
            status.version = report.version
            self.tell("code", version_text(status.version, self._added))
            log.warning("job %s: %s", status.name, version_text(status.version, self._added))
        self._written = 0.0

    def set(self, state: str, error: str | None = None) -> None:
        """Another state; ``error``: why."""
        self.status.state = state
        if error is not None:
            self.status.error, self.status.error_at = error[-TEXT:], self._now()
        self._written = 0.0

    def tell(self, kind: str, text: str = "") -> None:
        """Keep an event."""
        said = {"kind": kind, "text": text[-TEXT:], "engine": self.status.engine}
        self.events.append(calls.tappev(keys.events(self.status.name), said, count=EVENTS))

    def snapshots(self, text: bytes | None) -> None:
        """Take in what the server knows of the job's snapshots: an event when they begin to fail, and no more."""
        error = snapshots_of(text, self.status.generation).error
        if error != self._snapshot_error:
            self._snapshot_error = error
            self.tell("snapshot failed" if error else "snapshots again", error)

    def due(self) -> list[Call[Any]]:
        """What is to be sent now: events, and the status if it has changed or gets old."""
        sent, self.events = self.events, []
        now = self._wall()
        while self._steps and self._steps[0][0] < now - WINDOW:
            self._steps.popleft()
        rates = self._rate(1), self._rate(2)
        if rates != (self.status.in_rate, self.status.out_rate):
            self.status.in_rate, self.status.out_rate = rates
            self._written = 0.0
        if not self._written or now - self._written >= REFRESH or now < self._written:
            self.status.at = self._now()
            text = msgspec.json.encode(self.status)
            sent.append(Call(("SET", keys.status(self.status.name), text, "PX", KEPT_MS), bool))
            self._written = now
        return sent

    def _rate(self, column: int) -> float:
        return round(sum(step[column] for step in self._steps) / WINDOW, 1)

    def _now(self) -> int:
        return round(self._wall() * 1000)


@dataclass(frozen=True)
class SnapshotSummary:
    """What there is of a job's snapshots: the newest of each partition; of these, the oldest counts."""

    at: int = 0  # ms since 1970; 0: a partition has none
    epoch: int = 0
    error: str = ""  # why a partition can make none


def snapshots_of(text: bytes | None, generation: int) -> SnapshotSummary:
    """From the string ``job:<name>:snapshots``; nothing where it can't be read, or is of another generation."""
    try:
        records = msgspec.json.decode(text or b"{}")
        if records.get("generation") != generation:
            return SnapshotSummary()
        found = [records["partitions"][at] for at in sorted(records["partitions"], key=int)]
        error = next((f"partition {at}: {each['error']}" for at, each in enumerate(found) if each["error"]), "")
        if not all(each["kept"] for each in found):
            return SnapshotSummary(error=error)
        newest = [each["kept"][0] for each in found]
        return SnapshotSummary(min(each["time"] for each in newest), min(each["epoch"] for each in newest), error)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return SnapshotSummary()


def decoded(text: bytes | None) -> Status | None:
    """A status from its JSON; None where there is none, or it can't be read."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Status)
    except (ValueError, RecursionError):
        return None
