"""Decides when a lease is renewed, and until when it is valid; no I/O, no clock.

Rule 1: A lease is valid until ``sent + duration - margin``. ``sent`` is read before the last successful renewal was
        sent, so the time that the coordinator counts began later. The margin (a tenth) covers clocks of different speed
        and the time between a check and its effect.
Rule 2: Three renewals are sent per duration, and only while the event loop advances: its counter must have moved since
        the last renewal that was sent. The lease of a leader whose event loop hangs expires.
Rule 3: A renewal of unknown outcome does not count. The next is sent after a twentieth of the duration.
Rule 4: A lost lease is never valid again.

Times are seconds of a clock that continues while the machine is suspended (``clock.boottime``).
"""

from __future__ import annotations

from typing import Final

RENEWALS: Final = 3  # per duration: two more attempts of a fifth of the duration each before the lease is invalid
MARGIN: Final = 0.1  # of the duration
_CHECK: Final = 0.02  # of the duration: the time between checks while the counter stands still
_RETRY: Final = 0.05  # of the duration: the time until the next renewal after an error


class Renewals:
    """The renewals of one lease."""

    def __init__(self, ms: int, granted: float) -> None:
        """``ms``: the duration of the lease. ``granted``: the time just before it was requested."""
        self._duration = ms / 1000
        self.interval: Final = self._duration / RENEWALS  # seconds between two renewals
        self.valid_until = granted + self._duration * (1 - MARGIN)
        self.lost = False
        self.stopped = False  # the holder no longer needs the lease; set in any thread
        self._next = granted + self.interval
        self._sent = granted  # when the renewal in flight was sent
        self._counter: int | None = None  # the counter at the last renewal; None: none was sent yet

    def wait(self, now: float, counter: int) -> float:
        """Return the seconds until the next decision; 0 if a renewal is to be sent now."""
        if now < self._next:
            return self._next - now
        return self._duration * _CHECK if counter == self._counter else 0.0

    def send(self, now: float, counter: int) -> None:
        """Record that a renewal is being sent."""
        self._sent = now
        self._counter = counter
        self._next = now + self.interval

    def succeeded(self) -> None:
        """The renewal that was sent last has renewed the lease."""
        if not self.lost:
            self.valid_until = self._sent + self._duration * (1 - MARGIN)

    def failed(self, now: float) -> None:
        """The outcome of the renewal that was sent last is unknown."""
        self._next = min(self._next, now + self._duration * _RETRY)

    @property
    def ended(self) -> bool:
        """Whether no renewal is sent any more."""
        return self.lost or self.stopped

    def lose(self) -> None:
        """The coordinator says that the lease is gone."""
        self.lost = True
        self.valid_until = float("-inf")

    def valid(self, now: float) -> bool:
        """Whether the lease is valid."""
        return now < self.valid_until
