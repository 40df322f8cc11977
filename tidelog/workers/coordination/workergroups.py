"""The groups that a worker works with: which of them has a partition, and the lease and the connections there.

    one server or one group   the lease of the worker, and its connections to the leader
    a cluster                 for each group that has partitions: a lease, and connections to its leader

The claims of partitions are on the group of the partition, in its slot, and name the lease of that group. Therefore a
transaction watches a claim and changes its partition on one member, and if one group fails, only its partitions stop.
The lease of the worker itself (``app:shop:lease:w1``) is for memberships, leadership and timers.

Rule 1: the key of a group's lease has a hash tag with a slot of this group. Claims name the key, so no other worker has
        to know how it is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from tidelog.coordination import Keeper, Lease
from tidelog.transport.access import Access
from tidelog.transport.slots import hash_tag
from tidelog.workers import keys
from tidelog.workers.coordination.clusterlines import ClusterConnector, GroupConnector
from tidelog.workers.coordination.connections import WorkerConnector


class WorkerGroup:
    """One group. ``streams``: those of the worker's topics that it has; empty: all of them."""

    def __init__(self, lease: Lease, connector: WorkerConnector) -> None:
        self.lease: Final = lease
        self.connector: Final = connector


class WorkerGroups:
    """One server, or the leader of one group: all partitions have the same lease and connector."""

    def __init__(self, lease: Lease, connector: WorkerConnector) -> None:
        self.home: Final = WorkerGroup(lease, connector)
        self.all: list[WorkerGroup] = [self.home]

    def of(self, stream: str) -> WorkerGroup:  # noqa: ARG002
        """Return the group that has a stream of the worker's processors."""
        return self.home

    def tag(self, stream: str) -> str:  # noqa: ARG002
        """Return the hash tag of keys that must be in the slot of a stream; "" outside of clusters."""
        return ""

    @property
    def several(self) -> bool:
        """Whether several groups share the keys."""
        return False

    def together(self, stream: str, other: str) -> bool:  # noqa: ARG002
        """Return whether one transaction can change both streams, as far as it is known."""
        return True

    async def found_together(self, stream: str, other: str) -> bool:  # noqa: ARG002
        """Return whether one transaction can change both streams. In case of doubt, the map is read."""
        return True

    def lost(self, stream_of: Callable[[int], str], partitions: Sequence[int]) -> list[int]:  # noqa: ARG002
        """Return the partitions whose slots were assigned to another group."""
        return []

    async def start(self) -> None:
        """Start renewing the leases."""

    async def stop(self) -> None:
        """Release the leases of groups."""

    async def moved(self) -> None:
        """Wait until the slots of streams were assigned to other groups."""
        await asyncio.Event().wait()


class ClusterGroups(WorkerGroups):
    """The groups of a cluster. ``groups`` are those that ``ClusterConnector.divide`` has returned."""

    def __init__(
        self, app: str, access: Access, lease: Lease, cluster: ClusterConnector, groups: Sequence[GroupConnector]
    ) -> None:  # fmt: skip
        super().__init__(lease, cluster)
        self._cluster = cluster
        self._connectors = groups
        names = [keys.group_lease(app, lease.owner, _tag(cluster, each)) for each in groups]
        self.all = [
            WorkerGroup(Lease(name, lease.owner, lease.ttl, lease.epochs), each)
            for name, each in zip(names, groups, strict=True)
        ]
        self._keepers = [Keeper(access, each.lease, f"tidelog-lease-{lease.owner}") for each in self.all]
        self._watches: list[asyncio.Task[None]] = []

    def of(self, stream: str) -> WorkerGroup:
        """See ``WorkerGroups.of``."""
        return self.all[self._cluster.group_of(stream)]

    def tag(self, stream: str) -> str:
        """See ``WorkerGroups.tag``."""
        return hash_tag(stream)

    def together(self, stream: str, other: str) -> bool:
        """See ``WorkerGroups.together``."""
        return self._cluster.leader_of(stream) == self._cluster.leader_of(other)

    async def found_together(self, stream: str, other: str) -> bool:
        """See ``WorkerGroups.found_together``. A redirection changes one slot of the local map, not both."""
        if not self.together(stream, other):
            await self._cluster.read_map()
        return self.together(stream, other)

    @property
    def several(self) -> bool:
        """See ``WorkerGroups.several``."""
        return self._cluster.several_groups

    def lost(self, stream_of: Callable[[int], str], partitions: Sequence[int]) -> list[int]:
        """See ``WorkerGroups.lost``."""
        leaders = [each.leader for each in self._connectors]
        streams = {at: stream_of(at) for at in partitions}
        return [
            at
            for at, stream in streams.items()
            if self._cluster.leader_of(stream) != leaders[self._cluster.group_of(stream)]
        ]

    async def start(self) -> None:
        """See ``WorkerGroups.start``."""
        for keeper in self._keepers:
            keeper.start()
        self._watches = [asyncio.create_task(each.watch()) for each in self._connectors]

    async def stop(self) -> None:
        """See ``WorkerGroups.stop``."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*[asyncio.to_thread(keeper.stop) for keeper in self._keepers])

    async def moved(self) -> None:
        """See ``WorkerGroups.moved``."""
        await self._cluster.moved.wait()


def _tag(cluster: ClusterConnector, group: GroupConnector) -> str:
    """Return a hash tag with a slot of this group."""
    leader = group.leader
    return next(tag for number in count() if cluster.leader_of(tag := f"{{{number}}}") == leader)
