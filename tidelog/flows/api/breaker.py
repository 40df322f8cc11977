"""``Breaker``: the set of reasons for which an entity does not send.

Rule 1: A reason is only removed by its own Restore.
Rule 2: Adding a reason twice has the effect of adding it once. The same is true of removing it.
Rule 3: Among the messages of a reason, the one with the highest version decides, in whatever order they arrive.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.flows.api.signals import Restore, Trigger


class BreakerReason(NamedTuple):
    """An active reason."""

    reason: str
    since: float  # event loop time in s
    detail: str


class Breaker:
    """Events may be sent while the breaker is empty."""

    def __init__(self) -> None:
        self._active: dict[str, BreakerReason] = {}
        self._versions: dict[str, int] = {}  # by reason: the version of the newest message

    def __contains__(self, reason: str) -> bool:
        return reason in self._active

    def __len__(self) -> int:
        return len(self._active)

    def begin(self, now: float) -> None:
        """Set the start time of the initial reasons when the flow starts."""
        self._active = {name: each._replace(since=now) for name, each in self._active.items()}

    @property
    def reasons(self) -> tuple[BreakerReason, ...]:
        return tuple(self._active.values())

    def trigger(self, message: Trigger, now: float) -> bool:
        """Add a reason. Return whether the set has changed."""
        if not self._newer(message.reason, message.version) or message.reason in self._active:
            return False
        self._active[message.reason] = BreakerReason(message.reason, now, message.detail)
        return True

    def restore(self, message: Restore) -> bool:
        """Remove a reason. Return whether the set has changed."""
        return self._newer(message.reason, message.version) and self._active.pop(message.reason, None) is not None

    def _newer(self, reason: str, version: int) -> bool:
        if version < self._versions.get(reason, 0):
            return False
        self._versions[reason] = version
        return True
