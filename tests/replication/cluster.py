"""Leaders and replicas as real processes, and the conditions that tests of replication wait for.

Works with redis-server as well as with tidelog-server, as far as both say the same: so the harness itself can be tried
on a server that is known to replicate.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from storage.model.records import AWAY_RECORD
from tests.replication.differences import differences
from tests.replication.proxy import Proxy
from tests.waiting import PATIENCE, eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server

T = TypeVar("T")
Word = bytes | str | int
LOGGED: Final = 20  # lines of each server's log in the report of a failed test

# Small and fast. Everything else is as it comes.
FAST: dict[str, str | int] = {
    "enable-debug-command": "yes",
    "repl-ping-replica-period": 1,
    "repl-timeout": 5,
    "wal-size": "1mb",
    "appendfsync": "everysec",  # a process that is killed loses nothing by it, and the disk is not what is tested
}
REDIS_FAST: dict[str, str | int] = {
    "enable-debug-command": "yes",
    "repl-ping-replica-period": 1,
    "repl-timeout": 5,
    "repl-diskless-sync-delay": 0,
    "appendonly": "yes",
    "save": "",
}

_ports = random.Random(os.getpid() ^ time.time_ns())


def new_port() -> int:
    """A port that nobody listens on, from a range that the system does not use for other sockets."""
    while True:
        port = _ports.randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def wait_until(condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Wait for a true value of ``condition`` and return it. If none comes, AssertionError names ``what``.

    While a server can't be reached, the condition counts as not yet true.
    """

    def met() -> T | None:
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, OSError):
            return condition()
        return None

    return cast("T", eventually(met, what, patience))


def connect(port: int, **options: Any) -> redis.Redis:
    """A client that sends every command once."""
    return redis.Redis(port=port, **{"socket_timeout": 20, "retry": Retry(NoBackoff(), 0), **options})


