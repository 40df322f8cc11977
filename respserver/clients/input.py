"""The requests of one client that have arrived and have not run yet.

Rule 1: requests run in the order of arrival. While ``backlog`` is not empty, new ones are appended to it.
Rule 2: before the login, bytes that arrive while a command waits are not even decoded: the limits that apply to them
depend on that command.
"""

from __future__ import annotations

from collections import deque

from resp.decode import Call, RequestDecoder, expanded
from respserver.clients.flowcontrol import BACKLOG_AT_ONCE, BACKLOG_BYTES


class RequestInput:
    """Decoded calls that wait, and bytes that are not decoded yet."""

    __slots__ = ("_bytes", "backlog", "chunk", "decoder", "queued_bytes", "undecoded")

    def __init__(self) -> None:
        self.decoder: RequestDecoder
        self.backlog: deque[list[bytes]] = deque()  # calls that wait, in order
        self.undecoded = b""  # received before the login (Rule 2)
        self.chunk = 0  # size of the chunk whose calls run now
        self.queued_bytes = 0  # memory of the commands that wait for EXEC
        self._bytes = 0  # bytes received since calls began to wait

    def append(self, calls: list[Call], size: int) -> None:
        self.backlog.extend(expanded(calls))
        self._bytes += size

    def put_back(self, calls: list[Call], start: int) -> None:
        """Put the calls from index ``start`` on at the front of the backlog."""
        self.backlog.extendleft(reversed(expanded(calls, start)))

    def take(self) -> list[Call]:
        calls: list[Call] = list(self.backlog)
        self.backlog.clear()
        return calls

    def measure(self) -> None:
        """Compute the size of the backlog after a part of it has run."""
        self._bytes = self._size() if self.backlog else 0

    @property
    def full(self) -> bool:
        """Whether so much waits that reading must stop."""
        return len(self.backlog) > BACKLOG_AT_ONCE or self._bytes > BACKLOG_BYTES

    def query_buffered(self) -> int:
        """Return the size of the query buffer, as CLIENT LIST shows it."""
        return self.decoder.buffered + len(self.undecoded) + self._size() + self.chunk

    def waiting_bytes(self) -> int:
        """Return the approximate memory size of everything that waits."""
        return self.decoder.buffered + len(self.undecoded) + self._bytes

    def _size(self) -> int:
        return sum(sum(map(len, argv)) for argv in self.backlog)
