"""What the server remembers of one client, without any I/O: the state that commands read and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, cast

from storage.keyspace import Keyspace, Watcher

LEADER: Final = "leader"  # ``Session.replica`` of the session that stands for the link to this server's leader


@dataclass
class TransportStats:
    """What only the connection knows of itself; all zero for a session without one."""

    fd: int = -1
    query_buffered: int = 0  # bytes of an incomplete command, and of commands that wait
    output_buffered: int = 0  # bytes of replies waiting for the socket
    output_pieces: int = 0  # 1 while a streamed reply is under way
    reading: bool = True
    writing: bool = False  # the socket refused bytes; waiting for room


class Transport(Protocol):
    """A client's connection, as commands see it."""

    def kill(self) -> None:
        """Close at once. What is queued is lost, and the client waits for nothing any more."""
    def unblock(self, error: bool) -> bool:
        """End the client's wait as if it had timed out, or with an error; False if it does not wait."""
    def push(self, data: bytes) -> None:
        """Queue encoded bytes that the client did not ask for (a message, a monitor line). They leave with the tick."""
    def stats(self) -> TransportStats: ...


class Session:
    """Grouped by lifetime: identity, connection state, transaction, subscriptions, counters."""

    __slots__ = (
        "addr", "authenticated", "blocked", "close_after_reply", "created", "dirty_cas",
        "exec_abort", "id", "laddr", "last_active", "last_command", "lib_name", "lib_ver", "monitoring", "multi",
        "name", "no_evict", "no_touch", "patterns", "plain", "proto", "queued", "replica", "reply_mode", "channels",
        "tls", "total_in", "total_out", "total_commands", "transport", "unix", "user", "watching", "wrote",
    )

    def __init__(self, client_id: int, addr: str, laddr: str, now: int) -> None:
        # identity
        self.id = client_id
        self.addr = addr  # "ip:port", or "path:0" for a unix socket
        self.laddr = laddr
        self.created = now  # ms since epoch
        self.transport: Transport | None = None  # the connection; None once it is gone
        self.tls = False
        self.unix = False
        # connection state
        self.proto = 2  # 2 or 3
        self.authenticated = True  # False until AUTH where a password is set
        self.user = b"default"
        self.name = b""
        self.lib_name = b""
        self.lib_ver = b""
        self.reply_mode = 0  # 0 on, 1 off, 2 skip the next reply, 3 skip this one
        self.no_evict = False
        self.no_touch = False
        self.monitoring = False
        self.close_after_reply = False
        self.blocked = False
        # True while nothing but a plain call can happen: authenticated, no MULTI, replies on, not in RESP2 subscribe
        # mode. To be recomputed by refresh() after a change of one of these.
        self.plain = True
        # replication
        self.replica: object = None  # what the server knows of the replica whose connection this is; or LEADER
        self.wrote = 0  # a log offset inside the batch of its last write; batches are atomic: it stands for all of it
        # transaction
        self.multi = False
        self.exec_abort = False  # a queued command was wrong
        self.dirty_cas = False  # a watched key changed
        self.queued: list[list[bytes]] = []
        self.watching: set[bytes] = set()
        # subscriptions
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        # counters
        self.last_active = now  # ms since epoch
        self.last_command = "NULL"
        self.total_in = 0
        self.total_out = 0
        self.total_commands = 0

    def refresh(self) -> None:
        """Recompute ``plain`` after a change of what it is made of."""
        self.plain = (
            self.authenticated
            and not self.multi
            and self.reply_mode == 0
            and not (self.proto == 2 and (self.channels or self.patterns))
        )

    def watch(self, ks: Keyspace, key: bytes) -> None:
        """A change of the key sets ``dirty_cas`` from now on."""
        self.watching.add(key)
        ks.watchers.setdefault(key, set()).add(cast(Watcher, self))

    def unwatch(self, ks: Keyspace) -> None:
        """Watch nothing any more; ``dirty_cas`` stays."""
        for key in self.watching:
            watchers = ks.watchers.get(key)
            if watchers is not None:
                watchers.discard(cast(Watcher, self))
                if not watchers:
                    del ks.watchers[key]
        self.watching.clear()

    def end_transaction(self, ks: Keyspace) -> None:
        """Back to a connection without MULTI and without watched keys."""
        if self.watching:
            self.unwatch(ks)
        self.multi = self.exec_abort = self.dirty_cas = False
        self.queued = []
        self.refresh()
