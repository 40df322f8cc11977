"""The replicas of this server: who may go on and who needs a copy, what each has, and what the journal keeps for them.

Rule 1: the journal keeps what a connected replica lacks, however much that is; for those that are away it keeps
repl-backlog-size bytes, until none has been seen for repl-backlog-ttl.
Rule 2: a replica goes on only where its log is certainly the beginning of ours: same history (persistence.history), and
the same bytes at its end, as far as we still have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commands.parse import integer
from persistence.log import GoneError, Log
from replication import frames
from replication.feed import Feed
from replication.handshake import VERSION
from resp import reply
from resp.errors import CommandError, CorruptError
from respserver.clients.connection import Connection

if TYPE_CHECKING:
    from commands.session import Session
    from respserver.server import Server

COMPARED_AT_MOST = 16 << 20  # bytes of a replica's log that are read back to be compared
NOTHING = 1 << 62  # a log offset behind all: the journal need not keep anything


@dataclass(slots=True)
class ReplicaFigures:
    """One connected replica, as INFO and ROLE tell of it."""

    host: str
    port: int
    state: str  # wait_bgsave, send_bulk, online
    offset: int  # log offset that it acknowledged
    synced: int  # log offset that it has on disk
    lag: int  # seconds since it last said so


@dataclass(slots=True)
class RoleFigures:
    """What INFO replication and ROLE tell. Times in seconds, sizes in bytes."""

    leader: bool = True
    replicas: list[ReplicaFigures] = field(default_factory=list)
    good_replicas: int = 0  # of those, how many count for min-replicas-to-write
    failover: str = "no-failover"  # waiting-for-sync, failover-in-progress
    id: str = ""
    previous_id: str = "0" * 40
    previous_offset: int = -1  # log offset up to which the previous ID is good; -1: there is none
    backlog_active: bool = False
    backlog_first: int = 0  # oldest log offset from which a replica can go on
    # of a replica
    host: str = ""
    port: int = 0
    state: str = ""  # connect, connecting, sync, connected: as ROLE says it
    last_io: int = -1  # since the leader was last heard; -1 never
    syncing: bool = False
    sync_total: int = 0  # bytes of the copy under way; an estimate
    sync_read: int = 0
    sync_last_io: int = -1
    down_since: int = -1  # since the link was lost; -1: it is up
    # totals since start
    full_syncs: int = 0
    partial_syncs: int = 0
    refused_partial: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Introduced:
    """What REPLCONF told of a client that may be a replica."""

    __slots__ = ("history", "host", "port", "version")

    def __init__(self) -> None:
        self.version = 0  # of the link; 0: it is no tidelog server
        self.host = ""  # "": the address it comes from
        self.port = 0
        self.history: list[tuple[int, int]] = []  # start and crc32 of the last pieces of its log, of any length


class Replicas:
    """Used on the event loop only. Implements ``FeedOwner``."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.feeds: list[Feed] = []
        self.starting: list[tuple[Feed, Connection]] = []  # begin when this tick's replies are out
        self.full_syncs = 0
        self.partial_syncs = 0
        self.refused_partial = 0
        self.bytes_out = 0
        self._introduced: dict[Session, Introduced] = {}
        self._connections: dict[Feed, Connection] = {}
        self._seen = 0  # ms (monotonic) when there last was a replica, 0: never
        self._alive_at = 0  # ms (monotonic) of the last sign of life to all
        self._ask = False
        self._work: set[asyncio.Future[Any]] = set()  # what threads do for replicas

    @property
    def disk(self) -> Log:
        return self.server.disk

    @property
    def replid(self) -> str:
        return self.server.disk.history.id

    # -- REPLCONF, PSYNC -----------------------------------------------------------------------------------------
    def replconf(self, session: Session, argv: list[bytes]) -> bytes:
        """Options and values, in pairs. Raises CommandError."""
        if len(argv) % 2 == 0:
            raise CommandError("ERR syntax error")
        who = self._introduced.setdefault(session, Introduced())
        for at in range(1, len(argv), 2):
            name, value = argv[at].lower(), argv[at + 1]
            if name == b"listening-port":
                who.port = integer(value)
                if not 0 <= who.port <= 65535:
                    raise CommandError("ERR REPLCONF listening-port is no port")
            elif name == b"ip-address":
                if len(value) > 255:
                    raise CommandError("ERR REPLCONF ip-address provided by replica instance is too long")
                who.host = value.decode("utf-8", "replace")
            elif name == b"tidelog":
                who.version = integer(value)
                if who.version != VERSION:
                    raise CommandError(f"ERR this server replicates by version {VERSION} of the link")
            elif name == b"history":
                start, _, crc = value.partition(b":")
                who.history = [*who.history[-3:], (integer(start), integer(crc))]
            elif name in (b"ack", b"fack", b"getack"):
                return b""  # not a replica's connection: Redis doesn't answer either
            elif name not in (b"capa", b"version", b"rdb-only", b"rdb-filter-only"):
                text = argv[at].decode("utf-8", "replace")
                raise CommandError(f"ERR Unrecognized REPLCONF option: {text}")
        return reply.OK

    def introduced(self, session: Session) -> tuple[Introduced, Connection]:
        """What a client told that sends PSYNC. Raises CommandError: it is no replica of ours."""
        who, conn = self._introduced.get(session), session.transport
        if who is None or not who.version or not isinstance(conn, Connection):
            raise CommandError(
                "ERR replicas of this server are tidelog servers: 'REPLCONF tidelog 1' comes before PSYNC"
            )
        return who, conn

    def psync(self, session: Session, replid: str, offset: int) -> None:
        """The connection is a replica's from now on; what it gets is decided here. Raises CommandError."""
        who, conn = self.introduced(session)
        if not self._may_continue(replid, offset, who):
            if offset > 0:
                self.refused_partial += 1
                self.server.log.notice(
                    f"Replica {session.addr} can't go on from log offset {offset} of {replid}: it gets a full copy"
                )
            offset = -1
        host = who.host or session.addr.rpartition(":")[0].strip("[]")
        feed = Feed(self, host, who.port, offset, self.server.mono_ms())
        session.replica = feed
        self._connections[feed] = conn
        self.feeds.append(feed)
        self.moved_on()
        self._note(True)
        self.starting.append((feed, conn))
        self.server.queue_flush(conn)
        if offset < 0:
            self.full_syncs += 1
        else:
            self.partial_syncs += 1
        kind = "full copy" if offset < 0 else f"from log offset {offset}"
        self.server.log.notice(f"Replica {host}:{who.port} asks for synchronization: {kind}")

    def _may_continue(self, replid: str, offset: int, who: Introduced) -> bool:
        disk = self.disk
        if not disk.history.covers(replid, offset, disk.offset):
            return False
        disk.retain = min(disk.retain, offset)  # before we look: a checkpoint may be cutting right now
        try:
            if not disk.holds(offset):
                return False
            disk.read(offset, 1)  # is it the border of a record?
            return all(
                disk.matches(start, offset, crc) is not False
                for start, crc in who.history
                if offset - start <= COMPARED_AT_MOST
            )
        except GoneError:
            return False
        except (OSError, CorruptError) as error:
            self.server.log.warning(f"The log can't be read for a replica: {error}")
            return False

    def begin(self) -> None:
        """Replies of the tick are out: connections of new replicas are handed over."""
        starting, self.starting = self.starting, []
        for feed, conn in starting:
            if conn.transport.is_closing():
                self.lost(feed, "it closed the connection")
            else:
                if conn.waiter is not None:
                    self.server.blocking.forget(conn.waiter)
                conn.hand_over()
                feed.begin(conn.transport, self.server.config.repl_disable_tcp_nodelay)

    def forget(self, session: Session) -> None:
        """A client is gone."""
        self._introduced.pop(session, None)
        feed = session.replica
        if isinstance(feed, Feed) and feed in self._connections:  # before it began
            feed.cut("it closed the connection")

    # -- FeedOwner -----------------------------------------------------------------------------------------------
    def heard(self, feed: Feed) -> None:
        feed.heard_at = self.server.mono_ms()
        self.server.roles.heard(feed)

    def moved_on(self) -> None:
        """Rule 1."""
        server, disk = self.server, self.disk
        if self.feeds:
            self._seen = server.mono_ms()
        needs = [feed.needs for feed in self.feeds]
        if self.backlog_active:
            needs.append(max(0, disk.offset - server.config.repl_backlog_size))
        disk.retain = min(needs, default=NOTHING)

    def lost(self, feed: Feed, why: str) -> None:
        if feed not in self._connections:
            return
        conn = self._connections.pop(feed)
        self.feeds.remove(feed)
        self.starting = [(f, c) for f, c in self.starting if f is not feed]
        self._seen = self.server.mono_ms()
        conn.session.replica = None
        self.server.drop(conn)
        conn.transport.abort()  # also where the feed had not begun
        self.server.log.notice(f"Connection with replica {feed.host}:{feed.port} lost: {why}")
        self.server.roles.count_replicas()

    def sent_bytes(self, count: int) -> None:
        self.bytes_out += count

    def works(self, work: asyncio.Future[Any]) -> None:
        self._work.add(work)
        work.add_done_callback(self._worked)

    def _worked(self, work: asyncio.Future[Any]) -> None:
        self._work.discard(work)
        if not work.cancelled():
            work.exception()  # whoever waited for it has it; a feed that is gone doesn't wait

    # -- what goes out -------------------------------------------------------------------------------------------
    def logged(self, offset: int, batch: bytes) -> None:
        """A batch is durable."""
        for feed in self.feeds:
            if feed.live:
                feed.live_batch(offset, batch)

    def ask(self) -> None:
        self._ask = True

    def end_of_tick(self) -> None:
        """What was asked for in this tick, behind its batch."""
        if self._ask:
            self._ask = False
            for feed in self.feeds:
                feed.alive(wanted=True)
        if self.starting:
            self.begin()

    def message(self, channel: bytes, text: bytes) -> None:
        if self.feeds:
            frame = frames.message(channel, text)
            for feed in self.feeds:
                feed.message(frame)

    # -- time ----------------------------------------------------------------------------------------------------
    def on_time(self, mono: int) -> None:
        """Some ten times a second: signs of life, time-outs, what the journal may let go."""
        config = self.server.config
        if self.feeds and mono - self._alive_at >= config.repl_ping_replica_period * 1000:
            self._alive_at = mono
            for feed in self.feeds:
                feed.alive()
        for feed in list(self.feeds):
            if mono - feed.heard_at > config.repl_timeout * 1000:
                feed.cut(f"nothing was heard of it for {config.repl_timeout} seconds (repl-timeout)")
        kept = self.disk.retain
        self.moved_on()
        if kept != NOTHING and self.disk.retain == NOTHING:
            self.server.log.notice("Nobody has asked for the backlog: the journal keeps no more than a restart needs")
            self._note(False)
            self.works(self.server.loop.run_in_executor(None, self.disk.cut))

    @property
    def backlog_active(self) -> bool:
        if self.feeds or self.server.roles.follower:
            return True
        ttl = self.server.config.repl_backlog_ttl * 1000
        return bool(self._seen) and (not ttl or self.server.mono_ms() - self._seen < ttl)

    def expected(self) -> None:
        """This server leads from now on: those that followed its leader, and that one, may come."""
        self._seen = self.server.mono_ms()
        self._note(True)

    def opened(self) -> None:
        """The data directory is open: replicas of an earlier run may come back."""
        if self.disk.had_replicas:
            self._seen = self.server.mono_ms()
        self.moved_on()

    def _note(self, there_are: bool) -> None:
        try:
            self.disk.note_replicas(there_are)
        except OSError as error:
            self.server.log.warning(f"The next start may not know that there are replicas: {error}")

    # -- end -----------------------------------------------------------------------------------------------------
    def drop_all(self, why: str) -> None:
        """They will come again, and be told what has changed."""
        for feed in list(self.feeds):
            feed.cut(why)

    async def finish(self) -> None:
        """Wait for what threads still do for replicas that were dropped."""
        if self._work:
            await asyncio.wait(set(self._work))

    # -- figures -------------------------------------------------------------------------------------------------
    def online(self) -> Iterator[Feed]:
        return (feed for feed in self.feeds if feed.state == "online")

    def acknowledged(self, offset: int) -> int:
        return sum(feed.acknowledged >= offset for feed in self.online())

    def synced(self, offset: int) -> int:
        return sum(feed.on_disk >= offset for feed in self.online())

    def behind(self) -> int:
        """Replicas that are online and lack something."""
        return sum(feed.acknowledged < self.disk.offset for feed in self.online())

    def good(self) -> int:
        most, mono = self.server.config.min_replicas_max_lag, self.server.mono_ms()
        return sum((mono - feed.heard_at) // 1000 <= most for feed in self.online())

    def figures(self) -> list[ReplicaFigures]:
        mono = self.server.mono_ms()
        return [
            ReplicaFigures(
                feed.host, feed.port, feed.state, feed.acknowledged, feed.on_disk, (mono - feed.heard_at) // 1000
            )
            for feed in self.feeds
        ]
