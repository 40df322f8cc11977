"""``SourceBreaker``: the breaker of a source, with the reasons that the source itself adds."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.signals import PAUSED, WINDOW_FULL, Restore, Trigger


class SourceBreaker(Breaker):
    """A full window (``full``) only stops pulls. Any other reason also stops retries and events that were pulled."""

    def __init__(self, name: str, version: Callable[[], int]) -> None:
        super().__init__()
        self.full = f"{WINDOW_FULL}:{name}"
        self._name = name
        self._version = version  # returns the next version of breaker messages

    @property
    def blocked(self) -> bool:
        """Whether no event may be sent, neither new ones nor retries."""
        active = len(self)
        return active > 1 or (active == 1 and self.full not in self)

    @property
    def paused(self) -> bool:
        return any(each.reason.startswith(PAUSED) for each in self.reasons)

    def set(self, kind: str, active: bool, owner: str = "", detail: str = "") -> bool:
        """Add or remove a reason of this source. Return whether it was removed, so that events may be sent again."""
        reason = f"{kind}:{owner or self._name}"
        if active:
            self.trigger(Trigger(reason, self._version(), detail), now())
            return False
        return self.restore(Restore(reason, self._version()))
