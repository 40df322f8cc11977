"""``LatencySamples``: the time from sending an event to its settlement, for a sample of the events of one source.

Rule 1: at most one event in EVERY seconds is watched, and at most WATCHED at a time. The cost does not depend on the
        number of events.
Rule 2: an event that waits for a long time, such as for retries, is counted with its age so far. It would prevent the
        watching of other events.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tidelog.flows.api.tokens import Token, WeakToken

EVERY: Final = 0.01  # s
WATCHED: Final = 16
LONG: Final = 10.0  # s
KEPT: Final = 1000  # latencies that were not taken


class LatencySamples:
    """Latencies in seconds. Times are those of the event loop."""

    def __init__(self) -> None:
        self._watched: list[tuple[float, Token | WeakToken]] = []
        self._next = 0.0
        self._found: deque[float] = deque(maxlen=KEPT)

    def sent(self, now: float, token: Token | WeakToken) -> None:
        """Watch an event, or not."""
        if now < self._next:
            return
        self._next = now + EVERY
        if len(self._watched) >= WATCHED:
            if now - self._watched[0][0] < LONG:
                return
            self._found.append(now - self._watched.pop(0)[0])
        self._watched.append((now, token))

    def settled(self, now: float) -> None:
        """Look for watched events that are settled now."""
        watched = self._watched
        if watched:
            self._watched = [each for each in watched if each[1].pending > 0]
            if len(self._watched) < len(watched):
                self._found += [now - when for when, token in watched if token.pending <= 0]

    def take(self) -> list[float]:
        """Return the latencies since the last call."""
        found = list(self._found)
        self._found.clear()
        return found
