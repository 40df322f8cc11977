"""How many requests may be under way at a time: a number between 1 and a cap that follows the peer.

Rule 1: there are never more than the cap, whatever happens.
Rule 2: it begins at 1 and grows by 1 with each good answer until the first bad one; from then on by 1 with each round
        of good answers (as many as it was). A bad answer halves it, once for all requests that were under way then.
Rule 3: bad is an error of the kind that another time may help, or an answer that took long: longer than ``target``, or
        where none is set, than 3 times the usual and 100 ms more.
Rule 4: after failures in a row, or when the peer says so, nothing is begun for a while. Then one request is: the probe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLOW: Final = 3.0  # times the usual latency
SLOW_LEAST: Final = 0.1  # s over the usual latency
USUAL: Final = 0.05  # weight of one answer in the usual latency
FAILURES: Final = 3  # in a row, until nothing is begun for a while
WAIT: Final = 0.5  # s, the first time; then twice as long each time
WAIT_MOST: Final = 30.0  # s
SAID_MOST: Final = 300.0  # s that a peer may ask for


class ConcurrencyLimit:
    """``on_change`` is called when ``now`` or ``held`` has changed. Of one event loop."""

    def __init__(self, cap: int, target: float | None, on_change: Callable[[], None]) -> None:
        self.cap = cap
        self.now = 1  # requests that may be under way
        self.under_way = 0
        self.held = False  # nothing is begun for a while
        self.closed = False  # nothing is begun until ``open``: the peer is gone
        self.reason = ""  # why it is held
        self._target = target
        self._on_change = on_change
        self._waiters: deque[tuple[asyncio.Future[bool], Callable[[], object]]] = deque()
        self._usual = 0.0  # s; 0: not known
        self._good = 0  # answers since it last grew
        self._growing = True  # until the first bad answer
        self._halved = 0.0  # s of the loop's clock: requests that began before don't halve it again
        self._failures = 0  # in a row
        self._holds = 0  # in a row
        self._timer: asyncio.TimerHandle | None = None

    # -- a request -------------------------------------------------------------------------------------------
    async def begin(self) -> float:
        """Wait until a request may begin: first come, first served. The loop's time is for ``good`` and ``bad``."""
        began = await self.turn(lambda: True)
        assert began is not None  # noqa: S101 - it is always needed
        return began

    async def turn(self, needed: Callable[[], object]) -> float | None:
        """The same. None: it is not ``needed`` any more, and ``look`` noticed. ``end`` is not called then."""
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
                elif not waiter.cancelled() and waiter.result():  # its turn had come
                    self.under_way -= 1
                self._next()
                raise
            return loop.time() if came else None
        self.under_way += 1
        return loop.time()

    def look(self) -> None:
        """Some of those that wait for their turn may not need it any more."""
        left = deque[tuple[asyncio.Future[bool], Callable[[], object]]]()
        for waiter, needed in self._waiters:
            if needed():
                left.append((waiter, needed))
            elif not waiter.done():
                waiter.set_result(False)
        self._waiters = left

    def end(self) -> None:
        """A request is over, whatever became of it. Called once for each ``begin``."""
        self.under_way -= 1
        self._next()

    def good(self, began: float) -> None:
        """It was answered, and taken or rejected: the peer works."""
        now = asyncio.get_running_loop().time()
        took = now - began
        self._failures = self._holds = 0
        usual = self._usual
        slow = took > self._target if self._target is not None else bool(usual) and took > SLOW * usual + SLOW_LEAST
        self._usual = took if not usual else usual + USUAL * (took - usual)
        if slow:
            self._halve(began, now)
            return
        self._good += 1
        if self.now < self.cap and (self._growing or self._good >= self.now):
            self._good = 0
            self.now += 1
            self._on_change()

    def bad(self, began: float, reason: str, wait: float | None = None) -> None:
        """It failed, and may work another time. wait: s that the peer wants to be left alone; None: it didn't say."""
        self._halve(began, asyncio.get_running_loop().time())
        self._failures += 1
        if wait is not None:
            self._hold(min(wait, SAID_MOST), reason)
        elif self._failures >= FAILURES or self._holds:
            self._hold(min(WAIT * 2 ** min(self._holds, 16), WAIT_MOST), reason)

    def _halve(self, began: float, now: float) -> None:
        if began >= self._halved:
            self._halved = now
            self._growing = False
            self._good = 0
            if self.now > 1:
                self.now //= 2
                self._on_change()

    # -- a while without requests ----------------------------------------------------------------------------
    def _hold(self, seconds: float, reason: str) -> None:
        if self.held:  # by another request that was under way
            return
        self._holds += 1
        self.held = True
        self.reason = reason
        self.now = 1
        self._timer = asyncio.get_running_loop().call_later(seconds, self.release)
        self._on_change()

    def release(self) -> None:
        """The while is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.held:
            self.held = False
            self._on_change()
            self._next()

    def close(self) -> None:
        """Begin nothing until ``open``. What waits for its turn goes on waiting."""
        self.closed = True

    def open(self) -> None:
        self.closed = False
        self._next()

    # -- turns -----------------------------------------------------------------------------------------------
    def _free(self) -> bool:
        return not (self.held or self.closed) and self.under_way < min(self.now, self.cap)

    def _next(self) -> None:
        while self._waiters and self._free():
            waiter, _ = self._waiters.popleft()
            if not waiter.done():
                self.under_way += 1
                waiter.set_result(True)
