"""An adaptive limit on the number of requests in flight: between 1 and a cap, depending on the peer's responses.

Rule 1: The limit never exceeds the cap.
Rule 2: The limit starts at 1 and grows by 1 with each good response until the first bad one. After that, it grows by 1
        after as many good responses as its current value. A bad response halves it, once for all requests in flight.
Rule 3: A response is bad if it is a temporary error or slow. Slow means longer than ``target``, or without a target,
        longer than 3 times the average plus 100 ms.
Rule 4: After several failures in a row, or if the peer asks for it, no request starts for a while. The first request
        after this pause is a probe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.transport.backoff import Backoff

SLOW: Final = 3.0  # times the average latency
SLOW_LEAST: Final = 0.1  # s above the average latency
WEIGHT: Final = 0.05  # of one response in the average latency
FAILURES: Final = 3  # in a row until a pause
BACKOFF: Final = Backoff(first=0.5, most=30.0)  # the pauses
SAID_MOST: Final = 300.0  # s, the longest pause that a peer can request


class ConcurrencyLimit:
    """Belongs to one event loop. ``on_change`` is called when ``now`` or ``held`` has changed."""

    def __init__(self, cap: int, target: float | None, on_change: Callable[[], None]) -> None:
        self.cap = cap
        self.now = 1  # the current limit
        self.in_flight = 0
        self.held = False  # paused (Rule 4)
        self.closed = False  # no request starts until ``open``, because the peer is unreachable
        self.reason = ""  # of the pause
        self._target = target
        self._on_change = on_change
        self._waiters: deque[tuple[asyncio.Future[bool], Callable[[], object]]] = deque()
        self._average = 0.0  # latency in s; 0: not known
        self._good = 0  # good responses since the limit last grew
        self._growing = True  # until the first bad response
        self._halved = 0.0  # loop time of the last halving; requests that began before it do not halve the limit again
        self._failures = 0  # in a row
        self._holds = 0  # pauses in a row
        self._timer: asyncio.TimerHandle | None = None

    # -- a request -------------------------------------------------------------------------------------------
    async def begin(self) -> float:
        """Wait until a request may start, in the order of calls. Returns the loop time, for ``good`` and ``bad``."""
        began = await self.turn(lambda: True)
        assert began is not None  # noqa: S101 - the request is always needed
        return began

    async def turn(self, needed: Callable[[], object]) -> float | None:
        """Wait like ``begin``. Returns None, and ``end`` is omitted, if ``recheck`` found it no longer ``needed``."""
        loop = asyncio.get_running_loop()
        if self._waiters or not self._free():
            waiter = loop.create_future()
            waits = (waiter, needed)
            self._waiters.append(waits)
            try:
                came = await waiter
            except asyncio.CancelledError:
                if waits in self._waiters:
                    self._waiters.remove(waits)
                elif not waiter.cancelled() and waiter.result():  # the request was already admitted
                    self.in_flight -= 1
                self._next()
                raise
            return loop.time() if came else None
        self.in_flight += 1
        return loop.time()

    def recheck(self) -> None:
        """Release the waiting calls whose request is no longer needed."""
        left = deque[tuple[asyncio.Future[bool], Callable[[], object]]]()
        for waiter, needed in self._waiters:
            if needed():
                left.append((waiter, needed))
            elif not waiter.done():
                waiter.set_result(False)
        self._waiters = left

    def end(self) -> None:
        """End a request, whatever its outcome. Call this once for each ``begin``."""
        self.in_flight -= 1
        self._next()

    def good(self, began: float) -> None:
        """Record a response that accepts or rejects the event: the peer works."""
        now = asyncio.get_running_loop().time()
        took = now - began
        self._failures = self._holds = 0
        usual = self._average
        slow = took > self._target if self._target is not None else bool(usual) and took > SLOW * usual + SLOW_LEAST
        self._average = took if not usual else usual + WEIGHT * (took - usual)
        if slow:
            self._halve(began, now)
            return
        self._good += 1
        if self.now < self.cap and (self._growing or self._good >= self.now):
            self._good = 0
            self.now += 1
            self._on_change()

    def bad(self, began: float, reason: str, wait: float | None = None) -> None:
        """Record a temporary failure. wait: s for which the peer requests a pause; None: it requests none."""
        self._halve(began, asyncio.get_running_loop().time())
        self._failures += 1
        if wait is not None:
            self._hold(min(wait, SAID_MOST), reason)
        elif self._failures >= FAILURES or self._holds:
            self._hold(BACKOFF.delay(self._holds + 1), reason)

    def _halve(self, began: float, now: float) -> None:
        if began >= self._halved:
            self._halved = now
            self._growing = False
            self._good = 0
            if self.now > 1:
                self.now //= 2
                self._on_change()

    # -- pauses ----------------------------------------------------------------------------------------------
    def _hold(self, seconds: float, reason: str) -> None:
        if self.held:  # because of another request in flight
            return
        self._holds += 1
        self.held = True
        self.reason = reason
        self.now = 1
        self._timer = asyncio.get_running_loop().call_later(seconds, self.release)
        self._on_change()

    def release(self) -> None:
        """End the pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.held:
            self.held = False
            self._on_change()
            self._next()

    def close(self) -> None:
        """Start no request until ``open``. Waiting calls continue to wait."""
        self.closed = True

    def open(self) -> None:
        self.closed = False
        self._next()

    # -- turns -----------------------------------------------------------------------------------------------
    def _free(self) -> bool:
        return not (self.held or self.closed) and self.in_flight < min(self.now, self.cap)

    def _next(self) -> None:
        while self._waiters and self._free():
            waiter, _ = self._waiters.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(True)
