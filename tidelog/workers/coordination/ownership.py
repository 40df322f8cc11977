"""``PartitionOwnership``: drives a membership in a running worker, and tells a listener which partitions to consume.

Rule 1: calls of the listener for one partition don't overlap: ``acquired``, then ``released`` or ``lost``. Only
        ``lost`` can be called during ``acquired``, which is then cancelled, or during ``released``, which continues and
        finds that the claim is not held. ``acquired`` never begins before the previous call for that partition has
        ended.
Rule 2: ``lost`` doesn't wait for the server. It follows from the end of the lease alone.
Rule 3: when ``released`` has returned, the partition is released on the server, and the other members are notified.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import redis

from tidelog.client.steps import LOST, CallSender, Steps, arun
from tidelog.coordination import Claim, Lease, LeaseLostError
from tidelog.coordination.controlstream import ControlStream
from tidelog.operating.errortexts import summary_of
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.workers import logs
from tidelog.workers.coordination.lease_loop import AGAIN, LeaseLoop
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.coordination.membership import Membership

log = logs.get(__name__)


class PartitionListener(Protocol):
    """The consumer of partitions."""

    async def acquired(self, claim: Claim) -> None:
        """Start consuming ``claim.partition``. If this raises, the partition is released and taken again later."""

    async def released(self, partition: int) -> None:
        """Finish or return the entries in flight, and acknowledge; then another member takes the partition."""

    def lost(self, partition: int) -> None:
        """Drop all entries without acknowledging them, since the claim is not held any more."""


class PartitionOwnership(LeaseLoop):
    """Keeps the worker a member of ``processor`` of ``app`` while ``lease`` is held, and joins again after a loss.

    >>> ownership = PartitionOwnership("shop", "bill", 16, lease, link, listener, control)
    >>> ownership.start()
    >>> await ownership.stop()

    ``control`` follows the control stream, for all ownerships of the worker. ``capacity`` is this worker's share
    relative to the others. ``debounce``: how many seconds a join waits for other joins. ``lease_ends``: a dict that the
    ownerships of a worker share, so that they don't read the same lease twice. ``denied`` is called with each error.
    ``lease_of`` and ``tag_of`` are those of Membership.
    """

    def __init__(
        self, app: str, processor: str, partitions: int, lease: Lease, link: CallSender, listener: PartitionListener,
        control: ControlStream, *, capacity: int = 1, debounce: float = 0.3, lease_ends: dict[str, float] | None = None,
        denied: Callable[[BaseException], None] | None = None, lease_of: Callable[[int], Lease] | None = None,
        tag_of: Callable[[int], str] | None = None,
    ) -> None:  # fmt: skip
        self.membership = Membership(
            app, processor, partitions, lease, capacity=capacity, debounce=debounce, lease_ends=lease_ends,
            lease_of=lease_of, tag_of=tag_of,
        )  # fmt: skip
        self._leases = {id(each): each for each in map(lease_of or (lambda _: lease), range(partitions))}
        super().__init__(f"{app}, processor {processor}", processor, lease, link, control, denied)
        self._listener = listener
        self._stopped_at = math.inf  # on the lease's clock; rejected calls are retried for one ttl after it
        self._tasks: dict[int, asyncio.Task[None]] = {}  # the last call of the listener for each partition
        self._acquiring: set[int] = set()
        self._begun: set[int] = set()  # partitions that the listener consumes

    def start(self) -> None:
        """See ``LeaseLoop.start``."""
        super().start()
        for lease in self._leases.values():
            if lease is not self._lease:
                self.watch(lease)

    @property
    def claims(self) -> dict[int, Claim]:
        """The claims that the worker owns, by partition, without those that are being released."""
        return {at: claim for at, claim in self.membership.claims.items() if claim.held}

    async def stop(self) -> None:
        """Leave: release everything and notify the other members.

        Without a server this takes no longer than the lease lasts, not counting the listener's ``released``.
        """
        self._stopping = True
        self._stopped_at = self._lease.clock()
        self._wake.set()
        if self._runner is not None and not self._runner.done():
            await asyncio.wait([self._runner], timeout=self._lease.tenure.left)
            await cancel_and_wait(self._runner)
        releasing = asyncio.create_task(self._leave())
        for at in [*self.membership.claims]:
            self.membership.releasing[at] = self.membership.claims.pop(at)
            self._follow(at, self._give_up(at))
        await asyncio.wait([releasing, *self._tasks.values()])
        self.unsubscribe()

    def turn(self, hinted: bool, doubt: bool) -> Steps[float]:
        """See ``LeaseLoop.turn``."""
        view = yield from self.membership.turn(hinted, doubt)
        for at in view.lost:
            self._lose(at)
        for at in view.releasing:
            self._follow(at, self._give_up(at))
        for claim in view.acquired:
            self._follow(claim.partition, self._acquire(claim))
        return view.after

    # -- one partition ------------------------------------------------------------------------------------------
    def _follow(self, partition: int, work: Coroutine[Any, Any, None]) -> None:
        """Start ``work`` when the previous work for the partition has ended."""
        former = self._tasks.get(partition)

        async def follow() -> None:
            if former is not None and not former.done():
                await asyncio.wait([former])
            await work

        task = self._tasks[partition] = asyncio.create_task(follow(), name=f"partition {partition} of {self._name}")
        task.add_done_callback(lambda _: work.close())  # in case the task was cancelled before it began

    async def _acquire(self, claim: Claim) -> None:
        at = claim.partition
        if not claim.held:
            return
        self._acquiring.add(at)
        self._begun.add(at)
        try:
            await self._listener.acquired(claim)
        except Exception:
            log.exception("%s: partition %d could not be started; releasing it", self._name, at)
            self._lose(at)
            await asyncio.sleep(AGAIN)
            if self.membership.claims.get(at) is claim:
                self.membership.releasing[at] = self.membership.claims.pop(at)
                await self._release(at)
        finally:
            self._acquiring.discard(at)

    async def _give_up(self, partition: int) -> None:
        if partition in self._begun:
            try:
                await self._listener.released(partition)
            except Exception:
                log.exception("%s: error while partition %d was released", self._name, partition)
            self._begun.discard(partition)
        await self._release(partition)

    async def _release(self, partition: int) -> None:
        """Release the partition on the server. If that is impossible, the claim expires with the lease."""
        began = self._lease.clock()
        while partition in self.membership.releasing and self._can_retry(began):
            await self._within_lease(self.membership.release(partition))
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
            log.exception("%s: error while partition %d was dropped", self._name, partition)

    # -- the lease ----------------------------------------------------------------------------------------------
    def lease_changed(self) -> None:
        """See ``LeaseLoop.lease_changed``."""
        dropped = self.membership.drop()
        if dropped:
            log.warning("%s: the lease is lost; dropped partitions %s", self._name, dropped)
        for at in sorted(self._begun - self.membership.claims.keys() - self.membership.releasing.keys()):
            self._lose(at)
        self.hint()

    async def _leave(self) -> None:
        left = False
        began = self._lease.clock()
        while self._can_retry(began) and not left:
            left = await self._within_lease(self.membership.leave())

    async def _within_lease(self, steps: Steps[Any]) -> bool:
        """Drive an operation while the lease lasts; returns whether it has succeeded. A pause follows a failure."""
        try:
            async with asyncio.timeout(self._lease.tenure.left):
                await arun(self._link, steps)
        except (TimeoutError, LeaseLostError, *LOST, redis.ResponseError, MembersError) as error:
            log.info("%s: %s", self._name, summary_of(error))
            await asyncio.sleep(self._lease.ttl / 100)
            return False
        return True

    def _can_retry(self, began: float) -> bool:
        """Return whether an operation that began at that time may be retried."""
        return self._lease.held and self._lease.clock() < max(began, self._stopped_at) + self._lease.ttl
