"""``Movers``: the leader's duty to send records whose time has come (``topic.send(record, delay=...)``).

Rule 1: a topic may belong to several apps. Who moves its records is who holds the claim of its stream, whichever app
        that is; the leaders of the others look again when that claim can have ended.
Rule 2: one connection waits (TWAIT), for all topics; another one moves. Neither is made again behind the back of a
        transaction: after a loss the claims are claimed anew before anything else happens.
Rule 3: a topic that the server refuses something for (another type where its keys should be, facts that can't be read)
        is left aside for a while. The others go on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import redis

from tidelog.client import calls
from tidelog.client.steps import LOST, Steps, checked
from tidelog.coordination import Claim, ClaimResult, Lease, LeaseLostError
from tidelog.coordination.claims import reclaim, release, take
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.topics.delayed import GROUP, mover_of
from tidelog.topics.delayeddelivery import PAGE, DelayedDelivery
from tidelog.topics.settings import TopicError
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import logs

log = logs.get(__name__)
WAIT_MS: Final = 30_000  # of one TWAIT
LATE: Final = 0.05  # seconds after the end of another's lease at which its claims are looked at
TIDY: Final = 5_000  # records that were moved between two looks at what the stream keeps for nothing,
TIDY_AFTER: Final = 10.0  # or seconds between them
FIRST: Final = 0.1  # seconds until what failed is tried again
MOST: Final = 5.0  # seconds between two attempts at most, and those for which a topic is left aside

T = TypeVar("T")
REFUSED: Final = (redis.ResponseError, TopicError)  # what concerns one topic


class Connection(Protocol):
    """One connection, which is not made again when it is lost."""

    def send(self, calls: Sequence[Call[Any]], /) -> Awaitable[list[Any]]:
        """What the calls read from their replies, with errors in the place of replies that were errors."""

    def close(self) -> None:
        """End the connection."""


class Movers:
    """Moves the records of the topics ``names`` under claims of ``lease``. ``connect`` makes connections."""

    def __init__(self, names: Iterable[str], lease: Lease, connect: Callable[[], Awaitable[Connection]]) -> None:
        self.moved = 0  # records
        self._names = sorted(set(names))
        self._lease = lease
        self._connect = connect
        self._movers: dict[str, DelayedDelivery] = {}  # those of claims that are held, by topic
        self._aside: dict[str, float] = {}  # topics that are left aside, until when on the monotonic clock
        self._told: dict[str, str] = {}  # by topic: what was logged last
        self._trouble = FailureLog(log)
        self._again = 0.0  # on the monotonic clock: when claims of others are looked at again
        #: By topic: records moved since the last look at what the stream keeps, and when that was.
        self._untidy: dict[str, tuple[int, float]] = {}

    async def lead(self, _: Claim | None = None) -> None:
        """Move records until cancelled; then the claims are released."""
        delay = 0.0
        while self._names:
            work = wait = None
            try:
                work = await self._connect()
                wait = await self._connect()
                await self._settle(work)
                while True:
                    await self._turn(work, wait)
                    self._trouble.well()
                    delay = 0.0
            except LeaseLostError:
                self._movers.clear()
                delay = self._lease.ttl / 3  # whoever keeps the lease acquires it again, or cancels this
            except (*LOST, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # which the link has logged
                    self._trouble.warn(f"records that wait are not moved: {text_of(error)}; trying again")
                delay = min(MOST, delay * 2) or FIRST
            except asyncio.CancelledError:
                await self._release(work)
                raise
            finally:
                for each in (work, wait):
                    if each is not None:
                        each.close()
            await asyncio.sleep(delay)

    async def _settle(self, work: Connection) -> None:
        """After a loss: claim anew what is held, so that nothing that is still under way can happen any more."""
        for name, mover in list(self._movers.items()):
            del self._movers[name]  # unless all goes well
            try:
                if await _run(work, reclaim(self._lease, mover.claim)):
                    self._movers[name] = mover
            except REFUSED as error:
                self._leave_aside(name, error)
        self._again = 0.0

    async def _turn(self, work: Connection, wait: Connection) -> None:
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
                    self._leave_aside(name, error)
        left = min([self._again, *self._aside.values()]) - time.monotonic()
        streams = [self._movers[name].stream for name in self._ready()]
        if not streams:
            await asyncio.sleep(max(0.0, left))
            return
        if left <= 0:
            return
        ms = min(WAIT_MS, math.ceil(min(left, WAIT_MS) * 1000))
        try:
            async with asyncio.timeout(ms / 1000 + WAIT_MS / 1000):  # a peer that vanished without a word
                checked(list(await wait.send([calls.twait_group(GROUP, streams, block=ms)])))
        except redis.ResponseError:  # a topic was deleted, or somebody has destroyed the group: or one is no stream
            for name in self._ready():
                await self._begin(work, name)

    async def _begin(self, work: Connection, name: str) -> None:
        try:
            await _run(work, self._movers[name].begin())
        except REFUSED as error:
            self._leave_aside(name, error)

    # -- topics that are left aside --------------------------------------------------------------------------
    def _ready(self) -> list[str]:
        return [name for name in self._movers if name not in self._aside]

    def _leave_aside(self, name: str, error: Exception) -> None:
        if self._told.get(name) != str(error):
            log.warning("topic %s: records that wait are not moved: %s; trying again", name, error)
        self._told[name] = str(error)
        self._aside[name] = time.monotonic() + MOST

    async def _resume(self, work: Connection) -> None:
        """Try again those that were left aside long enough."""
        for name, until in list(self._aside.items()):
            if until <= time.monotonic():
                del self._aside[name]
                if name in self._movers:
                    await self._begin(work, name)
                else:
                    self._again = 0.0

    # -- one topic -------------------------------------------------------------------------------------------
    async def _move(self, work: Connection, name: str, mover: DelayedDelivery) -> bool:
        """One turn for one topic; whether there may be more."""
        turn = await _run(work, mover.turn())
        if turn is None:
            if not self._lease.held:
                raise LeaseLostError(f"lease {self._lease.key} is not held")
            log.warning("topic %s: another worker moves its records now", mover.name)
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

    async def _take(self, work: Connection) -> None:
        """Claim topics that nobody moves."""
        if time.monotonic() < self._again:
            return
        wanted = [
            (mover_of(name), at)
            for at, name in enumerate(self._names)
            if name not in self._movers and name not in self._aside
        ]
        try:
            found = [await _run(work, take(self._lease, wanted))]
        except REFUSED:  # because of one of them: each by itself
            found = [await self._taken(work, each) for each in wanted]
        for claim in [claim for taken in found for claim in taken.claims]:
            name = self._names[claim.partition]
            self._movers[name] = DelayedDelivery(name, claim)
            await self._begin(work, name)
        others = [holder.left / 1000 + LATE for taken in found for holder in taken.held]
        self._again = time.monotonic() + min(others, default=math.inf)

    async def _taken(self, work: Connection, wanted: tuple[str, int]) -> ClaimResult:
        try:
            return await _run(work, take(self._lease, [wanted]))
        except REFUSED as error:
            self._leave_aside(self._names[wanted[1]], error)
            return ClaimResult([], [])

    async def _release(self, work: Connection | None) -> None:
        """Let others move, if that can be said before the lease ends."""
        claims = [mover.claim for mover in self._movers.values() if mover.claim.held]
        self._movers.clear()
        if work is None or not claims:
            return
        try:
            async with asyncio.timeout(max(0.0, claims[0].tenure.until - self._lease.clock())):
                await _run(work, release(claims))
        except (*LOST, redis.ResponseError) as error:
            log.info("claims were not released, they end with the lease: %s", error)


async def _run(connection: Connection, steps: Steps[T]) -> T:
    """Drive an operation over one connection. Errors of the connection are raised here, and close the operation."""
    try:
        made = next(steps)
        while True:
            made = steps.send(await connection.send(made))
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        steps.close()
