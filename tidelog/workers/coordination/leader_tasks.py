"""``LeaderTasks``: what a worker runs in addition to its processors: leadership, singleton tasks and timers."""

from __future__ import annotations

from tidelog.coordination import Lease
from tidelog.coordination.controlstream import ControlStream
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.coordination.delayed_records import DelayedRecordSender
from tidelog.workers.coordination.leadership import Leadership
from tidelog.workers.coordination.retention import RetentionTask
from tidelog.workers.coordination.singleton_tasks import SingletonTasks
from tidelog.workers.coordination.timers import TimerRunner
from tidelog.workers.declare.app_protocol import AppProtocol


class LeaderTasks:
    """The leader tasks of one worker. ``connection`` is for small, urgent calls."""

    def __init__(
        self, app: AppProtocol, lease: Lease, connector: WorkerConnector, connection: WorkerConnection,
        control: ControlStream, lease_ends: dict[str, float],
    ) -> None:  # fmt: skip
        self._connection = connector.connection()
        self.timers = TimerRunner(app.name, app.timers.values(), lease, self._connection)
        self.delayed = DelayedRecordSender(app.topics, lease, connector.connect)
        self.retention = RetentionTask(app.name, app.topics, app.processors.values(), self._connection)
        self.singletons = SingletonTasks(self.timers.lead, self.delayed.lead, self.retention.lead)
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
