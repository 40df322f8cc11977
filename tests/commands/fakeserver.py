"""A server for handlers to talk to: the real registries, no sockets, a clock moved by hand."""

from __future__ import annotations

from collections.abc import Iterator

from commands.context import Await, Context, Reply
from commands.registry import TABLE
from commands.session import Session
from resp import reply
from resp.errors import CommandError
from respserver.clients.clients import Clients, client_line
from respserver.clients.pubsub import PubSub
from respserver.observe.slowlog import Histogram, LatencyEvents, SlowLog
from storage.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool

NOW = 1_700_000_000_000


class EmptyStore:
    """No node is ever on disk."""

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        raise AssertionError("nothing was stored")

    def pin(self) -> EmptyStore:
        return self

    def release(self) -> None: ...


class FakeServer:
    """Enough of ServerAPI for connection, server, pub/sub and transaction commands; ``calls`` notes what was asked."""

    def __init__(self) -> None:
        self.ks = Keyspace(NodePool(EmptyStore(), NodeCache(1 << 20)))
        self.now = NOW
        self.clients = Clients()
        self.pubsub = PubSub(self.push)
        self.slow = SlowLog(slower_than=0)
        self.events = LatencyEvents(threshold=1)
        self.histograms: dict[str, Histogram] = {}
        self.pushed: list[tuple[int, bytes]] = []
        self.killed: list[int] = []
        self.calls: list[tuple[object, ...]] = []
        self.config: dict[str, str] = {
            "requirepass": "", "enable-debug-command": "no", "latency-monitor-threshold": "0", "maxclients": "10000",
        }
        self.saving = False
        self.following: tuple[str, int] | None = None
        self.replicas: list[tuple[int, int]] = []  # log offset each has, log offset each has on disk
        self.on_disk = 0  # log offset

    # -- what tests use ----------------------------------------------------------------------------------------
    def connect(self, port: int = 50001, proto: int = 2) -> Session:
        session = Session(self.clients.next_id(), f"127.0.0.1:{port}", "127.0.0.1:6379", self.now)
        session.proto = proto
        self.clients.add(session)
        return session

    def run(self, session: Session, *words: bytes | str, in_exec: bool = False) -> bytes:
        """The encoded reply, errors included, as the dispatcher would send it."""
        argv = [word.encode() if isinstance(word, str) else word for word in words]
        ctx = Context(self.ks, self, session, self.now)
        ctx.in_exec = in_exec
        try:
            result = self._call(ctx, argv)
        except CommandError as error:
            return reply.error(error.text)
        if isinstance(result, Await):
            return b""  # parked
        assert isinstance(result, bytes)
        return result

    def wait(self, session: Session, *words: bytes | str) -> Await:
        """What a command that waits for replicas left behind."""
        argv = [word.encode() if isinstance(word, str) else word for word in words]
        result = self._call(Context(self.ks, self, session, self.now), argv)
        assert isinstance(result, Await)
        return result

    def _call(self, ctx: Context, argv: list[bytes]) -> Reply:
        command = TABLE[argv[0].upper()]
        if command.subcommands and len(argv) > 1:
            command = command.subcommands[argv[1].lower()]
        return command.handler(ctx, argv)

    # -- ServerAPI ---------------------------------------------------------------------------------------------
    def client_list(self) -> list[Session]:
        return self.clients.all()

    def client_line(self, session: Session, now: int) -> str:
        return client_line(session, now)

    def client_kill(self, victims: list[Session], caller: Session) -> bool:
        self.killed += [session.id for session in victims]
        return caller in victims

    def client_unblock(self, client_id: int, error: bool) -> bool:
        self.calls.append(("unblock", client_id, error))
        session = self.clients.get(client_id)
        return session is not None and session.blocked

    def client_pause(self, until_ms: int, writes_only: bool) -> None:
        self.calls.append(("pause", until_ms, writes_only))

    def client_unpause(self) -> None:
        self.calls.append(("unpause",))

    def push(self, session: Session, data: bytes) -> None:
        self.pushed.append((session.id, data))

    def subscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        self.pubsub.subscribe(session, channel, pattern)

    def unsubscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        self.pubsub.unsubscribe(session, channel, pattern)

    def publish(self, channel: bytes, message: bytes) -> int:
        return self.pubsub.publish(channel, message)

    def channels(self, pattern: bytes | None) -> list[bytes]:
        return self.pubsub.channels(pattern)

    def channel_subscribers(self, channel: bytes) -> int:
        return self.pubsub.channel_subscribers(channel)

    def pattern_count(self) -> int:
        return self.pubsub.pattern_count()

    def monitor(self, session: Session, on: bool) -> None:
        session.monitoring = on

    def watch(self, session: Session, key: bytes) -> None:
        session.watching.add(key)
        self.ks.watchers.setdefault(key, set()).add(session)

    def unwatch(self, session: Session) -> None:
        for key in session.watching:
            self.ks.watchers[key].discard(session)
            if not self.ks.watchers[key]:
                del self.ks.watchers[key]
        session.watching.clear()

    def run_queued(self, ctx: Context) -> Reply:
        ctx.in_exec = True
        return reply.array(list(self._queued(ctx)))

    def _queued(self, ctx: Context) -> Iterator[bytes]:
        for argv in ctx.session.queued:
            yield self.run(ctx.session, *argv, in_exec=True)

    def config_get(self, patterns: list[bytes]) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self.config.items() if name.encode() in patterns]

    def config_set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self.config.update((name.decode(), value.decode()) for name, value in pairs)

    def config_rewrite(self) -> None:
        self.calls.append(("rewrite",))

    def config_value(self, name: str) -> str:
        return self.config[name]

    def check_password(self, user: bytes, password: bytes) -> bool:
        return user == b"default" and password.decode() == self.config["requirepass"]

    def save(self) -> None:
        self.calls.append(("save",))

    def bgsave(self, schedule: bool) -> bool:
        self.calls.append(("bgsave",))
        return not self.saving

    def last_save(self) -> int:
        return NOW // 1000

    def shutdown(self, save: bool, now: bool, force: bool, abort: bool) -> None:
        if abort:
            raise CommandError("ERR No shutdown in progress.")
        self.calls.append(("shutdown", save, now, force))

    def reload(self) -> None:
        self.calls.append(("reload",))

    def load_log(self) -> None:
        self.calls.append(("load_log",))

    def follower(self) -> bool:
        return self.following is not None

    def role(self) -> list[object]:
        return [b"master", 42, []]

    def replicate_from(self, host: str, port: int) -> bool:
        if self.following == (host, port):
            return False
        self.following = (host, port)
        return True

    def lead(self) -> None:
        self.following = None

    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        self.calls.append(("failover", target, timeout_ms, force))

    def failover_abort(self) -> None:
        raise CommandError("ERR No failover in progress.")

    def replconf(self, session: Session, argv: list[bytes]) -> bytes:
        self.calls.append(("replconf", session.id, *argv[1:]))
        return b"" if b"ACK" in argv else reply.OK

    def psync(self, session: Session, argv: list[bytes]) -> Await:
        self.calls.append(("psync", session.id, *argv[1:]))
        return Await(0, lambda: None, lambda: b"")

    def written(self, session: Session) -> int:
        return session.wrote

    def acknowledged(self, offset: int) -> int:
        return sum(has >= offset for has, _ in self.replicas)

    def synced(self, offset: int) -> int:
        return sum(on_disk >= offset for _, on_disk in self.replicas)

    def synced_here(self, offset: int) -> bool:
        return self.on_disk >= offset

    def ask_replicas(self) -> None:
        self.calls.append(("ask",))

    def info(self, sections: list[str]) -> str:
        return ",".join(sections)

    def reset_stats(self) -> None:
        self.calls.append(("reset_stats",))

    def slowlog(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        return self.slow.entries()

    def slowlog_reset(self) -> None:
        self.slow.reset()

    def latency(self) -> dict[str, list[tuple[int, int]]]:
        return self.events.all()

    def latency_reset(self, events: list[str]) -> int:
        return self.events.reset(events)

    def latency_histograms(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        return {name: (histogram.calls, histogram.doublings()) for name, histogram in self.histograms.items()}

    def memory_figures(self) -> dict[str, int]:
        return {
            "used": 1000, "resident": 2000, "peak": 3000, "startup": 100,
            "clients": 10, "replicas": 3, "dataset": 500, "node_cache": 5, "keys": 5,
        }

    def sleep(self, seconds: float) -> None:
        self.calls.append(("sleep", seconds))

    def clock_us(self) -> int:
        return self.now * 1000 + 7

    def random(self) -> float:
        return 0.5
