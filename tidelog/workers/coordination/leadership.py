"""``Leadership``: one worker of an app is the leader, regardless of its processors.

The leader holds the claim of one key. The other workers are notified when the claim is released, or when a member of a
processor was found dead. Since a leader may not be a member of any processor, they also check its lease, one ttl after
it can have expired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import redis

from tidelog.client import strings
from tidelog.client.steps import CallSender, Steps, arun, checked
from tidelog.coordination import Claim, Lease, LeaseLostError
from tidelog.coordination.claims import check, release, take
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.workers import keys, logs
from tidelog.workers.coordination.control_stream import ControlStream, message
from tidelog.workers.coordination.membership import NET, SOON

log = logs.get(__name__)
AGAIN: Final = 1.0  # seconds until a failed operation is retried


class Leadership:
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
        self._app = app
        self._lease = lease
        self._link = link
        self._control = control
        self._gained, self._lost = gained, lost
        self._lease_ends: dict[str, float] = {} if lease_ends is None else lease_ends
        self._leader = ""  # the key of the leader's lease if another worker leads
        self._wake = asyncio.Event()
        self._hinted, self._doubt = True, False
        self._runner: asyncio.Task[None] | None = None
        self._undo: list[Callable[[], None]] = []
        self._trouble = FailureLog(log)

    @property
    def leading(self) -> bool:
        return self.claim is not None and self.claim.held

    def start(self) -> None:
        """Start trying to become the leader."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._lease_changed)

        self._undo = [self._lease.watch(changed), self._control.subscribe("", self._hint)]
        self._runner = asyncio.create_task(self._run(), name=f"leadership of {self._app}")

    async def stop(self) -> None:
        """Stop trying, and release the leadership. Without a server this takes no longer than the lease lasts."""
        for undo in self._undo:
            undo()
        await cancel_and_wait(self._runner)
        claim = self.claim
        if claim is None:
            return
        held = claim.held
        self._ended()
        if not held:
            return
        try:
            async with asyncio.timeout(max(0.0, claim.tenure.until - self._lease.clock())):
                await arun(self._link, release([claim], [message(self._app, "leader", self._lease.owner)]))
        except (TimeoutError, redis.RedisError, OSError) as error:
            log.info("app %s: the leadership was not released and expires with the lease: %s", self._app, error)

    # -- the loop -----------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait = self._lease.ttl
            if self._lease.held:
                wait = await self._turn()
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _turn(self) -> float:
        hinted, doubt = self._hinted, self._doubt
        self._hinted = self._doubt = False
        try:
            wait = await arun(self._link, self._check_leader(hinted, doubt))
        except LeaseLostError:
            return self._lease.ttl
        except (redis.RedisError, OSError) as error:
            if not isinstance(error, LostError):  # already logged by the connector
                self._trouble.warn(f"app {self._app}: the leader can't be determined: {text_of(error)}; trying again")
        except Exception:
            log.exception("app %s: unexpected error in the leadership; trying again", self._app)
        else:
            self._trouble.succeeded()
            return wait
        self._hinted = self._doubt = True
        return AGAIN

    def _check_leader(self, hinted: bool, doubt: bool) -> Steps[float]:
        """Become the leader if there is none; returns the seconds until the next check."""
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

    # -- notifications ------------------------------------------------------------------------------------------
    def _hint(self, doubt: bool) -> None:
        self._hinted = True
        self._doubt |= doubt
        self._wake.set()

    def _lease_changed(self) -> None:
        if self.claim is not None and not self.claim.held:
            self._ended()
        self._hint(doubt=False)
