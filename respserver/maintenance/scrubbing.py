"""Runs the scrub (``persistence.scrub``) at a limited rate: a step in a thread, then a pause until there is credit.

Decision: the credit grows with time, and each step subtracts the bytes that it read. If a step reads more than its
credit (a large value), the credit becomes negative, so the mean rate never exceeds the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from persistence.scrub import LONGEST_MS, Scrub
from respserver.maintenance.repairing import Repairing
from respserver.observe.stats import ScrubStats
from respserver.roles.roles import Roles
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread

STEP = 1 << 20  # bytes that a step reads at most; other reads of the store continue meanwhile
SLICE_MS = 1000  # time for which credit is saved up at most
RETRY_MS = 60_000  # after an error of the disk


class Scrubbing(ServerPart):
    """Runs the scrub of the open data directory."""

    def __init__(self, parts: RuntimeParts, roles: Roles, checkpoint: Callable[[], None]) -> None:
        """Initialize. ``checkpoint``: starts one soon."""
        super().__init__(parts)
        self._repairs = Repairing(parts, roles, self._spend, checkpoint)
        self._credit = 0.0  # bytes that may be read now; below zero: a debt
        self._then = parts.clock.mono()  # ms of the last growth of the credit
        self._not_before = 0  # ms (monotonic)
        self._task: asyncio.Future[int] | None = None
        self._known = 0  # damage that was logged

    def rate(self) -> int:
        """Return the current limit in bytes per second; 0 if the scrub is off."""
        rate = self._config.scrub_rate
        return max(rate, self._data.disk.scrub.cost * 1000 // LONGEST_MS) if rate else 0

    def on_time(self, now: int) -> None:
        """Begin a pass or a step if it is due. Called ``hz`` times a second."""
        mono, rate, scrub = self._clock.mono(), self.rate(), self._data.disk.scrub
        self._credit = min(self._credit + rate * (mono - self._then) / 1000, rate * SLICE_MS / 1000)
        self._then = mono
        if rate and self._credit > 0:
            self._repairs.on_time()
        if self._task is not None or mono < self._not_before:
            return
        if rate and not scrub.running and scrub.is_due(now):
            self._logger.verbose("Scrub: verifying the store")
            scrub.begin(now)
        again = scrub.needs_recheck()
        due = again or (rate and scrub.running and self._credit >= min(STEP, rate // 10))
        if due and self._data.disk.check_files() is None:  # a step opens the file by its path
            self._start(scrub, 0 if again else min(STEP, int(self._credit)), now)

    def _spend(self, size: int) -> None:
        self._credit -= size

    async def finish(self) -> None:
        """Wait until no repair and no step is in progress. Called before the store is closed."""
        await self._repairs.finish()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _start(self, scrub: Scrub, most: int, now: int) -> None:
        """Start a step of ``most`` bytes; 0: check known damage again."""

        def work() -> int:
            if most:
                return scrub.step(most, now)
            scrub.recheck()
            return 0

        try:
            self._task = in_thread(work)
        except (RuntimeError, MemoryError):  # no thread is available
            self._not_before = self._clock.mono() + RETRY_MS
            return
        self._task.add_done_callback(lambda task: self._ended(scrub, task))

    def _ended(self, scrub: Scrub, task: asyncio.Future[int]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if scrub is self._data.disk.scrub:  # otherwise, the data was replaced meanwhile
                self._not_before = self._clock.mono() + RETRY_MS
                self._logger.warning(f"Scrub interrupted, next attempt in a minute: {error}")
            return
        self._credit -= task.result()
        if scrub is self._data.disk.scrub:
            self._data.damage_changed()
        if scrub.damaged != self._known:
            if scrub.damaged > self._known:
                for damage in scrub.damage[self._known :]:
                    key = self._data.key_of(damage.node[0]) if damage.node is not None else None
                    of = "" if key is None else f" (key {key!r})"
                    self._logger.warning(f"Scrub: the store is damaged at {damage}{of}")
            else:
                self._logger.notice(f"Scrub: damage left: {scrub.damaged}")
            self._known = scrub.damaged

    def stats(self) -> ScrubStats:
        scrub = self._data.disk.scrub
        percent = min(100.0, 100 * scrub.read / scrub.total) if scrub.running and scrub.total else 0.0
        return ScrubStats(
            scrub.running,
            percent,
            self.rate(),
            scrub.passes,
            scrub.ended // 1000,
            scrub.damaged,
            scrub.repaired,
            self._repairs.fetched,
            self._repairs.irreparable,
        )
