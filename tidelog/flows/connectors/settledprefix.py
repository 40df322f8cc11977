"""The settled prefix of a source: the position up to which all messages are settled, in whatever order.

A source that can only acknowledge a position (a file, a partition of Kafka) adds positions in the order of reading, and
stores ``position`` after each settlement. Messages after it are read again after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

P = TypeVar("P")


class SettledPrefix(Generic[P]):
    """``position`` is the position at which reading continues after a crash.

    It begins at 0. After ``add("a", 10)``, ``add("b", 25)`` and ``settle("b")``, it is 0; after ``settle("a")``, 25.
    """

    def __init__(self, position: P) -> None:
        self.position = position
        self._order: deque[Hashable] = deque()  # keys after the prefix, in the order of ``add``
        self._open: dict[Hashable, tuple[P, int]] = {}  # (position after the key, missing settlements)

    def __len__(self) -> int:
        """Return the number of keys after the prefix."""
        return len(self._order)

    def missing(self) -> list[tuple[Hashable, int]]:
        """Return (key, number of missing settlements) of unsettled keys."""
        return [(key, count) for key, (_, count) in self._open.items() if count > 0]

    def add(self, key: Hashable, after: P, events: int = 1) -> bool:
        """Add a message. ``after``: the position after it. ``events``: how often ``settle`` will be called for it.

        A message without events is settled immediately. Returns whether the position moved. Raises ValueError if the
        key was added before and is not settled.
        """
        if key in self._open:
            raise ValueError(f"{key!r} was added before, and is not settled")
        self._open[key] = (after, events)
        self._order.append(key)
        return self._move() if events <= 0 else False

    def settle(self, key: Hashable) -> bool:
        """Settle one event of a key. Returns whether the position moved. An unknown key is ignored."""
        found = self._open.get(key)
        if found is None or found[1] <= 0:
            return False
        after, missing = found
        self._open[key] = (after, missing - 1)
        return missing == 1 and self._order[0] == key and self._move()

    def settle_all(self, keys: Iterable[Hashable]) -> bool:
        moved = False
        for key in keys:
            moved = self.settle(key) or moved
        return moved

    def restart(self, position: P) -> None:
        """Start again at a position. Keys that were added before are forgotten."""
        self.position = position
        self._order.clear()
        self._open.clear()

    def _move(self) -> bool:
        moved = False
        while self._order and self._open[self._order[0]][1] <= 0:
            self.position = self._open.pop(self._order.popleft())[0]
            moved = True
        return moved
