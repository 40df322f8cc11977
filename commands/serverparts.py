"""The parts of the running server that handlers use: a protocol for each (see ``context``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from commands.session import Session, TrackingOptions
from commands.slots import ClusterShard
from commands.users.denials import Denials
from commands.users.user import User


class ClientsPart(Protocol):
    """The registry of clients, for CLIENT. Operations on one client are methods of its ``session.transport``."""

    def all(self) -> list[Session]:
        """Return all sessions, oldest first, as a copy."""

    def get(self, client_id: int) -> Session | None: ...


class UsersPart(Protocol):
    """Users, for ACL, AUTH, HELLO and RESET. A change applies to connected clients immediately."""

    @property
    def default(self) -> User:
        """The user of clients that have not logged in."""

    @property
    def denials(self) -> Denials:
        """The entries of ACL LOG."""

    def get(self, name: bytes) -> User | None: ...
    def all(self) -> list[User]:
        """Return all users, sorted by name."""

    def change(self, caller: Session, name: bytes, words: list[bytes]) -> None:
        """ACL SETUSER: change or create a user. Raises CommandError; nothing has changed then."""

    def delete(self, caller: Session, names: list[bytes]) -> int:
        """ACL DELUSER: return how many of the users existed. Raises CommandError for ``default``; deletes none then."""

    def load(self, caller: Session) -> None:
        """Reload the users (ACL LOAD). Raises CommandError; nothing has changed then."""

    def save(self) -> None:
        """Write the ACL file (ACL SAVE). Raises CommandError."""

    def secret(self, count: int) -> bytes:
        """Return random bytes for a password."""

    def greet(self, session: Session) -> None:
        """Assign the initial user to a client that has connected or sent RESET."""

    def wait(self, session: Session) -> int:
        """Admit a login: return the ms after which it may be tried; 0: immediately."""

    def log_in(self, session: Session, name: bytes, password: bytes, command: bytes) -> None:
        """Log in. Raises CommandError (WRONGPASS). ``command``: AUTH or HELLO, as it was sent."""

    def note(self, session: Session, reason: str, what: bytes) -> None:
        """Add a denied call to ACL LOG. ``reason``, ``what``: see ``commands.acl.check.Denial``."""


class PausesPart(Protocol):
    """Delays of commands, for CLIENT PAUSE."""

    def pause(self, ms: int, writes_only: bool) -> None:
        """Delay commands for a time in ms. A shorter pause does not end a longer one."""

    def unpause(self) -> None: ...


class MonitorsPart(Protocol):
    """The monitoring clients, for MONITOR."""

    def add(self, session: Session) -> None:
        """Add the session. Also sets ``session.monitoring``."""

    def remove(self, session: Session) -> None:
        """Remove the session. Idempotent."""


class PubSubPart(Protocol):
    """The registry of subscriptions."""

    # ``kind``: CHANNELS, PATTERNS or SHARDS of ``commands.session``
    def subscribe(self, session: Session, kind: int, name: bytes) -> None:
        """Add a subscription. Idempotent; changes ``session.subscriptions(kind)``."""

    def unsubscribe(self, session: Session, kind: int, name: bytes) -> None:
        """Remove a subscription. Idempotent; changes ``session.subscriptions(kind)``."""

    def unsubscribe_some(self, session: Session, count: int) -> bool:
        """End ``count`` subscriptions of any kind; return whether there are more."""

    def publish(self, channel: bytes, message: bytes, shard: bool = False) -> int:
        """Deliver to subscribers of this server and of its replicas; return the number of deliveries here."""

    def names(self, kind: int) -> list[bytes]:
        """Return the names that have subscribers, as a copy."""

    def count(self, kind: int) -> int:
        """Return the number of names that have subscribers."""

    def subscribers(self, kind: int, name: bytes) -> int: ...


class TrackingPart(Protocol):
    """The clients that cache keys, for CLIENT TRACKING."""

    def enable(self, session: Session, caching: TrackingOptions) -> None:
        """Start tracking, or change its options; prefixes are added to earlier ones."""

    def disable(self, session: Session) -> None:
        """Stop tracking. Idempotent."""


class NotificationsPart(Protocol):
    """Notifications of changes: keyspace events and the messages of CLIENT TRACKING."""

    def send(self, session: Session | None) -> None:
        """Queue notifications of all changes since the last call. ``session``: the client that made them, or None."""


class ConfigPart(Protocol):
    """The directives, for CONFIG."""

    def get(self, patterns: list[bytes]) -> list[tuple[str, str]]: ...
    def set(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Set all values or none. Raises CommandError with Redis's texts."""

    def rewrite(self) -> None:
        """Rewrite the configuration file. Raises CommandError."""

    def value(self, name: str) -> str: ...


