"""A replica's link to its leader.

``replication.follower`` communicates with the leader. This module applies batches, copies and messages from the leader
to the server's data, and reports the state of this server.

Rule 1: a batch is applied as a whole, at the end of this server's log. It is written there only if its entries are
valid, all its records were applied, and applying them produced identical records. If a part of it was applied, the
data is read back from disk as it was before the batch. A log that differs from the leader's is not repaired: a full
copy replaces it. A batch of a newer version is not damage, and does not change this server.
Rule 2: only records in this server's log are acknowledged.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext

from commands.session import LEADER, Session, TransportStats
from persistence.backlog import GoneError
from persistence.fullcopy import Incoming
from persistence.history import MOST_PREVIOUS, History
from persistence.ownnodes import OwnNodes
from persistence.rewind import rewind
from replication import formats
from replication.follower import FIRST_WAIT, LeaderFollower
from replication.frames import LinkError, NewerError
from replication.handshake import Introduction, Lineage
from replication.link import ReplicationConnection as Socket
from replication.members import GroupAnnouncement
from resp.errors import CorruptError
from respserver.clients.clients import Clients
from respserver.clients.listeners import shown
from respserver.clients.pubsub import PubSub
from respserver.observe.stats import RoleStats
from respserver.roles.cluster import Cluster
from respserver.roles.replicas import Replicas, change_history
from respserver.runtime.parts import RuntimeParts, ServerPart
from storage.keyspace.replay import replay
from storage.keyspace.validation import check

COMPARED = 1 << 20  # bytes at the end of the log that are compared with the leader's
SOON = 0.01  # seconds until a member of a server group connects again: the new leader is about to lead
ACKNOWLEDGE_MS = 1000  # between two acknowledgements that the leader has not requested
# Validity of a check of the files if each tick is acknowledged. The check takes 60 us, a fifth of the cost of a tick.
CHECKED_SECONDS = 0.1


class LeaderTransport:
    """The link as a client, for CLIENT LIST and CLIENT KILL. Implements ``commands.session.Transport``."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    def kill(self) -> None:
        self.socket.kill()

    def unblock(self, error: bool) -> bool:  # noqa: ARG002 - it never blocks
        return False

    def push(self, data: bytes) -> None:
        """Do nothing: the link has no subscriptions."""

    def hold_pushes(self) -> None:
        """Do nothing."""

    def release_pushes(self) -> None:
        """Do nothing."""

    def stats(self) -> TransportStats:
        return TransportStats()


@dataclass(frozen=True)
class LinkEvents:
    """The server's functions that a link calls."""

    # (work): opens the data directory again; ``work`` is called in a thread while it is closed
    replace_data: Callable[[Callable[[], None] | None], Coroutine[object, object, None]]
    stop: Callable[[bool, bool], None]  # (save, now): stops the server
    on_change: Callable[[], None]  # the state of the link has changed
    on_failure: Callable[[Exception], None]  # an attempt to connect has failed


