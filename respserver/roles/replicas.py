"""The replicas of this server: who may go on and who needs a copy, what each has, and what the journal keeps for them.

Rule 1: the journal keeps what a connected replica lacks, however much that is; for those that are away it keeps
repl-backlog-size bytes, until none has been seen for repl-backlog-ttl.
Rule 2: a replica goes on only where its log is certainly the beginning of ours: same history (persistence.history), and
the same bytes at its end, as far as we still have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from commands.parse import integer
from commands.session import Session
from persistence.backlog import NOTHING
from persistence.log import GoneError, Log
from replication import frames
from replication.feed import Feed
from replication.handshake import VERSION
from resp.errors import CommandError, CorruptError
from respserver.clients.clients import Clients
from respserver.clients.connection import Connection, connection_of
from respserver.clock import Clock
from respserver.config.config import Config
from respserver.data import Data
from respserver.gates import Gates
from respserver.observe.logs import Logger
from respserver.observe.stats import ReplicaStats, RoleStats
from respserver.ticks import Ticks

COMPARED_AT_MOST = 16 << 20  # bytes of a replica's log that are read back to be compared


class Introduced:
    """What REPLCONF told of a client that may be a replica."""

    __slots__ = ("history", "host", "port", "version")

    def __init__(self) -> None:
        self.version = 0  # of the link; 0: it is no tidelog server
        self.host = ""  # "": the address it comes from
        self.port = 0
        self.history: list[tuple[int, int]] = []  # start and crc32 of the last pieces of its log, of any length

    def note(self, option: bytes, value: bytes) -> None:
        """One option of REPLCONF. Raises CommandError."""
        name = option.lower()
        if name == b"listening-port":
            self.port = integer(value)
            if not 0 <= self.port <= 65535:
                raise CommandError("ERR REPLCONF listening-port is no port")
        elif name == b"ip-address":
            if len(value) > 255:
                raise CommandError("ERR REPLCONF ip-address provided by replica instance is too long")
            self.host = value.decode("utf-8", "replace")
        elif name == b"tidelog":
            self.version = integer(value)
            if self.version != VERSION:
                raise CommandError(f"ERR this server replicates by version {VERSION} of the link")
        elif name == b"history":
            start, _, crc = value.partition(b":")
            self.history = [*self.history[-3:], (integer(start), integer(crc))]
        elif name not in (b"capa", b"version", b"rdb-only", b"rdb-filter-only"):
            text = option.decode("utf-8", "replace")
            raise CommandError(f"ERR Unrecognized REPLCONF option: {text}")


class Replicas:
    """Used on the event loop only. Implements ``FeedOwner`` and ``ReplicasPart``."""

    def __init__(
        self, config: Config, clock: Clock, data: Data, gates: Gates, ticks: Ticks, clients: Clients, logger: Logger,
        on_heard: Callable[[Feed], None],
    ) -> None:  # fmt: skip
        """``on_heard`` is called when a replica has acknowledged."""
        self._config = config
        self._clock = clock
        self._data = data
        self._gates = gates
        self._ticks = ticks
        self._clients = clients
        self._logger = logger
        self._on_heard = on_heard
        self.feeds: list[Feed] = []
        self.full_syncs = 0
        self.partial_syncs = 0
        self.refused_partial = 0
        self.bytes_out = 0
        self._starting: list[tuple[Feed, Connection]] = []  # begin when this tick's replies are out
        self._introduced: dict[Session, Introduced] = {}
        self._connections: dict[Feed, Connection] = {}
        self._seen = 0  # ms (monotonic) when there last was a replica, 0: never
        self._alive_at = 0  # ms (monotonic) of the last sign of life to all
        self._ask = False  # they are asked at the end of this tick
        self._work: set[asyncio.Future[Any]] = set()  # what threads do for replicas
        clients.on_leave.append(self._left)

    @property
    def disk(self) -> Log:
        return self._data.disk

    @property
    def replid(self) -> str:
        return self._data.disk.history.id

    # -- REPLCONF, PSYNC -----------------------------------------------------------------------------------------
    def replconf(self, session: Session, options: list[bytes]) -> bool:
        """Options and values, in pairs; False if no reply is due. Raises CommandError."""
        who = self._introduced.setdefault(session, Introduced())
        for at in range(0, len(options), 2):
            if options[at].lower() in (b"ack", b"fack", b"getack"):
                return False  # not a replica's connection: Redis doesn't answer either
            who.note(options[at], options[at + 1])
        return True

    def introduced(self, session: Session) -> tuple[Introduced, Connection]:
        """What a client told that sends PSYNC. Raises CommandError: it is no replica of ours."""
        who, conn = self._introduced.get(session), connection_of(session)
        if who is None or not who.version or conn is None:
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
                self._logger.notice(
                    f"Replica {session.addr} can't go on from log offset {offset} of {replid}: it gets a full copy"
                )
            offset = -1
        host = who.host or session.addr.rpartition(":")[0].strip("[]")
        feed = Feed(self, host, who.port, offset, self._clock.mono())
        session.replica = feed
        self._connections[feed] = conn
        self.feeds.append(feed)
        self.moved_on()
        self._note(True)
        self._starting.append((feed, conn))
        self._ticks.queue_flush(conn)
        self._ticks.after(self._begin)
        self._ticks.on_batch = self._logged
        if offset < 0:
            self.full_syncs += 1
        else:
            self.partial_syncs += 1
        kind = "full copy" if offset < 0 else f"from log offset {offset}"
        self._logger.notice(f"Replica {host}:{who.port} asks for synchronization: {kind}")

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
            self._logger.warning(f"The log can't be read for a replica: {error}")
            return False

    def _begin(self) -> None:
        """Replies of the tick are out: connections of new replicas are handed over."""
        starting, self._starting = self._starting, []
        for feed, conn in starting:
            if conn.transport.is_closing():
                self.lost(feed, "it closed the connection")
            else:
                conn.hand_over()
                feed.begin(conn.transport, self._config.repl_disable_tcp_nodelay)

    def _left(self, session: Session) -> None:
        """A client is gone."""
        self._introduced.pop(session, None)
        feed = session.replica
        if isinstance(feed, Feed) and feed in self._connections:  # before it began
            feed.cut("it closed the connection")

    # -- FeedOwner -----------------------------------------------------------------------------------------------
    def heard(self, feed: Feed) -> None:
        feed.heard_at = self._clock.mono()
        self._on_heard(feed)
        if self._gates.too_few:
            self.count()

    def moved_on(self) -> None:
        """Rule 1."""
        disk = self.disk
        if self.feeds:
            self._seen = self._clock.mono()
        needs = [feed.needs for feed in self.feeds]
        if self.backlog_active:
            needs.append(max(0, disk.offset - self._config.repl_backlog_size))
        disk.retain = min(needs, default=NOTHING)

    def lost(self, feed: Feed, why: str) -> None:
        if feed not in self._connections:
            return
        conn = self._connections.pop(feed)
        self.feeds.remove(feed)
        if not self.feeds:
            self._ticks.on_batch = None
        self._starting = [(f, c) for f, c in self._starting if f is not feed]
        self._seen = self._clock.mono()
        conn.session.replica = None
        conn.hand_over()
        self._clients.leave(conn.session)
        conn.session.transport = None
        conn.transport.abort()  # also where the feed had not begun
        self._logger.notice(f"Connection with replica {feed.host}:{feed.port} lost: {why}")
        self.count()

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
    def _logged(self, offset: int, batch: bytes) -> None:
        """A batch is durable."""
        for feed in self.feeds:
            if feed.live:
                feed.live_batch(offset, batch)

    def ask(self) -> None:
        """Have every replica say, after this tick's batch, how far it is: somebody waits for it."""
        if not self._ask:
            self._ask = True
            self._ticks.after(self._asked)

    def _asked(self) -> None:
        self._ask = False
        for feed in self.feeds:
            feed.alive(wanted=True)

    def message(self, channel: bytes, text: bytes) -> None:
        if self.feeds:
            frame = frames.message(channel, text)
            for feed in self.feeds:
                feed.message(frame)

    # -- time ----------------------------------------------------------------------------------------------------
    def on_time(self, mono: int) -> None:
        """Some ten times a second: signs of life, time-outs, who counts, what the journal may let go."""
        config = self._config
        if self.feeds and mono - self._alive_at >= config.repl_ping_replica_period * 1000:
            self._alive_at = mono
            for feed in self.feeds:
                feed.alive()
        for feed in list(self.feeds):
            if mono - feed.heard_at > config.repl_timeout * 1000:
                feed.cut(f"nothing was heard of it for {config.repl_timeout} seconds (repl-timeout)")
        self.count()
        kept = self.disk.retain
        self.moved_on()
        if kept != NOTHING and self.disk.retain == NOTHING:
            self._logger.notice("Nobody has asked for the backlog: the journal keeps no more than a restart needs")
            self._note(False)
            self.works(asyncio.get_running_loop().run_in_executor(None, self.disk.cut))

    @property
    def backlog_active(self) -> bool:
        if self.feeds or self._data.follower:
            return True
        ttl = self._config.repl_backlog_ttl * 1000
        return bool(self._seen) and (not ttl or self._clock.mono() - self._seen < ttl)

    def expected(self) -> None:
        """This server leads from now on: those that followed its leader, and that one, may come."""
        self._seen = self._clock.mono()
        self._note(True)

    def opened(self) -> None:
        """The data directory is open: replicas of an earlier run may come back."""
        if self.disk.had_replicas:
            self._seen = self._clock.mono()
        self.moved_on()

    def _note(self, there_are: bool) -> None:
        try:
            self.disk.note_replicas(there_are)
        except OSError as error:
            self._logger.warning(f"The next start may not know that there are replicas: {error}")

    # -- end -----------------------------------------------------------------------------------------------------
    def drop_all(self, why: str) -> None:
        """They will come again, and be told what has changed."""
        for feed in list(self.feeds):
            feed.cut(why)

    async def finish(self) -> None:
        """Wait for what threads still do for replicas that were dropped."""
        if self._work:
            await asyncio.wait(set(self._work))

    # -- who has what ------------------------------------------------------------------------------------------------
    def _online(self) -> Iterator[Feed]:
        return (feed for feed in self.feeds if feed.state == "online")

    def acknowledged(self, offset: int) -> int:
        """How many have everything up to ``offset``."""
        return sum(feed.acknowledged >= offset for feed in self._online())

    def synced(self, offset: int) -> int:
        """How many have everything up to ``offset`` on disk."""
        return sum(feed.on_disk >= offset for feed in self._online())

    def behind(self) -> int:
        """Replicas that are online and lack something."""
        return sum(feed.acknowledged < self.disk.offset for feed in self._online())

    def good(self) -> int:
        """Replicas that count for min-replicas-to-write: online, and heard within min-replicas-max-lag."""
        most, mono = self._config.min_replicas_max_lag, self._clock.mono()
        return sum((mono - feed.heard_at) // 1000 <= most for feed in self._online())

    def count(self) -> None:
        """Are there enough replicas for writes? Tells the gates."""
        least = self._config.min_replicas_to_write if self._config.min_replicas_max_lag else 0
        too_few = bool(least) and not self._data.follower and self.good() < least
        if too_few != self._gates.too_few:
            self._gates.replicas(too_few)

    def describe(self, stats: RoleStats) -> None:
        """Enter what is known of the replicas."""
        mono = self._clock.mono()
        stats.replicas = [
            ReplicaStats(feed.host, feed.port, feed.state, feed.acknowledged, (mono - feed.heard_at) // 1000)
            for feed in self.feeds
        ]
        stats.good_replicas, stats.backlog_active = self.good(), self.backlog_active
        stats.full_syncs, stats.partial_syncs = self.full_syncs, self.partial_syncs
        stats.refused_partial, stats.bytes_out = self.refused_partial, self.bytes_out
