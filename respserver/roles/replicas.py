"""The replicas of this server: their synchronization, their acknowledgements, and the journal that they need.

Rule 1: the journal retains everything that a connected replica lacks. For replicas that are not connected, it retains
repl-backlog-size bytes, until repl-backlog-ttl seconds after the last one disconnected.
Rule 2: a replica may continue only if its log is a prefix of this server's: the same history (persistence.history), and
the same bytes at the end of its log, as far as this server still has them. Otherwise it gets a full copy.
Rule 3: a client that sends REPLCONF rdb-only, such as a backup, gets a full copy and the log after it, but is not a
replica. It is not counted or waited for, and the journal is retained for it only while it is connected. It only stores
the bytes and need not be able to read them. With the capability ``continuous``, it may continue from an offset as a
replica does, and the journal is retained for it as for a replica that is not connected. It gets no records that refer
to history objects: the link ends, and the backup continues with a full copy, which has the entries (``wholecopy``).
Rule 4: a replica of an earlier version is served until the log has a record that it can't read. Then it is refused with
an error that says so.
Rule 5: two connections from the same address count as one replica. This server may not have detected yet that an
earlier connection of the replica is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from commands.parse import integer, is_host, positive
from commands.session import Session
from persistence.backlog import NOTHING
from persistence.history import History
from persistence.log import GoneError, Log
from replication import formats, frames
from replication.backupfeed import CONTINUOUS, BackupFeed
from replication.feed import ReplicaFeed
from replication.handshake import DELTA, TIER, VERSION, Lineage
from replication.members import ClusterMember, GroupAnnouncement, announced
from replication.nodes import REPAIR
from replication.wholecopy import WHOLE, ReadNode
from resp import errors, reply
from resp.errors import CommandError, CorruptError
from respserver.clients.clients import Clients
from respserver.clients.connection import Connection, connection_of
from respserver.observe.stats import ReplicaStats, RoleStats
from respserver.roles.nodes import NodeExchange
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread

T = TypeVar("T")

TELL_SECONDS = 0.005  # until replicas are told a confirmed offset that no batch has told them
REMEMBERED = 1000  # number of refused replicas that are remembered
COMPARED_AT_MOST = 16 << 20  # maximum bytes of a replica's log that are compared with this server's


@dataclass(slots=True)
class Announcement:
    """The options that a client, probably a replica, has announced with REPLCONF."""

    version: int = 0  # version of the replication protocol; 0: not a tidelog server
    reads: int = 1  # the format that it can read, see ``replication.formats``
    host: str = ""  # "": the address of its connection
    port: int = 0
    history: list[tuple[int, int]] = field(default_factory=list)  # (start offset, crc32) of the last pieces of its log
    copy_only: bool = False  # see Rule 3
    member: ClusterMember | None = None  # how it announces itself to clients
    delta: bool = False  # it can report its nodes, see ``replication.handshake``
    group: GroupAnnouncement | None = None  # as which member of a server group
    repairs: bool = False  # it answers requests for nodes
    tier: bool = False  # it needs to know who owns the history
    whole: bool = False  # its copy has no references to history objects
    continuous: bool = False  # with ``copy_only``: a backup that follows the log

    @property
    def follows(self) -> bool:
        """Whether this is a continuous backup."""
        return self.copy_only and self.continuous

    def note(self, option: bytes, value: bytes) -> None:
        """Record one REPLCONF option. Raises CommandError."""
        name = option.lower()
        if name == b"listening-port":
            self.port = integer(value)
            if not 0 <= self.port <= 65535:
                raise CommandError("ERR REPLCONF listening-port is no port")
        elif name == b"ip-address":
            if len(value) > 255:
                raise CommandError("ERR REPLCONF ip-address provided by replica instance is too long")
            host = value.decode("utf-8", "surrogateescape")
            if host and not is_host(host):
                raise CommandError(errors.BAD_ANNOUNCED_HOST)
            self.host = host
        elif name == b"tidelog":
            self.version = integer(value)
            if self.version != VERSION:
                raise CommandError(f"ERR this server replicates by version {VERSION} of the link")
        elif name == b"history":
            start, _, crc = value.partition(b":")
            self.history = [*self.history[-3:], (positive(start), positive(crc))]
        elif name == b"rdb-only":
            self.copy_only = integer(value) != 0
        elif name == b"capa":
            self.reads = max(self.reads, formats.said(value))
            self.member = announced(value) or self.member
            self.delta = self.delta or value == DELTA
            self.group = GroupAnnouncement.announced(value) or self.group
            self.repairs = self.repairs or value == REPAIR
            self.tier = self.tier or value == TIER
            self.continuous = self.continuous or value == CONTINUOUS
            self.whole = self.whole or value == WHOLE
        elif name not in (b"version", b"rdb-filter-only"):
            text = option.decode("utf-8", "replace")
            raise CommandError(f"ERR Unrecognized REPLCONF option: {text}")


def change_history(disk: Log, change: Callable[[History], None], leads: bool) -> None:
    """Change the replication ID, and save it. Raises OSError, ValueError; nothing has changed then."""
    history = disk.history
    before = history.id, list(history.previous), history.complete
    change(history)
    try:
        disk.save_history(leads=leads)
    except (OSError, ValueError):
        history.id, history.previous, history.complete = before
        raise


class GroupOwner(Protocol):
    """The membership of a server group, as the replicas use it."""

    def connected(self, who: GroupAnnouncement) -> None:
        """Note that a member has connected."""
    def lost(self, feed: ReplicaFeed) -> None:
        """Note that the connection to a replica was lost."""
    def may_copy(self, name: str) -> bool:
        """Return whether a member may get a full copy now."""


class Replicas(ServerPart):
    """The replicas. Used on the event loop only. Implements ``FeedOwner`` and ``ReplicasPart``."""

    def __init__(
        self, parts: RuntimeParts, clients: Clients, nodes: NodeExchange, on_heard: Callable[[ReplicaFeed], None],
        before_delta: Callable[[], Awaitable[None]], checkpoint: Callable[[int], Awaitable[None]], read_node: ReadNode,
    ) -> None:  # fmt: skip
        """Initialize. ``on_heard``: called when a replica has acknowledged. ``before_delta``: see store_is_recent().
        ``checkpoint``: returns when the store has a log offset. ``read_node``: see whole_node()."""
        super().__init__(parts)
        self._clients = clients
        self.nodes = nodes
        self._on_heard = on_heard
        self._before_delta = before_delta
        self._checkpoint = checkpoint
        self._not_backed_up = -1  # the highest log offset of records that a backup did not get
        self._read_node = read_node
        self.feeds: list[ReplicaFeed] = []  # feeds of replicas
        self.group_id = ""  # of the server group; "": this server is in none, or does not know it yet
        self.too_few_in_sync = False  # the in-sync set of the group has fewer members than min-in-sync
        self.group: GroupOwner | None = None
        self.history_owner: Callable[[], str] = lambda: ""  # the ID that owns the history; "": unknown
        self.full_syncs = 0
        self.partial_syncs = 0
        self.refused_partial = 0
        self.bytes_out = 0
        self._starting: list[tuple[ReplicaFeed, Connection]] = []  # feeds that begin at the end of this tick
        self._announced: dict[Session, Announcement] = {}
        self._connections: dict[ReplicaFeed, Connection] = {}  # of replicas, and of clients that take a copy (Rule 3)
        self._seen = 0  # ms (monotonic) when a replica was last connected; 0: never
        self._alive_at = 0  # ms (monotonic) of the last keepalive to all replicas
        self._outgrown = 0  # the format of the log that a replica could not read; 0: none
        self._refused: set[tuple[str, int]] = set()  # replicas whose refusal was logged
        self._requested = False  # acknowledgements are requested at the end of this tick
        self._work: set[asyncio.Future[Any]] = set()  # work done in threads for replicas
        self._telling: asyncio.TimerHandle | None = None  # runs until replicas are told the confirmed offset
        self._messages: list[bytes] = []  # frames that follow the batch of this tick
        self._ticks.on_confirmed = self._confirmed_changed
        clients.on_leave.append(self._left)

    @property
    def disk(self) -> Log:
        return self._data.disk

    @property
    def replid(self) -> str:
        return self._data.disk.history.id

    @property
    def each(self) -> bool:
        return self._ticks.confirmation.each()

    @property
    def confirmed(self) -> int:
        return self._ticks.confirmation.confirmed()

    # -- REPLCONF, PSYNC -----------------------------------------------------------------------------------------
    def replconf(self, session: Session, options: list[bytes]) -> bytes:
        who = self._announced.setdefault(session, Announcement())
        for at in range(0, len(options), 2):
            if options[at].lower() in (b"ack", b"fack", b"getack"):
                return b""  # from a client that is not a replica; Redis does not reply either
            who.note(options[at], options[at + 1])
        if options and options[0].lower() == b"tidelog":
            if self._gates.loading:  # without a description of the history, the replica would take any copy
                raise CommandError(errors.LOADING)
            return reply.simple(b"OK " + self.lineage().encode())
        if options and options[0].lower() == b"listening-port" and who.tier and (owner := self.history_owner()):
            return reply.simple(b"OK " + owner.encode())
        return reply.OK

    def lineage(self) -> Lineage:
        """Return the history of this server's data."""
        disk = self.disk
        return Lineage(disk.offset if self._data.ks.keys else 0, disk.history.points(disk.offset))

    def announced(self, session: Session) -> tuple[Announcement, Connection]:
        """Return the REPLCONF options of the sender of a PSYNC. Raises CommandError if it is not a tidelog server."""
        who, conn = self._announced.get(session), connection_of(session)
        if who is None or not who.version or conn is None:
            raise CommandError(
                "ERR replicas of this server are tidelog servers: 'REPLCONF tidelog 1' comes before PSYNC"
            )
        return who, conn

    def check_readable(self, session: Session) -> None:
        """Refuse a replica that is known to be too old for the log (Rule 4). Raises CommandError."""
        if self._outgrown:
            self._check_format(session, self._outgrown)

    def _check_not_ahead(self, offset: int) -> None:
        """Refuse a replica that has a batch that this server has sent and can't sync. Raises CommandError."""
        if offset > self.disk.offset and self._ticks.stalled:
            raise CommandError(
                "ERR this server's disk does not accept a batch that the replica may have: the replica will reconnect"
            )

    def _check_format(self, session: Session, needed: int) -> None:
        """Refuse a replica that can't read format ``needed``, in which it will be sent the log. Raises CommandError."""
        who, _ = self.announced(session)
        if who.reads >= needed or who.copy_only:
            return
        address = session.addr.rpartition(":")[0], who.port
        if address not in self._refused:
            if len(self._refused) >= REMEMBERED:
                self._refused.clear()
            self._refused.add(address)
            self._logger.warning(
                f"Replica {address[0]}:{address[1]} is refused: it is of an earlier version, which reads format"
                f" {who.reads}, and this server's data is of format {needed} now. Upgrade it"
            )
        raise CommandError(
            f"ERR this server's data is of format {needed}, and this replica reads format {who.reads}:"
            " upgrade the replica; it then continues from its offset"
        )

    def psync(self, session: Session, replid: str, offset: int) -> None:
        """PSYNC: turn the connection into a replica link. The replica continues from its offset, or gets a full copy.

        Raises CommandError.
        """
        who, conn = self.announced(session)
        self.check_readable(session)
        self._check_not_ahead(offset)
        name = self._member_name(who)
        offset = self._first_offset(session, who, replid, offset)
        if offset < 0:
            self._check_format(session, self.disk.store.format)
            if name and self.group is not None and not self.group.may_copy(name):
                raise CommandError(f"ERR {name} needs a copy and must first leave the in-sync set; it will reconnect")
        host = who.host or session.addr.rpartition(":")[0].strip("[]")
        reads = max(who.reads, formats.BACKUPS) if who.copy_only else who.reads
        delta = who.delta and not who.copy_only
        made = BackupFeed if who.follows else ReplicaFeed
        feed = made(
            self, host, who.port, offset, self._clock.mono(), who.copy_only, reads, who.member, delta, name,
            who.group.id if name and who.group is not None else "", who.repairs, who.copy_only and who.whole,
        )  # fmt: skip
        if name:
            for older in [
                each for each in self.feeds if each.group_member == name and self._connections[each] is not conn
            ]:
                older.cut("this member has connected again")
        session.replica = feed
        self._connections[feed] = conn
        if not who.copy_only:
            self.feeds.append(feed)
        self.moved_on()
        if who.follows or not who.copy_only:
            self._note(True)
        self._starting.append((feed, conn))
        self._ticks.queue_flush(conn)
        self._ticks.after(self._begin)
        if not who.follows:  # a BackupFeed reads the log itself
            self._ticks.on_batch = self._logged
        if offset < 0:
            self.full_syncs += 1
        else:
            self.partial_syncs += 1
        self._log_request(session, who, host, offset)

    def _first_offset(self, session: Session, who: Announcement, replid: str, offset: int) -> int:
        """Return the log offset from which a replica or a backup continues; -1: it gets a full copy."""
        follows = who.follows or not who.copy_only
        complete = not who.copy_only or offset > self._not_backed_up
        if follows and complete and self._may_continue(replid, offset, who):
            return offset
        if offset > 0 and follows:
            self.refused_partial += 1
            kind = "Backup" if who.copy_only else "Replica"
            self._logger.notice(
                f"{kind} {session.addr} can't continue from log offset {offset} of {replid}: it gets a full copy"
            )
        return -1

    def _log_request(self, session: Session, who: Announcement, host: str, offset: int) -> None:
        kind = "full copy" if offset < 0 else f"from log offset {offset}"
        if who.follows:
            self._logger.notice(f"Backup {session.addr} follows the log: {kind}")
        elif who.copy_only:
            self._logger.notice(f"{session.addr} takes a copy (REPLCONF rdb-only)")
        else:
            self._logger.notice(f"Replica {host}:{who.port} requests synchronization: {kind}")

    def _member_name(self, who: Announcement) -> str:
        """Return the name of a replica that is a member of this server's group; "" if it is in no group. Raises
        CommandError for a member of another group."""
        if who.group is None or who.copy_only:
            return ""
        if who.group.group_id != self.group_id:
            mine = f"of the group {self.group_id}" if self.group_id else "of no group"
            raise CommandError(f"ERR the replica is a member of the group {who.group.group_id}, this server {mine}")
        if self.group is not None:
            self.group.connected(who.group)
        return who.group.name

    def _may_continue(self, replid: str, offset: int, who: Announcement) -> bool:
        disk = self.disk
        if not disk.history.covers(replid, offset, disk.offset):
            return False
        disk.retain = min(disk.retain, offset)  # set first, because a checkpoint may be truncating the journal
        try:
            if not disk.holds(offset):
                return False
            disk.read(offset, 1)  # raises if no record begins there
            return all(
                disk.matches(start, offset, crc) is not False
                for start, crc in who.history
                if offset - start <= COMPARED_AT_MOST
            )
        except GoneError:
            return False
        except (OSError, CorruptError) as error:
            self._logger.warning(f"The log can't be read for a replica: {error}")
            return False

    def _begin(self) -> None:
        """Hand the connections of new replicas over to their feeds, after the replies of the tick."""
        starting, self._starting = self._starting, []
        for feed, conn in starting:
            if conn.socket.transport.is_closing():
                self.lost(feed, "it closed the connection")
            elif conn.output.marks:
                self.lost(feed, "it had sent other commands before, whose replies are withheld (replica-acks)")
            else:
                conn.flush()  # a tick may flush only a part of many clients
                conn.hand_over()
                feed.begin(conn.socket.transport, self._config.repl_disable_tcp_nodelay)

    def _left(self, session: Session) -> None:
        self._announced.pop(session, None)
        feed = session.replica
        if isinstance(feed, ReplicaFeed) and feed in self._connections:  # before the feed began
            feed.cut("it closed the connection")

    # -- FeedOwner -----------------------------------------------------------------------------------------------
    def heard(self, feed: ReplicaFeed) -> None:
        feed.heard_at = self._clock.mono()
        self._on_heard(feed)
        if self._gates.too_few:
            self.count()

    def now(self) -> int:
        return self._clock.now()

    def node_requested(self, feed: ReplicaFeed, payload: bytes) -> None:
        self.nodes.serve(payload, feed.send_node)

    def whole_node(self, key: bytes, raw: bytes) -> Awaitable[bytes]:
        return self._read_node(key, raw)

    def received_node(self, payload: bytes) -> None:
        self.nodes.received(payload)

    def node_sources(self) -> list[tuple[str, Callable[[bytes], None]]]:
        """Return the replicas that answer requests for nodes: a name for messages, and the function that requests."""
        return [(f"replica {feed.host}:{feed.port}", feed.request_node) for feed in self._online() if feed.repairs]

    def moved_on(self) -> None:
        """Set the part of the journal that must be retained (Rule 1), and what backups will read from memory."""
        disk = self.disk
        backups = [feed.position for feed in self._connections if isinstance(feed, BackupFeed)]
        if self.feeds or backups:
            self._seen = self._clock.mono()
        disk.keep_flushed(min(backups, default=NOTHING))
        needs = [feed.needs for feed in self._connections]
        if self.backlog_active:
            needs.append(max(0, disk.offset - self._config.repl_backlog_size))
        disk.retain = min(needs, default=NOTHING)

    def configure(self) -> None:
        """Apply a change of the retained part of the journal, and delete the rest."""
        self.moved_on()
        self._cut()

    def _cut(self) -> None:
        with suppress(RuntimeError, MemoryError):  # no thread is available: the next checkpoint truncates the journal
            self.in_thread(self.disk.truncate)

    def lost(self, feed: ReplicaFeed, why: str) -> None:
        if feed not in self._connections:
            return
        conn = self._connections.pop(feed)
        if feed.copy_only:
            self.moved_on()
        else:
            self.feeds.remove(feed)
            self._seen = self._clock.mono()
        if all(isinstance(feed, BackupFeed) for feed in self._connections):
            self._ticks.on_batch = None
        self._starting = [(f, c) for f, c in self._starting if f is not feed]
        conn.session.replica = None
        conn.hand_over()
        self._clients.leave(conn.session)
        conn.session.transport = None
        conn.socket.transport.abort()  # even if the feed has not begun
        who = f"copying client {conn.session.addr}" if feed.copy_only else f"replica {feed.host}:{feed.port}"
        self._logger.notice(f"Connection with {who} lost: {why}")
        self.count()
        if self.group is not None:
            self.group.lost(feed)

    def outgrown(self, needed: int) -> None:
        self._outgrown = max(self._outgrown, needed)

    @property
    def may_refer(self) -> bool:
        return bool(self._config.tier_url) or self._data.ks.pool.tiered

    def complete(self, feed: ReplicaFeed) -> None:
        self._logger.notice(
            f"Copying client {feed.host}:{feed.port} gets no more records, because the next ones refer to history"
            " objects"
        )

    def cannot_back_up(self, offset: int) -> None:
        self._not_backed_up = max(self._not_backed_up, offset)

    async def references_are_stored(self) -> None:
        if self._data.ks.pool.adopted:
            await self._checkpoint(self.disk.offset)

    def unready(self) -> str:
        """Return why the log must not refer to history objects now; "" if it may."""
        for feed in self._connections:
            if feed.earlier:
                who = "a backup" if feed.copy_only else "a replica of an earlier version"
                return f"{who} is connected, which does not read references to history objects"
        return ""

    async def store_is_recent(self) -> None:
        await self._before_delta()

    def sent_bytes(self, count: int) -> None:
        self.bytes_out += count

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        ending = in_thread(work)
        self._work.add(ending)
        ending.add_done_callback(self._worked)
        return ending

    def _worked(self, work: asyncio.Future[Any]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # marks it as retrieved: a feed that has ended does not wait for its work

    # -- to the replicas -----------------------------------------------------------------------------------------
    def _logged(self, offset: int, batch: bytes) -> None:
        """Send a batch that has become durable, or that is being synced, to the feeds that it was not yet sent to."""
        for feed in [*self._connections]:  # a feed that can't read the batch is removed
            if feed.live and feed.position <= offset:
                try:
                    feed.live_batch(offset, batch)
                except Exception as error:  # noqa: BLE001 - the batch must become durable, and reach the others
                    self._logger.trace("Bug while sending a batch to a replica", error)
                    feed.cut(f"a batch can't be sent: {error!r}")

    def ask(self) -> None:
        if not self._requested:
            self._requested = True
            self._ticks.after(self._send_requests)

    def _send_requests(self) -> None:
        self._requested = False
        for feed in self.feeds:
            feed.alive(wanted=True)

    def message(self, channel: bytes, text: bytes, shard: bool) -> None:
        if not self.feeds:
            return
        self._messages.append(frames.message(channel, text, shard))
        if not self.each:
            self._send_messages()
        elif len(self._messages) == 1:
            # A subscriber of a replica must not get a message before the replica has the changes that it is about.
            self._ticks.after(self._send_messages)

    def _send_messages(self) -> None:
        messages, self._messages = self._messages, []
        if self._ticks.stalled:
            return  # as after an interruption of the link: their batch is not sent yet
        for feed in self.feeds:
            for frame in messages:
                feed.message(frame)

    def _confirmed_changed(self) -> None:
        """Tell replicas the confirmed offset soon. Under load, the next batch does it earlier, at no cost."""
        if self.feeds and self._telling is None:
            self._telling = self._loop.call_later(TELL_SECONDS, self._tell_confirmed)

    def _tell_confirmed(self) -> None:
        self._telling = None
        for feed in self.feeds:
            feed.tell_confirmed()

    # -- time ----------------------------------------------------------------------------------------------------
    def on_time(self, mono: int) -> None:
        """Process keepalives, timeouts, min-replicas-to-write, and the journal. Called ``hz`` times a second."""
        config = self._config
        if self._connections and mono - self._alive_at >= config.repl_ping_replica_period * 1000:
            self._alive_at = mono
            for feed in self._connections:
                feed.alive()
        for feed in [*self._connections]:  # a feed that is cut is removed
            if mono - feed.heard_at > config.repl_timeout * 1000:
                feed.cut(f"it sent nothing for {config.repl_timeout} seconds (repl-timeout)")
        self.count()
        before = self.disk.retain
        self.moved_on()
        if before != NOTHING and self.disk.retain == NOTHING:
            self._logger.notice("The backlog was not needed: the journal retains only the part that a restart needs")
            self._note(False)
            self._cut()

    @property
    def backlog_active(self) -> bool:
        if self.feeds or self._data.follower:
            return True
        ttl = self._config.repl_backlog_ttl * 1000
        return bool(self._seen) and (not ttl or self._clock.mono() - self._seen < ttl)

    def expected(self) -> None:
        """Retain the journal for future replicas. Called when this server becomes the leader."""
        self._seen = self._clock.mono()
        self._note(True)

    def opened(self) -> None:
        """Retain the journal if there were replicas before the start. Called after the start."""
        if self.disk.had_replicas:
            self._seen = self._clock.mono()
        self.moved_on()

    def _note(self, exist: bool) -> None:
        try:
            self.disk.note_replicas(exist)
        except OSError as error:
            self._logger.warning(f"The next start may not detect that there are replicas: {error}")

    # -- end -----------------------------------------------------------------------------------------------------
    def drop_all(self, why: str) -> None:
        """Disconnect all replicas, which will reconnect, and the clients that take a copy.

        ``why``: for the log lines.
        """
        self._outgrown = 0  # the log may now be a different one
        for feed in [*self._connections]:
            feed.cut(why)

    async def finish(self) -> None:
        if self._work:
            await asyncio.wait(set(self._work))

    # -- acknowledged offsets ----------------------------------------------------------------------------------------
    def _online(self) -> Iterator[ReplicaFeed]:
        return (feed for feed in self.feeds if feed.state == "online")

    def acknowledged(self, offset: int) -> int:
        return len({_address(feed) for feed in self._online() if feed.acknowledged >= offset})

    def synced(self, offset: int) -> int:
        return len({_address(feed) for feed in self._online() if feed.on_disk >= offset})

    def on_disk(self) -> dict[tuple[str, int], int]:
        """Return the log offsets up to which online replicas have the log on disk, by address."""
        found: dict[tuple[str, int], int] = {}
        for feed in self._online():
            found[_address(feed)] = max(feed.on_disk, found.get(_address(feed), 0))
        return found

    def behind(self) -> int:
        """Return the number of online replicas that lack a part of the log."""
        return sum(feed.acknowledged < self.disk.offset for feed in self._online())

    def good(self) -> int:
        """Return the number of good replicas: online, with a message within min-replicas-max-lag seconds."""
        most, mono = self._config.min_replicas_max_lag, self._clock.mono()
        return len({_address(feed) for feed in self._online() if (mono - feed.heard_at) // 1000 <= most})

    def _reachable(self) -> int:
        """Return the number of replicas that can acknowledge: online, good unless min-replicas-max-lag is 0."""
        most, mono = self._config.min_replicas_max_lag, self._clock.mono()
        return len({_address(feed) for feed in self._online() if not most or (mono - feed.heard_at) // 1000 <= most})

    def count(self) -> None:
        """Set the gate of min-replicas-to-write and replica-acks."""
        least = self._config.min_replicas_to_write if self._config.min_replicas_max_lag else 0
        acks = self._config.replica_acks
        too_few = not self._data.follower and (
            (bool(least) and self.good() < least) or (acks > 0 and self._reachable() < acks) or self.too_few_in_sync
        )
        if too_few != self._gates.too_few:
            self._gates.replicas(too_few)

    def describe(self, stats: RoleStats) -> None:
        mono = self._clock.mono()
        stats.replicas = [
            ReplicaStats(feed.host, feed.port, feed.state, feed.acknowledged, (mono - feed.heard_at) // 1000)
            for feed in self.feeds
        ]
        stats.good_replicas, stats.backlog_active = self.good(), self.backlog_active
        stats.full_syncs, stats.partial_syncs = self.full_syncs, self.partial_syncs
        stats.refused_partial, stats.bytes_out = self.refused_partial, self.bytes_out


def _address(feed: ReplicaFeed) -> tuple[str, int]:
    """Return the address by which a replica is counted; a replica that has not announced its port has its own."""
    return feed.host, feed.port or -id(feed)
