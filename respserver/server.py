"""The running server: builds its parts; the tick, start and shutdown.

Rule 1: all parts are built here. Each part gets the parts that it uses, which are built before it. It calls later parts
through callbacks.
Rule 2: no part depends on the server. Commands access it as ``commands.context.ServerParts``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from commands import registry  # noqa: F401  (fills the command table)
from commands.declare import find
from commands.session import Session
from replication.feed import ReplicaFeed
from resp.errors import CommandError, CorruptError
from respserver.clients.admission import Admission
from respserver.clients.clients import Clients
from respserver.clients.connection import Connection, ConnectionServices
from respserver.clients.flowcontrol import OutputLimits
from respserver.clients.listeners import Listeners
from respserver.clients.monitor import Monitors
from respserver.clients.notifications import Notifications
from respserver.clients.pauses import Pauses
from respserver.clients.pubsub import PubSub
from respserver.clients.sockets import AVAILABLE, Sockets
from respserver.clients.tracking import Tracking
from respserver.clients.users import Users
from respserver.config.config import Config
from respserver.config.renames import rename
from respserver.execution.absent import AbsentEntries
from respserver.execution.blocking import Blocking
from respserver.execution.dispatch import Dispatcher
from respserver.execution.requests import RequestProcessor
from respserver.execution.slices import Slicing
from respserver.execution.transactions import Transactions
from respserver.maintenance.checkpoints import Checkpoints
from respserver.maintenance.scrubbing import Scrubbing
from respserver.maintenance.sealing import AT_ONCE, Sealing
from respserver.metrics.exporter import MetricsExporter
from respserver.observe.logs import Logger
from respserver.observe.slowlog import Timings
from respserver.observe.stats import Counters
from respserver.reporting import Reporting, ReportSources
from respserver.roles.cluster import Cluster
from respserver.roles.link import LeaderLink, LinkEvents
from respserver.roles.nodes import NodeExchange
from respserver.roles.replicas import Replicas
from respserver.roles.roles import Roles
from respserver.runtime.clock import Clock
from respserver.runtime.data import Data
from respserver.runtime.deliveries import Deliveries
from respserver.runtime.gates import Gates
from respserver.runtime.memory import Memory
from respserver.runtime.outofmemory import OutOfMemory
from respserver.runtime.ownership import SlotOwnership
from respserver.runtime.parts import RuntimeParts
from respserver.runtime.servedtime import ServedTime
from respserver.runtime.stopping import COPY_SECONDS
from respserver.runtime.ticks import Ticks
from respserver.tiering.historyreads import HistoryReads
from respserver.tiering.tiering import Tiering
from storage.keyspace import expiry
from storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from respserver.group.membership import GroupMembership
    from respserver.group.services import GroupServices
    from respserver.group.status import GroupCommands
    from respserver.slotmaps.commands import MapCommands
    from respserver.slotmaps.keeper import MapKeeper

AFTER_STALL: Final = 0.001  # seconds: about one turn of the event loop
CATCH_UP_MS: Final = 2000  # after which the periodic work continues, even if bytes remain to be read


class RespServer:
    """One server with one data directory. Implements ``commands.context.ServerParts``.

    Usage: start(), then run_until_stopped(); stop() ends it. All of them run on one event loop, as does the
    constructor, which opens the data directory and raises ConfigError, CorruptError or OSError.
    """

    # declared here because callbacks of earlier parts use them
    roles: Roles
    checkpoints: Checkpoints
    _forgetter: asyncio.Handle | None = None
    _closing: bool = False  # the parts are being closed, so no periodic work begins any more
    membership: GroupMembership | None = None  # None: this server is in no server group
    group: GroupCommands | None = None
    map_keeper: MapKeeper | None = None  # None: there is no map, because this server is in no group, or in no cluster
    slot_map: MapCommands | None = None

    _cron: asyncio.TimerHandle | None
    _waker: asyncio.TimerHandle | None
    _expirer: asyncio.TimerHandle | None
    _after_stall: asyncio.TimerHandle | None  # the periodic work, postponed until the sockets were read

    def __init__(
        self, config: Config, logger: Logger, clock: Clock | None = None, coordination: GroupServices | None = None
    ) -> None:  # fmt: skip
        """Build the parts. ``coordination``: what a member of a server group uses instead of ``coordinator``."""
        loop = self._loop = asyncio.get_running_loop()
        self.config, self.logger = config, logger
        self.clock = clock or Clock()
        self._by_hand = self.clock.by_hand
        self._random = random.Random()
        self._stopping: asyncio.Future[tuple[bool, bool]] = loop.create_future()  # save, now
        self.on_stage: Callable[[str, float | None], None] = lambda _what, _more: None  # see StopWatch.stage()
        self._unrename: Callable[[], None] = lambda: None  # undoes rename-command
        self._cron = self._waker = self._expirer = self._after_stall = None
        self._wake_at = 0  # mono ms
        self._caught_up_by = 0  # mono ms; see CATCH_UP_MS

        self.counters, self.timings = Counters(), Timings(config)
        self.exhaustion = OutOfMemory(self.counters, logger)
        self.clients = Clients()
        self.users = Users(config, self.clock, self.clients, logger)
        self.data = Data(config, self.clock, logger)
        self.gates, self.slots = Gates(), SlotOwnership()
        self.ticks = self.writes = Ticks(loop, self.data, self.gates, self.clock, logger, self.tick)
        parts = RuntimeParts(
            loop, config, self.clock, logger, self.counters, self.timings, self.exhaustion, self.data, self.gates,
            self.ticks, self.slots,
        )  # fmt: skip
        self.served_time, self.pauses = ServedTime(parts, self._by_hand), Pauses(parts, self.clients)
        self.monitors = Monitors(self.gates, self.clock)
        self.pubsub = PubSub(
            relay=lambda channel, message, shard: self.roles.relay(channel, message, shard), later=loop.call_soon
        )
        self.notifications = Notifications(parts, self.clients, self.pubsub, self.monitors)
        self.memory = Memory(
            parts, lambda: self.clients.bytes, self._overheads,
            make_room=lambda: self.checkpoints.make_room(),
        )  # fmt: skip
        self.history_reads, self.blocking = (reads := HistoryReads(parts)), Blocking(parts, self, reads.wait)
        self.users.on_change = self.blocking.check_again
        self.slicing = Slicing(parts, self, self.notifications, self.history_reads.wait)
        self.transactions = Transactions(parts, self.notifications)
        self.dispatcher = Dispatcher(
            parts, self, self.blocking, self.slicing, self.transactions, self.notifications, self.memory,
            AbsentEntries(parts, self.history_reads.wait),
        )  # fmt: skip
        self.replicas = Replicas(
            parts, self.clients, NodeExchange(parts), on_heard=self._heard,
            before_delta=lambda: self.checkpoints.recent(), checkpoint=lambda offset: self.checkpoints.covering(offset),
            read_node=self.history_reads.node,
        )  # fmt: skip
        self.link = LeaderLink(
            parts, self.clients, self.pubsub, self.replicas,
            LinkEvents(
                self._replace_data, self.stop, on_change=lambda: self.roles.link_changed(),
                on_failure=lambda error: self.roles.link_failed(error),
            ),
        )  # fmt: skip
        self.roles = Roles(
            parts, self.clients, self.pauses, self.blocking, self.replicas, self.link, on_role=self.served_time.update
        )
        self.scrubbing = Scrubbing(parts, self.roles, checkpoint=lambda: self.checkpoints.make_room())
        if config.group:
            self._build_group(parts, coordination)
        self.sealing, self.checkpoints = (
            Sealing(parts),
            Checkpoints(parts, retain=self.replicas.moved_on, ended=self.blocking.acknowledged),
        )
        self._build_reports(parts)
        self._build_connections(parts)
        self.clients.on_leave += [self.pubsub.drop, self._unwatch, self.monitors.remove, self.tracking.disable]

    def _build_reports(self, parts: RuntimeParts) -> None:
        self.tiering = Tiering(
            parts, self.membership, self.history_reads, checkpoint=lambda: self.checkpoints.make_room()
        )
        self.tiering.leader_owner = lambda: self.link.history_owner
        self.replicas.history_owner = self.tiering.announced_owner
        self.stats = Reporting(
            parts,
            ReportSources(
                self.clients, self.users, self.pubsub, self.blocking, self.roles, self.checkpoints, self.scrubbing,
                self.tiering, self.memory, self.tracking,
            ),
        )  # fmt: skip
        self.metrics = MetricsExporter(
            parts, self.clients, self.users, self.stats, lambda: None if self.group is None else self.group.last_known()
        )

    def _build_connections(self, parts: RuntimeParts) -> None:
        self.deliveries = Deliveries(
            parts, self.served_time, lambda: self._may_expire(), self._guarded, self._by_hand
        )  # fmt: skip
        self._admission = Admission(parts, self.clients, self.users)
        self._limits, self._sockets = (
            OutputLimits(self.config),
            (Sockets(self._loop, self.ticks) if AVAILABLE else None),
        )
        services = ConnectionServices(
            parts, RequestProcessor(parts, self.dispatcher, self._limits), self._limits, self._sockets,
            accept=self._admission.admit, left=self.clients.leave, awaited=self._read_after_wait,
            fetch=self.history_reads.wait,
        )  # fmt: skip
        self.listeners = Listeners(self.config, lambda: cast(asyncio.Protocol, Connection(services)))

    def _build_group(self, parts: RuntimeParts, coordination: GroupServices | None) -> None:
        """Build the membership of a server group. Other servers do not import it."""
        from respserver.group.membership import GroupMembership
        from respserver.group.services import services
        from respserver.group.status import GroupCommands

        used = coordination or services(self.config)
        member = self.membership = GroupMembership(parts, used, self.roles, self.replicas, self.link, self.pauses)
        member.on_result = self.blocking.acknowledged
        self.roles.group = member
        self.group = GroupCommands(member)
        if self.config.cluster_enabled:
            self._build_map(parts, member)

    def _build_map(self, parts: RuntimeParts, member: GroupMembership) -> None:
        """Build the parts that share the slots with other groups."""
        from respserver.slotmaps.assigning import SlotAssignment
        from respserver.slotmaps.cleaning import SlotCleaning
        from respserver.slotmaps.commands import MapCommands
        from respserver.slotmaps.importing import SlotImports
        from respserver.slotmaps.inert import InertSlots
        from respserver.slotmaps.keeper import MapKeeper
        from respserver.slotmaps.leaving import SlotDeparture
        from respserver.slotmaps.moving import SlotMover

        departure = SlotDeparture(parts, self.blocking, self.pubsub, self.tracking)
        keeper = self.map_keeper = MapKeeper(parts, member, self.cluster, self.replicas, departure, self.pauses)
        assigning = SlotAssignment(parts, keeper, member, self.pauses, self.slicing, self.blocking)
        inert, cleaning = InertSlots(parts), SlotCleaning(parts)
        imports = SlotImports(
            parts, keeper, member, inert, cleaning, self.served_time, self.replicas.unready,
            lambda name, url, owner, objects: self.tiering.link(name, url, owner, objects),
            checkpoint=lambda: self.checkpoints.schedule(rewrite=False),
        )  # fmt: skip
        moving = SlotMover(
            parts, keeper, member, assigning, inert, cleaning, self.pauses, self.slicing, self.blocking,
            self.served_time, self.history_reads.wait, imports.require,
        )  # fmt: skip
        self.slot_map = MapCommands(
            parts, keeper, assigning, moving, imports, member, on_result=self.blocking.acknowledged
        )

    def _heard(self, feed: ReplicaFeed) -> None:
        if self.membership is not None:
            self.membership.heard(feed)
        self.roles.heard(feed)

    @property
    def tracking(self) -> Tracking:
        return self.notifications.tracking

    @property
    def cluster(self) -> Cluster:
        return self.link.cluster

    def _overheads(self) -> int:
        """Return the memory size of everything that is neither data nor a client's."""
        return self.tracking.bytes + self.pubsub.bytes + self.users.held_bytes + self.slicing.left_bytes()

    # -- start -----------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Take the configured role, and listen. Raises OSError, ConfigError; everything is closed again then."""
        try:
            self.roles.opened()
            self._watch_config()
            self.served_time.update()
            self._unrename = rename(self.config.rename_command)
            await self.listeners.open()
            self.metrics.watch()
            self.roles.start()
            if self.membership is not None:
                self.membership.start()
            if self.map_keeper is not None:
                self.map_keeper.start()
        except BaseException:
            self.listeners.close()
            self._close()
            raise
        if not self._by_hand:
            self._cron = self._loop.call_later(1 / self.config.hz, self._on_cron)

    def _watch_config(self) -> None:
        """Apply directives to the parts that use them, now and on CONFIG SET."""
        self.configure()
        for name in (
            "appendfsync", "slowlog-log-slower-than", "slowlog-max-len", "latency-monitor-threshold",
            "latency-tracking",
            "node-cache-size", "stream-node-max-entries", "stream-node-max-bytes", "stream-retention",
            "stream-idmp-duration", "stream-idmp-maxsize", "checkpoint-size", "requirepass",
            "acllog-max-len", "notify-keyspace-events",
            "client-output-buffer-limit", "proto-max-bulk-len", "client-query-buffer-limit",
            "maxmemory", "min-replicas-to-write", "min-replicas-max-lag", "replica-serve-stale-data", "replica-acks",
            "min-in-sync",
            "tracking-table-max-keys", "cluster-require-full-coverage",
        ):  # fmt: skip
            self.config.on_change[name] = self.configure
        for name in ("repl-backlog-size", "repl-backlog-ttl"):
            self.config.on_change[name] = self.replicas.configure

    def configure(self) -> None:
        self.timings.configure()
        self._limits.configure()
        self._admission.configure()
        self.users.configure()
        self.data.configure()
        self.notifications.configure()
        self.ticks.check_disk()
        self.roles.configure()
        self.slots.require(self.config.cluster_require_full_coverage)
        if self.membership is not None:
            self.membership.in_sync.configure()
        self.memory.check()
        self._forget_excess()

    # -- the tick --------------------------------------------------------------------------------------------
    def tick(self) -> None:
        """End a tick: see ``respserver.runtime.ticks``."""
        try:
            self._tick()
        except MemoryError:
            self.exhaustion.end("ending a tick")

    def _tick(self) -> None:
        ks, ticks = self.data.ks, self.ticks
        ticks.begin()
        if ks.ready:
            self.blocking.serve_ready()
        if ks.events or self.tracking.pending:
            self.notifications.end_tick()
        if ks.log:
            ticks.commit()
        if self.memory.limit:
            self.memory.check()
        ticks.release()
        if ks.pool.drafted >= AT_ONCE:
            self.sealing.begin()
        if self.blocking.count:
            self._schedule_wake()
        if len(ks.due):
            self.deliveries.schedule()

    def _schedule_wake(self) -> None:
        if self._by_hand:
            return
        mono = self.clock.mono()
        wait = self.blocking.next_wake(self.clock.now(), mono)
        if wait is None:
            return
        at = mono + wait
        if self._waker is not None:
            if self._wake_at <= at:
                return
            self._waker.cancel()
        self._wake_at = at
        self._waker = self._loop.call_later(wait / 1000, self._wake)

    def _wake(self) -> None:
        self._waker = None
        now, mono = self.clock.now(), self.clock.mono()
        if self._may_expire():
            self.blocking.wake(now, mono)
        self.ticks.queue()

    def _may_expire(self, again: bool = False) -> bool:
        """Return whether anything may expire or fall due now. Commands that have already arrived must run before that.

        After a stall, returns False unless called with ``again``. The event loop then first reads all sockets,
        including those of transports, and runs their commands; then the periodic work continues.
        """
        self.served_time.update()
        late, self.served_time.late = self.served_time.late, False
        if late and not again and self._after_stall is None:
            self._caught_up_by = self.clock.mono() + CATCH_UP_MS
            self._after_stall = self._loop.call_later(AFTER_STALL, self._guarded, self._retry_on_time)
        if self._after_stall is not None:
            return False
        more = self._sockets is not None and self._sockets.turn()
        if again and (more or self.ticks.backlogs) and self.clock.mono() < self._caught_up_by:
            self._after_stall = self._loop.call_later(AFTER_STALL, self._guarded, self._retry_on_time)
            return False
        return True

    def _retry_on_time(self) -> None:
        self._after_stall = None
        self.on_time(again=True)

    # -- time ------------------------------------------------------------------------------------------------
    def _on_cron(self) -> None:
        self._cron = self._loop.call_later(1 / self.config.hz, self._on_cron)
        self._guarded(self.on_time)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._closing:
            return
        try:
            work()
        except MemoryError:
            self.exhaustion.end("doing the periodic work")
        except Exception as error:  # noqa: BLE001 - logged with its trace
            self.logger.trace("Bug in the periodic work", error)

    def _expire(self, now: int) -> None:
        """Expire keys, groups and stages. While there are more, continue after a pause as long as the work took, so
        that it takes at most half of the time, and a few milliseconds without a break."""
        more = True
        while more and not self.gates.loading and self.ticks.writable and not (self.data.follower or self.data.frozen):
            began = time.perf_counter()
            more = expiry.run(self.data.ks, now, self.data.note_damage) >= expiry.AT_ONCE
            if more and not self._by_hand:
                pause = time.perf_counter() - began
                self._expirer = self._loop.call_later(pause, self._guarded, self._expire_more)
                break
        if self.data.ks.log or self.data.ks.ready:
            self.ticks.queue()

    def _expire_more(self) -> None:
        self._expirer = None
        now = self.clock.now()
        if self._may_expire():
            self._expire(now)

    def _forget_excess(self) -> None:
        """Let CLIENT TRACKING forget the keys beyond its limit, some at a time."""
        if self._forgetter is not None:
            self._forgetter.cancel()
            self._forgetter = None
        if self.tracking.forget_excess():
            self._forgetter = self._loop.call_soon(self._guarded, self._forget_excess)

    def on_time(self, again: bool = False) -> None:
        """Do the periodic work, ``hz`` times a second. ``again``: it was postponed once, after a stall."""
        now, mono = self.clock.now(), self.clock.mono()
        if self.gates.loading or not self._may_expire(again):
            return  # after a stall, replicas and clients would also appear to have been silent
        if self._expirer is None:
            self._expire(now)
        self.deliveries.on_time()
        self.blocking.wake(now, mono)
        self.ticks.on_time()
        self.pauses.on_time(mono)
        self.memory.check()
        self.counters.sample(mono)
        self._forget_excess()
        self._admission.on_time(now, mono)
        self.sealing.begin()
        self.checkpoints.on_time(mono)
        self.scrubbing.on_time(now)
        self.tiering.on_time()
        self.history_reads.on_time()
        self.roles.on_time(mono)
        ks = self.data.ks
        if ks.log or ks.ready:
            self.ticks.queue()

    # -- replacing the data ----------------------------------------------------------------------------------
    def reload(self, session: Session, save: bool) -> None:
        """DEBUG RELOAD, DEBUG LOADAOF: drop the keyspace and read it back from disk. Raises CommandError."""
        if save:
            self.checkpoints.save_now(session)
        self.ticks.note_write(session)
        if self.checkpoints.running:
            raise CommandError("ERR Background save already in progress")
        if self.link.syncing:
            raise CommandError("ERR a full copy of the leader's data is in progress")
        if not self.ticks.settle():
            raise CommandError(self.gates.unwritable)
        problem = self.data.disk.check_files()
        if problem is not None:
            raise CommandError(f"ERR the data can't be read back: {problem}")
        self.served_time.update()
        old = self.data.ks
        self.data.close()
        try:
            self.data.use(*self.data.load())
        except (OSError, CorruptError) as error:
            self.exhaustion.give_up(f"the data can't be read back: {error}")
        self.served_time.update()
        self._carry_over(old)

    async def _replace_data(self, work: Callable[[], None] | None = None) -> None:
        """Reopen the data directory, which was changed by a copy or by ``work``. Raises CorruptError, OSError.

        ``work``: called in a thread while the directory is closed.
        """
        await self.scrubbing.finish()
        await self.checkpoints.finish()
        await self.sealing.finish()
        await self.replicas.finish()
        old = self.data.ks
        self.ticks.drop_stalled()
        for conn in self.clients.connections():
            if conn.output.streams:
                conn.cut("its reply came from data that is being replaced")
        self.data.close()
        if work is not None:
            await self._loop.run_in_executor(None, work)
        self.data.use(*await self._loop.run_in_executor(None, self.data.load))
        self.ticks.data_replaced()
        self._carry_over(old)

    def _carry_over(self, old: Keyspace) -> None:
        """Transfer the state of clients from the previous keyspace."""
        ks = self.data.ks
        ks.hits, ks.misses = old.hits, old.misses
        ks.expired_keys, ks.expired_groups = old.expired_keys, old.expired_groups
        ks.stages.expired = old.stages.expired
        ks.delivered_entries = old.delivered_entries
        cache, before = ks.pool.cache, old.pool.cache
        cache.hits, cache.misses = cache.hits + before.hits, cache.misses + before.misses
        ks.watchers = old.watchers
        for key in set(old.watchers):
            ks.touch_watchers(key)
        self.tracking.update_keyspace()
        self.tracking.flushed()
        self.configure()
        self.blocking.recount()
        self.replicas.moved_on()

    def _read_after_wait(self, session: Session, argv: list[bytes]) -> None:
        """Record the keys of a read that waited, for a client with CLIENT TRACKING."""
        command = find(argv[:2])
        if command is not None:
            self.tracking.remember(session, [argv[at] for at, _ in command.keys(argv)])

    def _unwatch(self, session: Session) -> None:
        session.unwatch(self.data.ks)

    # -- shutdown --------------------------------------------------------------------------------------------
    def stop(self, save: bool = True, now: bool = False) -> None:
        """Make run_until_stopped() shut down. ``save``: write a checkpoint. ``now``: do not wait for replicas."""
        if not self._stopping.done():
            self._stopping.set_result((save, now))

    def call_when_stopping(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the shutdown begins, whatever its cause is."""
        self._stopping.add_done_callback(lambda _: call())

    async def run_until_stopped(self) -> None:
        """Serve until stop(); then end the tick, write a checkpoint, and close everything."""
        save, now = await self._stopping
        self.listeners.close()
        self.ticks.whole = True
        self.on_stage("the end of long commands", None)
        self.slicing.finish_all()
        await self._leave(now)
        self._closing = True
        for timer in (self._cron, self._waker, self._expirer, self._after_stall, self._forgetter):
            if timer is not None:
                timer.cancel()
        self.deliveries.stop()
        self.tick()
        copying = self.gates.loading or self.link.syncing
        self.on_stage("its connections to other servers", COPY_SECONDS if copying else 0)
        await self.roles.finish()
        self.on_stage("the copies in the object store", 0)
        await self.tiering.finish()
        await self.history_reads.finish()
        self.on_stage("the scrub", 0)
        await self.scrubbing.finish()
        self.on_stage("a checkpoint", None)
        await self.checkpoints.finish()
        await self.sealing.finish()
        if self.ticks.stalled:
            self.ticks.retry()
        self.tick()
        if save:
            try:
                self.checkpoints.run_now()
            except (OSError, CorruptError) as error:
                self.logger.warning(
                    f"The last checkpoint failed ({error})"
                    + ("; all answered writes are in the log" if self.data.disk.in_place() else "")
                )
        self.on_stage("its log and its files", None)
        for conn in self.clients.connections():
            conn.close()
        for _ in range(3):
            await asyncio.sleep(0)  # let transports send their buffers
        for conn in self.clients.connections():  # of peers that do not read
            conn.kill()
        await asyncio.sleep(0)  # let transports close their sockets
        self._close()

    async def _leave(self, now: bool) -> None:
        """Leave the server group, or let replicas catch up. ``now``: do not wait for other servers."""
        try:
            if self.membership is not None:  # one member has the whole log soon; the slowest one does not matter
                self.on_stage("its server group", 3 * self.config.group_lease / 1000)
                if self.slot_map is not None:
                    await self.slot_map.finish()
                if self.map_keeper is not None:
                    await self.map_keeper.finish()
                await self.membership.finish(hand_over=not now)
            elif not now:
                self.on_stage("its replicas", self.config.shutdown_timeout)
                await self.roles.let_catch_up()
        except Exception as error:  # noqa: BLE001 - even after a bug, the log must be closed
            self.logger.trace("Bug while leaving the other servers", error)

    def _close(self) -> None:
        self.metrics.close()
        if self._sockets is not None:
            self._sockets.close()
        self.data.close()
        self._unrename()

    def random(self) -> float:
        return self._random.random()
