"""The limits of the gateway. A request beyond a limit gets an error that names it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidelog.gateway.errors import ProblemError, unavailable

BODY: Final = 4 << 20  # bytes of a request; msgspec decodes them in less than 50 ms
ENTRIES: Final = 1000  # entries of a request: the server appends them in one step
FIELDS: Final = 32_768  # fields of a request: that of the server for an entry; the append takes about 30 ms
PAGE: Final = 1 << 20  # bytes of entries in a page, as the server sends them
PAGE_ENTRIES: Final = 10_000
DEFAULT_ENTRIES: Final = 100  # entries of a page without ``limit``
ENTRY: Final = 8 << 20  # bytes of an entry; a larger one is shown without its fields
READS: Final = 64  # pages that are read from the server at the same time, for all users
MEMORY: Final = 256 << 20  # bytes of bodies and pages in flight
READERS: Final = 20_000
USER_READERS: Final = 10_000
STREAMS: Final = 1000  # streams that are followed at the same time, by all users: each needs a connection to the server
GROUP_READERS: Final = 200  # readers of groups: each needs a connection to the server
TOKENS: Final = 10_000  # of all users
USER_TOKENS: Final = 5000
USERS: Final = 1000  # users with connections to the server
OTHER_CONNECTIONS: Final = 1000  # HTTP connections in addition to those of readers


class UseLimit:
    """Counts the use of something by all users, and by each of them."""

    def __init__(self, name: str, total: int, each: int) -> None:
        """name: what is counted, for messages, such as ``open event streams``."""
        self._name = name
        self._total = total
        self._each = each
        self._used: Counter[str] = Counter()  # by user
        self.used = 0

    @contextmanager
    def taken(self, user: str, amount: int = 1) -> Iterator[None]:
        """Use an amount until the context ends. Raises ProblemError beyond a limit."""
        if self._used[user] + amount > self._each:
            text = f"User {user!r} has the maximum of {self._each} {self._name}. Close some of them, or wait."
            raise ProblemError(429, "too-many", text, {"Retry-After": "10"})
        if self.used + amount > self._total:
            raise unavailable(f"The gateway has the maximum of {self._total} {self._name}. Try again later.", "full")
        self.used += amount
        self._used[user] += amount
        try:
            yield
        finally:
            self.used -= amount
            self._used[user] -= amount
            if not self._used[user]:
                del self._used[user]
