"""``LoginFailures``: limits the failed logins of each address.

Rule 1: a login counts as failed while it is in progress. Simultaneous logins could exceed the limit otherwise. Logins
        that exceed it only because of others in progress wait for these: behind a proxy, all users have one address,
        and log in at the same time after a restart.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Final

FAILURES: Final = 10  # failed logins from one address within WINDOW; further logins are refused
WINDOW: Final = 60.0  # s
PATIENCE: Final = 15.0  # s for which a login waits for others in progress, each of which takes 10 s if a server hangs
ADDRESSES: Final = 10_000  # addresses whose failed logins are recorded


class LoginFailures:
    """The failed logins of all addresses. ``clock`` returns seconds that only increase."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, deque[float]] = {}  # by address: times of failed logins, the oldest first
        self._attempts: Counter[str] = Counter()  # by address: logins in progress
        self._ended: dict[str, asyncio.Event] = {}  # by address: one of the logins in progress has ended

    async def admits(self, address: str) -> bool:
        """Return whether a login from an address may be attempted, once that does not depend on others in progress.

        Begin the attempt at once, without waiting for anything else. Raises TimeoutError if others take too long.
        """
        async with asyncio.timeout(PATIENCE):
            while self._too_many(address):
                if address not in self._attempts:
                    return False
                ended = self._ended.setdefault(address, asyncio.Event())
                await ended.wait()
        return True

    def _too_many(self, address: str) -> bool:
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
        self._attempts[address] += 1
        try:
            yield
        except failure:
            raise
        except BaseException:
            self._forgive(address, began)
            raise
        else:
            self._forgive(address, began)
        finally:
            self._attempts[address] -= 1
            if not self._attempts[address]:
                del self._attempts[address]
            if ended := self._ended.pop(address, None):
                ended.set()

    def _forgive(self, address: str, began: float) -> None:
        times = self._failures.get(address, deque())
        with suppress(ValueError):  # another address took its place
            times.remove(began)
        if not times:
            self._failures.pop(address, None)
