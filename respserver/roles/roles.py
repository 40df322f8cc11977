"""Leader or replica: which of the two this server is, and what follows from it.

Rule 1: a replica's log is its leader's: same records, same offsets. So a replica logs nothing of its own: it refuses
writes, expires nothing and lets nothing fall due.
Rule 2: whoever becomes a leader gets a new replication ID at the offset at which that happens (Redis's PSYNC2): the old
ID stays good for whoever has no more of that history than this server.
Rule 3: with every change of role the replicas of this server are sent away: they come again and hear of it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING

from commands.context import Await
from commands.parse import integer
from commands.session import Session
from persistence.history import History
from persistence.incoming import Incoming
from replication.feed import Feed
from replication.follow import Follower
from replication.frames import LinkError
from replication.handshake import Introduction
from resp.errors import CommandError
from respserver.clients.listen import shown
from respserver.roles.failover import Failover
from respserver.roles.replicas import Replicas, RoleFigures
from storage.replay import replay

if TYPE_CHECKING:
    from respserver.server import Server

__all__ = ["RoleFigures", "Roles"]

UNBLOCKED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
COMPARED = 1 << 20  # bytes of its end by which a replica's log is compared to its leader's
ACKNOWLEDGE_MS = 1000  # a replica says by itself how far it is


class Roles:
    """Part of a Server; used on the event loop only. Implements ``FollowerOwner``."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.replicas = Replicas(server)
        self.follower = False  # writes are refused with READONLY
        self.loading = False  # a copy has come in and is being opened: no command may touch the keyspace
        self.pending = False  # end_of_tick() has something to do
        self.link: Follower | None = None
        self.transition: Failover | None = None  # a FAILOVER that is under way
        self.bytes_in = 0
        self._applied = 0  # of a replica: log offset behind the last batch applied
        self._distrust = False  # a batch could not be applied: only a full copy helps
        self._asked = False  # the leader waits for an acknowledgement
        self._told = (0, 0)  # what was acknowledged last: log offset, and that on disk
        self._told_at = 0  # ms (monotonic)
        self._ending: set[asyncio.Future[None]] = set()  # links that were stopped, and a copy that is being opened
        self._session: Session | None = None  # the link, as CLIENT LIST shows it

    # -- which role ----------------------------------------------------------------------------------------------
    @property
    def link_up(self) -> bool:
        return self.link is not None and self.link.up

    def opened(self) -> None:
        """The data directory has been opened, at the start: what is this server? Raises OSError."""
        server = self.server
        disk, target = server.disk, server.config.replicaof
        if target:
            self._set_follower(True)
            self._note_replica()
        elif disk.rebooted:
            # The machine went down, and with it perhaps an end of the log that replicas have; or this was a replica,
            # and others may go on under its leader's ID. What follows is a new history.
            disk.history.shift(disk.offset)
            disk.save_history()
        self.replicas.opened()

    def start(self) -> None:
        """The server listens: look for the leader, if there is one."""
        target = self.server.config.replicaof
        if target:
            self.link = Follower(self, target[0], int(target[1]))

    def follow(self, host: str, port: int) -> bool:
        """REPLICAOF host port; False if that is what it does already. Raises CommandError."""
        if self.link is not None and (self.link.host.lower(), self.link.port) == (host.lower(), port):
            return False
        if self.transition is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        self.become_replica(host, port)
        return True

    def become_replica(self, host: str, port: int) -> None:
        server = self.server
        self._stop_link()
        for session in server.clients:
            session.wrote = 0  # an offset of a log that may be given up
        server.config.replicaof = [host, str(port)]
        if not self.follower:
            self._set_follower(True)
            server.blocking.unblock_groups(UNBLOCKED)
            self._note_replica()
        self.replicas.drop_all("this server follows another leader now")
        self.link = Follower(self, host, port)
        server.regate()
        server.log.notice(f"This server is a replica of {host}:{port}")

    def _set_follower(self, follower: bool) -> None:
        self.follower = self.server.ks.follower = follower
        self.server.log.role = "S" if follower else "M"  # as in redis-server's log lines

    def _note_replica(self) -> None:
        """Should the next start be as leader, it is with a new ID: others may go on under the one of this log."""
        disk = self.server.disk
        try:
            if disk.history.boot:
                disk.save_history(leads=False)
        except OSError as error:
            self.server.log.warning(f"The next start may not know that this server was a replica: {error}")

    def lead(self) -> None:
        """REPLICAOF NO ONE; nothing happens where it leads already. Raises CommandError."""
        if self.transition is not None:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")
        if self.follower:
            self.become_leader()

    def become_leader(self) -> None:
        """Raises CommandError; then it still is a replica."""
        server = self.server
        if (server.ks.log or server.stalled) and not server.commit():
            raise CommandError("ERR what came from the leader can't be made durable now: see to the disk, try again")
        disk = server.disk
        before = disk.history.id, list(disk.history.previous)
        disk.history.shift(disk.offset)
        try:
            disk.save_history()
        except OSError as error:
            disk.history.id, disk.history.previous = before
            raise CommandError(f"ERR the new replication ID can't be saved: {error}") from error
        self._stop_link()
        server.config.replicaof = []
        self._set_follower(False)
        self._distrust = False
        server.ks.resume(server.now_ms())
        self.replicas.expected()
        self.replicas.drop_all("this server is the leader now")
        server.regate()
        server.log.notice(f"This server is the leader now, from log offset {disk.offset} on: ID {disk.history.id}")

    def _stop_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            self._show_link(None)
            try:
                task = link.stop()
            except OSError as error:
                self.server.log.warning(f"A copy that is not wanted can't be removed, the server ends: {error}")
                self.server.stop(save=False, now=True)
                return
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """FAILOVER: begin to hand over to ``target``, None: whichever is complete first. Raises CommandError."""
        if self.transition is not None:
            raise CommandError("ERR FAILOVER already in progress.")
        if self.follower:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if not self.replicas.feeds:
            raise CommandError("ERR FAILOVER requires connected replicas.")
        if target is not None:
            feeds = [feed for feed in self.replicas.feeds if (feed.host, feed.port) == target]
            if not feeds:
                raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")
            if feeds[0].state != "online":
                raise CommandError("ERR FAILOVER target replica is not online.")
        self.transition = Failover(self, target, timeout_ms, force)

    def failover_abort(self) -> None:
        """FAILOVER ABORT. Raises CommandError."""
        if self.transition is None:
            raise CommandError("ERR No failover in progress.")
        self.transition.abort("FAILOVER ABORT")

    async def let_catch_up(self) -> None:
        """The server is about to end: its replicas get what they lack, for shutdown-timeout seconds at most."""
        server = self.server
        if not self.replicas.feeds:
            return
        until = server.loop.time() + server.config.shutdown_timeout
        server.api.hold_writes(True)
        while server.loop.time() < until and self.replicas.behind():
            self.ask()
            await asyncio.sleep(0.01)
        late = self.replicas.behind()
        if late:
            server.log.warning(f"{late} of {len(self.replicas.feeds)} replicas lack what was written last")

    async def finish(self) -> None:
        """The server ends: nothing of replication may be under way when the data directory is closed."""
        if self.transition is not None:
            self.transition.end("the server stops")
        self._stop_link()
        self.replicas.drop_all("this server stops")
        await self.settled()
        await self.replicas.finish()

    # -- what replicas say, and get ------------------------------------------------------------------------------
    def replconf(self, session: Session, argv: list[bytes]) -> bytes:
        """REPLCONF; the reply, empty for what is not answered (ACK). Raises CommandError."""
        return self.replicas.replconf(session, argv)

    def psync(self, session: Session, argv: list[bytes]) -> Await:
        """PSYNC: the connection is a replica's from now on, and runs no command more. Raises CommandError."""
        self.replicas.introduced(session)  # before a word of it makes this server a leader
        replid, offset = argv[1].decode("latin-1"), integer(argv[2])
        if len(argv) > 3:
            if len(argv) > 4 or argv[3].upper() != b"FAILOVER":
                raise CommandError("ERR syntax error")
            self._take_over(replid)
        elif self.follower and not self.link_up:
            raise CommandError("NOMASTERLINK Can't SYNC while not connected with my master")
        self.pending = True
        self.replicas.psync(session, replid, offset)
        return Await(0, lambda: None, lambda: b"")  # until the feed takes the connection over

    def _take_over(self, replid: str) -> None:
        """The leader hands over to this server, which has all it has. Raises CommandError."""
        history = self.server.disk.history
        if self.follower:
            if replid != history.id:
                raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
            self.server.log.notice("The leader hands over to this server (FAILOVER)")
            self.become_leader()
        elif not history.previous or history.previous[0][0] != replid:  # or else it did so before: the answer was lost
            raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")

    def acknowledged(self, offset: int) -> int:
        """Replicas that have everything up to ``offset``."""
        return self.replicas.acknowledged(offset)

    def synced(self, offset: int) -> int:
        """Replicas that have everything up to ``offset`` on disk."""
        return self.replicas.synced(offset)

    def good(self) -> int:
        """Replicas that count for min-replicas-to-write: online, and heard within min-replicas-max-lag."""
        return self.replicas.good()

    def ask(self) -> None:
        """Have every replica say at the end of this tick how far it is: somebody waits for it."""
        self.replicas.ask()
        self.pending = True
        self.server.queue_tick()

    def message(self, channel: bytes, message: bytes) -> None:
        """A PUBLISHed message, for the subscribers of replicas."""
        if not self.follower:
            self.replicas.message(channel, message)

    def heard(self, feed: Feed) -> None:
        """A replica acknowledged."""
        self.server.blocking.acknowledged()
        if self.transition is not None:
            self.transition.heard(feed)
        if self.server.dispatcher.refuse_few:
            self.count_replicas()

    def count_replicas(self) -> None:
        """Are there enough replicas for writes?"""
        dispatcher = self.server.dispatcher
        few = dispatcher.refuse_few
        dispatcher.set_role()
        if dispatcher.refuse_few != few:
            self.server.regate()

    # -- ticks ---------------------------------------------------------------------------------------------------
    def end_of_tick(self) -> None:
        """Its batch is durable and its replies are out."""
        self.pending = False
        self.replicas.end_of_tick()
        self.server.blocking.acknowledged()  # who waits for this server's own disk may have what it wants
        if self._asked and not self.server.stalled:
            self._asked = False
            self._acknowledge()

    def _acknowledge(self) -> None:
        disk = self.server.disk
        if self.link is not None and self.link.up:
            if disk.offset != self._applied and not self.server.ks.log and not self.server.stalled:
                self._distrust = True  # what was logged is not what came
                self.link.fail(LinkError(f"this log ends at {disk.offset} instead of {self._applied}: copied anew"))
                return
            self._told = disk.offset, disk.synced
            self._told_at = self.server.mono_ms()
            self.link.acknowledge(*self._told)

    def on_time(self, mono: int) -> None:
        """Some ten times a second."""
        server = self.server
        self.replicas.on_time(mono)
        if self.transition is not None:
            self.transition.on_time()
        self.count_replicas()
        link = self.link
        if link is None:
            return
        if mono - self._told_at >= ACKNOWLEDGE_MS:
            self._told_at = mono
            link.on_time()
            self._acknowledge()
        elif self._told[0] > self._told[1] and server.disk.synced > self._told[1]:
            self._acknowledge()  # what it has is on disk now
        link.hold(server.stalled)

    # -- FollowerOwner -------------------------------------------------------------------------------------------
    def introduction(self) -> Introduction:
        server, config, disk = self.server, self.server.config, self.server.disk
        if self.loading:
            raise LinkError("this server opens its data")
        if (server.ks.log or server.stalled) and not server.commit():
            raise LinkError("this server's disk takes no writes: it asks again when it does")
        port = config.tls_port if config.tls_replication and config.tls_port else config.port
        who = Introduction(
            "?", -1, config.replica_announce_port or port or config.tls_port, config.replica_announce_ip,
            config.masteruser, config.masterauth.encode("utf-8", "surrogateescape"),
        )  # fmt: skip
        who.failover = self.transition is not None
        if not self._distrust:
            # whom this hands over to knows it by its present ID
            who.replid = disk.history.id if who.failover else disk.history.ask(disk.offset)
            who.offset, who.history = disk.offset, disk.signature()
            who.longer = disk.piece(COMPARED) if who.history is not None else None
        return who

    async def settled(self) -> None:
        while self._ending:
            await asyncio.wait(set(self._ending))

    def patience(self) -> float:
        return self.server.config.repl_timeout

    def tls(self) -> SSLContext | None:
        config = self.server.config
        if not config.tls_replication:
            return None
        from respserver.clients.tls import build_client_context

        return build_client_context(config)

    def incoming(self) -> Incoming:
        config = self.server.config
        return Incoming(Path(config.dir), config.tail_size)

    def history_of(self, replid: str) -> History:
        return History(replid, [], self.server.disk.history.boot)

    async def copied(self, replid: str) -> None:
        await asyncio.shield(self._reload("this server's data is replaced by a copy of its leader's"))
        if self.loading:
            raise LinkError("the copy can't be opened")
        self._distrust = False
        self.server.log.notice(f"The copy is in use: log offset {self.server.disk.offset}, ID {replid}")

    def _reload(self, why: str) -> asyncio.Future[None]:
        """Begin to open what is in the data directory, in place of what is in memory."""
        self.loading = True
        self.server.ks.log.clear()
        self.server.ks.ready.clear()
        self.server.regate()
        self.replicas.drop_all(why)
        task = asyncio.ensure_future(self._open_again())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _open_again(self) -> None:
        server = self.server
        try:
            await server.checkpoints.finish()
            await self.replicas.finish()
            await server.replace_data()
        except Exception as error:  # noqa: BLE001 - a bug, too, must not leave a server that is loading for ever
            server.log.warning(f"The data directory can't be opened again, the server ends: {error!r}")
            server.stop(save=False)
            return
        self.loading = False
        server.ks.follower = self.follower
        self._applied = server.disk.offset
        self.replicas.moved_on()
        server.regate()

    def continued(self, replid: str) -> None:
        disk = self.server.disk
        self._applied = disk.offset
        if replid != disk.history.id:
            before = disk.history.id, list(disk.history.previous)
            disk.history.follow(replid, disk.offset)
            try:
                disk.save_history(leads=False)
            except OSError:
                disk.history.id, disk.history.previous = before
                raise
            self.replicas.drop_all("the leader has another replication ID")

    def batch(self, offset: int, batch: bytes) -> None:
        server = self.server
        if offset != self._applied:
            raise LinkError(f"a batch at log offset {offset} instead of {self._applied}")
        try:
            replay(server.ks, batch)
        except Exception as error:  # whatever it is: part of the batch must not stay
            self._distrust = True
            server.log.warning(f"A batch of the leader can't be applied: {error!r}; everything is copied anew")
            self._reload("this server's data is copied anew")  # part of the batch may be in memory
            raise LinkError("a batch that can't be applied") from error
        self._applied = offset + len(batch)
        server.queue_tick()
        if server.stalled and self.link is not None:
            self.link.hold(True)

    def asked(self) -> None:
        self._asked = self.pending = True
        self.server.queue_tick()

    def received_bytes(self, count: int) -> None:
        self.bytes_in += count

    def received_message(self, channel: bytes, text: bytes) -> None:
        self.server.pubsub.publish(channel, text)
        self.replicas.message(channel, text)

    def link_changed(self) -> None:
        link = self.link
        if link is None:
            return
        self._show_link(link)
        if link.up:
            self._asked = self.pending = True
            self.server.queue_tick()
            if self.transition is not None:
                self.transition.done()
        self.server.regate()

    def note(self, text: str) -> None:
        self.server.log.notice(text)

    def warn(self, text: str) -> None:
        self.server.log.warning(text)

    def link_failed(self, error: Exception) -> None:
        if self.transition is not None:
            self.transition.link_failed(error)

    def _show_link(self, link: Follower | None) -> None:
        """The link among the clients, for CLIENT LIST and CLIENT KILL."""
        server, old = self.server, self._session
        if old is not None:
            server.clients.remove(old)
            self._session = None
        if link is not None and link.link is not None and link.state in ("sync", "connected"):
            transport = link.link.transport
            session = Session(
                server.clients.next_id(), shown(transport.get_extra_info("peername"), ""),
                shown(transport.get_extra_info("sockname"), ""), server.now_ms(),
            )  # fmt: skip
            session.replica = "leader"
            session.transport = link.link
            self._session = session
            server.clients.add(session)

    # -- figures -------------------------------------------------------------------------------------------------
    def figures(self) -> RoleFigures:
        disk, replicas, link = self.server.disk, self.replicas, self.link
        figures = RoleFigures(
            leader=not self.follower, replicas=replicas.figures(), good_replicas=replicas.good(), id=disk.history.id,
            backlog_active=replicas.backlog_active, full_syncs=replicas.full_syncs,
            partial_syncs=replicas.partial_syncs, refused_partial=replicas.refused_partial, bytes_in=self.bytes_in,
            bytes_out=replicas.bytes_out,
        )  # fmt: skip
        if disk.history.previous:
            figures.previous_id, figures.previous_offset = disk.history.previous[0]
        if figures.backlog_active and not self.loading:
            figures.backlog_first = disk.first_offset()
        if self.transition is not None:
            figures.failover = self.transition.state
        if link is not None:
            now = self.server.loop.time()
            figures.host, figures.port, figures.state = link.host, link.port, link.state
            figures.last_io = int(now - link.last_io) if link.last_io else -1
            figures.syncing = link.state == "sync"
            figures.sync_total, figures.sync_read = link.sync_total, link.sync_read
            figures.sync_last_io = figures.last_io if figures.syncing else -1
            figures.down_since = -1 if link.up else int(now - link.down_since)
        return figures