class TieringPart(Protocol):
    """The copies of the history in an object store."""

    def target(self) -> tuple[str, str]:
        """Return ``tier-url`` and the ID of its owner; "" if it is not set, or the ID is not known."""


class WritesPart(Protocol):
    """Log offsets. An offset is the number of bytes of all records before it."""

    def written(self, session: Session) -> int:
        """Return a log offset. A log that reaches it contains all writes of the client."""

    def repeated(self, session: Session) -> None:
        """Count all writes so far as those of the client: it has repeated one, perhaps of an earlier connection."""

    def synced(self, offset: int) -> bool:
        """Return whether the log is on this server's disk up to ``offset``."""


class CheckpointsPart(Protocol):
    """Checkpoints, for SAVE and related commands. They include the writes so far of ``session``, the caller."""

    def save(self, session: Session) -> Callable[[], str | None]:
        """Start a checkpoint. Returns a function that returns its result: None until it has ended, then an empty string
        or the text of the error. Raises CommandError, also if a checkpoint is in progress."""

    @property
    def rewriting(self) -> bool:
        """Whether a checkpoint for BGREWRITEAOF is in progress."""

    def begin(self, session: Session, rewrite: bool) -> bool:
        """Start a checkpoint for BGSAVE or BGREWRITEAOF. Returns False if one is in progress. Raises CommandError."""

    def schedule(self, rewrite: bool) -> None:
        """Start a checkpoint as soon as possible."""

    def last(self) -> int:
        """Return the Unix time, in seconds, of the last successful checkpoint."""

    def refused(self) -> str | None:
        """Return why no checkpoint can be written (files were moved or removed), or None."""


