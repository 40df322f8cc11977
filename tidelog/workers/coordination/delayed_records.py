"""``DelayedRecordSender``: the singleton task that sends delayed records (``topic.send(record, delay=...)``) when due.

Rule 1: a topic can belong to several apps. The holder of the claim of its stream moves its records, regardless of the
        app; the leaders of the other apps check the claim again when it can have expired.
Rule 2: one connection waits for all topics (TWAIT), another one moves records. Neither is re-established implicitly:
        after a loss, the claims are taken under a new epoch before anything else happens.
Rule 3: a topic that the server rejects (such as a key of another type, or unreadable settings) is suspended for a
        while. The other topics continue.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import redis

from tidelog.client import calls
from tidelog.client.steps import LOST, Steps, checked
from tidelog.coordination import Claim, ClaimResult, Lease, LeaseLostError
from tidelog.coordination.claims import reclaim, release, take
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.topics.delayed import GROUP, mover_of
from tidelog.topics.delayeddelivery import PAGE, DelayedDelivery
from tidelog.topics.settings import TopicError
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.backoff import Backoff, Delays
from tidelog.workers import logs

log = logs.get(__name__)
WAIT_MS: Final = 30_000  # of one TWAIT
LATE: Final = 0.05  # seconds after the end of another worker's lease at which its claims are checked
TIDY: Final = 5_000  # moved records between two removals of obsolete entries from a stream,
TIDY_AFTER: Final = 10.0  # or seconds between them
BACKOFF: Final = Backoff(first=0.1, most=5.0)
SUSPENDED: Final = 5.0  # seconds

T = TypeVar("T")
REFUSED: Final = (redis.ResponseError, TopicError)  # errors that concern one topic


class DelayedRecordSender:
    """Moves the records of the topics ``names`` under claims of ``lease``. ``connect`` opens connections."""

    def __init__(self, names: Iterable[str], lease: Lease, connect: Callable[[], Awaitable[AsyncConnection]]) -> None:
        self.moved = 0  # records
        self._names = sorted(set(names))
        self._lease = lease
        self._connect = connect
        self._movers: dict[str, DelayedDelivery] = {}  # by topic, while its claim is held
        self._suspended: dict[str, float] = {}  # by topic: until when, on the monotonic clock
        self._logged: dict[str, str] = {}  # by topic: the last error that was logged
        self._trouble = FailureLog(log)
        self._again = 0.0  # on the monotonic clock: when claims of others are checked again
        #: By topic: the records moved since the last removal of obsolete entries, and the time of that removal.
        self._untidy: dict[str, tuple[int, float]] = {}

    async def lead(self, _: Claim | None = None) -> None:
        """Move records until cancelled; then release the claims."""
        delays = Delays(BACKOFF)
        while self._names:
            work = wait = None
            try:
                work = await self._connect()
                wait = await self._connect()
                await self._settle(work)
                while True:
                    await self._turn(work, wait)
                    self._trouble.succeeded()
                    delays.reset()
            except LeaseLostError:
                self._movers.clear()
                delay = self._lease.ttl / 3  # the lease is acquired again meanwhile, or this task is cancelled
            except (*LOST, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # already logged by the connector
                    self._trouble.warn(f"delayed records are not sent: {text_of(error)}; trying again")
                delay = delays.next()
            except asyncio.CancelledError:
                await self._release(work)
                raise
            finally:
                for each in (work, wait):
                    if each is not None:
                        each.close()
            await asyncio.sleep(delay)

    async def _settle(self, work: AsyncConnection) -> None:
        """After a loss, take the claims again under a new epoch, so that calls in flight fail."""
        for name, mover in list(self._movers.items()):
            del self._movers[name]  # restored on success
            try:
                if await _run(work, reclaim(self._lease, mover.claim)):
                    self._movers[name] = mover
            except REFUSED as error:
                self._suspend(name, error)
        self._again = 0.0

    async def _turn(self, work: AsyncConnection, wait: AsyncConnection) -> None:
        if not self._lease.held:
            raise LeaseLostError(f"lease {self._lease.key} is not held")
        await self._resume(work)
        await self._take(work)
        busy = True
        while busy:
            busy = False
            for name in self._ready():
                try:
                    busy |= await self._move(work, name, self._movers[name])
                except REFUSED as error:
                    self._suspend(name, error)
        left = min([self._again, *self._suspended.values()]) - time.monotonic()
        streams = [self._movers[name].stream for name in self._ready()]
        if not streams:
            await asyncio.sleep(max(0.0, left))
            return
        if left <= 0:
            return
        ms = min(WAIT_MS, math.ceil(min(left, WAIT_MS) * 1000))
        try:
            async with asyncio.timeout(ms / 1000 + WAIT_MS / 1000):  # detects a peer that vanished
                checked(list(await wait.send([calls.twait_group(GROUP, streams, block=ms)])))
        except redis.ResponseError:  # a topic or its group was deleted, or a key is not a stream
            for name in self._ready():
                await self._begin(work, name)

    async def _begin(self, work: AsyncConnection, name: str) -> None:
        try:
            await _run(work, self._movers[name].begin())
        except REFUSED as error:
            self._suspend(name, error)

    # -- suspended topics ------------------------------------------------------------------------------------
    def _ready(self) -> list[str]:
        return [name for name in self._movers if name not in self._suspended]

    def _suspend(self, name: str, error: Exception) -> None:
        if self._logged.get(name) != str(error):
            log.warning("topic %s: delayed records are not sent: %s; trying again", name, error)
        self._logged[name] = str(error)
        self._suspended[name] = time.monotonic() + SUSPENDED

    async def _resume(self, work: AsyncConnection) -> None:
        """Retry topics whose suspension has ended."""
        for name, until in list(self._suspended.items()):
            if until <= time.monotonic():
                del self._suspended[name]
                if name in self._movers:
                    await self._begin(work, name)
                else:
                    self._again = 0.0

    # -- one topic -------------------------------------------------------------------------------------------
    async def _move(self, work: AsyncConnection, name: str, mover: DelayedDelivery) -> bool:
        """Execute one turn for one topic; returns whether there may be more records to move."""
        turn = await _run(work, mover.turn())
        if turn is None:
            if not self._lease.held:
                raise LeaseLostError(f"lease {self._lease.key} is not held")
            log.warning("topic %s: another worker sends its delayed records now", mover.name)
            del self._movers[name]
            self._again = 0.0
            return False
        self.moved += turn.moved
        more = turn.read >= PAGE
        untidy, since = self._untidy.get(name, (0, -math.inf))
        untidy += turn.moved
        if untidy >= TIDY or (untidy and since + TIDY_AFTER < time.monotonic()):
            left = await _run(work, mover.tidy())
            untidy, since, more = (TIDY if left else 0), time.monotonic(), more or left
        self._untidy[name] = (untidy, since)
        return more

    async def _take(self, work: AsyncConnection) -> None:
        """Claim topics that no other worker has claimed."""
        if time.monotonic() < self._again:
            return
        wanted = [
            (mover_of(name), at)
            for at, name in enumerate(self._names)
            if name not in self._movers and name not in self._suspended
        ]
        try:
            found = [await _run(work, take(self._lease, wanted))]
        except REFUSED:  # caused by one of the topics: claim each by itself
            found = [await self._taken(work, each) for each in wanted]
        for claim in [claim for taken in found for claim in taken.claims]:
            name = self._names[claim.partition]
            self._movers[name] = DelayedDelivery(name, claim)
            await self._begin(work, name)
        others = [holder.left / 1000 + LATE for taken in found for holder in taken.held]
        self._again = time.monotonic() + min(others, default=math.inf)

    async def _taken(self, work: AsyncConnection, wanted: tuple[str, int]) -> ClaimResult:
        try:
            return await _run(work, take(self._lease, [wanted]))
        except REFUSED as error:
            self._suspend(self._names[wanted[1]], error)
            return ClaimResult([], [])

    async def _release(self, work: AsyncConnection | None) -> None:
        """Release the claims if that is possible before the lease ends."""
        claims = [mover.claim for mover in self._movers.values() if mover.claim.held]
        self._movers.clear()
        if work is None or not claims:
            return
        try:
            async with asyncio.timeout(claims[0].tenure.left):
                await _run(work, release(claims))
        except (*LOST, redis.ResponseError) as error:
            log.info("claims were not released and expire with the lease: %s", error)


async def _run(connection: AsyncConnection, steps: Steps[T]) -> T:
    """Drive an operation over one connection. Raises errors of the connection and closes the operation."""
    try:
        calls_to_send = next(steps)
        while True:
            calls_to_send = steps.send(await connection.send(calls_to_send))
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()
