"""What an engine reports about its jobs: the status of each, and its events.

    job:<name>:status    JSON of ``Status``, expires after a minute; written after changes, and every REFRESH seconds
    job:<name>:events    stream: kind, text, engine; the newest thousand

Rule 1: Nothing depends on either. If a report can't be written, it is dropped; the next one is more recent.
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
REFRESH: Final = 25.0  # seconds: 200 idle jobs cost 8 commands a second
EVENTS: Final = 1000
WINDOW: Final = 5.0  # seconds over which rates are measured
TEXT: Final = 20_000  # maximum number of characters of an event

log = logging.getLogger(__name__)


class Status(msgspec.Struct):
    """The last report of a job's engine. Times in ms since 1970, by the engine's clock."""

    name: str
    engine: str
    generation: int
    version: str = ""  # of the running code; the registry has the added one
    state: str = "starting"  # starting, running, failing (it is retried), failed, ending
    at: int = 0
    since: int = 0  # when this engine started it
    epoch: int = 0
    rows_in: int = 0  # since ``since``
    rows_out: int = 0
    dead: int = 0
    in_rate: float = 0.0  # rows per second, in the last few seconds
    out_rate: float = 0.0
    recovered: int = 0  # epochs replayed
    restarts: int = 0  # in this generation, on any engine
    error: str = ""  # the last error
    error_at: int = 0
    facts: dict[str, Any] = {}  # details from the runner: keys, bytes, ...


@dataclass(frozen=True)
class StepReport:
    """The result of one call of a job's runner (``engine.runner``)."""

    epoch: int = 0  # the last published one; 0: none
    more: bool = False  # there are more entries: do not wait
    rows_in: int = 0  # in this call
    rows_out: int = 0
    dead: int = 0  # entries sent to the dead-letter queue in this call
    recovered: int = 0  # epochs replayed in this call
    facts: Mapping[str, Any] = field(default_factory=dict)  # details for the status: keys, bytes, ...
    notes: tuple[tuple[str, str], ...] = ()  # events: kind, text
    version: str = ""  # of the code that ran; several, separated by commas, during a change


def version_text(version: str, added: str) -> str:
    """Describe which code runs."""
    if version == added:
        return f"version {version} is running, as added"
    return f"version {version} is running, but version {added} was added; to register the running one: tidelog jobs add"


class StatusReporter:
    """Maintains the status of one job and determines when to write it. ``wall``: seconds since 1970."""

    def __init__(self, status: Status, wall: Callable[[], float]) -> None:
        self.status = status
        self._added = status.version
        self.events: list[Call[Any]] = []  # not sent yet
        self._wall = wall
        self._written = 0.0  # time of the last write; 0: the status has changed since
        self._steps: deque[tuple[float, int, int]] = deque()  # within the window: time, rows in, rows out
        self._snapshot_error = ""
        status.since = self._now()

    def record(self, report: StepReport) -> None:
        """Record the result of a call of the runner."""
        now, status = self._wall(), self.status
        if report.epoch != status.epoch:
            status.epoch = report.epoch
        status.rows_in += report.rows_in
        status.rows_out += report.rows_out
        status.dead += report.dead
        status.recovered += report.recovered
        status.facts |= report.facts
        if report.rows_in or report.rows_out:
            self._steps.append((now, report.rows_in, report.rows_out))
        if report.recovered:
            self.event("recovered", f"{report.recovered} epochs replayed")
        for kind, text in report.notes:
            self.event(kind, text)
        if report.version and report.version != status.version:
            status.version = report.version
            self.event("code", version_text(status.version, self._added))
            log.warning("job %s: %s", status.name, version_text(status.version, self._added))
        self._written = 0.0

    def set(self, state: str, error: str | None = None) -> None:
        """Set the state; ``error``: the reason."""
        self.status.state = state
        if error is not None:
            self.status.error, self.status.error_at = error[-TEXT:], self._now()
        self._written = 0.0

    def event(self, kind: str, text: str = "") -> None:
        """Queue an event."""
        said = {"kind": kind, "text": text[-TEXT:], "engine": self.status.engine}
        self.events.append(calls.tappev(keys.events(self.status.name), said, count=EVENTS))

    def snapshots(self, text: bytes | None) -> None:
        """Record the list of the job's snapshots. Creates an event when they start to fail, and when they recover."""
        error = snapshots_of(text, self.status.generation).error
        if error != self._snapshot_error:
            self._snapshot_error = error
            self.event("snapshot failed" if error else "snapshots again", error)

    def due(self) -> list[Call[Any]]:
        """Return the calls to send now: events, and the status if it has changed or is due for a refresh."""
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
    """The oldest of the partitions' newest snapshots."""

    at: int = 0  # ms since 1970; 0: a partition has no snapshot
    epoch: int = 0
    error: str = ""  # why a partition cannot create snapshots


def snapshots_of(text: bytes | None, generation: int) -> SnapshotSummary:
    """Return the summary from the string ``job:<name>:snapshots``; empty if it is invalid or of another generation."""
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
    """Return a status from its JSON; None if there is none or it is invalid."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Status)
    except (ValueError, RecursionError):
        return None
