"""What handlers may ask of the server (commands.context.ServerAPI): each a line or a few over the part that does it."""

from __future__ import annotations

import hmac
import random as chance
import sys
import time
from typing import TYPE_CHECKING, cast

from commands.context import Await, Context, Reply
from commands.declare import all_commands
from commands.session import Session
from resp.errors import CommandError, CorruptError
from respserver.clients.clients import Closable, client_line
from respserver.clients.connection import Connection
from respserver.observe import info
from respserver.observe.stats import Figures
from storage.keyspace import Watcher

if TYPE_CHECKING:
    from respserver.server import Server


class Api:
    """Implements ServerAPI, whose docstrings say what each does."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._random = chance.Random()

    # -- clients ---------------------------------------------------------------------------------------------
    def client_list(self) -> list[Session]:
        return self._server.clients.all()

    def client_line(self, session: Session, now: int) -> str:
        return client_line(session, now)

    def client_kill(self, victims: list[Session], caller: Session) -> bool:
        server = self._server
        for victim in victims:
            if victim is caller:
                victim.close_after_reply = True
                continue
            conn = victim.transport
            if isinstance(conn, Connection):
                if conn.waiter is not None:
                    server.blocking.forget(conn.waiter)
                conn.backlog.clear()
            if isinstance(conn, Closable):
                conn.kill()
        return caller in victims

    def client_unblock(self, client_id: int, error: bool) -> bool:
        session = self._server.clients.get(client_id)
        conn = _connection(session) if session is not None else None
        return conn is not None and self._server.blocking.unblock(conn, error)

    def client_pause(self, until_ms: int, writes_only: bool) -> None:
        dispatcher = self._server.dispatcher
        if dispatcher.pause_until:  # a pause is never shortened, and all beats writes only
            until_ms = max(until_ms, dispatcher.pause_until)
            writes_only = writes_only and dispatcher.pause_writes_only
        dispatcher.pause_until, dispatcher.pause_writes_only = until_ms, writes_only
        self._server.regate()

    def client_unpause(self) -> None:
        self._server.dispatcher.pause_until = 0
        self._go_on()

    def hold_writes(self, hold: bool) -> None:
        """What writes waits, beside CLIENT PAUSE and whatever CLIENT UNPAUSE says: for a failover."""
        self._server.dispatcher.hold_writes = hold
        if hold:
            self._server.regate()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Let waiting clients try again."""
        server = self._server
        server.regate()
        for session in server.clients:
            conn = _connection(session)
            if conn is not None and conn.paused:
                conn.paused = False
                server.queue_resume(conn)

    def push(self, session: Session, data: bytes) -> None:
        conn = _connection(session)
        if conn is not None:
            conn.send(data)
            conn.check_output_limit()

    # -- pub/sub registry, MONITOR -----------------------------------------------------------------------------
    def subscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        self._server.pubsub.subscribe(session, channel, pattern)

    def unsubscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        self._server.pubsub.unsubscribe(session, channel, pattern)

    def publish(self, channel: bytes, message: bytes) -> int:
        self._server.roles.message(channel, message)
        return self._server.pubsub.publish(channel, message)

    def channels(self, pattern: bytes | None) -> list[bytes]:
        return self._server.pubsub.channels(pattern)

    def channel_subscribers(self, channel: bytes) -> int:
        return self._server.pubsub.channel_subscribers(channel)

    def pattern_count(self) -> int:
        return self._server.pubsub.pattern_count()

    def monitor(self, session: Session, on: bool) -> None:
        session.monitoring = on
        if on:
            self._server.monitors[session] = None
        else:
            self._server.monitors.pop(session, None)
        self._server.regate()

    # -- transactions ----------------------------------------------------------------------------------------
    def watch(self, session: Session, key: bytes) -> None:
        session.watching.add(key)
        self._server.ks.watchers.setdefault(key, set()).add(cast(Watcher, session))

    def unwatch(self, session: Session) -> None:
        watchers = self._server.ks.watchers
        for key in session.watching:
            of_key = watchers.get(key)
            if of_key is not None:
                of_key.discard(cast(Watcher, session))
                if not of_key:
                    del watchers[key]
        session.watching.clear()

    def discard(self, session: Session) -> None:
        """The transaction is over without having run."""
        session.multi = session.exec_abort = session.dirty_cas = False
        session.queued = []
        self.unwatch(session)
        session.refresh()

    def run_queued(self, ctx: Context) -> Reply:
        return self._server.dispatcher.run_queued(ctx)

    # -- configuration ---------------------------------------------------------------------------------------
    def config_get(self, patterns: list[bytes]) -> list[tuple[str, str]]:
        return self._server.config.get(patterns)

    def config_set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._server.config.set(pairs)

    def config_rewrite(self) -> None:
        self._server.config.rewrite()

    def config_value(self, name: str) -> str:
        return self._server.config.value(name)

    def check_password(self, user: bytes, password: bytes) -> bool:
        wanted = self._server.config.password()
        right = hmac.compare_digest(password, wanted)
        return user == b"default" and (right or not wanted)

    # -- persistence and life ----------------------------------------------------------------------------------
    def save(self) -> None:
        self._server.dispatcher.note_write()  # the batch ends here, in the middle of a run of commands
        try:
            self._server.checkpoints.run_now()
        except (OSError, CorruptError) as error:
            raise CommandError(f"ERR the checkpoint failed: {error}") from error

    def bgsave(self, schedule: bool) -> bool:
        checkpoints = self._server.checkpoints
        if checkpoints.running or self._server.dispatcher.ctx.in_exec:  # no batch may end inside a transaction
            checkpoints.wanted = checkpoints.wanted or schedule
            return False
        self._server.dispatcher.note_write()
        try:
            return checkpoints.begin()
        except OSError as error:
            raise CommandError(f"ERR the checkpoint failed: {error}") from error

    def last_save(self) -> int:
        return self._server.checkpoints.saves.last

    def shutdown(self, save: bool, now: bool, force: bool, abort: bool) -> None:  # noqa: ARG002  # nothing to force
        if abort:
            raise CommandError("ERR No shutdown in progress.")
        self._server.stop(save, now)

    def reload(self) -> None:
        self.save()
        self._server.reopen()

    def load_log(self) -> None:
        self._server.dispatcher.note_write()
        self._server.reopen()

    # -- replication -----------------------------------------------------------------------------------------
    def follower(self) -> bool:
        return self._server.roles.follower

    def role(self) -> list[object]:
        figures, offset = self._server.roles.figures(), self._server.disk.offset
        if not figures.leader:
            return ["slave", figures.host, figures.port, figures.state, offset]
        online = [replica for replica in figures.replicas if replica.state == "online"]
        return ["master", offset, [[r.host, str(r.port), str(r.offset)] for r in online]]

    def replicate_from(self, host: str, port: int) -> bool:
        return self._server.roles.follow(host, port)

    def lead(self) -> None:
        self._server.roles.lead()

    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        self._server.roles.failover(target, timeout_ms, force)

    def failover_abort(self) -> None:
        self._server.roles.failover_abort()

    def replconf(self, session: Session, argv: list[bytes]) -> bytes:
        return self._server.roles.replconf(session, argv)

    def psync(self, session: Session, argv: list[bytes]) -> Await:
        return self._server.roles.psync(session, argv)

    def written(self, session: Session) -> int:
        self._server.dispatcher.note_write()
        return session.wrote

    def acknowledged(self, offset: int) -> int:
        return self._server.roles.acknowledged(offset)

    def synced(self, offset: int) -> int:
        return self._server.roles.synced(offset)

    def synced_here(self, offset: int) -> bool:
        return self._server.disk.synced >= offset

    def ask_replicas(self) -> None:
        self._server.roles.ask()

    # -- observation -----------------------------------------------------------------------------------------
    def info(self, sections: list[str]) -> str:
        return info.render(self._figures(), sections)

    def _figures(self) -> Figures:
        server = self._server
        return Figures(
            now=server.clock.now(), started=server.started, run_id=server.run_id,
            roles=server.roles.figures(), loading=server.roles.loading,
            config=server.config.value, keyspace=server.ks, sessions=server.clients, counters=server.stats,
            walk=server.walk,
            saves=server.checkpoints.saves, log=server.log_figures or server.disk.stats(),
            log_offset=server.disk.offset,
            write_error=server.dispatcher.refuse_writes or None, startup_memory=server.startup_memory,
            keys_loaded=server.keys_loaded, channels=server.pubsub.channel_count(),
            patterns=server.pubsub.pattern_count(),
            config_file=server.config.file or "", executable=sys.executable, histograms=server.histograms,
        )  # fmt: skip

    def reset_stats(self) -> None:
        server = self._server
        server.stats.reset()
        server.histograms.clear()
        server.ks.hits = server.ks.misses = server.ks.expired_keys = server.ks.expired_groups = 0
        for command in all_commands():
            command.calls = command.usec = command.rejected = command.failed = 0

    def slowlog(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        return self._server.slowlog.entries()

    def slowlog_reset(self) -> None:
        self._server.slowlog.reset()

    def latency(self) -> dict[str, list[tuple[int, int]]]:
        return self._server.latency.all()

    def latency_reset(self, events: list[str]) -> int:
        return self._server.latency.reset(events)

    def latency_histograms(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        return {name: (h.calls, h.doublings()) for name, h in sorted(self._server.histograms.items()) if h.calls}

    def memory_figures(self) -> dict[str, int]:
        return info.memory_figures(self._figures())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def clock_us(self) -> int:
        return self._server.clock_us()

    def random(self) -> float:
        return self._random.random()


def _connection(session: Session) -> Connection | None:
    transport = session.transport
    return transport if isinstance(transport, Connection) else None
