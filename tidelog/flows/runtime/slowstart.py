"""After a reason that ended by time: one event first, then twice as many, and so on.

Rule 1: what a step sent is waited for before the next step begins; other events under way don't matter.
Rule 2: a step with an event that is to be tried again was too much: one event again, after a time that doubles.
Rule 3: after a step of a whole batch there is no limit any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.flows.api.event import BATCH
from tidelog.flows.api.tokens import RETRY, Token, WeakToken

_FIRST: Final = 0.1  # s of rest after a first failure; then twice as long each time
_MOST: Final = 30.0


class SlowStart:
    """Of one source."""

    def __init__(self) -> None:
        self.size = 0  # events of the step; 0: no limit
        self._sent: list[Token | WeakToken] = []  # of the step
        self._failures = 0  # in a row
        self._until = 0.0  # s of the loop's clock: rest until then

    def begin(self) -> None:
        """Unless it goes on already."""
        if not self.size:
            self.size = 1
            self._sent = []
            self._failures = 0
            self._until = 0.0

    def room(self, now: float) -> int:
        """Events that may be sent now."""
        if not self.size:
            return BATCH
        return 0 if now < self._until else self.size - len(self._sent)

    def awaited(self) -> set[int]:
        """id() of tokens that have to be settled before anything more may be sent; none: there is room, or a rest."""
        if not 0 < self.size <= len(self._sent):
            return set()
        pending = (each for each in self._sent if each.pending > 0)
        return {each.identity if isinstance(each, WeakToken) else id(each) for each in pending}

    def sent(self, tokens: Iterable[Token | WeakToken]) -> None:
        if self.size:
            self._sent += tokens

    def settled(self, now: float) -> float:
        """Something was settled. Seconds to rest, if this step has failed."""
        if not self.size or not self._sent or any(each.pending > 0 for each in self._sent):
            return 0.0
        failed = any(each.status == RETRY for each in self._sent)
        self._sent = []
        if not failed:
            self._failures = 0
            self.size = 0 if self.size >= BATCH else self.size * 2
            return 0.0
        rest = min(_FIRST * 2.0 ** min(self._failures, 60), _MOST)
        self._failures += 1
        self.size = 1
        self._until = now + rest
        return rest
