"""A server for tests of handlers: real registries, no sockets, a clock that tests move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from commands.context import Await, Context, Reply, Slices
from commands.registry import TABLE
from commands.session import Session, TransportStats
from resp import reply
from resp.errors import CommandError
from respserver.clients.clients import Clients
from respserver.clients.monitor import Monitors
from respserver.clients.pubsub import PubSub
from respserver.clients.users import Users
from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.observe.slowlog import Timings
from respserver.runtime.clock import Clock
from respserver.runtime.gates import Gates
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool

NOW = 1_700_000_000_000


class EmptyStore:
    """No node is ever on disk."""

    def load(self, sid: int, first_ord: int, first_id: int) -> bytes:
        raise AssertionError("nothing was stored")

    def raw(self, sid: int, first_ord: int, first_id: int) -> bytes:
        raise AssertionError("nothing was stored")

    def reference(self, sid: int, first_ord: int, first_id: int) -> bytes:
        raise AssertionError("nothing was stored")

    def resolve(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        raise AssertionError("nothing was stored")

    def is_current(self) -> bool:
        return True

    def pin(self) -> EmptyStore:
        return self

    def release(self) -> None: ...


class Recorder:
    """A part that only records calls: ``(method, *arguments)`` in ``calls``, with a session as its ID.

    ``answers`` gives the result of each method. A CommandError is raised instead, and that call is not recorded.
    """

    def __init__(self, calls: list[tuple[object, ...]], **answers: object) -> None:
        self._calls = calls
        self._answers = answers

    def answer(self, method: str, answer: object) -> None:
        """Set the result of a method."""
        self._answers[method] = answer

    def __getattr__(self, name: str) -> Any:
        def asked(*args: object, **named: object) -> object:
            answer = self._answers.get(name)
            if isinstance(answer, CommandError):
                raise answer
            self._calls.append((name, *[getattr(arg, "id", arg) for arg in (*args, *named.values())]))
            return answer

        return asked


class FakeTransport:
    """The connection of one of FakeServer's clients."""

    def __init__(self, server: FakeServer, session: Session) -> None:
        self.server = server
        self.session = session

    def kill(self) -> None:
        self.server.killed.append(self.session.id)

    def unblock(self, error: bool) -> bool:
        self.server.calls.append(("unblock", self.session.id, error))
        return self.session.blocked

    def push(self, data: bytes) -> None:
        self.server.pushed.append((self.session.id, data))

    def hold_pushes(self) -> None: ...

    def release_pushes(self) -> None: ...

    def stats(self) -> TransportStats:
        return TransportStats()


class FakeCheckpoints(Recorder):
    rewriting = False

    def refused(self) -> str | None:
        return None


class FakeReplicas(Recorder):
    """Replicas whose log offsets are ``server.offsets``."""

    def __init__(self, calls: list[tuple[object, ...]], server: FakeServer) -> None:
        super().__init__(calls)
        self._server = server

    def replconf(self, session: Session, options: list[bytes]) -> bytes:
        self._calls.append(("replconf", session.id, *options))
        return b"" if b"ACK" in options else b"+OK\r\n"

    def acknowledged(self, offset: int) -> int:
        return sum(has >= offset for has, _ in self._server.offsets)

    def synced(self, offset: int) -> int:
        return sum(on_disk >= offset for _, on_disk in self._server.offsets)


