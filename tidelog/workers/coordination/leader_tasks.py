"""``Leading``: what a worker does beside its processors: it tries to lead, does what a leader does, runs timers."""

from __future__ import annotations

from tidelog.coordination import Lease
from tidelog.workers.coordination.connections import Line, Link
from tidelog.workers.coordination.control_stream import Control
from tidelog.workers.coordination.delayed_records import Movers
from tidelog.workers.coordination.leadership import Leadership
from tidelog.workers.coordination.retention import Maintenance
from tidelog.workers.coordination.singleton_tasks import Duties
from tidelog.workers.coordination.timers import Timers
from tidelog.workers.declare.app_protocol import Program


class Leading:
    """Of one worker of ``app``. ``line`` is for what is small and urgent; ``vitals`` is that of its ownerships."""

    def __init__(
        self, app: Program, lease: Lease, link: Link, line: Line, control: Control, vitals: dict[str, float]
    ) -> None:  # fmt: skip
        self._line = link.line()
        self.timers = Timers(app.name, app.timers.values(), lease, self._line)
        self.movers = Movers(app.topics, lease, link.connect)
        self.maintenance = Maintenance(app.name, app.topics, app.processors.values(), self._line)
        self.duties = Duties(self.timers.lead, self.movers.lead, self.maintenance.lead)
        self.leadership = Leadership(
            app.name, lease, line, control, gained=self.duties.gained, lost=self.duties.lost, vitals=vitals
        )

    def start(self) -> None:
        """Begin to try to lead, and the timers of each worker."""
        self.timers.start()
        self.leadership.start()

    async def stop(self, grace: float) -> None:
        """End all of it: runs of timers have ``grace`` seconds. Then another worker may lead."""
        await self.timers.drain(grace)
        await self.duties.stop()
        await self.leadership.stop()
        self._line.close()
