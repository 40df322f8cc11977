"""The breaker of one entity: the set of reasons why nothing may be sent.

Rule 1: a reason is taken away by its own Restore and by nothing else.
Rule 2: to add it twice is to add it once; so is taking it away.
Rule 3: of one reason's messages the one with the highest version counts, whatever the order in which they come.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.flows.api.signals import Restore, Trigger


class BreakerReason(NamedTuple):
    """A reason that stands."""

    reason: str
    since: float  # s of the loop's clock
    detail: str


class Breaker:
    """Empty: events may be sent."""

    def __init__(self) -> None:
        self._standing: dict[str, BreakerReason] = {}
        self._versions: dict[str, int] = {}  # of each reason's newest message

    def __contains__(self, reason: str) -> bool:
        return reason in self._standing

    def __len__(self) -> int:
        return len(self._standing)

    def begin(self, now: float) -> None:
        """The flow starts now: what stands from the beginning stands since then."""
        self._standing = {name: each._replace(since=now) for name, each in self._standing.items()}

    @property
    def reasons(self) -> tuple[BreakerReason, ...]:
        return tuple(self._standing.values())

    def trigger(self, message: Trigger, now: float) -> bool:
        """Whether that made a difference."""
        if not self._newer(message.reason, message.version) or message.reason in self._standing:
            return False
        self._standing[message.reason] = BreakerReason(message.reason, now, message.detail)
        return True

    def restore(self, message: Restore) -> bool:
        """Whether that made a difference."""
        return self._newer(message.reason, message.version) and self._standing.pop(message.reason, None) is not None

    def _newer(self, reason: str, version: int) -> bool:
        if version < self._versions.get(reason, 0):
            return False
        self._versions[reason] = version
        return True
