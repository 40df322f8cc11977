"""The running server: what it is made of, its ticks, its start and its end.

A tick is everything that the event loop found to do at once: commands of many clients, woken readers, expiry. It
ends with

    serve readers whose key has news -> write the batch (one frame, one sync) -> hand replies to the sockets -> go on
    with what was held

so no reply, and no other client's view of a write, leaves before the batch is on disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

from commands import registry  # noqa: F401  (fills the command table)
from commands.declare import Command
from commands.session import Session
from persistence.log import Log, LogOptions, Recovered
from resp.errors import CommandError, CorruptError
from respserver.clients import admission
from respserver.clients.clients import Clients
from respserver.clients.connection import Connection
from respserver.clients.listen import Listeners
from respserver.clients.pubsub import PubSub
from respserver.clock import Clock
from respserver.config.config import Config
from respserver.config.renames import rename
from respserver.execution.api import Api
from respserver.execution.blocking import Blocking
from respserver.execution.dispatch import Dispatcher
from respserver.observe.logs import Logger
from respserver.observe.slowlog import Histogram, LatencyEvents, SlowLog
from respserver.observe.stats import Counters, StreamWalk, process_memory
from respserver.roles.roles import Roles
from respserver.upkeep.checkpoints import Checkpoints
from storage import expiry
from storage.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool

NEVER_NS: Final = 1 << 62

class Server:
    """One server over one data directory. ``start()``, then ``run_until_stopped()``; ``stop()`` from anywhere on the
    loop."""

    def __init__(self, config: Config, log: Logger, clock: Clock | None = None) -> None:
        self.config = config
        self.log = log
        self.clock = clock or Clock()
        self.now_ms = self.clock.now  # ms since epoch
        self.mono_ms = self.clock.mono  # ms of a clock that is never set
        self.by_hand = clock is not None  # time moves only when a test says so: no timers of our own
        self.loop: asyncio.AbstractEventLoop
        self.disk: Log
        self.ks: Keyspace
        self.clients = Clients()
        self.stats = Counters()
        self.walk = StreamWalk()
        self.slowlog = SlowLog(config.slowlog_log_slower_than, config.slowlog_max_len)
        self.latency = LatencyEvents(config.latency_monitor_threshold)
        self.histograms: dict[str, Histogram] = {}
        self.monitors: dict[Session, None] = {}
        self.roles = Roles(self)
        self.started = self.clock.now()
        self.run_id = os.urandom(20).hex()
        self.log_figures: dict[str, int | float | str] | None = None  # the last ones, while other data is being opened
        self.keys_loaded = 0
        self.startup_memory = 0
        self.slow_ns = NEVER_NS
        self.output_floor = 0  # bytes of output below which no client-output-buffer-limit can be exceeded
        self.listeners = Listeners(config, lambda: cast(asyncio.Protocol, Connection(self)))
        self._to_flush: list[Connection] = []
        self._to_resume: dict[Connection, None] = {}
        self._tick_pending = False
        self._wake_handle: asyncio.TimerHandle | None = None
        self._wake_at = 0  # mono ms
        self._cron_handle: asyncio.TimerHandle | None = None
        self._stalled: list[bytes] = []  # batches that could not be made durable yet
        self._hold = False  # some of them are this tick's: its replies have to wait
        self._held: list[Connection] = []  # clients whose replies wait for them
        self._refused: str | None = None  # why writes are refused, as the log said last
        self._stopping: asyncio.Future[tuple[bool, bool]] | None = None  # save, now
        self._unrename: Callable[[], None] = lambda: None  # gives commands their own names back

    # -- start -----------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Recover the data directory and listen. Raises CorruptError, OSError, ConfigError."""
        self.loop = asyncio.get_running_loop()
        self._stopping = self.loop.create_future()
        self.open_data()
        try:
            self.roles.opened()
            self.api = Api(self)
            self.dispatcher = Dispatcher(self)
            self.blocking = Blocking(self)
            self.pubsub = PubSub(self.api.push)
            self.checkpoints = Checkpoints(self)
            self.watch_config()
            self._unrename = rename(self.config.rename_command)
            await self.listeners.open()
            self.roles.start()
        except BaseException:
            self.listeners.close()
            self.disk.close()
            self._unrename()
            raise
        if not self.by_hand:
            self._cron_handle = self.loop.call_later(1 / self.config.hz, self._cron)

    def open_data(self) -> None:
        """Open the data directory and build the keyspace from it. Raises CorruptError, OSError."""
        self._adopt(*self._load())

    def _load(self) -> tuple[Log, Keyspace, Recovered]:
        """Any thread: what is in the data directory. Raises CorruptError, OSError."""
        config = self.config
        options = LogOptions(
            appendfsync=config.appendfsync, ring_bytes=config.tail_size, checkpoint_bytes=config.checkpoint_size
        )
        disk = Log.open(Path(config.dir), options)
        nodes = NodePool(disk.store, NodeCache(config.node_cache_size))
        nodes.max_entries, nodes.max_bytes = config.stream_node_max_entries, config.stream_node_max_bytes
        ks = Keyspace(nodes)
        self.startup_memory = self.startup_memory or process_memory().anonymous
        try:
            return disk, ks, disk.recover(ks)
        except BaseException:
            disk.close()
            raise

    def _adopt(self, disk: Log, ks: Keyspace, recovered: Recovered) -> None:
        self.disk, self.ks = disk, ks
        ks.log.clear()
        ks.ready.clear()
        ks.follower = self.roles.follower
        ks.resume(self.clock.now())
        self.keys_loaded = len(ks.keys)
        for line in recovered.lines():
            self.log.notice(line)
        self.log.notice(f"DB loaded from disk: {recovered.store_seconds + recovered.replay_seconds:.3f} seconds")

    def reopen(self) -> None:
        """Forget everything in memory and read it back from disk (DEBUG RELOAD, DEBUG LOADAOF)."""
        if self.checkpoints.running:
            raise CommandError("ERR Background save already in progress")
        if self.roles.link is not None and self.roles.link.state == "sync":
            raise CommandError("ERR a full copy of the leader's data is under way")
        if (self.ks.log or self._stalled) and not self.commit():
            raise CommandError(self.dispatcher.refuse_writes)
        old = self.ks
        old.pool.cache.clear()
        self.disk.close()
        self.open_data()
        self._carry_over(old)

    async def replace_data(self) -> None:
        """The same for data that came from elsewhere; nothing may use the old meanwhile.

        Raises CorruptError, OSError.
        """
        old = self.ks
        self._stalled.clear()
        self._hold = False
        old.pool.cache.clear()
        self.log_figures = self.disk.stats()
        for session in self.clients.all():
            conn = session.transport
            if isinstance(conn, Connection) and conn.streams:
                conn.cut("its reply came from data that is being replaced")
        self.disk.close()
        self._adopt(*await self.loop.run_in_executor(None, self._load))
        self.log_figures = None
        held, self._held = self._held, []
        self._flush(held)
        self._carry_over(old)

    def _carry_over(self, old: Keyspace) -> None:
        """What belongs to clients, from the keyspace before."""
        self.ks.watchers = old.watchers
        for key in set(old.watchers):
            self.ks.touch_watchers(key)
        self.config_changed()
        self.blocking.recount()
        self.roles.replicas.moved_on()

    # -- end -------------------------------------------------------------------------------------------------
    def stop(self, save: bool = True, now: bool = False) -> None:
        """Ask the server to end; run_until_stopped() does it. ``now``: without waiting for replicas."""
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result((save, now))

    async def run_until_stopped(self) -> None:
        """Serve until stop(); then finish the tick, checkpoint, close everything."""
        if self._stopping is None:
            raise RuntimeError("the server was not started")
        save, now = await self._stopping
        self.listeners.close()
        if not now:
            await self.roles.let_catch_up()
        if self._cron_handle is not None:
            self._cron_handle.cancel()
        if self._wake_handle is not None:
            self._wake_handle.cancel()
        self.tick()
        await self.roles.finish()
        await self.checkpoints.finish()
        if self._stalled:
            self._retry_stalled()
        self.tick()
        if save:
            try:
                self.checkpoints.run_now()
            except (OSError, CorruptError) as error:
                self.log.warning(f"The last checkpoint failed ({error}); nothing that was answered is lost")
        for session in self.clients.all():
            conn = session.transport
            if isinstance(conn, Connection):
                conn.close()
        for _ in range(3):
            await asyncio.sleep(0)  # let the transports say goodbye
        self.disk.close()
        self._unrename()

    # -- clocks ----------------------------------------------------------------------------------------------
    def clock_us(self) -> int:
        """Microseconds since epoch."""
        return self.clock.micros()

    # -- connections -----------------------------------------------------------------------------------------
    def accept(self, conn: Connection) -> None:
        """A new connection."""
        admission.admit(self, conn)

    def drop(self, conn: Connection) -> None:
        """The connection is gone."""
        session = conn.session
        if conn.waiter is not None:
            self.blocking.forget(conn.waiter)
        self.clients.remove(session)
        self.pubsub.drop(session)
        self.api.unwatch(session)
        self.roles.replicas.forget(session)
        if session.monitoring:
            self.monitors.pop(session, None)
            self.regate()
        session.transport = None

    def output_limit(self, session: Session) -> tuple[int, int, int]:
        """(hard bytes, soft bytes, seconds) for the client's class."""
        # a monitor gets what it did not ask for piece by piece, as a subscriber does
        kind = "pubsub" if session.channels or session.patterns or session.monitoring else "normal"
        limits = self.config.client_output_buffer_limit[kind]
        return limits.hard, limits.soft, limits.seconds

    # -- ticks -----------------------------------------------------------------------------------------------
    def queue_flush(self, conn: Connection) -> None:
        """The connection has replies (or its command made records): see to it at the end of the tick."""
        if not conn.queued:
            conn.queued = True
            self._to_flush.append(conn)
            if not self._tick_pending:
                self.queue_tick()

    def flush_reads(self, conn: Connection) -> None:
        """Replies of a client while no record waits for the disk: what they show is durable, so they may leave.

        Saves a reader a turn of the event loop.
        """
        if conn.queued or self._tick_pending or self._stalled or self.disk.writable() != self._refused or self._refused:
            self.queue_flush(conn)
        else:
            self._flush((conn,))

    def queue_resume(self, conn: Connection) -> None:
        """Nothing holds the connection's backlog any more, once this tick is out."""
        self._to_resume[conn] = None
        if not self._tick_pending:
            self.queue_tick()

    def queue_tick(self) -> None:
        if not self._tick_pending:
            self._tick_pending = True
            self.loop.call_soon(self.tick)

    def tick(self) -> None:
        """End of a tick: see the module's docstring."""
        self._tick_pending = False
        if self.ks.ready:
            self.blocking.serve_ready()
        if self.ks.log:
            self.commit()
        flush = self._to_flush
        self._to_flush = []
        if self._hold:
            self._held += flush
            self._hold = False
        else:
            self._flush(flush)
        if self.roles.pending:
            self.roles.end_of_tick()
        if self._to_resume:
            resume = self._to_resume
            self._to_resume = {}
            for conn in resume:
                conn.run_backlog()
        if self.disk.writable() != self._refused:
            self.regate()
        if self.blocking.count:
            self._schedule_wake()

    def commit(self) -> bool:
        """Make the records so far durable. False if that, or an earlier one, failed.

        Then they stay, in order, and are tried again; the replies of this tick wait with them.
        """
        batch = self.ks.take_batch()
        if not self._stalled:
            offset = self.disk.offset
            try:
                self.disk.append(batch)
                if self.roles.replicas.feeds:
                    self.roles.replicas.logged(offset, batch)
                return True
            except (OSError, CorruptError) as error:
                self.log.warning(f"A write can't be made durable, its clients wait: {error}")
        if batch:
            self._stalled.append(batch)
            self._hold = True
            self.queue_tick()
            self.regate()
        return False

    @property
    def stalled(self) -> bool:
        """There are effects in memory that are not in the log."""
        return bool(self._stalled)

    def log_end(self) -> int:
        """The log offset at which the next batch will begin."""
        return self.disk.offset + sum(map(len, self._stalled)) if self._stalled else self.disk.offset

    def _retry_stalled(self) -> None:
        while self._stalled:
            offset = self.disk.offset
            try:
                self.disk.append(self._stalled[0])
            except (OSError, CorruptError):
                return
            self.roles.replicas.logged(offset, self._stalled.pop(0))
        self.log.notice("Writes are durable again")
        self._hold = False
        held, self._held = self._held, []
        self._flush(held)
        self.regate()

    def _flush(self, conns: Sequence[Connection]) -> None:
        for conn in conns:
            conn.queued = False
            try:
                conn.flush()
            except Exception as error:  # noqa: BLE001 - one client's trouble must not keep the others waiting
                self.log.trace("Bug while sending replies", error)
                conn.cut("its replies can't be sent")

    def regate(self) -> None:
        """Recompute what stands against the dispatcher's short way."""
        dispatcher = self.dispatcher
        self._refused = self.disk.writable()
        why = self._refused or ("the last write could not be made durable" if self._stalled else "")
        dispatcher.refuse_writes = f"MISCONF Errors writing to disk: {why}" if why else ""
        tracking = self.config.latency_tracking
        dispatcher.histograms = self.histograms if tracking else None
        role = dispatcher.set_role()
        dispatcher.gated = bool(
            role or self.monitors or dispatcher.pause_until or dispatcher.refuse_writes or dispatcher.refuse_memory
        )

    # -- time ------------------------------------------------------------------------------------------------
    def _schedule_wake(self) -> None:
        if self.by_hand:
            return
        mono = self.mono_ms()
        wait = self.blocking.next_wake(self.now_ms(), mono)
        if wait is None:
            return
        at = mono + wait
        if self._wake_handle is not None:
            if self._wake_at <= at:
                return
            self._wake_handle.cancel()
        self._wake_at = at
        self._wake_handle = self.loop.call_later(wait / 1000, self._wake)

    def _wake(self) -> None:
        self._wake_handle = None
        self.blocking.wake(self.now_ms(), self.mono_ms())
        self.queue_tick()

    def _cron(self) -> None:
        self._cron_handle = self.loop.call_later(1 / self.config.hz, self._cron)
        try:
            self.on_time()
        except Exception as error:  # noqa: BLE001 - the server goes on; the log has the trace
            self.log.trace("Bug in the periodic work", error)

    def on_time(self) -> None:
        """What happens some ten times a second."""
        now, mono = self.now_ms(), self.mono_ms()
        if self.roles.loading:
            return
        if not self._stalled and not self._refused and not self.roles.follower:
            expiry.run(self.ks, now)
        self.blocking.wake(now, mono)
        if self._stalled:
            self._retry_stalled()
        if self.disk.writable() != self._refused:
            self.regate()
        dispatcher = self.dispatcher
        if dispatcher.pause_until and dispatcher.pause_until <= now:
            self.api.client_unpause()
        limit = self.config.maxmemory
        full = bool(limit) and process_memory().anonymous > limit
        if full != dispatcher.refuse_memory:
            dispatcher.refuse_memory = full
            self.regate()
        self.stats.sample(now)
        admission.look_after(self, now, mono)
        self.checkpoints.on_time(now)
        self.roles.on_time(mono)
        if self.ks.log or self.ks.ready:
            self.queue_tick()

    def note_slow(self, session: Session, argv: list[bytes], command: Command | None, took_ns: int) -> None:
        """A command took longer than the slow log or the latency monitor wants to know."""
        seconds = self.now_ms() // 1000
        self.slowlog.note(seconds, took_ns // 1000, argv, session.addr, session.name.decode("latin-1"))
        fast = command is not None and "fast" in command.flags
        self.latency.note("fast-command" if fast else "command", seconds, took_ns // 1_000_000)

    # -- configuration that is felt at once --------------------------------------------------------------------
    def watch_config(self) -> None:
        """Tie directives to what they steer, now and on CONFIG SET."""
        self.config_changed()
        for name in (
            "appendfsync", "slowlog-log-slower-than", "slowlog-max-len", "latency-monitor-threshold",
            "latency-tracking",
            "node-cache-size", "stream-node-max-entries", "stream-node-max-bytes", "checkpoint-size", "requirepass",
            "client-output-buffer-limit", "proto-max-bulk-len", "client-query-buffer-limit",
            "min-replicas-to-write", "min-replicas-max-lag", "replica-serve-stale-data",
        ):  # fmt: skip
            self.config.on_change[name] = self.config_changed

    def config_changed(self) -> None:
        config = self.config
        self.slowlog.slower_than = config.slowlog_log_slower_than
        self.slowlog.resize(config.slowlog_max_len)
        self.latency.threshold = config.latency_monitor_threshold
        limits = []
        if config.slowlog_log_slower_than >= 0:
            limits.append(config.slowlog_log_slower_than * 1000)
        if config.latency_monitor_threshold > 0:
            limits.append(config.latency_monitor_threshold * 1_000_000)
        self.slow_ns = min(limits, default=NEVER_NS)
        outputs = [n for limit in config.client_output_buffer_limit.values() for n in (limit.hard, limit.soft) if n]
        self.output_floor = min(outputs, default=1 << 62)
        for session in self.clients:
            conn = session.transport
            if isinstance(conn, Connection):
                conn.decoder.limit(config.proto_max_bulk_len, config.client_query_buffer_limit)
        nodes = self.ks.pool
        nodes.cache.max_bytes = config.node_cache_size
        nodes.max_entries, nodes.max_bytes = config.stream_node_max_entries, config.stream_node_max_bytes
        self.disk.configure(config.appendfsync, config.checkpoint_size)
        self.regate()
