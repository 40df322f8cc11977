"""What the server remembers of one client, without any I/O: the state that commands read and change."""

from __future__ import annotations

from typing import Final

LEADER: Final = "leader"  # ``Session.replica`` of the session that stands for the link to this server's leader


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
        self.transport: object = None  # the connection; opaque to commands
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
        # mode. Whoever changes one of these calls refresh().
        self.plain = True
        # replication
        self.replica: object = None  # what the server knows of the replica whose connection this is; or LEADER
        self.wrote = 0  # a log offset inside the batch of its last write: whoever has that has the whole batch
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
