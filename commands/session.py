"""The state of one client that commands read and change. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, cast

from commands.users.user import User, superuser
from storage.keyspace.keylog import Watcher
from storage.keyspace.keyspace import Keyspace

LEADER: Final = "leader"  # ``Session.replica`` of the session of the link to this server's leader
SUPERUSER: Final = superuser()
# Memory of a watched key, and of a subscription, without its name: elements of two tables, usually with a separate set.
WATCH_BYTES: Final = 400
SUBSCRIPTION_BYTES: Final = 400
SHORT_NAMES: Final = 256
# The kinds of subscriptions. The last one: shard channels.
KINDS = CHANNELS, PATTERNS, SHARDS = range(3)


@dataclass
class TransportStats:
    """Statistics of a connection. The defaults are for sessions without a connection."""

    fd: int = -1
    query_buffered: int = 0  # size of an incomplete command and of waiting commands
    output_queued: int = 0  # size of the replies that wait for the end of the tick, or are withheld
    output_withheld: int = 0  # size of the replies that are withheld (``replica-acks``)
    output_buffered: int = 0  # size of the replies that wait for the socket
    output_pieces: int = 0  # pieces that wait for the socket: its buffer is one, and so is a streamed reply
    reading: bool = True
    writing: bool = False  # the socket's buffer is full
    paused: bool = False  # CLIENT PAUSE or a FAILOVER delays a command
    wait: int = 0  # memory of a wait for many streams


class Transport(Protocol):
    """The methods of a client's connection that commands use."""

    def kill(self) -> None:
        """Close immediately. Queued replies are lost, and a wait of the client ends."""

    def unblock(self, error: bool) -> bool:
        """End the client's wait, as at its timeout or with an error. Returns False if the client does not wait."""

    def push(self, data: bytes) -> None:
        """Queue encoded bytes that are not a reply (a message, a MONITOR line), to be sent at the end of the tick."""

    def hold_pushes(self) -> None:
        """Queue later pushes after the next reply, that of the running command."""

    def release_pushes(self) -> None:
        """Send the delayed pushes. Idempotent."""

    def stats(self) -> TransportStats: ...


class TrackingOptions:
    """The options of CLIENT TRACKING: the client wants notifications of changes of keys that it may have cached."""

    __slots__ = ("bcast", "broken", "called", "noloop", "optin", "optout", "parked", "prefixes", "redirect")

    def __init__(self) -> None:
        self.bcast = False  # notify of all keys that begin with one of the prefixes; otherwise of keys that were read
        self.prefixes: set[bytes] = set()
        self.optin = False  # reads count only after CLIENT CACHING YES
        self.optout = False  # reads count unless after CLIENT CACHING NO
        self.called = False  # CLIENT CACHING was called for the next command or transaction
        self.noloop = False  # do not notify of the client's own changes
        self.redirect = 0  # the ID of the client that is notified instead; 0: this client
        self.broken = False  # that client has disconnected
        self.parked: list[bytes] | None = None  # a waiting read: its keys are recorded as read when it ends


