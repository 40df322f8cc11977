"""The role of this server, leader or replica, and role changes.

Rule 1: a replica's log is identical to its leader's: the same records at the same offsets. A replica therefore logs
nothing itself: it refuses writes, does not expire keys and groups, and does not act on pending entries that fall due.
Rule 2: a server that becomes the leader gets a new replication ID from its current log offset on (Redis's PSYNC2). The
old ID remains valid for servers that have no more of that history than this one.
Rule 3: every role change disconnects the replicas of this server. They reconnect and get the new replication ID.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from commands.session import Session
from replication.feed import ReplicaFeed
from resp import errors
from resp.errors import CommandError
from respserver.clients.clients import Clients
from respserver.clients.pauses import Pauses
from respserver.execution.blocking import Blocking
from respserver.observe.stats import RoleStats
from respserver.roles.acks import NumberedAcks
from respserver.roles.failover import Failover
from respserver.roles.link import LeaderLink
from respserver.roles.nodes import NodeExchange
from respserver.roles.replicas import Replicas, change_history
from respserver.runtime.parts import RuntimeParts, ServerPart

UNSETTLED = "ERR the leader's last batches can't be made durable now: check the disk and retry"


class GroupFailover(Protocol):
    """The methods of ``GroupMembership`` that FAILOVER uses. They raise CommandError."""

    @property
    def handing_over(self) -> bool: ...
    def fail_over(self, target: str, timeout_ms: int) -> None: ...
    def target_named(self, host: str, port: int) -> str: ...
    def abort(self, why: str) -> None: ...
    def wake(self) -> None:
        """Let the member decide again."""
    def facts(self) -> dict[str, str | int]:
        """Return the fields of INFO replication."""


def _decided(group: str) -> str:
    return f"ERR this server is a member of the group {group}, whose coordinator determines the leader: use FAILOVER"


class Roles(ServerPart):
    """The role of one server. Used on the event loop only. Implements ``RolesPart`` and ``FailoverOwner``."""

    def __init__(
        self, parts: RuntimeParts, clients: Clients, pauses: Pauses, blocking: Blocking, replicas: Replicas,
        link: LeaderLink, on_role: Callable[[], None],
    ) -> None:  # fmt: skip
        """Initialize. ``on_role``: called right after a role change, before any other action."""
        self._parts = parts
        super().__init__(parts)
        self._clients = clients
        self._pauses = pauses
        self._blocking = blocking
        self._replicas = replicas
        self._link = link
        self._cluster = link.cluster
        self._acks = NumberedAcks(parts, replicas, link)
        self._on_role = on_role
        self._failover: Failover | None = None  # the one in progress
        self._linked = False  # whether the link to the leader was established when it last changed
        self.group: GroupFailover | None = None  # the server group that this server is a member of

    # -- the start -----------------------------------------------------------------------------------------------
    def opened(self) -> None:
        """Take the configured role, after the data directory was opened. Raises OSError."""
        disk = self._data.disk
        if self._config.replicaof or self._config.group:
            self._set_follower(True)
            self._note_replica()
        elif not disk.history.complete:
            self._logger.warning(
                "This server was a replica that had not caught up with its leader: as a leader, it lacks data"
            )
            self._begin_history()
        elif disk.rebooted:
            # After a crash of the machine, this server may have lost the end of the log that replicas have. If it was a
            # replica, other servers may continue under its leader's ID. In both cases, a new history begins.
            self._begin_history()
        self._replicas.opened()
        self.set_gates()

    def _begin_history(self, replid: str = "") -> None:
        disk = self._data.disk
        change_history(disk, lambda history: history.shift(disk.offset, replid), leads=True)

    def start(self) -> None:
        """Connect to the leader, if there is one, once the server listens."""
        leader = self._config.replicaof
        if leader and not self._link.leads_to(leader[0], int(leader[1])):  # REPLICAOF may have arrived meanwhile
            self._link.start(leader[0], int(leader[1]))

    @property
    def nodes(self) -> NodeExchange:
        return self._replicas.nodes

    def node_sources(self) -> list[tuple[str, Callable[[bytes], None]]]:
        """Return the members that answer requests for nodes: a name for messages, and the function that requests."""
        return [*self._link.node_sources(), *self._replicas.node_sources()]

    # -- changes of role -----------------------------------------------------------------------------------------
    def follow(self, host: str, port: int, force: bool = False) -> bool:
        if self.group is not None:
            raise CommandError(_decided(self._config.group))
        if self._link.leads_to(host, port) and not (force and self._link.refused):
            return False
        if self._failover is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        self.become_replica(host, port, force)
        return True

    def become_replica(self, host: str, port: int, force: bool = False) -> None:
        """Follow this leader, as a replica or a former leader. ``force``: see ``RolesPart.follow``."""
        self._link.stop()
        for session in self._clients:
            session.wrote = 0  # an offset in a log that may be replaced
        self._config.replicaof = [host, str(port)]
        self._cluster.followed()
        if not self._data.follower:
            self._demote()
        self._replicas.drop_all("this server follows another leader now")
        self._link.takeover = self._failover is not None
        self._link.start(host, port, force)
        self.set_gates()
        self._logger.notice(f"This server is a replica of {host}:{port}")

    def _demote(self) -> None:
        """Become a replica, as a former leader."""
        self._ticks.cut_withheld(
            "this server is a replica now, and the outcome of its command is unknown (replica-acks)"
        )
        self._set_follower(True)
        self._acks.demoted()
        if self._cluster.enabled and self._config.replicaof:
            self._blocking.redirect()
        self._blocking.unblock_groups(errors.DEMOTED)
        self._note_replica()

    def _set_follower(self, follower: bool) -> None:
        self._data.follow(follower)
        self._on_role()
        self._logger.role = "S" if follower else "M"  # shown in log lines, as in those of redis-server

    def _note_replica(self) -> None:
        """Save that this is a replica. A later start as leader then takes a new replication ID."""
        disk = self._data.disk
        new = disk.offset == 0 and disk.history.complete
        if new:
            disk.history.complete = False
        try:
            if disk.history.boot or new:
                disk.save_history(leads=False)
        except OSError as error:
            self._logger.warning(f"The next start may not detect that this server was a replica: {error}")

    def unfollow(self) -> None:
        """Be a replica without a leader."""
        self._link.stop()
        self._config.replicaof = []
        self._cluster.followed()
        if not self._data.follower:
            self._demote()
            self._replicas.drop_all("this server is no longer the leader")
        self.set_gates()

    def lead_epoch(self, replid: str) -> None:
        """Lead a server group with this replication ID. Raises CommandError; nothing has changed then."""
        if self._data.follower:
            self.become_leader(replid)
            return
        if not self._ticks.settle():
            raise CommandError(UNSETTLED)
        try:
            self._begin_history(replid)
        except OSError as error:
            raise CommandError(f"ERR the new replication ID can't be saved: {error}") from error
        self._replicas.drop_all("a new epoch begins")

    def lead(self, force: bool = False) -> None:
        if self.group is not None:
            raise CommandError(_decided(self._config.group))
        if self._failover is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        if not self._data.follower:
            return
        if not (force or self._link.complete):
            raise CommandError(errors.INCOMPLETE)
        if not force and self._data.disk.scrub.damaged:
            raise CommandError(errors.DAMAGED)
        self.become_leader()

    def become_leader(self, replid: str = "") -> None:
        """Begin a new history, and accept writes. Raises CommandError; this server is still a replica then."""
        if not self._ticks.settle():
            raise CommandError(UNSETTLED)
        disk = self._data.disk
        try:
            self._begin_history(replid)
        except OSError as error:
            raise CommandError(f"ERR the new replication ID can't be saved: {error}") from error
        self._link.stop()
        self._config.replicaof = []
        self._cluster.followed()
        self._set_follower(False)
        self._link.trust()
        self._data.ks.resume(self._clock.now())
        self._replicas.expected()
        self._replicas.drop_all("this server is the leader now")
        self._acks.reset()
        self.set_gates()
        self._logger.notice(f"This server is the leader from log offset {disk.offset} on: ID {disk.history.id}")

    def configure(self) -> None:
        self._acks.configure()
        self.set_gates()

    def set_gates(self) -> None:
        follower = self._data.follower
        stale = follower and not self._link.up and not self._config.replica_serve_stale_data
        # Without a complete copy, a read would show that acknowledged data does not exist.
        no_data = errors.NO_COPY.format(self._config.group) if self._lacks_data() else ""
        self._gates.role(follower, stale, follower and self._cluster.enabled, no_data)
        self._replicas.count()

    def _lacks_data(self) -> bool:
        """Return whether this is a member of a server group that has not caught up with a leader since its creation or
        its last full copy."""
        return bool(self._config.group) and self._data.follower and not self._data.disk.history.complete

    # -- FAILOVER and PSYNC --------------------------------------------------------------------------------------
    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        if self.group is not None:
            if force:
                raise CommandError("ERR FAILOVER FORCE is not possible in a server group: it would lose writes")
            self.group.fail_over(self.group.target_named(*target) if target is not None else "", timeout_ms)
            return
        if self._failover is not None:
            raise CommandError("ERR FAILOVER already in progress.")
        if self._data.follower:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if not self._replicas.feeds:
            raise CommandError("ERR FAILOVER requires connected replicas.")
        if target is not None:
            feeds = [feed for feed in self._replicas.feeds if (feed.host, feed.port) == target]
            if not feeds:
                raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")
            if feeds[0].state != "online":
                raise CommandError("ERR FAILOVER target replica is not online.")
        self._failover = Failover(self._parts, self, self._pauses, self._replicas, target, timeout_ms, force)

    def failover_abort(self) -> None:
        if self.group is not None:
            self.group.abort("FAILOVER ABORT")
            return
        if self._failover is None:
            raise CommandError("ERR No failover in progress.")
        self._failover.abort("FAILOVER ABORT")

    def failover_ended(self) -> None:
        self._failover = None
        self._link.takeover = False

    def psync(self, session: Session, replid: str, offset: int, takeover: bool) -> None:
        """PSYNC: turn the connection into a replica link, which runs no more commands. Raises CommandError."""
        self._replicas.announced(session)  # checked before a takeover makes this server a leader
        if takeover and self.group is not None:
            raise CommandError(_decided(self._config.group))
        if takeover:
            self._replicas.check_readable(session)  # checked first, because a refused leader would continue to lead
            self._take_over(replid)
        elif self._data.follower and not self._link.up:
            raise CommandError("NOMASTERLINK Can't SYNC while not connected with my master")
        self._replicas.psync(session, replid, offset)

    def _take_over(self, replid: str) -> None:
        """Replace the leader, which has sent PSYNC ... FAILOVER. Raises CommandError."""
        history = self._data.disk.history
        if self._data.follower:
            if replid != history.id:
                raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
            self._logger.notice("The leader hands over to this server (FAILOVER)")
            self.become_leader()
        elif not history.previous or history.previous[0][0] != replid:  # otherwise, it is a repeated request
            raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")

    # -- events --------------------------------------------------------------------------------------------------
    def heard(self, feed: ReplicaFeed) -> None:
        """Serve clients that wait for replicas, and continue a failover. Called when a replica has acknowledged."""
        self._acks.acknowledged()
        self._blocking.acknowledged()
        if not feed.introduced:
            feed.introduced = True
            self._cluster.tell()
        if self._failover is not None:
            self._failover.heard(feed)

    def link_changed(self) -> None:
        """Set the gates, and notify the failover or the server group. Called when the link has another state."""
        lost, self._linked = self._linked and not self._link.up, self._link.up
        if self._link.up and self._failover is not None:
            self._failover.done()
        if lost and self.group is not None:
            self.group.wake()  # the leader may have handed over: the coordinator would notify this member later
        self.set_gates()

    def link_failed(self, error: Exception) -> None:
        """Notify the failover. Called when an attempt to connect to the leader has failed."""
        if self._failover is not None:
            self._failover.link_failed(error)

    def relay(self, channel: bytes, message: bytes, shard: bool) -> None:
        """Send a message published on this server to the replicas. A replica does not relay messages."""
        if not self._data.follower:
            self._replicas.message(channel, message, shard)

    def on_time(self, mono: int) -> None:
        """Do the periodic work. Called ``hz`` times a second. ``mono``: ms, monotonic."""
        self._replicas.on_time(mono)
        self._cluster.tell()
        if self._failover is not None:
            self._failover.on_time()
        self._link.on_time(mono)

    # -- the end -------------------------------------------------------------------------------------------------
    async def let_catch_up(self) -> None:
        """Wait until replicas have the whole log, for at most shutdown-timeout seconds. Called at shutdown."""
        replicas = self._replicas
        if not replicas.feeds:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + self._config.shutdown_timeout
        self._pauses.hold_writes(True)
        while loop.time() < until and replicas.behind():
            replicas.ask()
            await asyncio.sleep(0.01)
        late = replicas.behind()
        if late:
            self._logger.warning(f"{late} of {len(replicas.feeds)} replicas lack the last writes")

    async def finish(self) -> None:
        """End failover, link and replicas. Called before the data directory is closed."""
        if self._failover is not None:
            self._failover.end("the server stops")
        self._link.stop()
        self._replicas.drop_all("this server stops")
        await self._link.settled()
        await self._replicas.finish()

    # -- INFO and ROLE -------------------------------------------------------------------------------------------
    def stats(self) -> RoleStats:
        history = self._data.disk.history
        group = self.group.facts() if self.group is not None else {}
        stats = RoleStats(group=group, leader=not self._data.follower, id=history.id)
        if history.previous:
            stats.previous_id, stats.previous_offset = history.previous[0]
        if self._failover is not None:
            stats.failover = self._failover.state
        elif self.group is not None and self.group.handing_over:
            stats.failover = "waiting-for-sync"
        self._replicas.describe(stats)
        stats.confirming = self._ticks.confirming
        if stats.confirming:
            stats.confirmed = max(0, self._ticks.confirmation.confirmed())
            stats.withheld_clients, stats.withheld_bytes = self._ticks.withheld()
            since = self._ticks.withheld_since()
            stats.withheld_ms = 0 if since is None else max(0, self._clock.mono() - since)
        self._link.describe(stats)
        if stats.backlog_active and not self._gates.loading:
            stats.backlog_first = self._data.disk.oldest()
        return stats

    def describe(self) -> list[object]:
        stats, offset = self.stats(), self._data.disk.offset
        if not stats.leader:
            return ["slave", stats.host, stats.port, stats.state, offset]
        online = [replica for replica in stats.replicas if replica.state == "online"]
        return ["master", offset, [[r.host, str(r.port), str(r.offset)] for r in online]]
