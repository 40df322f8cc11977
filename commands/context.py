"""Arguments and results of handlers.

A handler is a plain function ``handler(ctx, argv) -> Reply``; ``argv[0]`` is the name of the command as sent. It does
no I/O, reads no clock and never waits: ``ctx.now`` is the time, and a ``Block`` makes the client wait. It uses the
running server through its parts: ``ctx.server.clients``, ``ctx.server.config`` ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from commands.session import Session
from storage.keyspace import Keyspace


class Chunks:
    """A streamed reply: ``pieces`` yields encoded bytes; ``close()`` releases what they need.

    The connection takes the next piece when the socket's buffer has room. So memory is bounded: a piece has about
    ``stream-node-max-bytes`` at most.
    """

    __slots__ = ("close", "pieces")

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self.pieces = pieces
        self.close = close


class Block:
    """Returned if the client must wait until ``key`` has news. Subclasses make the reply.

    ``group`` is None for a plain reader, else the group whose queue it joins. ``timeout_reply`` is sent at
    ``deadline`` (ms since epoch; 0: never).
    """

    __slots__ = ("deadline", "group", "key", "timeout_reply")

    def __init__(self, key: bytes, group: bytes | None, deadline: int, timeout_reply: bytes) -> None:
        self.key = key
        self.group = group
        self.deadline = deadline
        self.timeout_reply = timeout_reply

    def serve(self, ctx: Context) -> bytes | Chunks | None:
        """The reply, or None to go on waiting. Called when the key is signalled, and at wake_at().

        Raises CommandError, which ends the wait.
        """
        raise NotImplementedError

    def wake_at(self, ctx: Context) -> int | None:  # noqa: ARG002
        """When the next message of the group falls due, in ms since epoch; None if none does."""
        return None

    def same(self, other: Block) -> bool:  # noqa: ARG002
        """Whether serve() of both returns the same now. ``other``: of a plain reader with the same key and protocol."""
        return False


class Await:
    """Returned if the client must wait for replicas or the disk (WAIT, WAITAOF).

    ``check()`` returns the reply, or None to go on waiting. It is called when a replica has acknowledged or the log was
    synced. ``at_timeout()`` returns the reply at ``deadline`` (ms since epoch; 0: never).
    """

    __slots__ = ("at_timeout", "check", "deadline")

    def __init__(self, deadline: int, check: Callable[[], bytes | None], at_timeout: Callable[[], bytes]) -> None:
        self.deadline = deadline
        self.check = check
        self.at_timeout = at_timeout


Reply = bytes | Chunks | Block | Await


class Context:
    """The data and the client of a command. The dispatcher reuses one object: a handler must not keep it."""

    __slots__ = ("in_exec", "ks", "now", "server", "session")

    ks: Keyspace
    now: int  # ms since epoch; one reading for each command
    session: Session
    server: ServerParts
    in_exec: bool  # inside EXEC, where commands must not block

    def __init__(self, ks: Keyspace, server: ServerParts, session: Session, now: int = 0) -> None:
        self.ks = ks
        self.server = server
        self.session = session
        self.now = now
        self.in_exec = False


# -- the parts of the running server that handlers use: a protocol for each ----------------------------------------
class ServerParts(Protocol):
    """The parts, as attributes. ``respserver.server`` builds them."""

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
        """A random number in [0, 1)."""
    def stop(self, save: bool, now: bool) -> None:
        """End the server. ``save``: with a checkpoint. ``now``: without waiting for replicas."""
    def reload(self, session: Session, save: bool) -> None:
        """Read everything back from disk. ``save``: after a checkpoint. Raises CommandError."""


class ClientsPart(Protocol):
    """For CLIENT. Operations on a single client are methods of its ``session.transport``."""

    def all(self) -> list[Session]:
        """All sessions, oldest first; a copy."""
    def get(self, client_id: int) -> Session | None: ...


class PausesPart(Protocol):
    """For CLIENT PAUSE."""

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """Hold commands back until a time in ms since epoch. A shorter pause does not end a longer one."""
    def unpause(self) -> None: ...


class MonitorsPart(Protocol):
    """For MONITOR."""

    def add(self, session: Session) -> None:
        """Also sets ``session.monitoring``."""
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
    """For CONFIG, and the password."""

    def get(self, patterns: list[bytes]) -> list[tuple[str, str]]: ...
    def set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set all or none. Raises CommandError with Redis's texts."""
    def rewrite(self) -> None:
        """Raises CommandError."""
    def value(self, name: str) -> str: ...
    def check_password(self, user: bytes, password: bytes) -> bool:
        """Whether they are right, compared in constant time."""


