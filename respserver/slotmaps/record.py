"""The record of this group in the map: its members as cluster clients of other groups reach them.

Rule: a member that is not connected to the leader stays in the record for FORGET seconds, and for as long after a
change of the leader. A restart of a member, or a failover, thus changes the record once at most.
"""

from __future__ import annotations

import asyncio

from coordinator.slotmap import MapGroup, MapMember
from replication.members import ClusterMember
from respserver.group.membership import GroupMembership
from respserver.roles.cluster import FORGET, Cluster
from respserver.roles.replicas import Replicas


class GroupRecord:
    """Returns the record, as the leader knows it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, membership: GroupMembership, cluster: Cluster, replicas: Replicas
    ) -> None:  # fmt: skip
        self._loop = loop
        self._membership = membership
        self._cluster = cluster
        self._replicas = replicas
        self._seen: dict[str, float] = {}  # by member: loop time when it was last connected
        self._led = 0  # the epoch for which current() was called last
        self._since = 0.0  # loop time since which this member leads in it

    def current(self, epoch: int, before: MapGroup | None, seen: int) -> MapGroup:
        """Return the record for an epoch in which this member leads. ``before``: the record in the map. ``seen``: the
        last version of the map that gave slots to the group and that this member uses."""
        now = self._loop.time()
        if epoch != self._led:
            self._led, self._since, self._seen = epoch, now, {}
        membership = self._membership
        members = {membership.name: self._own()}
        for feed in self._replicas.feeds:
            if feed.member is not None and feed.group_member and feed.state == "online":
                members[feed.group_member] = _reached(feed.member, feed.host)
                self._seen[feed.group_member] = now
        state = membership.store.state
        for name, known in before.members.items() if before is not None else ():
            recent = now - max(self._seen.get(name, 0.0), self._since) <= FORGET
            if name not in members and recent and state is not None and name in state.members:
                members[name] = known
        return MapGroup(
            self._cluster.shard, epoch, membership.name, max(seen, before.seen if before is not None else 0), members
        )

    def _own(self) -> MapMember:
        return _reached(self._cluster.me(), self._membership.address.rpartition(":")[0])


def _reached(member: ClusterMember, host: str) -> MapMember:
    """Return a member. ``host``: its address, unless it announces another one."""
    return MapMember(member.id, member.host or host, member.port, member.tls_port, member.hostname)