class LeaderLink(ServerPart):
    """The link to the current leader. Used on the event loop only. Implements ``FollowerOwner``."""

    def __init__(
        self, parts: RuntimeParts, clients: Clients, pubsub: PubSub, replicas: Replicas, events: LinkEvents,
    ) -> None:  # fmt: skip
        super().__init__(parts)
        self._clients = clients
        self._pubsub = pubsub
        self._replicas = replicas
        self.cluster = Cluster(parts, replicas, lambda: self.up)
        self.group: GroupAnnouncement | None = None  # as which member of a server group it announces itself
        self._events = events
        self._force = False  # a full copy may replace more data of an unrelated history, once
        self.truncated = 0  # how often the end of the log was deleted, because it diverged from the leader's
        self.takeover = False  # during a FAILOVER: request the followed server to become the leader
        self._follower: LeaderFollower | None = None
        self._bytes_in = 0
        self._applied = 0  # log offset after the last applied batch
        self._distrust = False  # this log differs from the leader's, so a full copy is needed
        self._requested = False  # the leader has requested an acknowledgement
        # whether it has requested one for each tick, because it withholds replies; None: not yet known
        self._each: bool | None = None
        self.confirmed = 0  # log offset up to which the leader released replies, as last received
        self._sent = (0, 0)  # the last acknowledgement: log offset, log offset on disk
        self._sent_at = 0  # ms (monotonic) of the last acknowledgement
        self._ending: set[asyncio.Future[None]] = set()  # tasks of stopped links, and the one that opens a copy
        self._session: Session | None = None  # the session of the link, for CLIENT LIST
        self.history_owner: str | None = None  # as the leader has last sent it; "": it did not; None: no answer yet

    # -- start and stop ------------------------------------------------------------------------------------------
    @property
    def up(self) -> bool:
        return self._follower is not None and self._follower.up

    @property
    def refused(self) -> bool:
        """Whether this server refuses the leader's full copy."""
        return self._follower is not None and self._follower.refused

    @property
    def complete(self) -> bool:
        """Whether this server has caught up with its leader once. A first copy, of an unrelated history, changes this
        before it is in use."""
        follower, history = self._follower, self._data.disk.history
        if follower is None or follower.state != "sync" or follower.link is None or follower.link.leader is None:
            return history.complete
        return history.complete and not history.ids.isdisjoint(follower.link.leader.points)

    @property
    def syncing(self) -> bool:
        """Whether a full copy is being received."""
        return self._follower is not None and self._follower.state == "sync"

    def leads_to(self, host: str, port: int) -> bool:
        """Return whether this is the leader that the link follows."""
        follower = self._follower
        return follower is not None and (follower.host.lower(), follower.port) == (host.lower(), port)

    def start(self, host: str, port: int, force: bool = False) -> None:
        self._force, self.history_owner = force, None
        self._follower = LeaderFollower(self, host, port, FIRST_WAIT if self.group is None else SOON)

    def retry(self) -> bool:
        """Connect soon, if the link is down: the leader is ready now. Return False if it must be started again."""
        return self._follower is not None and (self._follower.up or self._follower.retry())

    def stop(self) -> None:
        follower, self._follower = self._follower, None
        if follower is None:
            return
        self._show(None)
        self._data.sync_all(False)
        try:
            task = follower.stop()
        except OSError as error:
            self._logger.warning(f"An obsolete copy can't be removed, the server stops: {error}")
            self._events.stop(False, True)
            return
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def trust(self) -> None:
        """Consider this server's log correct. Called when it becomes a leader: its log defines the history."""
        self._distrust = False
        self._each, self.confirmed = None, 0
        self._timings.confirm(False)

    async def settled(self) -> None:
        while self._ending:
            await asyncio.wait(set(self._ending))

    # -- to the leader -------------------------------------------------------------------------------------------
    def introduction(self) -> Introduction:
        config, disk = self._config, self._data.disk
        if self._gates.loading:
            raise LinkError("this server is opening its data")
        if not self._ticks.settle():
            raise LinkError("this server's disk accepts no writes: it connects again later")
        port = config.tls_port if config.tls_replication and config.tls_port else config.port
        who = Introduction(
            "?", -1, config.replica_announce_port or port or config.tls_port, config.replica_announce_ip,
            config.masteruser, config.masterauth.encode("utf-8", "surrogateescape"),
        )  # fmt: skip
        who.failover = self.takeover
        who.tier = bool(config.tier_url)
        who.member = self.cluster.me() if self.cluster.enabled else None
        who.delta = disk.store.has_nodes
        who.lineage = self._replicas.lineage()
        who.keeps = not self._force and not config.replica_accept_shorter
        who.group = self.group._replace(now=self._clock.now()) if self.group is not None else None
        if not self._distrust:
            # the replica that becomes the leader knows this server by its current ID
            who.replid = disk.history.id if who.failover else disk.history.ask(disk.offset)
            who.offset, who.history = disk.offset, disk.signature()
            who.longer = disk.checksum_of_end(COMPARED) if who.history is not None else None
            who.rewind = None if who.failover else self._checksum_before
        return who

    def _checksum_before(self, offset: int) -> tuple[int, int] | None:
        """Return start offset and crc32 of the last bytes before a log offset; None if the log can't end there."""
        disk = self._data.disk
        return disk.checksum_of_end(COMPARED, offset) if disk.store.offset <= offset else None

    def ack_requested(self) -> None:
        if not self._requested:
            self._requested = True
            self._ticks.after(self._answer)

    def acknowledge_each(self, each: bool) -> None:
        self._data.sync_all(each)
        if each != self._each:
            self._each = each
            self._timings.confirm(each)
            self._ticks.confirmed_changed()

    def confirmed_up_to(self, offset: int) -> None:
        if offset > self.confirmed:
            self.confirmed = offset
            self._ticks.confirmed_changed()

    def withholds(self, required: bool) -> bool:
        """Return whether the replies of this server wait until the leader has confirmed what they show.

        ``required``: the result while the leader has not sent whether it withholds replies.
        """
        return required if self._each is None else self._each

    def _answer(self) -> None:
        """Acknowledge if the leader has requested it; while batches are stalled, on_time() does it later.

        If the tick of a batch is still to come, its end does it. Otherwise, the acknowledgement would not cover the
        batch, and the leader would wait for the next one, up to a second.
        """
        if self._requested and not self._ticks.stalled and not self._data.ks.log:
            self._requested = False
            self._acknowledge()

    def _acknowledge(self) -> None:
        disk, follower = self._data.disk, self._follower
        if follower is None or not follower.up:
            return
        if disk.offset != self._applied and not self._data.ks.log and not self._ticks.stalled:
            self._distrust = True  # the log did not grow by the number of received bytes
            follower.fail(LinkError(f"this log ends at {disk.offset} instead of {self._applied}: it is copied again"))
            return
        in_place = disk.in_place(CHECKED_SECONDS) if self._each else disk.in_place()
        on_disk = disk.synced if in_place else min(disk.synced, self._sent[1])
        self._sent = disk.offset, on_disk
        self._sent_at = self._clock.mono()
        self._tell_damaged(follower)
        follower.acknowledge(*self._sent)

    def _tell_damaged(self, follower: LeaderFollower) -> None:
        """Tell the leader of the server group whether this store is damaged, before the next acknowledgement."""
        if self.group is not None and not self._gates.loading:
            follower.tell_damaged(self._data.damaged_lately())

    def on_time(self, mono: int) -> None:
        """Acknowledge if necessary. Called ``hz`` times a second. ``mono``: ms, monotonic."""
        follower = self._follower
        if follower is None:
            return
        self._tell_damaged(follower)
        if mono - self._sent_at >= ACKNOWLEDGE_MS:
            self._sent_at = mono
            follower.on_time()
            self._acknowledge()
        elif self._sent[0] > self._sent[1] and self._data.disk.synced > self._sent[1] and self._data.disk.in_place():
            self._acknowledge()  # more of the log is on disk now
        self._answer()
        follower.hold(self._ticks.stalled)

    def _note_complete(self) -> None:
        """Save that this server has caught up with its leader once, if it has."""
        disk, follower = self._data.disk, self._follower
        if disk.history.complete or follower is None or not follower.up:
            return
        if disk.offset < follower.leader_end or self._ticks.stalled:
            return
        disk.history.complete = True
        try:
            disk.save_history(leads=False)
        except OSError as error:
            disk.history.complete = False  # saved after a later batch
            self._logger.warning(f"The replication state can't be saved: {error}")
        else:
            self._logger.notice(f"This replica has caught up: log offset {disk.offset}")
            self._events.on_change()  # a member of a server group answers reads from now on

    def paused(self) -> bool:
        return self._gates.paused

    # -- from the leader (FollowerOwner) -------------------------------------------------------------------------
    def batch(self, offset: int, batch: bytes) -> None:
        if offset != self._applied:
            raise LinkError(f"a batch at log offset {offset} instead of {self._applied}")
        ks = self._data.ks
        before = len(ks.log)
        try:
            check(batch)
        except CorruptError as error:
            self._check_known(batch)
            self._distrust = True
            raise LinkError(f"a batch that can't be applied: {error}") from error
        try:
            replay(ks, batch)
            if b"".join(ks.log[before:]) != batch:
                raise CorruptError("its records have a different effect on this server")
        except Exception as error:  # of any kind, because a part of the batch may have been applied
            self._distrust = True
            del ks.log[before:]  # the records before it are valid
            self._ticks.settle()
            self._reload("this server's data is copied again")
            raise LinkError(f"a batch that can't be applied: {error}") from error
        ks.log[before:] = [batch]  # the same bytes, as one item
        self._applied = offset + len(batch)
        self._ticks.queue()
        if not self._data.disk.history.complete:
            self._ticks.after(self._note_complete)
        if self._each:
            self.ack_requested()
        if self._ticks.stalled and self._follower is not None:
            self._follower.hold(True)

    def _check_known(self, batch: bytes) -> None:
        """Raise NewerError if the batch can't be applied because this server is too old for it."""
        try:
            kind = formats.unknown(batch)
        except CorruptError:
            return  # the batch is also damaged
        if kind:
            raise NewerError(
                f"a record of kind {kind}, which this version does not know: upgrade this server; it keeps its"
                f" data up to log offset {self._applied}"
            )

    async def rewound(self, offset: int) -> None:
        problem: list[Exception] = []

        def work() -> None:
            try:
                rewind(Path(self._config.dir), offset)
            except (OSError, CorruptError, GoneError) as error:  # the log can be opened as it is
                problem.append(error)

        disk = self._data.disk
        wrong = disk.check_files()
        if wrong is not None:  # the files may be those of another server
            raise LinkError(wrong)
        if disk.history.boot:  # it could not be saved before; others have the deleted records under the current ID
            disk.save_history(leads=False)
        self._logger.warning(
            f"The end of this server's log is being deleted, {disk.offset - offset} bytes from log offset {offset} on:"
            " the leader's history does not have these records"
        )
        await asyncio.shield(self._reload("the end of this server's log is deleted", work))
        if self._gates.loading or self._data.disk.offset != offset:
            why = problem[0] if problem else f"it ends at {self._data.disk.offset}"
            what = f"the end of this server's log can't be deleted, from log offset {offset} on"
            if isinstance(why, OSError):
                raise LinkError(f"{what}: {why}")
            self._distrust = True
            raise LinkError(f"{what}, so the data is copied: {why}")
        self.truncated += 1

    def continued(self, replid: str, leader: Lineage | None) -> None:
        disk = self._data.disk
        self._applied, self._force = disk.offset, False
        self.confirmed = min(self.confirmed, disk.offset)  # the log may have been truncated
        if replid != disk.history.id:
            points = _points(replid, leader)
            change_history(disk, lambda history: history.follow(replid, disk.offset, points), leads=False)
            self._replicas.drop_all("the leader has another replication ID")

    async def copied(self, replid: str) -> None:
        await asyncio.shield(self._reload("this server's data is replaced by a copy of its leader's"))
        if self._gates.loading:
            raise LinkError("the copy can't be opened")
        self._distrust = self._force = False
        self.confirmed = 0  # offsets in the log before the copy
        self._logger.notice(f"The copy is in use: log offset {self._data.disk.offset}, ID {replid}")

    def _reload(self, why: str, work: Callable[[], None] | None = None) -> asyncio.Future[None]:
        """Start to reopen the data directory. ``why``: for the log lines about replicas, which must reconnect.

        ``work``: called in a thread while the directory is closed.
        """
        self._ticks.cut_withheld(why)
        self._data.ks.log.clear()
        self._data.ks.ready.clear()
        self._gates.load(True)
        self._replicas.drop_all(why)
        task = asyncio.ensure_future(self._open_again(work))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _open_again(self, work: Callable[[], None] | None) -> None:
        try:
            await self._events.replace_data(work)
        except Exception as error:  # noqa: BLE001 - even after a bug, the state must not remain "loading"
            self._logger.warning(f"The data directory can't be opened again, the server stops: {error!r}")
            self._events.stop(False, False)
            return
        self._applied = self._data.disk.offset
        self._gates.load(False)

    def own_nodes(self) -> OwnNodes:
        return self._data.disk.store.own_nodes()

    def incoming(self, own: OwnNodes | None) -> Incoming:
        problem = self._data.disk.check_files()
        if problem is not None:  # the files may be those of another server
            raise OSError(errno.ENOENT, problem)
        return Incoming(Path(self._config.dir), self._config.wal_size, own)

    def history_of(self, replid: str, leader: Lineage | None) -> History:
        previous = [(name, end) for name, end in _points(replid, leader).items() if name != replid][:MOST_PREVIOUS]
        return History(replid, previous, self._data.disk.history.boot, complete=False)

    def received_bytes(self, count: int) -> None:
        self._bytes_in += count

    def node_requested(self, payload: bytes) -> None:
        follower = self._follower
        if follower is not None:
            self._replicas.nodes.serve(payload, follower.send_node)

    def received_node(self, payload: bytes) -> None:
        self._replicas.nodes.received(payload)

    def node_sources(self) -> list[tuple[str, Callable[[bytes], None]]]:
        """Return the leader, if the link is up, as Replicas.node_sources() does."""
        follower = self._follower
        if follower is None or not follower.up:
            return []
        return [(f"leader {follower.host}:{follower.port}", follower.request_node)]

    def received_message(self, channel: bytes, text: bytes, shard: bool) -> None:
        self._pubsub.deliver(channel, text, shard)
        self._replicas.message(channel, text, shard)

    def received_members(self, payload: bytes) -> None:
        self.cluster.heard(payload)

    # -- the state of the link -----------------------------------------------------------------------------------
    def patience(self) -> float:
        return self._config.repl_timeout

    def tls(self) -> SSLContext | None:
        if not self._config.tls_replication:
            return None
        from respserver.clients.tls import build_client_context  # imported here, because ssl is slow to import

        return build_client_context(self._config)

    def link_changed(self) -> None:
        follower = self._follower
        if follower is None:
            return
        self._show(follower)
        if follower.link is not None and follower.state in ("sync", "connected"):
            self._note_owner(follower.link.owner)
        if follower.up:
            self.ack_requested()
            self._note_complete()
        self._events.on_change()

    def _note_owner(self, owner: str) -> None:
        changed = owner != (self.history_owner or "")
        self.history_owner = owner
        if changed and self._replicas.feeds:
            self._replicas.drop_all("the leader's history has another owner, which they ask for again")

    def link_failed(self, error: Exception) -> None:
        self._events.on_failure(error)

    def note(self, text: str) -> None:
        self._logger.notice(text)

    def warn(self, text: str) -> None:
        self._logger.warning(text)

    def _show(self, follower: LeaderFollower | None) -> None:
        """Add the link to the clients while it is connected, otherwise remove it."""
        if self._session is not None:
            self._clients.remove(self._session)
            self._session = None
        if follower is None or follower.link is None or follower.state not in ("sync", "connected"):
            return
        transport = follower.link.transport
        session = Session(
            self._clients.next_id(), shown(transport.get_extra_info("peername"), ""),
            shown(transport.get_extra_info("sockname"), ""), self._clock.now(),
        )  # fmt: skip
        session.replica = LEADER
        session.transport = LeaderTransport(follower.link)
        self._session = session
        self._clients.add(session)

    def describe(self, stats: RoleStats) -> None:
        stats.bytes_in, stats.truncated = self._bytes_in, self.truncated
        link = self._follower
        if link is None:
            return
        now = asyncio.get_running_loop().time()
        stats.host, stats.port, stats.state = link.host, link.port, "refused" if self.refused else link.state
        stats.refused, stats.complete = self.refused, self.complete
        stats.last_io = int(now - link.last_io) if link.last_io else -1
        stats.syncing = link.state == "sync"
        stats.sync_total, stats.sync_read, stats.sync_reused = link.sync_total, link.sync_read, link.sync_reused
        stats.sync_last_io = stats.last_io if stats.syncing else -1
        stats.down_since = -1 if link.up else int(now - link.down_since)


def _points(replid: str, leader: Lineage | None) -> dict[str, int]:
    """Return the points of the leader's history; none if its ID is no longer the one that it described."""
    return leader.points if leader is not None and leader.current == replid else {}
