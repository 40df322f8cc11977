"""``cluster-enabled``: which servers share the slots, for cluster clients.

The leader knows its replicas, which announce themselves in the handshake (``replication.members``), and tells each of
them who else follows it. So every member lists the leader and the online replicas. In a cluster of several groups, the
map of the cluster lists the members of the other groups (``respserver.slotmaps``).

Rule 1: no host is empty, because clients skip such a member. A member that announces no host is listed with the address
at which the other members, or this client, reach it.
Rule 2: IDs are unique. A server that finds its own ID among the others was started on a copied directory, and takes a
new ID.
Rule 3: while there is no leader, the last one is listed as disconnected, as in Redis. Clients then try again.
Rule 4: members that were online are listed until this server has been the leader, or connected to it, for FORGET
seconds. redis-py replaces its list of servers by the last one that it received. If that named only a leader that died,
or only a new leader before its replicas have connected, the client would find no other server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commands.session import Session
from commands.slots import ALL_SLOTS_ID, SLOTS, ClusterNode, ClusterShard
from coordinator.slotmap import SlotMap
from persistence import nodeid
from replication import members
from replication.feed import ReplicaFeed
from replication.frames import LinkError
from replication.members import ClusterMember
from resp import errors
from resp.errors import CommandError
from respserver.roles.replicas import Replicas
from respserver.runtime.parts import RuntimeParts, ServerPart

FORGET = 5.0  # seconds
LOOPBACK = "127.0.0.1"
WILDCARDS = ("*", "0.0.0.0", "::", "::*")  # noqa: S104 - compared with, not bound to


class Cluster(ServerPart):
    """The members. Used on the event loop only. Implements ``ClusterPart``."""

    def __init__(self, parts: RuntimeParts, replicas: Replicas, linked: Callable[[], bool]) -> None:
        """Initialize. ``linked``: returns whether this server is connected to its leader. Raises CorruptError,
        OSError."""
        super().__init__(parts)
        self._replicas = replicas
        self._linked = linked
        self.enabled = self._config.cluster_enabled
        self.id = nodeid.load(Path(self._config.dir)) if self.enabled else ""
        self.shard = ALL_SLOTS_ID  # the ID of the shard: in a server group, the group's
        self.epoch = 0  # of the server group; 0: this server is in none
        self.lease_valid: Callable[[], bool] = lambda: True  # in a server group: whether this member may lead now
        self._told: list[ClusterMember] = []  # by the leader: the leader, and its other replicas
        self._last: ClusterMember | None = None  # the last leader, for a replica that has none now
        self._seen: dict[str, tuple[ClusterMember, float]] = {}  # by ID: other members, and the loop time (Rule 4)
        self._ids: dict[tuple[str, int], str] = {}  # known IDs of other members, by address and port of the link

    # -- addresses -----------------------------------------------------------------------------------------------
    def me(self) -> ClusterMember:
        """Return this server as it announces itself to the others."""
        config = self._config
        return ClusterMember(
            self.id, config.cluster_announce_port or config.port, config.cluster_announce_tls_port or config.tls_port,
            config.cluster_announce_ip or config.replica_announce_ip, config.cluster_announce_hostname,
        )  # fmt: skip

    def _for(self, session: Session) -> ClusterMember:
        """Return this server with the address at which the client reaches it."""
        me, config = self.me(), self._config
        here, _, port = ("", "", "") if session.unix else session.laddr.rpartition(":")
        if port and not (config.cluster_announce_tls_port if session.tls else config.cluster_announce_port):
            me = me._replace(tls_port=int(port)) if session.tls else me._replace(port=int(port))
        bound = [host.removeprefix("-") for host in config.bind]
        bound = [host for host in bound if host and host not in WILDCARDS]
        return me if me.host else me._replace(host=here.strip("[]") or (bound[0] if bound else LOOPBACK))

    def _endpoint(self, member: ClusterMember) -> str:
        """Return the host to which clients of this server connect (``cluster-preferred-endpoint-type``)."""
        named = self._config.cluster_preferred_endpoint_type == "hostname"
        return member.hostname if named and member.hostname else member.host

    def _leader(self) -> ClusterMember:
        """Return the leader that this server follows."""
        host, port = self._config.replicaof[0], int(self._config.replicaof[1])
        if self._told:
            return self._told[0]
        known = self._ids.get((host.lower(), port)) or members.derived_id(host, port)
        return self._at_link(ClusterMember(known, 0, 0, ""))

    def _at_link(self, member: ClusterMember) -> ClusterMember:
        """Return a member, which is at the other end of the link, with the address that this server follows."""
        host, port = self._config.replicaof[0], int(self._config.replicaof[1])
        if self._config.tls_replication:
            return member._replace(host=host, tls_port=port)
        return member._replace(host=host, port=port)

    def _replica(self, feed: ReplicaFeed) -> ClusterMember:
        """Return one of this server's replicas."""
        if feed.member is None:
            return ClusterMember(members.derived_id(feed.host, feed.port), feed.port, 0, feed.host)
        return feed.member if feed.member.host else feed.member._replace(host=feed.host)

    def _online(self) -> dict[str, tuple[ClusterMember, int]]:
        """Return the online replicas of this server and their log offsets, by ID."""
        return {
            member.id: (member, feed.acknowledged)
            for feed in self._replicas.feeds
            if feed.state == "online" and feed.port
            for member in (self._replica(feed),)
        }

    # -- for clients -----------------------------------------------------------------------------------------------
    @property
    def reads_when_down(self) -> bool:
        return self._config.cluster_allow_reads_when_down

    @property
    def serves(self) -> bool:
        if self._slots.mapped and (self._slots.map is None or self._slots.down):
            return False
        if self._data.follower:
            return bool(self._config.replicaof) and self._linked()
        return self.lease_valid() and (self._slots.leads or not self._slots.mapped)

    def shards(self, session: Session) -> list[ClusterShard]:
        nodes, slots = self._nodes(session), self._slots
        if not slots.mapped:
            return [ClusterShard(self.shard, self.epoch, nodes, [(0, SLOTS - 1)] if nodes[0].leads else [])]
        if slots.map is None:
            return [ClusterShard(self.shard, self.epoch, nodes, [])]
        own = ClusterShard(self.shard, self.epoch, nodes, list(slots.map.ranges(slots.group)))
        others = [name for name in sorted(slots.map.groups) if name != slots.group]
        return [own, *[self._other(slots.map, name, session) for name in others]]

    def _other(self, slots: SlotMap, name: str, session: Session) -> ClusterShard:
        """Return another group, as the map has it."""
        group = slots.groups[name]
        nodes = [
            self._node(ClusterMember(each.id, each.port, each.tls_port, each.host, each.hostname), leads, session)
            for leads in (True, False)
            for member, each in sorted(group.members.items())
            if (member == group.leader) == leads
        ]
        return ClusterShard(group.id, group.epoch, nodes, list(slots.ranges(name)))

    def _node(
        self, member: ClusterMember, leads: bool, session: Session, online: bool = True, offset: int = 0
    ) -> ClusterNode:  # fmt: skip
        """Return a member as this client reaches it."""
        port = member.tls_port or member.port if session.tls else member.port or member.tls_port
        return ClusterNode(
            member.id, member.host, member.hostname, self._endpoint(member), port, leads, member.id == self.id, online,
            offset,
        )  # fmt: skip

    def leader_of(self, group: str, session: Session) -> tuple[str, int]:
        if self._slots.map is None:
            raise CommandError(errors.CLUSTER_DOWN)
        leader = self._other(self._slots.map, group, session).nodes[0]
        return leader.endpoint, leader.port

    def _nodes(self, session: Session) -> list[ClusterNode]:
        """Return the members of this group, the leader first. Without a leader, the first one is a replica."""
        follower, offset, linked = self._data.follower, self._data.disk.offset, self._linked()
        found: dict[str, ClusterNode] = {}

        def add(member: ClusterMember, leads: bool, online: bool, offset: int) -> None:
            found.setdefault(member.id, self._node(member, leads, session, online, offset))

        if follower and self._config.replicaof:
            add(self._leader(), True, linked, offset)
        elif follower and self._last is not None:
            add(self._last, True, False, offset)
        add(self._for(session), not follower, not self._gates.loading, offset)
        if follower and linked:
            for member in self._told[1:]:
                add(member, False, True, 0)
        for member, acknowledged in self._online().values():
            add(member, False, True, acknowledged)
        self._remember()
        for member, _ in self._seen.values():
            add(member, False, False, 0)
        return list(found.values())

    def _remember(self) -> None:
        """Update the members that were online (Rule 4)."""
        now = self._loop.time()
        if self._data.follower and not self._linked():
            self._seen.update({name: (member, now) for name, (member, _) in self._seen.items()})
            return
        others = [member for member, _ in self._online().values()]
        if self._data.follower:
            others += self._told
        self._seen.update({member.id: (member, now) for member in others})
        for name in [name for name, (_, at) in self._seen.items() if now - at > FORGET]:
            del self._seen[name]

    def leader(self, session: Session) -> tuple[str, int]:
        if not self._config.replicaof:
            raise CommandError(errors.CLUSTER_DOWN)
        leader = self._leader()
        return self._endpoint(leader), leader.tls_port or leader.port if session.tls else leader.port or leader.tls_port

    # -- between the members ---------------------------------------------------------------------------------------
    def followed(self) -> None:
        """Discard the list of members from the previous leader. Called before the role, or when the leader, changes."""
        if not self._data.follower:
            self._last = None
        elif self._told:
            self._last = self._told[0]
        self._told = []

    def heard(self, members_payload: bytes) -> None:
        """Take the list of members from the leader. Raises LinkError."""
        told = members.decode(members_payload)
        if any(member.id == self.id for member in told):
            try:
                self.id = nodeid.renew(Path(self._config.dir))
            except OSError as error:
                raise LinkError(f"another member has the same node ID; a new one can't be saved: {error}") from error
            raise LinkError(f"another member has the same node ID, so this server takes a new one: {self.id}")
        self._told = [member if member.host else self._at_link(member) for member in told]
        self._ids[self._config.replicaof[0].lower(), int(self._config.replicaof[1])] = told[0].id

    def tell(self) -> None:
        """Tell each replica the other members, if they have changed. Called when a replica was heard for the first
        time, and ``hz`` times a second."""
        if not self.enabled:
            return
        self._remember()
        if not self._replicas.feeds:
            return
        online = self._online()
        for member, _ in online.values():
            self._ids[member.host.lower(), member.port] = member.id
        if self._data.follower:
            known = {member.id: member for member in (self._leader(), self.me(), *self._told[1:])}
        else:
            known = {self.id: self.me()}
        known.update({name: member for name, (member, _) in online.items() if name not in known})
        for feed in self._replicas.feeds:
            if feed.member is not None and feed.live:
                replica = self._replica(feed)
                others = [
                    member for member in known.values()
                    if member.id != replica.id or (member.host, member.port) != (replica.host, replica.port)
                ]  # fmt: skip
                feed.tell_members(members.encode(others))
