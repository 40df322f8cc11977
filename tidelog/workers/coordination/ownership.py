"""``Ownership``: a seat in a running worker. Its listener is told which partitions to consume.

Rule 1: per partition, calls of the listener don't overlap: ``acquired``, then ``released`` or ``lost``. Only ``lost``
        may come while ``acquired`` runs, which is cancelled then, or while ``released`` runs, which goes on and sees
        that the claim isn't held. ``acquired`` never begins before the former call for that partition has ended.
Rule 2: ``lost`` doesn't wait for the server. It follows from the lease's end alone.
Rule 3: a partition is released on the server, and the others are told, when ``released`` has returned.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import redis

from tidelog.client.steps import LOST, CallSender, Steps, arun
from tidelog.coordination import Claim, Lease, LeaseLostError
from tidelog.operating.errortexts import FailureLog, summary_of, text_of
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination.cancellation import end
from tidelog.workers.coordination.control_stream import Control
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.coordination.membership import Seat, View

log = logs.get(__name__)
AGAIN: Final = 1.0  # seconds until what failed is tried again


class Listener(Protocol):
    """What consumes partitions."""

    async def acquired(self, claim: Claim) -> None:
        """Begin to consume ``claim.partition``. If this raises, the partition is released, and taken again later."""

    async def released(self, partition: int) -> None:
        """Finish or give back what is in hand, and acknowledge; the partition is another's when this returns."""

    def lost(self, partition: int) -> None:
        """The claim is not held any more: drop everything, acknowledge nothing."""


