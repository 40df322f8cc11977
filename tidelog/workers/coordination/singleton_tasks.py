"""``Duties``: what the leader does beside its processors, for as long as it leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.coordination import Claim
from tidelog.workers import logs
from tidelog.workers.coordination.cancellation import end

log = logs.get(__name__)
AGAIN: Final = 5.0  # seconds until a duty that failed is begun again

Duty = Callable[[Claim], Coroutine[Any, Any, None]]


class Duties:
    """Runs coroutines while this worker leads: ``gained`` and ``lost`` are for ``Leadership``.

    >>> duties = Duties(timers.lead, movers.lead, maintenance.lead)
    >>> leadership = Leadership("shop", lease, link, control, gained=duties.gained, lost=duties.lost)

    Each duty is called with the leader's claim, and cancelled when this worker leads no more. Those of the next time
    begin after those of the time before have ended.
    """

    def __init__(self, *duties: Duty) -> None:
        self._duties = duties
        self._task: asyncio.Task[None] | None = None  # of the current time, or the last

    def gained(self, claim: Claim) -> None:
        """This worker leads."""
        self._task = asyncio.create_task(self._lead(claim, self._task), name="duties of the leader")

    def lost(self) -> None:
        """It leads no more."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """End the duties, and wait until they have ended: before the leadership is released."""
        await end(self._task)

    async def _lead(self, claim: Claim, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        async with asyncio.TaskGroup() as group:
            for duty in self._duties:
                group.create_task(self._keep(duty, claim))

    async def _keep(self, duty: Duty, claim: Claim) -> None:
        """A duty, begun again where it fails: that is a mistake of ours, and the others go on."""
        while claim.held:
            try:
                await duty(claim)
                return
            except Exception:
                log.exception("a duty of the leader failed; it begins again")
            await asyncio.sleep(AGAIN)