class FakeServer(Clock):
    """Implements ServerParts. It is its own clock, transactions and log; ``calls`` records the calls to other parts."""

    def __init__(self) -> None:
        self.ks = Keyspace(NodePool(EmptyStore(), NodeCache(1 << 20)))
        self.ms = NOW
        self.calls: list[tuple[object, ...]] = []
        self.pushed: list[tuple[int, bytes]] = []
        self.killed: list[int] = []
        self.offsets: list[tuple[int, int]] = []  # of replicas: log offset each has, log offset each has on disk
        self.on_disk = 0  # log offset
        self.clock = self.transactions = self.writes = self
        self.config = Config()
        self.clients = Clients()
        self.users = Users(self.config, self, self.clients, Logger(level="nothing"))
        self.gates = Gates()
        self.monitors = Monitors(self.gates, self)
        self.group: Any = None
        self.pubsub = PubSub(relay=lambda channel, message, shard: None, later=lambda call: call())
        self.tracking: Any = Recorder([])
        self.notifications: Any = Recorder([])
        self.timings = Timings(self.config)
        self.timings.slowlog.slower_than, self.timings.latency.threshold = 0, 1
        self.pauses: Any = Recorder(self.calls)
        self.replicas: Any = FakeReplicas(self.calls, self)
        self.cluster: Any = SimpleNamespace(enabled=False)
        self.slot_map: Any = None
        self.served_time: Any = Recorder([], update=None)
        self.roles: Any = Recorder(
            self.calls, describe=[b"master", 42, []], follow=True,
            failover_abort=CommandError("ERR No failover in progress."),
        )  # fmt: skip
        self.checkpoints: Any = FakeCheckpoints(self.calls, begin=True, last=NOW // 1000, save=lambda: "")
        self.tiering: Any = Recorder([], target=("", ""))
        self.stats: Any = Recorder(self.calls, info="text of INFO", ready=True, memory={
            "used": 1000, "resident": 2200, "peak": 3000, "startup": 100,
            "clients": 10, "replicas": 3, "dataset": 500, "node_cache": 5, "keys": 5,
        })  # fmt: skip

    # -- what tests use ----------------------------------------------------------------------------------------
    def connect(self, port: int = 50001, proto: int = 2) -> Session:
        session = Session(self.clients.next_id(), f"127.0.0.1:{port}", "127.0.0.1:6379", self.ms)
        session.proto = proto
        session.transport = FakeTransport(self, session)
        session.user = self.users.default
        self.clients.add(session)
        return session

    def run(self, session: Session, *words: bytes | str, in_exec: bool = False) -> bytes:
        """The encoded reply, as the dispatcher would send it; also of an error."""
        argv = [word.encode() if isinstance(word, str) else word for word in words]
        ctx = Context(self.ks, self, session, self.ms)
        ctx.in_exec = in_exec
        try:
            result = self._call(ctx, argv)
        except CommandError as error:
            return reply.error(error.text)
        if isinstance(result, Await):
            return b""  # parked
        if isinstance(result, Slices):
            done = None
            while done is None:
                done = result.step(ctx)
            result = done
        assert isinstance(result, bytes)
        return result

    def wait(self, session: Session, *words: bytes | str) -> Await:
        """The Await that a command returns while it waits for replicas."""
        argv = [word.encode() if isinstance(word, str) else word for word in words]
        result = self._call(Context(self.ks, self, session, self.ms), argv)
        assert isinstance(result, Await)
        return result

    def _call(self, ctx: Context, argv: list[bytes]) -> Reply:
        command = TABLE[argv[0].upper()]
        if command.subcommands and len(argv) > 1:
            command = command.subcommands[argv[1].lower()]
        return command.handler(ctx, argv)

    # -- ServerParts, and the parts that it is itself ------------------------------------------------------------
    def micros(self) -> int:
        return self.ms * 1000 + 7

    def sleep(self, seconds: float) -> None:
        self.calls.append(("sleep", seconds))

    def random(self) -> float:
        return 0.5

    def stop(self, save: bool, now: bool) -> None:
        self.calls.append(("stop", save, now))

    def reload(self, session: Session, save: bool) -> None:
        self.calls.append(("reload", save))

    def run_queued(self, ctx: Context) -> Reply:
        ctx.in_exec = True
        return reply.array([self.run(ctx.session, *argv, in_exec=True) for argv in ctx.session.queued])

    def written(self, session: Session) -> int:
        return session.wrote

    def repeated(self, session: Session) -> None:
        pass

    def synced(self, offset: int) -> bool:
        return self.on_disk >= offset
