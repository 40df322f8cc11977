"""The timers and crons of an app: their schedules, last executions, and next times. Operations without I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.operating.errortexts import text_of
from tidelog.workers import keys
from tidelog.workers.coordination.declaration import AppDeclaration, DeclaredTimer
from tidelog.workers.coordination.timers import TimerRun, decoded
from tidelog.workers.declare.errors import AppError

EACH: Final = "each worker"
LEADER: Final = "the leader"


@dataclass(frozen=True)
class TimerStatus:
    """A timer. Times in ms since 1970; None: unknown, because nothing about it is stored on the server."""

    name: str
    schedule: str
    runs_on: str
    catch_up: bool
    last: int | None = None  # its last scheduled time; None: it has not been executed
    state: str = ""  # running, done
    attempt: int = 0
    error: str = ""  # the class of the exception of the last execution
    next: int | None = None
    problem: str = ""  # why the next time is unknown


def read_timers(app: AppDeclaration) -> Steps[list[TimerStatus]]:
    """Read the status of all timers of an app."""
    (now,) = checked((yield [strings.server_time()]))
    if not app.timers:
        return []
    (texts,) = checked((yield [strings.mget(*[keys.timer(app.name, each.name) for each in app.timers])]))
    return [_status(timer, text, now) for timer, text in zip(app.timers, texts, strict=True)]


def _status(timer: DeclaredTimer, text: bytes | None, now: int) -> TimerStatus:
    run = None
    try:
        run = decoded(text) if text is not None and timer.on_leader else None
    except (ValueError, RecursionError):
        pass  # as the leader does: it logs the value and starts from now
    begun = run is not None and bool(run.worker)
    following, problem = _next(timer, run, now)
    return TimerStatus(
        timer.name, f"every {timer.interval:g} s" if timer.interval else f"{timer.cron} {timer.timezone}",
        LEADER if timer.on_leader else EACH, timer.catch_up,
        last=round(1000 * run.moment) if run is not None and begun else None,
        state=run.state if run is not None and begun else "", attempt=run.attempt if run is not None and begun else 0,
        error=run.error if run is not None else "", next=following, problem=problem,
    )  # fmt: skip


def _next(timer: DeclaredTimer, run: TimerRun | None, now: int) -> tuple[int | None, str]:
    """Return the next scheduled time, or None and the reason why it is unknown."""
    if timer.interval and run is None:
        return None, "" if timer.on_leader else "each worker counts from its own start"
    try:
        schedule = timer.schedule()
        moment = schedule.after(run.moment if timer.interval and run is not None else now / 1000)
    except AppError as error:
        return None, text_of(error)
    return (None, "never") if math.isinf(moment) else (round(1000 * moment), "")
