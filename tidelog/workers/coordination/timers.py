"""``Timers``: runs the timers and crons of an app: on the leader, and those with on_leader=False in each worker.

    app:shop:timer:nightly = {"moment": 1763780400.0, "state": "running", "worker": "app:shop:lease:w1|w1:17",
                              "attempt": 1, "error": ""}

Rule 1: a run on the leader begins with a swap of this key, from the last run's value to its own, and ends with another
        one. A leader that was overtaken fails at the swap, so no moment is begun twice.
Rule 2: a run whose worker died before its end is run again by the next leader, as the next attempt, once that worker's
        lease is over. So is one that had ended when its worker died, or lost the server, before it could say so.
Rule 3: one run of a timer at a time. When a worker leads no more, its run is cancelled, before its lease ends on the
        server; code that doesn't let itself be cancelled is not waited for by the next leader.
Rule 4: what the code raises is logged and counted, and the timer goes on.
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
from tidelog.client.steps import LOST, CallSender, checked
from tidelog.coordination import Claim, Lease
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import keys, logs
from tidelog.workers.declare.schedule import Every, Scheduled
from tidelog.workers.declare.user_errors import failure

log = logs.get(__name__)
LATE: Final = 60.0  # seconds: a moment of a cron that was missed for so long is still run without ``catch_up``
LEASES: Final = 3  # or so many leases, if that is longer
NAP: Final = 60.0  # seconds of one sleep at most: clocks are set
FIRST: Final = 0.1  # seconds until what failed is tried again
MOST: Final = 2.0  # seconds between two attempts at most
LAST: Final = 253_402_300_800.0  # seconds since 1970: the end of the year 9999


class Run(msgspec.Struct, frozen=True):
    """The last run of a timer, as it stands on the server."""

    moment: float  # seconds since 1970: what it ran for
    state: Literal["running", "done"]
    worker: str  # key and value of the lease of who ran it; empty for a timer that is new
    attempt: int = 1
    error: str = ""  # the class of what the code raised


class _Noted(NamedTuple):
    run: Run
    text: bytes  # as it stands on the server, perhaps written by another version


@dataclass
class Counts:
    """What became of the runs of one timer in this worker."""

    runs: int = 0  # that ended, well or not
    errors: int = 0
    cancelled: int = 0
    again: int = 0  # that another worker had begun


class _OvertakenError(Exception):
    """The last run on the server is another one than expected."""


class Timers:
    """Runs ``scheduled``, the timers of ``app``. ``clock`` is the wall clock, in seconds since 1970.

    ``lead`` is a duty of the leader. ``start`` begins what runs in each worker, and ``drain`` ends it all.
    """

    def __init__(
        self, app: str, scheduled: Iterable[Scheduled], lease: Lease, link: CallSender, *,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._app = app
        self._scheduled = list(scheduled)
        self._lease = lease
        self._link = link
        self._clock = clock
        self._late = max(LATE, LEASES * lease.ttl)
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = {timer.name: Counts() for timer in self._scheduled}

    # -- in each worker --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin those with on_leader=False."""
        for timer in self._scheduled:
            if not timer.on_leader:
                self._add(asyncio.create_task(self._here(timer), name=f"timer {timer.name}"))

    async def drain(self, grace: float) -> None:
        """Begin no more runs, wait up to ``grace`` seconds for those that run, cancel what is left."""
        self._stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("timers: %s cancelled after %g s", ", ".join(task.get_name() for task in left), grace)
            await asyncio.wait(left)

    async def _here(self, timer: Scheduled) -> None:
        """Run one timer in this worker. Nothing of it is kept."""
        clock = _steady(self._clock) if isinstance(timer.timing, Every) else self._clock
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
        """Run those with on_leader=True until cancelled, or drained."""
        tasks = [
            self._add(asyncio.create_task(self._lead(timer, claim), name=f"timer {timer.name}"))
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

    async def _lead(self, timer: Scheduled, claim: Claim) -> None:
        key = keys.timer(self._app, timer.name)
        delay, trouble = FIRST, FailureLog(log)
        while claim.held and not self._stopping.is_set():
            try:
                await self._serve(timer, claim, key)
            except _OvertakenError as error:
                log.warning("timer %s: %s", timer.name, error)
                await self._pause(FIRST)
            except (*LOST, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # which the link has logged
                    trouble.warn(f"timer {timer.name}: {text_of(error)}; trying again")
                await self._pause(delay)
                delay = min(MOST, delay * 2)
            except Exception:  # such as a moment on the server that is no time
                log.exception("timer %s: it does not run: see the key %s; trying again", timer.name, key)
                await self._pause(NAP)

    async def _serve(self, timer: Scheduled, claim: Claim, key: str) -> None:
        """Run one timer for as long as the server answers."""
        last = await self._begin(timer, claim, key)
        while claim.held and not self._stopping.is_set():
            now = self._clock()
            due = timer.due(last.run.moment, now, self._late)
            for moment in due.moments:
                if not self._stopping.is_set():
                    last = await self._run(timer, claim, key, last, Run(moment, "running", self._worker))
            if not due.moments:
                await self._pause(due.next - now)

    async def _begin(self, timer: Scheduled, claim: Claim, key: str) -> _Noted:
        """The last run on the server, ended: here again, if its worker died."""
        new = _noted(Run(self._clock(), "done", ""))
        text = await self._ask(strings.set_absent(key, new.text))
        if text is None:
            return new
        try:
            last = _Noted(_run(text), text)
        except (ValueError, RecursionError) as error:
            log.error("timer %s: %s can't be read, and is ignored: %s; it begins anew", timer.name, key, text_of(error))
            await self._swap(key, _Noted(new.run, text), new, claim)
            return new
        if last.run.state == "done":
            return last
        while last.run.worker != self._worker and (left := await self._left(last.run.worker)) >= 0:
            await self._pause(min(1.0, left / 1000 + 0.02))
            if self._stopping.is_set():
                return last
            if await self._ask(strings.get(key)) != text:
                raise _OvertakenError("its last run has ended meanwhile")
        log.warning("timer %s: %s ended in its run for %g; it runs again", timer.name, last.run.worker, last.run.moment)
        self.counts[timer.name].again += 1
        again = Run(last.run.moment, "running", self._worker, last.run.attempt + 1)
        return await self._run(timer, claim, key, last, again)

    async def _run(self, timer: Scheduled, claim: Claim, key: str, last: _Noted, run: Run) -> _Noted:
        """One run, noted before and after; returns it as it ended."""
        begun = _noted(run)
        await self._swap(key, last, begun, claim)
        if not claim.held:
            raise _OvertakenError("this worker leads no more")
        error = await self._invoke(timer, run.moment)
        done = _noted(Run(run.moment, "done", run.worker, run.attempt, error))
        await self._swap(key, begun, done, claim)
        return done

    async def _swap(self, key: str, old: _Noted, new: _Noted, claim: Claim) -> None:
        """From one run to another. Without a reply it is tried again: a run that has ended must not begin again."""
        delay = FIRST
        while claim.held:
            try:
                there = await self._ask(strings.set_equal(key, new.text, old.text))
            except LOST as error:
                log.debug("%s can't be changed: %s; trying again", key, error)
                await asyncio.sleep(delay)
                delay = min(MOST, delay * 2)
                continue
            if there not in (old.text, new.text):
                raise _OvertakenError(f"another worker has run it: {key} is {there!r}")
            return
        raise _OvertakenError("this worker leads no more")

    async def _left(self, worker: str) -> int:
        """Milliseconds that are left of a worker's lease; negative: it is over."""
        lease, _, value = worker.partition("|")
        there, left = checked(await self._link.together(strings.get(lease), strings.remaining_ms(lease)))
        return int(left) if there == value.encode() else -2

    @property
    def _worker(self) -> str:
        return f"{self._lease.key}|{self._lease.value.decode()}"

    # -- the code --------------------------------------------------------------------------------------------
    async def _invoke(self, timer: Scheduled, moment: float) -> str:
        """Call the code; the class of what it raised."""
        counts = self.counts[timer.name]
        task = asyncio.current_task()
        try:
            await timer.invoke(moment)
        except BaseException as caught:  # noqa: BLE001 - logged below
            if isinstance(caught, asyncio.CancelledError) and task is not None and task.cancelling():
                counts.cancelled += 1
            error = failure(caught, task)
        else:
            counts.runs += 1
            return ""
        counts.runs += 1
        counts.errors += 1
        log.error("timer %s failed", timer.name, exc_info=error)
        return type(error).__name__

    # -- small things ----------------------------------------------------------------------------------------
    async def _ask(self, call: Call[Any]) -> Any:
        (reply,) = checked(await self._link.together(call))
        return reply

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless told to stop."""
        try:
            async with asyncio.timeout(min(max(seconds, 0.0), NAP)):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _add(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _run(text: bytes) -> Run:
    """ValueError, RecursionError if it is none."""
    run = msgspec.json.decode(text, type=Run)
    if not abs(run.moment) < LAST:
        raise ValueError(f"{run.moment} is no time")
    run.worker.encode()
    return run


def _noted(run: Run) -> _Noted:
    return _Noted(run, msgspec.json.encode(run))


def _steady(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that begins as ``clock``, and is not set while it runs."""
    began, base = time.monotonic(), clock()
    return lambda: base + time.monotonic() - began
