"""``Leadership``: one worker of an app is the leader, regardless of its processors.

The leader holds the claim of one key. The other workers are notified when the claim is released, or when a member of a
processor was found dead. Since a leader may not be a member of any processor, they also check its lease, one ttl after
it can have expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import redis

from tidelog.client import strings
from tidelog.client.steps import CallSender, Steps, arun, checked
from tidelog.coordination import Claim, Lease
from tidelog.coordination.claims import check, release, take
from tidelog.coordination.controlstream import ControlStream
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.workers import keys, logs
from tidelog.workers.coordination.lease_loop import LeaseLoop
from tidelog.workers.coordination.membership import NET, SOON
from tidelog.workers.coordination.messages import message

log = logs.get(__name__)


class Leadership(LeaseLoop):
    """Tries to become the leader while ``lease`` is held. ``gained`` and ``lost`` are called in the event loop.

    The leader must check ``leading`` before each effect, or WATCH ``claim.key`` in a transaction. ``lease_ends`` is the
    dict that the memberships of the worker share.
    """

    def __init__(
        self, app: str, lease: Lease, link: CallSender, control: ControlStream, *,
        gained: Callable[[Claim], None] | None = None, lost: Callable[[], None] | None = None,
        lease_ends: dict[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.claim: Claim | None = None  # set while this worker leads, until it notices the loss
        super().__init__(f"app {app}: leader election", "", lease, link, control)
        self._app = app
        self._gained, self._lost = gained, lost
        self._lease_ends: dict[str, float] = {} if lease_ends is None else lease_ends
        self._leader = ""  # the key of the leader's lease if another worker leads

    @property
    def leading(self) -> bool:
        return self.claim is not None and self.claim.held

    async def stop(self) -> None:
        """Stop trying, and release the leadership. Without a server this takes no longer than the lease lasts."""
        self.unsubscribe()
        await cancel_and_wait(self._runner)
        claim = self.claim
        if claim is None:
            return
        held = claim.held
        self._ended()
        if not held:
            return
        try:
            async with asyncio.timeout(claim.tenure.left):
                await arun(self._link, release([claim], [message(self._app, "leader", self._lease.owner)]))
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.info("app %s: the leadership was not released and expires with the lease: %s", self._app, error)

    def turn(self, hinted: bool, doubt: bool) -> Steps[float]:
        """Become the leader if there is none; see ``LeaseLoop.turn``."""
        lease = self._lease
        if (claim := self.claim) is not None:
            if doubt:
                yield from check([claim])
            if not claim.held and self.claim is claim:  # otherwise the end was noticed meanwhile
                self._ended()
        if self.claim is not None:
            return lease.ttl * NET
        if self._leader and not hinted:
            known = self._lease_ends.get(self._leader, 0.0) + lease.ttl - lease.clock()
            if known > 0:  # a membership has read the lease meanwhile
                return known
            (left,) = checked((yield [strings.remaining_ms(self._leader)]))
            if left != -2:
                return self._until(left)
        taken = yield from take(lease, [(keys.leader(self._app), 0)])
        if taken.claims:
            self._led(taken.claims[0])
            return lease.ttl * NET
        (holder,) = taken.held
        self._leader = holder.lease
        return self._until(holder.left) if holder.lease else SOON

    def _until(self, left: int) -> float:
        seconds = self._lease.ttl if left < 0 else left / 1000
        self._lease_ends[self._leader] = self._lease.clock() + seconds
        return seconds + self._lease.ttl

    def _led(self, claim: Claim) -> None:
        self.claim, self._leader = claim, ""
        log.info("app %s: worker %s leads, epoch %d", self._app, self._lease.owner, claim.epoch)
        if self._gained is not None:
            self._gained(claim)

    def _ended(self) -> None:
        self.claim = None
        log.info("app %s: worker %s is not the leader any more", self._app, self._lease.owner)
        if self._lost is not None:
            self._lost()

    def lease_changed(self) -> None:
        """See ``LeaseLoop.lease_changed``."""
        if self.claim is not None and not self.claim.held:
            self._ended()
        self.hint()