class WritesPart(Protocol):
    """Log offsets. An offset is the number of bytes of all records before it."""

    def written(self, session: Session) -> int:
        """A log offset. A log that reaches it has all writes of the client."""
    def synced(self, offset: int) -> bool:
        """Whether the log is on this server's disk up to ``offset``."""


class CheckpointsPart(Protocol):
    """For SAVE and related commands. ``session``: the caller, whose writes so far are in the checkpoint."""

    def save(self, session: Session) -> None:
        """Write a checkpoint before returning. Raises CommandError."""
    def begin(self, session: Session) -> bool:
        """Start one in the background. Returns False if one is running. Raises CommandError."""
    def schedule(self) -> None:
        """Start one as soon as possible."""
    def last(self) -> int:
        """Unix seconds of the last successful one."""


class RolesPart(Protocol):
    """The role of the server."""

    def describe(self) -> list[object]:
        """The reply of ROLE."""
    def follow(self, host: str, port: int) -> bool:
        """Become a replica of this leader. Returns False if it is one already. Raises CommandError."""
    def lead(self) -> None:
        """Become a leader. Does nothing on a leader. Raises CommandError."""
    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """Start to hand over to ``target``; None: to the first replica that has everything. 0 ms: no timeout.

        Raises CommandError.
        """
    def failover_abort(self) -> None:
        """Raises CommandError if no failover is under way."""
    def psync(self, session: Session, replid: str, offset: int, takeover: bool) -> None:
        """Make the connection a replica's. ``takeover``: the sender hands over to this server. Raises CommandError."""


class ReplicasPart(Protocol):
    """The replicas of this server."""

    def replconf(self, session: Session, options: list[bytes]) -> bool:
        """Take names and values from a replica. Returns False if no reply must be sent. Raises CommandError."""
    def acknowledged(self, offset: int) -> int:
        """The number of replicas that have the log up to ``offset``."""
    def synced(self, offset: int) -> int:
        """The number of replicas that have the log up to ``offset`` on disk."""
    def ask(self) -> None:
        """Ask them to acknowledge."""


class StatsPart(Protocol):
    """For INFO and MEMORY."""

    def info(self, sections: list[str]) -> str: ...
    def reset(self) -> None:
        """CONFIG RESETSTAT."""
    def memory(self) -> dict[str, int]:
        """Bytes: ``used resident peak startup clients replicas dataset node_cache``; and the number of ``keys``."""


class TimingsPart(Protocol):
    """For SLOWLOG and LATENCY."""

    @property
    def slowlog(self) -> SlowLogPart: ...
    @property
    def latency(self) -> LatencyPart: ...
    def doublings(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        """Command -> its calls, and ``(microseconds, calls that took at most that)`` for powers of two."""


class SlowLogPart(Protocol):
    """The slow log."""

    def entries(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        """Newest first: ID, unix seconds, microseconds, argv, client address, client name."""
    def reset(self) -> None: ...


class LatencyPart(Protocol):
    """Latency samples."""

    def all(self) -> dict[str, list[tuple[int, int]]]:
        """Event -> [(unix seconds, ms), ...]."""
    def reset(self, events: list[str]) -> int:
        """Forget the named events, or all if none is named. Returns how many there were."""


class DispatcherPart(Protocol):
    """The dispatcher, for EXEC."""

    def run_queued(self, ctx: Context) -> Reply:
        """Run ``session.queued`` in order; the reply is an array, as Chunks if one of its parts is."""


class ClockPart(Protocol):
    """For TIME and DEBUG SLEEP. For everything else the time is ``ctx.now``."""

    def micros(self) -> int:
        """Microseconds since the epoch."""
    def sleep(self, seconds: float) -> None:
        """Block the whole server for a time."""