class Ownership:
    """Takes part in ``processor`` of ``app``, for as long as ``lease`` is held; joins again when it is held again.

    >>> ownership = Ownership("shop", "bill", 16, lease, link, listener, control)
    >>> ownership.start()
    >>> await ownership.stop()

    ``control`` follows the control stream, for all ownerships of the worker. ``capacity`` is this worker's share in
    proportion to the others'; ``debounce`` the seconds for which a join waits for others; ``vitals`` a dict that the
    ownerships of a worker share, so that they don't ask twice about the same leases; ``denied`` gets each error.
    """

    def __init__(
        self, app: str, processor: str, partitions: int, lease: Lease, link: CallSender, listener: Listener,
        control: Control, *, capacity: int = 1, debounce: float = 0.3, vitals: dict[str, float] | None = None,
        denied: Callable[[BaseException], None] | None = None,
    ) -> None:  # fmt: skip
        self.seat = Seat(app, processor, partitions, lease, capacity=capacity, debounce=debounce, vitals=vitals)
        self._name = f"{app}, processor {processor}"
        self._processor = processor
        self._lease = lease
        self._link = link
        self._listener = listener
        self._control = control
        self._wake = asyncio.Event()
        self._hinted = True
        self._doubt = False  # whether claims are to be compared with the server
        self._denied = denied
        self._trouble = FailureLog(log)
        self._stopping = False
        self._stopped_at = math.inf  # on the lease's clock: what the server refuses is tried for a ttl from then on
        self._runner: asyncio.Task[None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the last call of the listener for each partition
        self._acquiring: set[int] = set()
        self._begun: set[int] = set()  # partitions that the listener has

    @property
    def claims(self) -> dict[int, Claim]:
        """What it owns, by partition, without what it is giving up."""
        return {at: claim for at, claim in self.seat.claims.items() if claim.held}

    def start(self) -> None:
        """Begin to take part."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._lease_changed)

        self._undo = [self._lease.watch(changed), self._control.subscribe(self._processor, self.hint)]
        self._runner = asyncio.create_task(self._run(), name=f"ownership of {self._name}")

    def hint(self, doubt: bool = False) -> None:
        """Look soon; ``doubt``: and compare claims with the server, as after a lost connection."""
        self._hinted = True
        self._doubt |= doubt
        self._wake.set()

    async def stop(self) -> None:
        """Leave: the others are told, everything is released. Takes no longer than the lease lasts without a server,
        not counting the listener's ``released``.
        """
        self._stopping = True
        self._stopped_at = self._lease.clock()
        self._wake.set()
        if self._runner is not None and not self._runner.done():
            await asyncio.wait([self._runner], timeout=self._left())
            await end(self._runner)
        leaving = asyncio.create_task(self._leave())
        for at in [*self.seat.claims]:
            self.seat.leaving[at] = self.seat.claims.pop(at)
            self._follow(at, self._give_up(at))
        await asyncio.wait([leaving, *self._tasks.values()])
        for undo in self._undo:
            undo()

    # -- the loop -----------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wait = await self._turn() if self._lease.held else self._lease.ttl
            if not self._stopping:
                await self._idle(wait)

    async def _turn(self) -> float:
        """One turn; returns the seconds until the next."""
        hinted, doubt = self._hinted, self._doubt
        self._hinted = self._doubt = False
        try:
            view = await arun(self._link, self.seat.turn(hinted, doubt))
        except LeaseLostError:
            return self._lease.ttl
        except (*LOST, redis.ResponseError, MembersError) as error:
            if not isinstance(error, LostError):  # which the link has logged
                self._trouble.warn(f"{self._name}: {text_of(error)}; trying again")
            if self._denied is not None:
                self._denied(error)
            self._hinted = True
            self._doubt |= doubt or isinstance(error, LOST)
            return AGAIN
        except Exception:
            log.exception("%s: a turn failed; trying again", self._name)
            self._hinted = self._doubt = True
            return AGAIN
        self._trouble.well()
        self._act(view)
        return view.after

    def _act(self, view: View) -> None:
        for at in view.lost:
            self._lose(at)
        for at in view.leaving:
            self._follow(at, self._give_up(at))
        for claim in view.acquired:
            self._follow(claim.partition, self._acquire(claim))

    async def _idle(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    # -- one partition ------------------------------------------------------------------------------------------
    def _follow(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        """Begin ``work`` when the former work for the partition has ended."""
        former = self._tasks.get(partition)

        async def follow() -> None:
            if former is not None and not former.done():
                await asyncio.wait([former])
            await work

        task = self._tasks[partition] = asyncio.create_task(follow(), name=f"partition {partition} of {self._name}")
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before it began

    async def _acquire(self, claim: Claim) -> None:
        at = claim.partition
        if not claim.held:
            return
        self._acquiring.add(at)
        self._begun.add(at)
        try:
            await self._listener.acquired(claim)
        except Exception:
            log.exception("%s: partition %d could not be begun; releasing it", self._name, at)
            self._lose(at)
            await asyncio.sleep(AGAIN)
            if self.seat.claims.get(at) is claim:
                self.seat.leaving[at] = self.seat.claims.pop(at)
                await self._release(at)
        finally:
            self._acquiring.discard(at)

    async def _give_up(self, partition: int) -> None:
        if partition in self._begun:
            try:
                await self._listener.released(partition)
            except Exception:
                log.exception("%s: partition %d was not given up in order", self._name, partition)
            self._begun.discard(partition)
        await self._release(partition)

    async def _release(self, partition: int) -> None:
        """Release it on the server; what can't be released ends with the lease."""
        began = self._lease.clock()
        while partition in self.seat.leaving and self._goes_on(began):
            await self._within_lease(self.seat.release(partition))
        self.hint()

    def _lose(self, partition: int) -> None:
        if partition not in self._begun:
            return
        self._begun.discard(partition)
        if partition in self._acquiring and self._tasks[partition] is not asyncio.current_task():
            self._tasks[partition].cancel()
        try:
            self._listener.lost(partition)
        except Exception:
            log.exception("%s: partition %d was not dropped in order", self._name, partition)

    # -- the lease ----------------------------------------------------------------------------------------------
    def _lease_changed(self) -> None:
        if not self._lease.held:
            dropped = self.seat.drop()
            if dropped:
                log.warning("%s: the lease is lost; dropped partitions %s", self._name, dropped)
            for at in sorted(self._begun):
                self._lose(at)
        self.hint()

    async def _leave(self) -> None:
        left = False
        began = self._lease.clock()
        while self._goes_on(began) and not left:
            left = await self._within_lease(self.seat.leave())

    async def _within_lease(self, steps: Steps[Any]) -> bool:
        """Drive an operation for as long as the lease lasts; whether it has succeeded. A pause follows if not."""
        try:
            async with asyncio.timeout(self._left()):
                await arun(self._link, steps)
        except (TimeoutError, LeaseLostError, *LOST, redis.ResponseError, MembersError) as error:
            log.info("%s: %s", self._name, summary_of(error))
            await asyncio.sleep(self._lease.ttl / 100)
            return False
        return True

    def _goes_on(self, began: float) -> bool:
        """Whether what was begun at that time is to be tried again."""
        return self._lease.held and self._lease.clock() < max(began, self._stopped_at) + self._lease.ttl

    def _left(self) -> float:
        return max(0.0, self._lease.tenure.until - self._lease.clock())
