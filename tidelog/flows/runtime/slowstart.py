"""``SlowStart``: limits a source after a reason that ended by time: one event first, then two, then four, and so on.

Rule 1: A step begins when all events of the previous one are settled. Other events in flight do not count.
Rule 2: If an event of a step must be retried, the next step has one event again, after a delay that is doubled each
        time.
Rule 3: After a step of a whole batch there is no limit any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.flows.api.event import BATCH
from tidelog.flows.api.tokens import RETRY, Token, WeakToken
from tidelog.transport.backoff import Backoff, Delays

BACKOFF: Final = Backoff(first=0.1, most=30.0)  # after failures


class SlowStart:
    """The slow start of one source."""

    def __init__(self) -> None:
        self.size = 0  # number of events in the current step; 0: no limit
        self._sent: list[Token | WeakToken] = []  # tokens of the current step
        self._delays = Delays(BACKOFF)
        self._until = 0.0  # event loop time until which nothing is sent

    def begin(self) -> None:
        """Begin a slow start, unless one is in progress."""
        if not self.size:
            self.size = 1
            self._sent = []
            self._delays.reset()
            self._until = 0.0

    def room(self, now: float) -> int:
        """Return the number of events that may be sent now."""
        if not self.size:
            return BATCH
        return 0 if now < self._until else self.size - len(self._sent)

    def awaited(self) -> set[int]:
        """Return the id() of the tokens that must be settled before another event may be sent. Empty if there is room,
        or during a delay.
        """
        if not 0 < self.size <= len(self._sent):
            return set()
        pending = (each for each in self._sent if each.pending > 0)
        return {each.identity if isinstance(each, WeakToken) else id(each) for each in pending}

    def sent(self, tokens: Iterable[Token | WeakToken]) -> None:
        if self.size:
            self._sent += tokens

    def settled(self, now: float) -> float:
        """Update the state after a settlement. Return the delay in seconds if the step has failed."""
        if not self.size or not self._sent or any(each.pending > 0 for each in self._sent):
            return 0.0
        failed = any(each.status == RETRY for each in self._sent)
        self._sent = []
        if not failed:
            self._delays.reset()
            self.size = 0 if self.size >= BATCH else self.size * 2
            return 0.0
        rest = self._delays.next()
        self.size = 1
        self._until = now + rest
        return rest
