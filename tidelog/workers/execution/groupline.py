"""``GroupLine``: the connections of one processor to one group, and what reads and commits over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tidelog.client.steps import arun
from tidelog.coordination import Claim
from tidelog.coordination.claims import check
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.workers.coordination.workergroups import WorkerGroup
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.fetcher import Fetcher
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.transactions import Committer


class GroupLine:
    """The lines of a processor to ``group``. ``claims`` returns the claims of its partitions there.

    ``taken`` is called with a claim that another worker has taken.
    """

    def __init__(
        self, declared: Processor, group: WorkerGroup, stats: Stats, claims: Callable[[GroupLine], Iterable[Claim]],
        taken: Callable[[Claim], None],
    ) -> None:  # fmt: skip
        connector = group.connector
        self.group: Final = group
        self._claims = claims
        self._taken = taken
        self.reads: Final = connector.connection(self._opened)  # TREAD, TACK, TTOUCH and TNACK, in order
        self.fetcher: Final = Fetcher(
            connector, self.reads, declared.group, stats, taken, declared.ordering != "none"
        )  # fmt: skip
        self.committer: Final = Committer(connector, group.lease, declared.group, stats, taken)

    async def _opened(self, channel: AsyncConnection) -> None:
        """Compare the claims on a new connection, because other workers may have taken partitions meanwhile."""
        claims = [each for each in self._claims(self) if each.key]
        if claims:
            for claim in await arun(channel, check(claims)):
                self._taken(claim)

    def close(self) -> None:
        """Close the connection of reads. The tasks of fetcher and committer close the others."""
        self.reads.close()
