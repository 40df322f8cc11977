"""What a handler is given and what it may return.

A handler is a plain function ``handler(ctx, argv) -> Reply``; ``argv[0]`` is the command's name as sent.
It reads no clock, opens nothing and never waits: ``ctx.now`` is the time, a ``Block`` asks the server to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
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
    ``deadline`` (ms since epoch, 0 = never). What is waited for, a subclass knows.
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

    ``check()`` is asked again whenever a replica acknowledges or the log was synced; it returns the reply, or None to
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
    server: ServerAPI
    in_exec: bool  # inside EXEC: nothing blocks

    def __init__(self, ks: Keyspace, server: ServerAPI, session: Session, now: int = 0) -> None:
        self.ks = ks
        self.server = server
        self.session = session
        self.now = now
        self.in_exec = False


class ServerAPI(Protocol):
    """What the running server offers to handlers; the implementation is respserver's."""

    # -- clients
    def client_list(self) -> list[Session]:
        """Oldest connection first; a copy."""
    def client_line(self, session: Session, now: int) -> str:
        """Its line of CLIENT LIST, without the line end."""
    def client_kill(self, victims: list[Session], caller: Session) -> bool:
        """Close them at once, the caller after its reply. True if the caller is among them."""
    def client_unblock(self, client_id: int, error: bool) -> bool: ...
    def client_pause(self, until_ms: int, writes_only: bool) -> None: ...
    def client_unpause(self) -> None: ...
    def push(self, session: Session, data: bytes) -> None:
        """Queue out-of-band bytes (a message, a monitor line) for a client; released with the tick."""

    # -- pub/sub registry, MONITOR
    def subscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Idempotent; changes ``session.channels`` or ``session.patterns``."""
    def unsubscribe(self, session: Session, channel: bytes, pattern: bool) -> None:
        """Idempotent; changes ``session.channels`` or ``session.patterns``."""
    def publish(self, channel: bytes, message: bytes) -> int: ...
    def channels(self, pattern: bytes | None) -> list[bytes]: ...
    def channel_subscribers(self, channel: bytes) -> int: ...
    def pattern_count(self) -> int: ...
    def monitor(self, session: Session, on: bool) -> None:
        """Start or stop MONITOR; sets ``session.monitoring``."""

    # -- transactions
    def watch(self, session: Session, key: bytes) -> None:
        """Adds to ``session.watching``; a change of the key sets ``session.dirty_cas``."""
    def unwatch(self, session: Session) -> None:
        """Empties ``session.watching``; leaves ``session.dirty_cas`` to the caller."""
    def run_queued(self, ctx: Context) -> Reply:
        """EXEC: run session.queued in order; the reply is the whole array (Chunks if a part was)."""

    # -- configuration
    def config_get(self, patterns: list[bytes]) -> list[tuple[str, str]]: ...
    def config_set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """All or nothing; raises CommandError with Redis's texts."""
    def config_rewrite(self) -> None: ...
    def config_value(self, name: str) -> str: ...
    def check_password(self, user: bytes, password: bytes) -> bool:
        """In constant time."""

    # -- persistence and life
    def save(self) -> None:
        """Checkpoint before returning; raises CommandError."""
    def bgsave(self, schedule: bool) -> bool:
        """Start a checkpoint; False if that can't be done now: one is running, or a transaction is.

        ``schedule``: then begin when it can.
        """
    def last_save(self) -> int: ...
    def shutdown(self, save: bool, now: bool, force: bool, abort: bool) -> None:
        """Begin to end, or give that up (``abort``; raises CommandError where nothing was begun)."""
    def reload(self) -> None:
        """DEBUG RELOAD: checkpoint, then read everything back from disk."""
    def load_log(self) -> None:
        """DEBUG LOADAOF: read everything back from store, journal and tail, without a checkpoint."""

    # -- replication
    def follower(self) -> bool:
        """Whether this server is a replica."""
    def role(self) -> list[object]:
        """What ROLE tells."""
    def replicate_from(self, host: str, port: int) -> bool:
        """Become the replica of a leader; False if it is that already. Raises CommandError."""
    def lead(self) -> None:
        """Become a leader; nothing happens where it is one. Raises CommandError."""
    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """Begin to hand over to a replica, None: to the first that has everything; 0 ms: whenever that is.

        Raises CommandError.
        """
    def failover_abort(self) -> None:
        """Raises CommandError where nothing was begun."""
    def replconf(self, session: Session, argv: list[bytes]) -> bytes:
        """What a replica says of itself; the reply, empty where none is due. Raises CommandError."""
    def psync(self, session: Session, argv: list[bytes]) -> Await:
        """From now on the client is a replica: it is parked until its link is taken over. Raises CommandError."""
    def written(self, session: Session) -> int:
        """A log offset: whoever has everything up to it has all that the client has written."""
    def acknowledged(self, offset: int) -> int:
        """How many replicas have everything up to ``offset``."""
    def synced(self, offset: int) -> int:
        """How many replicas have everything up to ``offset`` on disk."""
    def synced_here(self, offset: int) -> bool:
        """Whether everything up to ``offset`` is on this server's disk."""
    def ask_replicas(self) -> None:
        """Have them say how far they are."""

    # -- observation
    def info(self, sections: list[str]) -> str: ...
    def reset_stats(self) -> None: ...
    def slowlog(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        """Newest first: id, unix seconds, microseconds, argv, client address, client name."""
    def slowlog_reset(self) -> None: ...
    def latency(self) -> dict[str, list[tuple[int, int]]]:
        """Event -> [(unix seconds, ms), ...]."""
    def latency_reset(self, events: list[str]) -> int:
        """No names: all. Returns how many there were."""
    def latency_histograms(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        """Command -> its calls, and ``(microseconds, calls that took no longer)`` for powers of two."""
    def memory_figures(self) -> dict[str, int]:
        """Bytes: ``used resident peak startup clients replicas dataset node_cache``; and the number of ``keys``."""
    def sleep(self, seconds: float) -> None:
        """DEBUG SLEEP."""
    def clock_us(self) -> int:
        """Microseconds since epoch, for TIME."""
    def random(self) -> float: ...
