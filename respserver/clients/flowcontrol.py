"""Flow control: limits for the waiting commands and replies of a client.

Rule 1: while a client does not read, its commands do not run.
Rule 2: a client is closed if its waiting replies exceed the limit of its class (client-output-buffer-limit).
"""

from __future__ import annotations

from typing import Final

from commands.session import Session
from respserver.config.config import Config

OUTPUT_AT_ONCE: Final = 1024 * 1024  # bytes of replies after which commands wait until the client has read
STREAM_AT_ONCE: Final = 256 * 1024  # bytes of a streamed reply that are produced in one tick
BACKLOG_AT_ONCE: Final = 4096  # waiting commands after which the server stops reading
BACKLOG_BYTES: Final = 1024 * 1024  # bytes received while commands wait, after which the server stops reading
LOGIN_AT_ONCE: Final = 4096  # bytes decoded together before the client has logged in
NO_LIMIT: Final = 1 << 62


class OutputLimits:
    """The limits of client-output-buffer-limit."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.lowest = NO_LIMIT  # the smallest limit of all, in bytes
        self.configure()

    def configure(self) -> None:
        """Apply a change of the directive."""
        limits = self._config.client_output_buffer_limit.values()
        self.lowest = min([n for limit in limits for n in (limit.hard, limit.soft) if n], default=NO_LIMIT)

    def of(self, session: Session) -> tuple[int, int, int]:
        """Return (hard bytes, soft bytes, seconds) for the client's class; 0 bytes means no limit."""
        # a monitor counts as a subscriber, since its lines are pushed, too
        kind = "pubsub" if session.subscribed or session.monitoring else "normal"
        limits = self._config.client_output_buffer_limit[kind]
        return limits.hard, limits.soft, limits.seconds
