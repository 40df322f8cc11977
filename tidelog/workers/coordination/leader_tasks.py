"""``LeaderTasks``: what a worker runs in addition to its processors: leadership, singleton tasks and timers.

``SingletonTasks`` runs coroutines on the leader only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.coordination import Claim, Lease
from tidelog.coordination.controlstream import ControlStream
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.coordination.leadership import Leadership
from tidelog.workers.coordination.timers import TimerRunner
from tidelog.workers.declare.app_protocol import AppProtocol

log = logs.get(__name__)
AGAIN: Final = 5.0  # seconds until a failed task is restarted

SingletonTask = Callable[[Claim], Coroutine[Any, Any, None]]


class SingletonTasks:
    """Runs coroutines while this worker leads. ``gained`` and ``lost`` are callbacks for ``Leadership``.

    >>> tasks = SingletonTasks(timers.lead)
    >>> leadership = Leadership("shop", lease, link, control, gained=tasks.gained, lost=tasks.lost)

    Each task is called with the leader's claim, and cancelled when this worker does not lead any more. If the worker
    becomes the leader again, the tasks start after the previous ones have ended.
    """

    def __init__(self, *tasks: SingletonTask) -> None:
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None  # of the current leadership, or of the last

    def gained(self, claim: Claim) -> None:
        """Start the tasks."""
        self._task = asyncio.create_task(self._lead(claim, self._task), name="singleton tasks of the leader")

    def lost(self) -> None:
        """Cancel the tasks."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop the tasks and wait for their end. Must be called before the leadership is released."""
        await cancel_and_wait(self._task)

    async def _lead(self, claim: Claim, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        async with asyncio.TaskGroup() as group:
            for task in self._tasks:
                group.create_task(self._keep(task, claim))

    async def _keep(self, task: SingletonTask, claim: Claim) -> None:
        """Run a task, and restart it after an error, which is a bug in tidelog and must not stop the other tasks."""
        while claim.held:
            try:
                await task(claim)
                return
            except Exception:
                log.exception("a singleton task of the leader failed; it is restarted")
            await asyncio.sleep(AGAIN)


class LeaderTasks:
    """The leader tasks of one worker. ``connection`` is for small, urgent calls."""

    def __init__(
        self, app: AppProtocol, lease: Lease, connector: WorkerConnector, connection: WorkerConnection,
        control: ControlStream, lease_ends: dict[str, float],
    ) -> None:  # fmt: skip
        self._connection = connector.connection()
        self.timers = TimerRunner(app.name, app.timers.values(), lease, self._connection)
        self.singletons = SingletonTasks(self.timers.lead)
        self.leadership = Leadership(
            app.name,
            lease,
            connection,
            control,
            gained=self.singletons.gained,
            lost=self.singletons.lost,
            lease_ends=lease_ends,
        )

    def start(self) -> None:
        """Start the timers of this worker, and try to become the leader."""
        self.timers.start()
        self.leadership.start()

    async def stop(self, grace: float) -> None:
        """Stop all tasks; running timers have ``grace`` seconds. Then another worker can become the leader."""
        await self.timers.drain(grace)
        await self.singletons.stop()
        await self.leadership.stop()
        self._connection.close()
