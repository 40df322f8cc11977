"""How much may wait for a client: bytes and commands before the server stops reading, replies before it cuts.

Rule 1: a client that does not read gets no more replies made. Rule 2: one that does not take the replies that are
there is cut at the limit of its class (client-output-buffer-limit).
"""

from __future__ import annotations

from typing import Final

from commands.session import Session
from respserver.config.config import Config

OUTPUT_AT_ONCE: Final = 1024 * 1024  # bytes of replies made before the client must read some
BACKLOG_AT_ONCE: Final = 4096  # commands decoded and waiting, before reading stops
BACKLOG_BYTES: Final = 1024 * 1024  # bytes received while commands wait, before reading stops
LOGIN_AT_ONCE: Final = 4096  # bytes looked at in one piece before the peer has logged in
NO_LIMIT: Final = 1 << 62


class OutputLimits:
    """client-output-buffer-limit."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.lowest = NO_LIMIT  # bytes of output below which no limit can be exceeded
        self.configure()

    def configure(self) -> None:
        """The directive has changed."""
        limits = self._config.client_output_buffer_limit.values()
        self.lowest = min([n for limit in limits for n in (limit.hard, limit.soft) if n], default=NO_LIMIT)

    def of(self, session: Session) -> tuple[int, int, int]:
        """(hard bytes, soft bytes, seconds) for the client's class; 0 bytes: no limit."""
        # a monitor gets what it did not ask for piece by piece, as a subscriber does
        kind = "pubsub" if session.channels or session.patterns or session.monitoring else "normal"
        limits = self._config.client_output_buffer_limit[kind]
        return limits.hard, limits.soft, limits.seconds
