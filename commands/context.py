"""Arguments and results of handlers.

A handler is a plain function ``handler(ctx, argv) -> Reply``; ``argv[0]`` is the name of the command as sent. It does
no I/O, reads no clock and never waits: ``ctx.now`` is the time, and a ``Block`` makes the client wait. It uses the
running server through its parts: ``ctx.server.clients``, ``ctx.server.config`` ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from commands.session import Caching, Session
from commands.users.denials import Denials
from commands.users.user import User
from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace


class Chunks:
    """A streamed reply: ``pieces`` yields encoded bytes; ``close()`` releases what they need.

    The connection takes the next piece when the socket's buffer has room. So memory is bounded: a piece has about
    ``stream-node-max-bytes`` at most. ``held``: bytes of memory that it takes until it is sent, roughly. ``pinned()``:
    bytes of data that it keeps in memory and that the keyspace may have dropped meanwhile.
    """

    __slots__ = ("close", "held", "pieces", "pinned")

    def __init__(
        self, pieces: Iterator[bytes], close: Callable[[], None], held: int = 0, pinned: Callable[[], int] | None = None
    ) -> None:  # fmt: skip
        self.pieces = pieces
        self.close = close
        self.held = held
        self.pinned = pinned

    def memory_bytes(self) -> int:
        """What it takes in memory now."""
        return self.held if self.pinned is None else self.held + self.pinned()


# Which pending messages of its group a blocked reader waits for (Block.wants), if not those of consumers that have been
# idle for so many ms.
NOTHING_PENDING: Final = -1
WHAT_IS_DUE: Final = -2


def next_pending(group: Group, wants: int) -> int | None:
    """When there is a pending message for a reader that ``wants`` such ones, None if there is none. For WHAT_IS_DUE in
    served time, else in ms since epoch: Redis measures idle time by the wall clock."""
    if wants == WHAT_IS_DUE:
        return group.pending.next_due()
    if wants == NOTHING_PENDING:
        return None
    first = group.pending.first_idle()
    return first + wants if first else first  # 0: one was given back, for whoever comes


class Block:
    """Returned if the client must wait until one of ``keys`` has news. Subclasses make the reply.

    ``keys``: at least one, none twice. ``group``: which group of each of these streams the client waits for, None for
    none. ``in_turn``: it takes what it is served from the others of its group, so that they are served one after
    another, in the order in which they blocked; else everyone is served. ``timeout_reply`` is sent at ``deadline`` (ms
    since epoch; 0: never). ``wants``: see above. ``by_name``: its group may end and be made anew while it waits, and
    serve() is asked also where there is none; else another group of the same name is not its own, and it gets an error.
    """

    __slots__ = ("by_name", "deadline", "group", "in_turn", "keys", "timeout_reply", "wants")

    def __init__(
        self, keys: Sequence[bytes], group: bytes | None, in_turn: bool, deadline: int, timeout_reply: bytes
    ) -> None:  # fmt: skip
        self.keys = keys
        self.group = group
        self.in_turn = in_turn
        self.deadline = deadline
        self.timeout_reply = timeout_reply
        self.wants = WHAT_IS_DUE
        self.by_name = False

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        """The reply, or None to go on waiting. Called when ``key`` is signalled, and when there is a pending message
        that it wants. Where it returns None it has looked at no other key.

        Raises CommandError, which ends the wait.
        """
        raise NotImplementedError

    def same(self, other: Block) -> bool:  # noqa: ARG002
        """Whether serve() of both returns the same for a key that both wait for, with the same group or none, and with
        the same protocol. Then they share one reply. Not asked of those that are served in turn."""
        return False


class Await:
    """Returned if the client must wait for replicas or the disk (WAIT, WAITAOF, SAVE).

    ``check()`` returns the reply, or None to go on waiting. It is called when a replica has acknowledged, the log was
    synced, or a checkpoint has ended. ``at_timeout()`` returns the reply at ``deadline`` (ms since epoch; 0: never).
    ``firm``: nothing else ends it, neither CLIENT UNBLOCK nor another role of this server.
    """

    __slots__ = ("at_timeout", "check", "deadline", "firm")

    def __init__(
        self, deadline: int, check: Callable[[], bytes | None], at_timeout: Callable[[], bytes], firm: bool = False
    ) -> None:
        self.firm = firm
        self.deadline = deadline
        self.check = check
        self.at_timeout = at_timeout


class Delay(Await):
    """Returned if the call must not be answered before ``deadline`` (a login after failures); at_timeout() makes it.

    at_timeout() may raise CommandError. Nothing else ends the wait, except the connection's end.
    """

    __slots__ = ()

    def __init__(self, deadline: int, at_timeout: Callable[[], bytes]) -> None:
        super().__init__(deadline, _never, at_timeout)


def _never() -> bytes | None:
    return None


def _nothing() -> None:
    """Nothing is held that has to be released."""


class Slices:
    """Returned if a command has more to do than other clients should wait for: their commands run between its slices.

    ``step(ctx)`` does the next slice, of some milliseconds at most. It returns the reply with the last one, else None,
    and raises CommandError to end. A command that has begun is finished, even if its client is gone. Until then no
    other command of the client runs. ``writes``: whether slices change data, which only a leader may. ``close()``
    releases what it holds if it ends without a reply. Inside EXEC all slices are done at once.

    For the data, such a command is a row of shorter ones: others see what the slices so far have done.
    """

    __slots__ = ("close", "step", "writes")

    def __init__(
        self, step: Callable[[Context], bytes | Chunks | None], writes: bool, close: Callable[[], None] = _nothing
    ) -> None:
        self.step = step
        self.writes = writes
        self.close = close


Reply = bytes | Chunks | Block | Await | Slices


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

    def served(self) -> int:
        """The served time (Rule 6 of ``Keyspace``), by which groups, stages and pending messages end or fall due.

        If too much has passed since the server looked last, it has to find out first whether it was away: this may
        shift served time, and log that.
        """
        ks = self.ks
        at = self.now - ks.away
        if ks.served_from <= at <= ks.served_to:
            return at
        self.server.presence.look()
        return ks.served(self.now)

    def touch(self, group: Group) -> None:
        """A reader of the group gives a sign of life [15]."""
        if group.ttl:
            group.deadline = self.served() + group.ttl


# -- the parts of the running server that handlers use: a protocol for each ----------------------------------------
class ServerParts(Protocol):
    """The parts, as attributes. ``respserver.server`` builds them."""

    @property
    def clients(self) -> ClientsPart: ...
    @property
    def users(self) -> UsersPart: ...
    @property
    def pauses(self) -> PausesPart: ...
    @property
    def monitors(self) -> MonitorsPart: ...
    @property
    def pubsub(self) -> PubSubPart: ...
    @property
    def tracking(self) -> TrackingPart: ...
    @property
    def notices(self) -> NoticesPart: ...
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
    def transactions(self) -> TransactionsPart: ...
    @property
    def clock(self) -> ClockPart: ...
    @property
    def presence(self) -> PresencePart: ...
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


class UsersPart(Protocol):
    """Users: for ACL, AUTH, HELLO, RESET. A change concerns connected clients at once."""

    @property
    def default(self) -> User:
        """The user of clients that have not logged in."""
    @property
    def denials(self) -> Denials:
        """ACL LOG."""
    def get(self, name: bytes) -> User | None: ...
    def all(self) -> list[User]:
        """In the order of their names."""
    def change(self, caller: Session, name: bytes, words: list[bytes]) -> None:
        """ACL SETUSER: change a user, or make a new one. Raises CommandError; then nothing has changed."""
    def delete(self, caller: Session, names: list[bytes]) -> int:
        """ACL DELUSER: returns how many there were. Raises CommandError for ``default``; then none is deleted."""
    def load(self, caller: Session) -> None:
        """ACL LOAD. Raises CommandError; then nothing has changed."""
    def save(self) -> None:
        """ACL SAVE. Raises CommandError."""
    def secret(self, count: int) -> bytes:
        """Random bytes for a password."""
    def greet(self, session: Session) -> None:
        """Give a new client, or one that has sent RESET, the user that it begins with."""
    def wait(self, session: Session) -> int:
        """Admit a login: the ms after which it may be tried; 0: at once."""
    def log_in(self, session: Session, name: bytes, password: bytes, command: bytes) -> None:
        """Raises CommandError (WRONGPASS). ``command``: AUTH or HELLO, as it was sent."""
    def note(self, session: Session, reason: str, what: bytes) -> None:
        """Add the denial of a call to ACL LOG. ``reason``, ``what``: of a ``commands.acl.check.Denial``."""


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
    def subscribe_shard(self, session: Session, channel: bytes) -> None:
        """Idempotent; changes ``session.shards``."""
    def unsubscribe_shard(self, session: Session, channel: bytes) -> None:
        """Idempotent; changes ``session.shards``."""
    def publish_shard(self, channel: bytes, message: bytes) -> int:
        """publish() to the subscribers of a shard channel."""
    def unsubscribe_some(self, session: Session, count: int) -> bool:
        """End so many subscriptions of any kind; returns whether there are more."""
    def channels(self) -> list[bytes]:
        """Channels that have subscribers; a copy."""
    def channel_subscribers(self, channel: bytes) -> int: ...
    def shard_channels(self) -> list[bytes]:
        """channels(), of shard channels."""
    def shard_subscribers(self, channel: bytes) -> int: ...
    def pattern_count(self) -> int: ...


class TrackingPart(Protocol):
    """For CLIENT TRACKING."""

    def enable(self, session: Session, caching: Caching) -> None:
        """Begin, or change what was asked for before; prefixes are added."""
    def disable(self, session: Session) -> None:
        """Idempotent."""


class NoticesPart(Protocol):
    """What clients are told of changes: keyspace events, and messages of CLIENT TRACKING."""

    def tell(self, session: Session | None) -> None:
        """Queue what has happened since the last call; ``session``: whose commands it was, None for nobody's."""


