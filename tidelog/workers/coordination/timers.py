"""``TimerRunner``: runs the timers and crons of an app, on the leader or, with on_leader=False, in each worker.

    app:shop:timer:nightly = {"moment": 1763780400.0, "state": "running", "worker": "app:shop:lease:w1|w1:17",
                              "attempt": 1, "error": ""}

Rule 1: an execution on the leader begins with a compare-and-set of this key from the last execution to the new one, and
        ends with another one. A leader that was replaced fails there, so no scheduled time begins twice.
Rule 2: if the worker dies during an execution, the next leader repeats it as the next attempt, once that worker's lease
        has expired. The same applies if the worker died or lost the server before it could record the end.
Rule 3: a timer has one execution at a time. If a worker does not lead any more, its execution is cancelled before its
        lease expires on the server. The next leader does not wait for code that suppresses the cancellation.
Rule 4: errors of the function are logged and counted, and the timer continues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec
import redis

from tidelog.client import strings
from tidelog.client.steps import LOST, CallSender, arun, checked
from tidelog.coordination import Claim, Lease
from tidelog.coordination.lease import read_leases
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.operating.tasks import BackgroundTasks, set_within
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.workers import keys, logs
from tidelog.workers.declare.schedule import IntervalSchedule, ScheduledFunction
from tidelog.workers.declare.user_errors import as_failure

log = logs.get(__name__)
LATE: Final = 60.0  # seconds: without ``catch_up``, a cron that was missed by at most this is still executed
LEASES: Final = 3  # or this many leases, if that is longer
NAP: Final = 60.0  # maximum seconds of one sleep, because clocks can be set
BACKOFF: Final = Backoff(first=0.1, most=2.0)
LAST: Final = 253_402_300_800.0  # seconds since 1970: the end of the year 9999


class TimerRun(msgspec.Struct, frozen=True):
    """The last execution of a timer, as stored on the server."""

    moment: float  # the scheduled time, in seconds since 1970
    state: Literal["running", "done"]
    worker: str  # key and value of the lease of the worker; empty for a new timer
    attempt: int = 1
    error: str = ""  # the class of the function's exception


class _StoredRun(NamedTuple):
    run: TimerRun
    text: bytes  # as stored on the server, possibly by another version


@dataclass
class TimerCounts:
    """Counters of one timer in this worker."""

    runs: int = 0  # executions that ended, with or without an error
    errors: int = 0
    cancelled: int = 0
    again: int = 0  # executions that another worker had begun


class _OvertakenError(Exception):
    """Another worker has changed the record of the last execution."""


class TimerRunner:
    """Runs ``scheduled``, the timers of ``app``. ``clock`` is the wall clock, in seconds since 1970.

    ``lead`` is a singleton task. ``start`` starts the timers of each worker, and ``drain`` stops all timers.
    """

    def __init__(
        self, app: str, scheduled: Iterable[ScheduledFunction], lease: Lease, link: CallSender, *,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._app = app
        self._scheduled = list(scheduled)
        self._lease = lease
        self._link = link
        self._clock = clock
        self._late = max(LATE, LEASES * lease.ttl)
        self._stopping = asyncio.Event()
        self._running = BackgroundTasks()
        self.counts = {timer.name: TimerCounts() for timer in self._scheduled}

    # -- in each worker --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the timers with on_leader=False."""
        for timer in self._scheduled:
            if not timer.on_leader:
                self._running.spawn(self._here(timer), name=f"timer {timer.name}")

    async def drain(self, grace: float) -> None:
        """Start no more executions, wait up to ``grace`` seconds for the current ones, then cancel them."""
        self._stopping.set()
        if self._running.tasks:
            await asyncio.wait(self._running.tasks, timeout=grace)
        left = list(self._running.tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("timers: %s cancelled after %g s", ", ".join(task.get_name() for task in left), grace)
            await asyncio.wait(left)

    async def _here(self, timer: ScheduledFunction) -> None:
        """Run one timer in this worker. Nothing about it is stored on the server."""
        clock = _steady(self._clock) if isinstance(timer.timing, IntervalSchedule) else self._clock
        last = clock()
        while not self._stopping.is_set():
            due = timer.due(last, clock(), self._late)
            for moment in due.moments:
                if not self._stopping.is_set():
                    last = moment
                    await self._invoke(timer, moment)
            if not due.moments:
                await self._pause(due.next - clock())

    # -- on the leader ---------------------------------------------------------------------------------------
    async def lead(self, claim: Claim) -> None:
        """Run the timers with on_leader=True until cancelled or drained."""
        tasks = [
            self._running.spawn(self._lead(timer, claim), name=f"timer {timer.name}")
            for timer in self._scheduled
            if timer.on_leader
        ]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _lead(self, timer: ScheduledFunction, claim: Claim) -> None:
        key = keys.timer(self._app, timer.name)
        delays, trouble = Delays(BACKOFF), FailureLog(log)
        while claim.held and not self._stopping.is_set():
            try:
                await self._serve(timer, claim, key)
            except _OvertakenError as error:
                log.warning("timer %s: %s", timer.name, error)
                await self._pause(BACKOFF.first)
            except (*LOST, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # already logged by the connector
                    trouble.warn(f"timer {timer.name}: {text_of(error)}; trying again")
                await self._pause(delays.next())
            except Exception:  # such as an invalid timestamp on the server
                log.exception("timer %s is not executed: see the key %s; trying again", timer.name, key)
                await self._pause(NAP)

    async def _serve(self, timer: ScheduledFunction, claim: Claim, key: str) -> None:
        """Run one timer until a connection error, or until drained."""
        last = await self._begin(timer, claim, key)
        while claim.held and not self._stopping.is_set():
            now = self._clock()
            due = timer.due(last.run.moment, now, self._late)
            for moment in due.moments:
                if not self._stopping.is_set():
                    last = await self._run(timer, claim, key, last, TimerRun(moment, "running", self._worker))
            if not due.moments:
                await self._pause(due.next - now)

    async def _begin(self, timer: ScheduledFunction, claim: Claim, key: str) -> _StoredRun:
        """Return the last execution recorded on the server once it has ended; if its worker died, repeat it here."""
        new = _stored(TimerRun(self._clock(), "done", ""))
        text = await self._ask(strings.set_absent(key, new.text))
        if text is None:
            return new
        try:
            last = _StoredRun(decoded(text), text)
        except (ValueError, RecursionError) as error:
            log.error("timer %s: ignoring the unreadable value of %s: %s", timer.name, key, text_of(error))
            await self._swap(key, _StoredRun(new.run, text), new, claim)
            return new
        if last.run.state == "done":
            return last
        while last.run.worker != self._worker and (left := await self._left(last.run.worker)) >= 0:
            await self._pause(min(1.0, left / 1000 + 0.02))
            if self._stopping.is_set():
                return last
            if await self._ask(strings.get(key)) != text:
                raise _OvertakenError("its last execution has ended meanwhile")
        log.warning("timer %s: %s died while it ran for %g; repeating it", timer.name, last.run.worker, last.run.moment)
        self.counts[timer.name].again += 1
        again = TimerRun(last.run.moment, "running", self._worker, last.run.attempt + 1)
        return await self._run(timer, claim, key, last, again)

    async def _run(
        self, timer: ScheduledFunction, claim: Claim, key: str, last: _StoredRun, run: TimerRun
    ) -> _StoredRun:  # fmt: skip
        """Execute the timer once, recording start and end on the server; returns the final record."""
        begun = _stored(run)
        await self._swap(key, last, begun, claim)
        if not claim.held:
            raise _OvertakenError("this worker is not the leader any more")
        error = await self._invoke(timer, run.moment)
        done = _stored(TimerRun(run.moment, "done", run.worker, run.attempt, error))
        await self._swap(key, begun, done, claim)
        return done

    async def _swap(self, key: str, old: _StoredRun, new: _StoredRun, claim: Claim) -> None:
        """Replace the record ``old`` with ``new`` (compare-and-set).

        Without a reply this is retried, because an execution that has ended must not begin again.
        """
        delays = Delays(BACKOFF)
        while claim.held:
            try:
                there = await self._ask(strings.set_equal(key, new.text, old.text))
            except LOST as error:
                log.debug("%s can't be changed: %s; trying again", key, error)
                await asyncio.sleep(delays.next())
                continue
            if there not in (old.text, new.text):
                raise _OvertakenError(f"another worker has executed it: {key} is {there!r}")
            return
        raise _OvertakenError("this worker is not the leader any more")

    async def _left(self, worker: str) -> int:
        """Return the milliseconds left on a worker's lease; negative if it has expired."""
        lease, _, value = worker.partition("|")
        ((there, left),) = await arun(self._link, read_leases([lease]))
        return left if there == value.encode() else -2

    @property
    def _worker(self) -> str:
        return f"{self._lease.key}|{self._lease.value.decode()}"

    # -- user code -------------------------------------------------------------------------------------------
    async def _invoke(self, timer: ScheduledFunction, moment: float) -> str:
        """Call the function; returns the class of its exception, or an empty string."""
        counts = self.counts[timer.name]
        task = asyncio.current_task()
        try:
            await timer.invoke(moment)
        except BaseException as caught:  # noqa: BLE001 - logged below
            if isinstance(caught, asyncio.CancelledError) and task is not None and task.cancelling():
                counts.cancelled += 1
            error = as_failure(caught, task)
        else:
            counts.runs += 1
            return ""
        counts.runs += 1
        counts.errors += 1
        log.error("timer %s failed", timer.name, exc_info=error)
        return type(error).__name__

    # -- helpers ---------------------------------------------------------------------------------------------
    async def _ask(self, call: Call[Any]) -> Any:
        (reply,) = checked(await self._link.together(call))
        return reply

    async def _pause(self, seconds: float) -> None:
        """Sleep until the time has passed or the timers are stopped."""
        await set_within(self._stopping, min(max(seconds, 0.0), NAP))


def decoded(text: bytes) -> TimerRun:
    """Decode a record. Raises ValueError or RecursionError if it is invalid."""
    run = msgspec.json.decode(text, type=TimerRun)
    if not abs(run.moment) < LAST:
        raise ValueError(f"{run.moment} is not a valid time")
    run.worker.encode()
    return run


def _stored(run: TimerRun) -> _StoredRun:
    return _StoredRun(run, msgspec.json.encode(run))


def _steady(clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock that starts at the time of ``clock`` and is not affected by changes of the system clock."""
    began, base = time.monotonic(), clock()
    return lambda: base + time.monotonic() - began