class RolesPart(Protocol):
    """The role of the server."""

    def describe(self) -> list[object]:
        """Return the reply of ROLE."""

    def follow(self, host: str, port: int, force: bool = False) -> bool:
        """Become a replica of this leader. Returns False if it already is one. Raises CommandError.

        ``force``: take a full copy even from a leader with less data and an unrelated history.
        """

    def lead(self, force: bool = False) -> None:
        """Become a leader. Does nothing on a leader. Raises CommandError. ``force``: even with incomplete data."""

    def failover(self, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        """Start to hand over to ``target``, or to the first complete replica. 0 ms: no timeout. Raises CommandError."""

    def failover_abort(self) -> None:
        """Abort the failover. Raises CommandError if none is in progress."""

    def psync(self, session: Session, replid: str, offset: int, takeover: bool) -> None:
        """Turn the connection into a replica's. ``takeover``: the sender hands over to it. Raises CommandError."""


class ReplicasPart(Protocol):
    """The replicas of this server."""

    def replconf(self, session: Session, options: list[bytes]) -> bytes:
        """Process names and values from a replica. Returns the reply; b"": none is to be sent. Raises CommandError."""

    def acknowledged(self, offset: int) -> int:
        """Return the number of replicas that have the log up to ``offset``."""

    def synced(self, offset: int) -> int:
        """Return the number of replicas that have the log on disk up to ``offset``."""

    def ask(self) -> None:
        """Request acknowledgements."""


class ClusterPart(Protocol):
    """The servers that share the slots, for cluster clients."""

    @property
    def enabled(self) -> bool:
        """The directive ``cluster-enabled``."""

    @property
    def id(self) -> str:
        """The ID of this server."""

    def shards(self, session: Session) -> list[ClusterShard]:
        """Return the groups that share the slots, that of this server first, as this client reaches them."""

    @property
    def serves(self) -> bool:
        """Whether a leader serves the slots, as far as this server knows."""

    @property
    def shard(self) -> str:
        """The ID of the shard, which is the same on all its members."""

    @property
    def epoch(self) -> int:
        """The epoch of the server group; 0: this server is in none."""

    @property
    def reads_when_down(self) -> bool:
        """The directive ``cluster-allow-reads-when-down``."""

    def leader(self, session: Session) -> tuple[str, int]:
        """Return the host and port at which this client reaches the leader. For a replica only. Raises CommandError if
        there is no leader."""

    def leader_of(self, group: str, session: Session) -> tuple[str, int]:
        """Return the host and port at which this client reaches the leader of another group, by the map."""


class MapPart(Protocol):
    """The map of the cluster: which group owns which slots."""

    def document(self) -> dict[str, object] | None:
        """Return the map as JSON shows it; None if this server does not know it."""

    def status(self) -> dict[str, object]:
        """Return the map and the view of this member, as JSON shows it."""

    def assignment(self, ranges: list[str], to: str) -> Callable[[], str | None]:
        """Start to assign empty slots to a group; "": to none. Returns a function as ``GroupPart.removal``. Raises
        CommandError."""

    def movement(self, ranges: list[str], to: str) -> Callable[[], str | None]:
        """Start to move slots with their keys to a group. Returns a function as ``GroupPart.removal``. Raises
        CommandError."""

    def end_of_move(self) -> Callable[[], str | None]:
        """Start to abort the move of slots of this group. Returns a function as ``GroupPart.removal``."""

    def import_begin(self, name: str) -> Callable[[], str | None]:
        """Start to receive the keys of a move from another group. Returns a function as ``GroupPart.removal``."""

    def import_link(self, name: str, url: str, objects: list[tuple[str, int]]) -> Callable[[], str | None]:
        """Start to link history objects of the other group for a move. ``url``: their prefix. ``objects``: names, and
        the bytes of moving streams in each. Returns a function that returns None until it has ended, then LINKED, the
        epoch in the names of the links, and 0 or 1 for each object; or an error line."""

    def import_part(self, name: str, part: bytes) -> None:
        """Receive the next part of a large record. Raises CommandError."""

    def import_data(self, name: str, away: int, batch: bytes) -> None:
        """Apply records of a move. ``away``: of the sender, in ms. Raises CommandError."""

    def import_end(self, name: str) -> None:
        """Note that all records of a move were received. Raises CommandError."""

    def removal(self, group: str) -> Callable[[], str | None]:
        """Start to remove a group that owns no slots. Returns a function as ``GroupPart.removal``."""

    def restoration(self) -> Callable[[], str | None]:
        """Start to write the map of this member to a coordinator that has lost it. Returns a function as
        ``GroupPart.removal``."""


class GroupPart(Protocol):
    """The server group of which this server is a member."""

    def status(self) -> dict[str, object]:
        """Return the status, as JSON shows it."""

    def fail_over(self, target: str, timeout_ms: int) -> None:
        """Hand over to a member; "": the best one. 0 ms: the default timeout. Raises CommandError."""

    def removal(self, name: str) -> Callable[[], str | None]:
        """Start to remove a member. Returns a function that returns its result: None until it has ended, then an empty
        string or the text of the error."""


class StatsPart(Protocol):
    """Statistics, for INFO and MEMORY."""

    def info(self, sections: list[str]) -> str: ...
    def ready(self, sections: list[str]) -> bool:
        """Prepare info() for these sections, and memory(), for some milliseconds. Returns True once they are fast."""

    def reset(self) -> None:
        """Reset the counters (CONFIG RESETSTAT)."""

    def memory(self) -> dict[str, int]:
        """Return bytes by name (``used resident peak startup clients replicas dataset node_cache``) and ``keys``."""


class TimingsPart(Protocol):
    """Durations of commands, for SLOWLOG and LATENCY."""

    @property
    def slowlog(self) -> SlowLogPart: ...
    @property
    def latency(self) -> LatencyPart: ...
    def doublings(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        """Return, by command, the number of calls, and (microseconds, calls up to that long) for powers of two."""


class SlowLogPart(Protocol):
    """The slow log."""

    def entries(self) -> list[tuple[int, int, int, list[bytes], str, str]]:
        """Return the entries, newest first: ID, Unix seconds, microseconds, argv, client address, client name."""

    def reset(self) -> None: ...


class LatencyPart(Protocol):
    """Latency samples."""

    def all(self) -> dict[str, list[tuple[int, int]]]:
        """Return the samples by event: [(Unix seconds, ms), ...]."""

    def worst(self, event: str) -> int:
        """Return the longest ms of an event since it was reset, even if that sample was dropped; 0: there is none."""

    def reset(self, events: list[str]) -> int:
        """Delete the samples of the named events, or all if no event is named. Returns the number of events."""


class ServedTimePart(Protocol):
    """Served time, for Context.served()."""

    def update(self) -> None:
        """Set the bounds of served time to now; shift it if the server was unavailable."""


class ClockPart(Protocol):
    """The clocks, for TIME and DEBUG SLEEP. Everything else uses ``ctx.now``."""

    def micros(self) -> int:
        """Return the microseconds since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Block the whole server for this time."""
