"""Leader or replica: which of the two this server is, and what follows from it.

Rule 1: a replica's log is its leader's: same records, same offsets. So a replica logs nothing of its own: it refuses
writes, expires nothing and lets nothing fall due.
Rule 2: a server that becomes the leader gets a new replication ID at the offset at which that happens (Redis's PSYNC2).
The old ID stays good for servers that have no more of that history than this one.
Rule 3: with every change of role the replicas of this server are sent away: they come again and hear of it.
"""

from __future__ import annotations

import asyncio

from commands.session import Session
from replication.feed import Feed
from resp.errors import CommandError
from respserver.clients.clients import Clients
from respserver.clients.pauses import Pauses
from respserver.clock import Clock
from respserver.config.config import Config
from respserver.data import Data
from respserver.execution.blocking import Blocking
from respserver.gates import Gates
from respserver.observe.logs import Logger
from respserver.observe.stats import RoleStats
from respserver.roles.failover import Failover
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.ticks import Ticks

UNBLOCKED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


class Roles:
    """Used on the event loop only. Implements ``RolesPart`` and ``FailoverOwner``."""

    def __init__(
        self, config: Config, clock: Clock, data: Data, gates: Gates, ticks: Ticks, clients: Clients,
        pauses: Pauses, blocking: Blocking, replicas: Replicas, link: LeaderLink, logger: Logger,
    ) -> None:  # fmt: skip
        self._config = config
        self._clock = clock
        self._data = data
        self._gates = gates
        self._ticks = ticks
        self._clients = clients
        self._pauses = pauses
        self._blocking = blocking
        self._replicas = replicas
        self._link = link
        self._logger = logger
        self._failover: Failover | None = None  # one that is under way

    # -- the start -----------------------------------------------------------------------------------------------
    def opened(self) -> None:
        """The data directory has been opened, at the start: what is this server? Raises OSError."""
        disk = self._data.disk
        if self._config.replicaof:
            self._set_follower(True)
            self._note_replica()
        elif disk.rebooted:
            # The machine went down, and with it perhaps an end of the log that replicas have; or this was a replica,
            # and others may go on under its leader's ID. What follows is a new history.
            disk.history.shift(disk.offset)
            disk.save_history()
        self._replicas.opened()
        self.tell_gates()

    def start(self) -> None:
        """The server listens: look for the leader, if there is one."""
        leader = self._config.replicaof
        if leader:
            self._link.start(leader[0], int(leader[1]))

    # -- changes of role -----------------------------------------------------------------------------------------
    def follow(self, host: str, port: int) -> bool:
        """REPLICAOF host port; False if that is what it does already. Raises CommandError."""
        if self._link.leads_to(host, port):
            return False
        if self._failover is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        self.become_replica(host, port)
        return True

    def become_replica(self, host: str, port: int) -> None:
        """Follow that leader, whatever this server is now."""
        self._link.stop()
        for session in self._clients:
            session.wrote = 0  # an offset of a log that may be given up
        self._config.replicaof = [host, str(port)]
        if not self._data.follower:
            self._set_follower(True)
            self._blocking.unblock_groups(UNBLOCKED)
            self._note_replica()
        self._replicas.drop_all("this server follows another leader now")
        self._link.takeover = self._failover is not None
        self._link.start(host, port)
        self.tell_gates()
        self._logger.notice(f"This server is a replica of {host}:{port}")

    def _set_follower(self, follower: bool) -> None:
        self._data.follow(follower)
        self._logger.role = "S" if follower else "M"  # as in redis-server's log lines

    def _note_replica(self) -> None:
        """Should the next start be as leader, it is with a new ID: others may go on under the one of this log."""
        disk = self._data.disk
        try:
            if disk.history.boot:
                disk.save_history(leads=False)
        except OSError as error:
            self._logger.warning(f"The next start may not know that this server was a replica: {error}")

    def lead(self) -> None:
        """REPLICAOF NO ONE; nothing happens where it leads already. Raises CommandError."""
        if self._failover is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        if self._data.follower:
            self.become_leader()

    def become_leader(self) -> None:
        """Raises CommandError; then it still is a replica."""
        if not self._ticks.settle():
            raise CommandError("ERR what came from the leader can't be made durable now: see to the disk, try again")
        disk = self._data.disk
        before = disk.history.id, list(disk.history.previous)
        disk.history.shift(disk.offset)
        try:
            disk.save_history()
        except OSError as error:
            disk.history.id, disk.history.previous = before
            raise CommandError(f"ERR the new replication ID can't be saved: {error}") from error
        self._link.stop()
        self._config.replicaof = []
        self._set_follower(False)
        self._link.trust()
        self._data.ks.resume(self._clock.now())
        self._replicas.expected()
        self._replicas.drop_all("this server is the leader now")
        self.tell_gates()
        self._logger.notice(f"This server is the leader now, from log offset {disk.offset} on: ID {disk.history.id}")

    def tell_gates(self) -> None:
        """What the role has against commands now."""
        follower = self._data.follower
        stale = follower and not self._link.up and not self._config.replica_serve_stale_data
        self._gates.role(follower, stale)
        self._replicas.count()

    # -- handing over --------------------------------------------------------------------------------------------
    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """FAILOVER: begin to hand over to ``target``; None: to the first that has everything. Raises CommandError."""
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
        self._failover = Failover(
            self, self._clock, self._data, self._ticks, self._pauses, self._replicas, self._logger,
            target, timeout_ms, force,
        )  # fmt: skip

    def failover_abort(self) -> None:
        """FAILOVER ABORT. Raises CommandError."""
        if self._failover is None:
            raise CommandError("ERR No failover in progress.")
        self._failover.abort("FAILOVER ABORT")

    def failover_ended(self) -> None:
        self._failover = None
        self._link.takeover = False

    def psync(self, session: Session, replid: str, offset: int, takeover: bool) -> None:
        """PSYNC: the connection is a replica's from now on, and runs no command more. Raises CommandError."""
        self._replicas.introduced(session)  # before a word of it makes this server a leader
        if takeover:
            self._take_over(replid)
        elif self._data.follower and not self._link.up:
            raise CommandError("NOMASTERLINK Can't SYNC while not connected with my master")
        self._replicas.psync(session, replid, offset)

    def _take_over(self, replid: str) -> None:
        """The leader hands over to this server, which has all it has. Raises CommandError."""
        history = self._data.disk.history
        if self._data.follower:
            if replid != history.id:
                raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
            self._logger.notice("The leader hands over to this server (FAILOVER)")
            self.become_leader()
        elif not history.previous or history.previous[0][0] != replid:  # or else it did so before: the answer was lost
            raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")

    # -- what the parts tell -------------------------------------------------------------------------------------
    def heard(self, feed: Feed) -> None:
        """A replica acknowledged."""
        self._blocking.acknowledged()
        if self._failover is not None:
            self._failover.heard(feed)

    def link_changed(self) -> None:
        """The link to the leader came up, or was lost."""
        if self._link.up and self._failover is not None:
            self._failover.done()
        self.tell_gates()

    def link_failed(self, error: Exception) -> None:
        """An attempt to reach the leader failed."""
        if self._failover is not None:
            self._failover.link_failed(error)

    def relay(self, channel: bytes, message: bytes) -> None:
        """A PUBLISHed message, for the subscribers of replicas. A replica's own stay with it."""
        if not self._data.follower:
            self._replicas.message(channel, message)

    def on_time(self, mono: int) -> None:
        """Some ten times a second."""
        self._replicas.on_time(mono)
        if self._failover is not None:
            self._failover.on_time()
        self._link.on_time(mono)

    # -- the end -------------------------------------------------------------------------------------------------
    async def let_catch_up(self) -> None:
        """The server is about to end: its replicas get what they lack, for shutdown-timeout seconds at most."""
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
            self._logger.warning(f"{late} of {len(replicas.feeds)} replicas lack what was written last")

    async def finish(self) -> None:
        """The server ends: nothing of replication may be under way when the data directory is closed."""
        if self._failover is not None:
            self._failover.end("the server stops")
        self._link.stop()
        self._replicas.drop_all("this server stops")
        await self._link.settled()
        await self._replicas.finish()

    # -- what is told of it --------------------------------------------------------------------------------------
    def stats(self) -> RoleStats:
        history = self._data.disk.history
        stats = RoleStats(leader=not self._data.follower, id=history.id)
        if history.previous:
            stats.previous_id, stats.previous_offset = history.previous[0]
        if self._failover is not None:
            stats.failover = self._failover.state
        self._replicas.describe(stats)
        self._link.describe(stats)
        if stats.backlog_active and not self._gates.loading:
            stats.backlog_first = self._data.disk.first_offset()
        return stats

    def describe(self) -> list[object]:
        """ROLE."""
        stats, offset = self.stats(), self._data.disk.offset
        if not stats.leader:
            return ["slave", stats.host, stats.port, stats.state, offset]
        online = [replica for replica in stats.replicas if replica.state == "online"]
        return ["master", offset, [[r.host, str(r.port), str(r.offset)] for r in online]]