class ConfigPart(Protocol):
    """For CONFIG."""

    def get(self, patterns: list[bytes]) -> list[tuple[str, str]]: ...
    def set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set all or none. Raises CommandError with Redis's texts."""
    def rewrite(self) -> None:
        """Raises CommandError."""
    def value(self, name: str) -> str: ...


class WritesPart(Protocol):
    """Log offsets. An offset is the number of bytes of all records before it."""

    def written(self, session: Session) -> int:
        """A log offset. A log that reaches it has all writes of the client."""
    def synced(self, offset: int) -> bool:
        """Whether the log is on this server's disk up to ``offset``."""


class CheckpointsPart(Protocol):
    """For SAVE and related commands. ``session``: the caller, whose writes so far are in the checkpoint."""

    def save(self, session: Session) -> Callable[[], str | None]:
        """Start one. Returns what tells how it ended: the text of an error, empty for none; None until then.

        Raises CommandError, also if one is running.
        """
    @property
    def rewriting(self) -> bool:
        """Whether one for BGREWRITEAOF is running."""
    def begin(self, session: Session, rewrite: bool) -> bool:
        """Start one in the background, for BGSAVE or BGREWRITEAOF. Returns False if one is running.

        Raises CommandError.
        """
    def schedule(self, rewrite: bool) -> None:
        """Start one as soon as possible."""
    def last(self) -> int:
        """Unix seconds of the last successful one."""
    def refused(self) -> str | None:
        """Why none can be written: the files are not where they were. None otherwise."""


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
    def ready(self, sections: list[str]) -> bool:
        """Prepare info() for these sections, and memory(), for some milliseconds. True once they cost little."""
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
    def worst(self, event: str) -> int:
        """The most ms of an event since it was reset, also if that sample is no longer kept; 0: there is none."""
    def reset(self, events: list[str]) -> int:
        """Forget the named events, or all if none is named. Returns how many there were."""


class TransactionsPart(Protocol):
    """What is queued, for EXEC."""

    def run_queued(self, ctx: Context) -> Reply:
        """Run ``session.queued`` in order; the reply is an array, as Chunks if one of its parts is."""


class PresencePart(Protocol):
    """For Context.served()."""

    def look(self) -> None:
        """Set the bounds of served time to now; shift it if the server was away."""


class ClockPart(Protocol):
    """For TIME and DEBUG SLEEP. For everything else the time is ``ctx.now``."""

    def micros(self) -> int:
        """Microseconds since the epoch."""
    def sleep(self, seconds: float) -> None:
        """Block the whole server for a time."""
