"""What a handler is given and what it may return.

A handler is a plain function ``handler(ctx, argv) -> Reply``; ``argv[0]`` is the command's name as sent.
It reads no clock, opens nothing and never waits: ``ctx.now`` is the time, a ``Block`` asks the server to wait.
What it needs of the running server it asks of one of its parts: ``ctx.server.clients``, ``ctx.server.config`` ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from commands.session import Session
from storage.keyspace import Keyspace


class Chunks:
    """A reply too large to build at once: ``pieces`` yields encoded bytes; ``close()`` frees what it pins.

    The connection pulls a piece when its output buffer has room, so memory stays bounded (one piece is at most
    about ``stream-node-max-bytes``).
    """

    __slots__ = ("close", "pieces")

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self.pieces = pieces
        self.close = close


class Block:
    """Nothing to return yet: park the client until ``key`` has news.

    ``group`` is None for a plain reader, else the group whose queue it joins. ``timeout_reply`` is sent at
    ``deadline`` (ms since epoch, 0 = never). A subclass knows what the client waits for.
    """

    __slots__ = ("deadline", "group", "key", "timeout_reply")

    def __init__(self, key: bytes, group: bytes | None, deadline: int, timeout_reply: bytes) -> None:
        self.key = key
        self.group = group
        self.deadline = deadline
        self.timeout_reply = timeout_reply

    def serve(self, ctx: Context) -> bytes | Chunks | None:
        """Asked again whenever the key is signalled, and at wake_at(): the reply, or None to go on waiting.

        Raises CommandError, which ends the wait.
        """
        raise NotImplementedError

    def wake_at(self, ctx: Context) -> int | None:  # noqa: ARG002
        """ms since epoch at which the group's next message falls due; None if none does."""
        return None

    def same(self, other: Block) -> bool:  # noqa: ARG002
        """Whether serve() says the same as that of a plain reader of the same key and protocol, asked at the same
        moment."""
        return False


class Await:
    """Nothing to return yet: park the client until replicas, or the disk, have caught up (WAIT, WAITAOF).

    ``check()`` is called again whenever a replica acknowledges or the log was synced. It returns the reply, or None to
    go on waiting. ``at_timeout()`` makes the reply at ``deadline`` (ms since epoch, 0 = never).
    """

    __slots__ = ("at_timeout", "check", "deadline")

    def __init__(self, deadline: int, check: Callable[[], bytes | None], at_timeout: Callable[[], bytes]) -> None:
        self.deadline = deadline
        self.check = check
        self.at_timeout = at_timeout


Reply = bytes | Chunks | Block | Await


class Context:
    """One command's surroundings. The dispatcher reuses one object: a handler must not keep it."""

    __slots__ = ("in_exec", "ks", "now", "server", "session")

    ks: Keyspace
    now: int  # ms since epoch, one reading a command
    session: Session
    server: ServerParts
    in_exec: bool  # inside EXEC: nothing blocks

    def __init__(self, ks: Keyspace, server: ServerParts, session: Session, now: int = 0) -> None:
        self.ks = ks
        self.server = server
        self.session = session
        self.now = now
        self.in_exec = False


# -- what handlers may ask of the running server: one protocol for each part of it ---------------------------------
class ServerParts(Protocol):
    """The parts of the running server that commands use. ``respserver.server`` builds them."""

    @property
    def clients(self) -> ClientsPart: ...
    @property
    def pauses(self) -> PausesPart: ...
    @property
    def monitors(self) -> MonitorsPart: ...
    @property
    def pubsub(self) -> PubSubPart: ...
    @property
    def config(self) -> ConfigPart: ...
    @property
    def writes(self) -> WritesPart: ...
    @property
    def checkpoints(self) -> CheckpointsPart: ...
    @property
    def roles(self) -> RolesPart: ...
    @property
    def replicas(self) -> ReplicasPart: ...
    @property
    def stats(self) -> StatsPart: ...
    @property
    def timings(self) -> TimingsPart: ...
    @property
    def dispatcher(self) -> DispatcherPart: ...
    @property
    def clock(self) -> ClockPart: ...
    def random(self) -> float:
        """From 0 to 1, 1 excluded."""
    def stop(self, save: bool, now: bool) -> None:
        """Begin to end. ``save``: with a checkpoint. ``now``: without waiting for replicas."""
    def reload(self, session: Session, save: bool) -> None:
        """DEBUG: read everything back from disk; ``save``: after a checkpoint. Raises CommandError."""


class ClientsPart(Protocol):
    """CLIENT. A single client is reached by its ``session.transport``."""

    def all(self) -> list[Session]:
        """Oldest connection first; a copy."""
    def get(self, client_id: int) -> Session | None: ...


class PausesPart(Protocol):
    """CLIENT PAUSE."""

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """Hold commands back until a time in ms since epoch. A pause is never shortened by another."""
    def unpause(self) -> None: ...