class Node(Server):
    """One server process of a cluster."""

    def __init__(self, directory: Path, config: dict[str, str | int], command: Sequence[str] | None = None) -> None:
        super().__init__(directory, config, command)
        self.port = new_port()
        self.redis = connect(self.port)
        self.file = directory.with_suffix(".conf")
        self.earlier: list[str] = []  # the end of its log before the last start

    def start(self) -> None:
        if not self.running:
            self.earlier = self.output[-LOGGED:]
        super().start()

    def __repr__(self) -> str:
        return f"Node({self.port})"

    def __call__(self, *words: Word) -> Any:
        """The reply to a command. redis.ResponseError for an error reply."""
        return self.redis.execute_command(*words)

    def say(self, *words: Word) -> Any:
        """The reply to a command, over a new connection; an error reply is returned as text."""
        with Raw(self.port) as raw:
            return raw(*words)

    def info(self, section: str = "replication") -> dict[str, Any]:
        found: dict[str, Any] = self.redis.info(section)
        return found

    @property
    def role(self) -> str:
        return str(self.info()["role"])

    @property
    def offset(self) -> int:
        """The log offset at which its log ends."""
        facts = self.info()
        return int(facts["slave_repl_offset" if facts["role"] == "slave" else "master_repl_offset"])

    @property
    def link_up(self) -> bool:
        facts = self.info()
        return [facts["role"], facts.get("master_link_status")] == ["slave", "up"]

    @property
    def syncs(self) -> tuple[int, int]:
        """How many full copies and continuations it gave since its start."""
        facts = self.info("stats")
        return int(facts["sync_full"]), int(facts["sync_partial_ok"])

    def digest(self) -> str:
        reply = self("DEBUG", "DIGEST")
        return reply.decode() if isinstance(reply, bytes) else str(reply)

    def follow(self, port: int, force: bool = False) -> None:
        """REPLICAOF host port; a restart keeps it."""
        self("REPLICAOF", "127.0.0.1", port, *(["FORCE"] if force else []))
        self.config["replicaof"] = f"127.0.0.1 {port}"

    def lead(self, force: bool = False) -> None:
        """REPLICAOF NO ONE; a restart keeps it."""
        self("REPLICAOF", "NO", "ONE", *(["FORCE"] if force else []))
        self.config.pop("replicaof", None)

    def freeze(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Delay writes: the log of this leader does not grow, and time does not pass for what can expire."""
        self("CLIENT", "PAUSE", 600_000, "WRITE")
        try:
            yield
        finally:
            self("CLIENT", "UNPAUSE")

    def kill(self) -> None:
        super().kill()
        self.redis.connection_pool.disconnect()

    def logged(self, text: str) -> bool:
        """Whether a line of its log (since its start) has this text."""
        return any(text in line for line in self.output)


def only_time(before: int, after: int) -> bool:
    """Whether a log has not grown from one offset to the other, or by records of served time only.

    A leader with groups, pending entries or stages logs such a record after a stall, also on a busy machine.
    """
    return after >= before and (after - before) % AWAY_RECORD.size == 0


def in_sync(leader: Node, *replicas: Node) -> bool:
    """Whether all links are up, all logs equally long, and the leader knows it of the replicas connected to it."""
    end = leader.offset
    if not all(replica.link_up and replica.offset == end for replica in replicas):
        return False
    return all(fact["state"] == "online" for fact in leader.info().values() if isinstance(fact, dict))


def assert_same(leader: Node, *replicas: Node) -> None:
    """Wait until all servers are at the same offset, and check that their content is the same there."""
    nodes = (leader, *replicas)
    deadline = time.monotonic() + PATIENCE
    while True:
        wait_until(lambda: in_sync(leader, *replicas), f"{replicas} in sync with {leader}")
        before = [node.offset for node in nodes]
        digests = [node.digest() for node in nodes]
        if len({*before, *[node.offset for node in nodes]}) == 1:  # nobody moved on meanwhile
            if len(set(digests)) != 1:
                again = [node.digest() for node in nodes]
                what = {replica: differences(leader, replica) for replica in replicas}
                raise AssertionError(f"at log offset {before[0]} the contents differ: {digests}, then {again}: {what}")
            return
        assert time.monotonic() < deadline, "the leader never comes to rest"


class Cluster:
    """Makes nodes and proxies; all are gone, with their data, when it is closed."""

    live: ClassVar[list[Cluster]] = []

    def __init__(self, program: str = "tidelog") -> None:
        Cluster.live.append(self)
        self.top = Path(tempfile.mkdtemp(prefix="tidelog-cluster-"))
        self.program = program
        self.nodes: list[Node] = []
        self.proxies: list[Proxy] = []

    def node(
        self, of: int | None = None, start: bool = True, file: bool = False, command: Sequence[str] | None = None,
        **config: Any,
    ) -> Node:  # fmt: skip
        """A new server, a replica of the one at port ``of`` if that is given; settings with ``_`` for ``-``.

        ``file``: its settings stand in a configuration file, which CONFIG REWRITE can write: ``node.file``.
        ``command``: starts the server instead of command().
        """
        directory = self.top / f"node{len(self.nodes)}"
        directory.mkdir()
        settings = dict(REDIS_FAST if self.program == "redis" else FAST)
        settings |= {name.replace("_", "-"): value for name, value in config.items()}
        if of is not None:
            settings["replicaof"] = f"127.0.0.1 {of}"
        if file:
            path = directory.with_suffix(".conf")
            lines = [f"{name} {value}\n" if value != "" else f'{name} ""\n' for name, value in settings.items()]
            path.write_text("".join(lines))
            node = Node(directory, {}, self.command(str(path)))
        else:
            node = Node(directory, settings, command or self.command())
        self.nodes.append(node)
        if start:
            node.start()
        return node

    def command(self, *arguments: str) -> list[str]:
        """What starts a server."""
        if self.program == "redis":
            return [shutil.which("redis-server") or "redis-server", *arguments]
        return [sys.executable, "-m", "_tidelog_server", *arguments]

    def pair(self, **config: Any) -> tuple[Node, Node]:
        """A leader and its replica, in sync. Something was logged, but both are empty."""
        leader = self.node(**config)
        leader("MSET", "k", "v", "w", "v")
        leader("FLUSHALL")
        replica = self.node(of=leader.port, **config)
        wait_until(lambda: in_sync(leader, replica), "a first sync")
        return leader, replica

    def proxy(self, target: Node | int) -> Proxy:
        port = target if isinstance(target, int) else target.port
        self.proxies.append(Proxy(new_port(), port))
        return self.proxies[-1]

    def logs(self) -> str:
        """Return the last lines of all servers, and of those before their last start."""
        parts: list[str] = []
        for node in self.nodes:
            state = "runs" if node.running else "does not run"
            earlier = [*node.earlier, "  -- start --"] if node.earlier else []
            parts.append("\n".join([f"{node} {state}:", *earlier, *node.output[-LOGGED:]]))
        return "\n".join(parts)

    def close(self) -> None:
        Cluster.live.remove(self)
        for proxy in self.proxies:
            proxy.close()
        for node in self.nodes:
            node.kill()
            node.redis.close()
        shutil.rmtree(self.top, ignore_errors=True)


@contextlib.contextmanager
def cluster(program: str = "tidelog") -> Iterator[Cluster]:
    made = Cluster(program)
    try:
        yield made
    except Exception as error:
        error.add_note(made.logs())
        raise
    finally:
        made.close()


def block_history(node: Node, blocked: bool) -> None:
    """Let a node fail to save a new replication ID, or succeed again."""
    place = node.directory / "replication.new"
    if blocked:
        place.mkdir()
    else:
        place.rmdir()
