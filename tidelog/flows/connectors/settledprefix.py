"""The settled prefix of a source's positions: up to where all is settled, whatever the order in which it was.

A source that can only say "I am done up to here" (a file, a partition of Kafka) adds positions in the order in which it
reads, and stores ``position`` after each settlement. What lies after it is read again after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

P = TypeVar("P")


class SettledPrefix(Generic[P]):
    """``position`` is where reading would go on after a crash.

    >>> prefix = Prefix(0); prefix.add("a", 10); prefix.add("b", 25)
    >>> prefix.settle("b"), prefix.position, prefix.settle("a"), prefix.position
    (False, 0, True, 25)
    """

    def __init__(self, position: P) -> None:
        self.position = position
        self._order: deque[Hashable] = deque()  # keys that are not part of the prefix, as they were added
        self._open: dict[Hashable, tuple[P, int]] = {}  # (position after it, settlements that are missing)

    def __len__(self) -> int:
        """Keys that are not part of the prefix yet."""
        return len(self._order)

    def missing(self) -> list[tuple[Hashable, int]]:
        """(key, settlements that are missing) of what is not settled."""
        return [(key, count) for key, (_, count) in self._open.items() if count > 0]

    def add(self, key: Hashable, after: P, events: int = 1) -> bool:
        """What was read: ``after`` is the position behind it, ``events`` how often ``settle`` will be called for it.

        None at all is settled at once. Whether the position moved. ValueError: the key is not settled since it was
        added before.
        """
        if key in self._open:
            raise ValueError(f"{key!r} was added before, and is not settled")
        self._open[key] = (after, events)
        self._order.append(key)
        return self._move() if events <= 0 else False

    def settle(self, key: Hashable) -> bool:
        """Whether the position moved. A key that is not known (added before a ``restart``) changes nothing."""
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
        """Reading begins anew here: nothing that was added before counts any more."""
        self.position = position
        self._order.clear()
        self._open.clear()

    def _move(self) -> bool:
        moved = False
        while self._order and self._open[self._order[0]][1] <= 0:
            self.position = self._open.pop(self._order.popleft())[0]
            moved = True
        return moved
