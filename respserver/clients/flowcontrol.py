"""Flow control: why the commands of a client wait, and the limits for its waiting commands and replies.

Rule 1: a command waits in the backlog of ``input`` for one of these reasons:

    blocked    a blocking command waits               until it is served or times out
    throttled  the socket's buffer is full            until it has room
    paused     CLIENT PAUSE, or a FAILOVER            until it ends
    streaming  a reply is to be sent in chunks        until its last chunk is written to the socket (``output``)

A command or a streamed reply that needs entries that are only in the object store waits until they were fetched.

Rule 2: while a client does not read, its commands do not run. If its waiting replies exceed the limit of its class
(client-output-buffer-limit), its connection is closed.
"""

from __future__ import annotations

from typing import Final

from commands.session import Session
from respserver.clients.output import ReplyOutput
from respserver.config.config import Config

OUTPUT_AT_ONCE: Final = 1024 * 1024  # bytes of replies after which commands wait until the client has read
STREAM_AT_ONCE: Final = 256 * 1024  # bytes of a streamed reply that are produced in one tick
BACKLOG_AT_ONCE: Final = 4096  # waiting commands after which the server stops reading
BACKLOG_BYTES: Final = 1024 * 1024  # bytes received while commands wait, after which the server stops reading
LOGIN_AT_ONCE: Final = 4096  # bytes decoded together before the client has logged in
NO_LIMIT: Final = 1 << 62


class Wait:
    """The wait of a client for its command.

    ``firm``: only the command ends the wait, neither CLIENT UNBLOCK nor the client by shutting down its side.
    """

    __slots__ = ("firm",)

    def __init__(self, firm: bool = False) -> None:
        self.firm = firm

    def memory_bytes(self) -> int:
        """Return the approximate memory size."""
        raise NotImplementedError

    def forget(self) -> None:
        """End the wait without a reply."""
        raise NotImplementedError

    def end(self, error: bool) -> bool:
        """End the wait, as at its timeout or with an error (CLIENT UNBLOCK). Returns False if it can't be ended."""
        raise NotImplementedError


class FlowControl:
    """The reasons of Rule 1 for one client, except for streamed replies."""

    __slots__ = ("absent", "fetching", "paused", "throttled", "wait")

    def __init__(self) -> None:
        self.fetching = False  # a streamed reply waits for entries from the object store
        self.absent: tuple[list[bytes], int] | None = None  # the last command that waited for them, and how often
        self.wait: Wait | None = None  # the wait of a blocking command
        self.throttled = False
        self.paused = False

    @property
    def firm(self) -> bool:
        """Whether the client waits, and only its command ends the wait."""
        return self.wait is not None and self.wait.firm

    def end_wait(self) -> None:
        """End the wait of a client whose connection ends, if there is one."""
        if self.wait is not None:
            self.wait.forget()

    def wait_bytes(self) -> int:
        return self.wait.memory_bytes() if self.wait is not None else 0


class OutputLimits:
    """The limits of client-output-buffer-limit."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.lowest = NO_LIMIT  # the smallest limit of all, in bytes
        self.configure()

    def configure(self) -> None:
        limits = self._config.client_output_buffer_limit.values()
        self.lowest = min([n for limit in limits for n in (limit.hard, limit.soft) if n], default=NO_LIMIT)

    def of(self, session: Session) -> tuple[int, int, int]:
        """Return (hard bytes, soft bytes, seconds) for the client's class; 0 bytes means no limit."""
        # a monitor counts as a subscriber, since its lines are pushed, too
        kind = "pubsub" if session.subscribed or session.monitoring else "normal"
        limits = self._config.client_output_buffer_limit[kind]
        return limits.hard, limits.soft, limits.seconds

    def exceeded(self, session: Session, output: ReplyOutput, waiting: int, mono: int) -> str:
        """Return the limit that ``waiting`` bytes exceed: ``hard``, ``soft``, or empty. ``mono``: ms, monotonic."""
        hard, soft, seconds = self.of(session)
        if hard and waiting > hard:
            return "hard"
        if not soft or waiting <= soft:
            output.soft_since = 0
        elif not output.soft_since:
            output.soft_since = mono
        elif mono - output.soft_since > seconds * 1000:
            return "soft"
        return ""
