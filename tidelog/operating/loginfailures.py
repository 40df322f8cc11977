"""``LoginFailures``: limits the failed logins of each address.

Rule 1: a login counts as failed while it is in progress. Simultaneous logins could exceed the limit otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final

FAILURES: Final = 10  # failed logins from one address within WINDOW; further logins are refused
WINDOW: Final = 60.0  # s
ADDRESSES: Final = 10_000  # addresses whose failed logins are recorded


class LoginFailures:
    """The failed logins of all addresses. ``clock`` returns seconds that only increase."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}  # by address: times of failed logins, the oldest first

    def too_many(self, address: str) -> bool:
        """Return whether further logins from an address are refused now."""
        times = self._failures.get(address)
        while times and self._clock() - times[0] > WINDOW:
            times.popleft()
        if times is not None and not times:
            del self._failures[address]
        return bool(times) and len(times or ()) >= FAILURES

    @contextmanager
    def attempt(self, address: str, failure: type[Exception]) -> Iterator[None]:
        """Count a login as failed until it ends without an exception of the class ``failure``."""
        if len(self._failures) >= ADDRESSES and address not in self._failures:
            self._failures.pop(next(iter(self._failures)))
        began = self._clock()
        self._failures.setdefault(address, deque()).append(began)
        try:
            yield
        except failure:
            raise
        except BaseException:
            self._forgive(address, began)
            raise
        else:
            self._forgive(address, began)

    def _forgive(self, address: str, began: float) -> None:
        times = self._failures.get(address, deque())
        with suppress(ValueError):  # another address took its place
            times.remove(began)
        if not times:
            self._failures.pop(address, None)