class Session:
    """The state of one client."""

    __slots__ = (
        "addr",
        "authenticated",
        "blocked",
        "caching",
        "close_after_reply",
        "created",
        "dirty_cas",
        "exec_abort",
        "id",
        "laddr",
        "last_active",
        "last_command",
        "lib_name",
        "lib_ver",
        "limited",
        "monitoring",
        "multi",
        "multislot",
        "name",
        "no_evict",
        "no_touch",
        "patterns",
        "plain",
        "proto",
        "queued",
        "readonly",
        "replica",
        "reply_mode",
        "retained_bytes",
        "channels",
        "shards",
        "tls",
        "total_batches",
        "total_in",
        "total_out",
        "total_commands",
        "total_reads",
        "transport",
        "unix",
        "user",
        "watching",
        "wrote",
    )

    def __init__(self, client_id: int, addr: str, laddr: str, now: int) -> None:
        # identity
        self.id = client_id
        self.addr = addr  # "ip:port", or "path:0" for a unix socket
        self.laddr = laddr
        self.created = now  # ms since epoch
        self.transport: Transport | None = None  # the connection; None once it is closed
        self.tls = False
        self.unix = False
        # connection state
        self.proto = 2  # 2 or 3
        self.authenticated = True  # False until AUTH if a password is set
        self.user: User = SUPERUSER  # the server's ``users`` assigns a client its user
        self.name = b""
        self.lib_name = b""
        self.lib_ver = b""
        self.reply_mode = 0  # 0 on, 1 off, 2 skip the next reply, 3 skip this one
        self.no_evict = False
        self.no_touch = False
        self.multislot = False  # CLIENT MULTISLOT: keys of one call, or of a transaction, may have different slots
        self.readonly = False  # READONLY: it may read from a replica of a cluster
        self.monitoring = False
        self.close_after_reply = False
        self.blocked = False
        self.caching: TrackingOptions | None = None  # options of CLIENT TRACKING; the server's ``tracking`` sets it
        # True for a typical client, which takes the dispatcher's fast path: authenticated, no MULTI, replies on, no
        # subscriptions in RESP2, no CLIENT TRACKING, and a user who may do everything. refresh() must be called after
        # one of these has changed.
        self.plain = True
        self.limited = False  # would be plain if its user were unrestricted
        # replication
        self.replica: object = None  # the feed of the replica whose connection this is, or LEADER
        # a log offset in the commit group of its last write; a log that reaches it contains the whole group
        self.wrote = 0
        # transaction
        self.multi = False
        self.exec_abort = False  # a command was refused instead of queued
        self.dirty_cas = False  # a watched key changed
        self.queued: list[list[bytes]] = []
        self.watching: set[bytes] = set()
        # subscriptions
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        self.shards: set[bytes] = set()  # shard channels
        self.retained_bytes = 0  # approximate memory of its watched keys, subscriptions and prefixes
        # counters
        self.last_active = now  # ms since epoch
        self.last_command = "NULL"
        self.total_in = self.total_out = 0  # bytes
        self.total_commands = 0
        self.total_reads = self.total_batches = 0  # batches: consecutive commands that were executed together

    @property
    def subscribed(self) -> bool:
        """Whether it has subscriptions."""
        return bool(self.channels or self.patterns or self.shards)

    def subscriptions(self, kind: int) -> set[bytes]:
        """Return the names that the client subscribes to. ``kind``: CHANNELS, PATTERNS or SHARDS."""
        return (self.channels, self.patterns, self.shards)[kind]

    def refresh(self) -> None:
        """Recompute ``plain`` and ``limited``."""
        usual = (
            self.authenticated
            and not self.multi
            and self.reply_mode == 0
            and not (self.proto == 2 and self.subscribed)
            and self.caching is None
        )
        self.plain = usual and self.user.unrestricted
        self.limited = usual and not self.plain

    def memory_bytes(self) -> int:
        """Return its approximate memory in bytes, without its connection and the commands that wait for EXEC."""
        names = len(self.name) + len(self.lib_name) + len(self.lib_ver)
        return self.retained_bytes + (names if names > SHORT_NAMES else 0)  # short names cost nothing extra

    def watch(self, ks: Keyspace, key: bytes) -> None:
        """Watch a key that is not watched yet: a change of it sets ``dirty_cas``."""
        self.watching.add(key)
        self.retained_bytes += WATCH_BYTES + len(key)
        ks.watchers.setdefault(key, set()).add(cast(Watcher, self))

    def unwatch(self, ks: Keyspace) -> None:
        """Stop watching all keys. ``dirty_cas`` stays."""
        for key in self.watching:
            self.retained_bytes -= WATCH_BYTES + len(key)
            watchers = ks.watchers.get(key)
            if watchers is not None:
                watchers.discard(cast(Watcher, self))
                if not watchers:
                    del ks.watchers[key]
        self.watching.clear()

    def end_transaction(self, ks: Keyspace) -> None:
        """End MULTI, and drop queued commands and watched keys."""
        if self.watching:
            self.unwatch(ks)
        self.multi = self.exec_abort = self.dirty_cas = False
        self.queued = []
        self.refresh()
