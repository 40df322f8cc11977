"""Deliveries: the leader moves delayed entries to their streams when they are due. Semantics [104].

Rule 1: a step takes at most about a millisecond. The next one follows after PAUSE_MS, or after as long as the step
took. Therefore, 10,000 entries per second take a tenth of the time, and commands run between the steps. Each step is a
commit group: with ``appendfsync always``, shorter pauses would cost more syncs, each of which delays other clients by
0.1 ms to several ms. If entries remain due after PATIENCE steps, the steps grow until they take BACKLOG_MS.
Rule 2: while writes are refused or delayed, nothing is delivered. Deliveries continue above maxmemory, because a
delivery adds no data.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.servedtime import ServedTime
from storage.keyspace import delivering

AT_ONCE: Final = 100  # entries of a step, of which each takes 8 to 15 us; 4 to 10 us compiled
PAUSE_MS: Final = 5
PATIENCE: Final = 8  # steps
BACKLOG_MS: Final = 3.5
REFUSED: Final = 0.1  # seconds without another attempt, while nothing may be delivered
LONGEST_MS: Final = 3_600_000  # of a timer


class Deliveries(ServerPart):
    """Arms one timer for the earliest entry that is due."""

    def __init__(
        self, parts: RuntimeParts, served_time: ServedTime, may_expire: Callable[[], bool],
        guarded: Callable[[Callable[[], None]], None], by_hand: bool,
    ) -> None:  # fmt: skip
        """Initialize. ``by_hand``: a test advances the clock; only on_time() delivers."""
        super().__init__(parts)
        self._served_time = served_time
        self._may_expire = may_expire
        self._guarded = guarded
        self._by_hand = by_hand
        self._stopped = by_hand  # no timers
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0  # loop time of the timer
        self._not_before = 0.0  # loop time of the next step
        self._limit = AT_ONCE  # entries of the next step
        self._behind = 0  # steps since which entries remained due

    def schedule(self) -> None:
        """Arm the timer. Called when entries may have been added."""
        if self._stopped or self._data.follower:
            return
        ks, now = self._data.ks, self._clock.now()
        ahead = ks.due.ahead(now, ks.served(now))
        if ahead is None:
            return
        here = self._loop.time()
        at = max(here + min(ahead, LONGEST_MS) / 1000, self._not_before)
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._guarded, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._allowed() and self._may_expire():
            self._step()
            self.schedule()
        else:
            self._not_before = self._loop.time() + REFUSED  # on_time() continues

    def on_time(self) -> None:
        """Continue after a refusal, a stall, or a change of role. Called ``hz`` times a second."""
        if not len(self._data.ks.due) or not self._allowed():
            return
        while self._step() and self._by_hand:
            pass
        self.schedule()

    def _allowed(self) -> bool:
        data = self._data
        if self._gates.loading or data.follower or data.frozen or not self._ticks.writable:
            return False
        return not self._served_time.refuses()

    def _step(self) -> bool:
        """Deliver entries. Return whether more are due."""
        if not self._by_hand and self._loop.time() < self._not_before:
            return True
        began, ks = time.perf_counter(), self._data.ks
        more = delivering.run(ks, self._clock.now(), self._limit, self._data.note_damage)
        took = time.perf_counter() - began
        self._adapt(more, took * 1000)
        self._not_before = self._loop.time() + max(PAUSE_MS / 1000, took)
        if ks.log or ks.ready:
            self._ticks.queue()
        return more

    def _adapt(self, more: bool, took: float) -> None:
        """Set the size of the next step. ``more``: entries remained due after one that took ``took`` ms."""
        self._behind = self._behind + 1 if more else 0
        if self._behind < PATIENCE:
            self._limit = AT_ONCE
        else:
            self._limit = max(AT_ONCE, int(self._limit * min(1.5, BACKLOG_MS / max(took, 0.1))))

    def stop(self) -> None:
        """Deliver nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