class MonitorsPart(Protocol):
    """MONITOR."""

    def add(self, session: Session) -> None:
        """Sets ``session.monitoring``."""
    def remove(self, session: Session) -> None:
        """Idempotent."""


class PubSubPart(Protocol):
    """The registry of subscriptions."""

    def subscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Idempotent; changes ``session.channels`` or ``session.patterns``."""
    def unsubscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Idempotent; changes ``session.channels`` or ``session.patterns``."""
    def publish(self, channel: bytes, message: bytes) -> int:
        """Deliver to subscribers here and at replicas; returns the number of deliveries here."""
    def channels(self, pattern: bytes | None) -> list[bytes]: ...
    def channel_subscribers(self, channel: bytes) -> int: ...
    def pattern_count(self) -> int: ...


class ConfigPart(Protocol):
    """CONFIG, and the password."""

    def get(self, patterns: list[bytes]) -> list[tuple[str, str]]: ...
    def set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """All or nothing. Raises CommandError with Redis's texts."""
    def rewrite(self) -> None:
        """Raises CommandError."""
    def value(self, name: str) -> str: ...
    def check_password(self, user: bytes, password: bytes) -> bool:
        """In constant time."""


class WritesPart(Protocol):
    """How far the log goes. An offset counts bytes of records ever logged."""

    def written(self, session: Session) -> int:
        """A log offset: a log that reaches it has everything that the client has written."""
    def synced(self, offset: int) -> bool:
        """Whether everything up to ``offset`` is on this server's disk."""


class CheckpointsPart(Protocol):
    """SAVE and its kin. ``session``: whose writes so far end in the checkpoint's batch."""

    def save(self, session: Session) -> None:
        """Write a checkpoint before returning. Raises CommandError."""
    def begin(self, session: Session) -> bool:
        """Start one in the background; False if one is running. Raises CommandError."""
    def schedule(self) -> None:
        """Start one as soon as that is possible."""
    def last(self) -> int:
        """Unix seconds of the last good one."""


class RolesPart(Protocol):
    """Leader or replica."""

    def describe(self) -> list[object]:
        """What ROLE answers."""
    def follow(self, host: str, port: int) -> bool:
        """Become the replica of a leader; False if it is that already. Raises CommandError."""
    def lead(self) -> None:
        """Become a leader; nothing happens where it is one. Raises CommandError."""
    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """Begin to hand over to ``target``; None: to the first replica that has everything. 0 ms: no time limit.

        Raises CommandError.
        """
    def failover_abort(self) -> None:
        """Raises CommandError where nothing was begun."""
    def psync(self, session: Session, replid: str, offset: int, takeover: bool) -> None:
        """The client is a replica from now on. ``takeover``: and hands over to this server. Raises CommandError."""


class ReplicasPart(Protocol):
    """The replicas of this server."""

    def replconf(self, session: Session, options: list[bytes]) -> bool:
        """Names and values that a replica tells of itself; False if no reply is due. Raises CommandError."""
    def acknowledged(self, offset: int) -> int:
        """How many have everything up to ``offset``."""
    def synced(self, offset: int) -> int:
        """How many have everything up to ``offset`` on disk."""
    def ask(self) -> None:
        """Have them say how far they are."""


class StatsPart(Protocol):
    """INFO, MEMORY."""

    def info(self, sections: list[str]) -> str: ...
    def reset(self) -> None:
        """CONFIG RESETSTAT."""
    def memory(self) -> dict[str, int]:
        """Bytes: ``used resident peak startup clients replicas dataset node_cache``; and the number of ``keys``."""


class TimingsPart(Protocol):
    """SLOWLOG, LATENCY."""

    @property
    def slowlog(self) -> SlowLogPart: ...
    @property
    def latency(self) -> LatencyPart: ...
    def doublings(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        """Command -> its calls, and ``(microseconds, calls that took no longer)`` for powers of two."""


class SlowLogPart(Protocol):
    """Commands that took long."""

    def entries(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        """Newest first: ID, unix seconds, microseconds, argv, client address, client name."""
    def reset(self) -> None: ...


class LatencyPart(Protocol):
    """Events that took long."""

    def all(self) -> dict[str, list[tuple[int, int]]]:
        """Event -> [(unix seconds, ms), ...]."""
    def reset(self, events: list[str]) -> int:
        """No names: all. Returns how many there were."""


class DispatcherPart(Protocol):
    """What runs commands."""

    def run_queued(self, ctx: Context) -> Reply:
        """EXEC: run ``session.queued`` in order; the reply is the whole array (Chunks if a part was)."""


class ClockPart(Protocol):
    """TIME and DEBUG SLEEP. A handler's own time is ``ctx.now``."""

    def micros(self) -> int:
        """Microseconds since epoch."""
    def sleep(self, seconds: float) -> None:
        """Stop everything for so long."""
