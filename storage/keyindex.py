"""All keys in an array, for what a dict can't do: SCAN's pages, and a key picked at random.

Rule 1: the array has no holes. A key that is removed is replaced by the last one, so a key only ever moves *down*.
Rule 2: a scan walks down. Its cursor is the number of slots still to be visited. A key below the cursor stays below it,
so a key that exists from a scan's first call to its last is returned; one that is added or removed meanwhile may be. A
key can be returned twice, as in Redis.
"""

from __future__ import annotations


class KeyIndex:
    """About 75 bytes a key; every method but ``clear`` is O(1) for each key that it touches."""

    __slots__ = ("_keys", "_slots")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._slots: dict[bytes, int] = {}  # each key's offset in _keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """``key`` must be new."""
        self._slots[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: bytes) -> None:
        """``key`` must be one of the keys."""
        slot = self._slots.pop(key)
        last = self._keys.pop()
        if slot < len(self._keys):
            self._keys[slot] = last
            self._slots[last] = slot

    def clear(self) -> None:
        self._keys.clear()
        self._slots.clear()

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """The next cursor and up to ``count`` keys. A scan begins with cursor 0 and is over when 0 is returned."""
        top = min(cursor, len(self._keys)) if cursor else len(self._keys)
        below = max(0, top - count)
        return below, self._keys[below:top]

    def pick(self, fraction: float) -> bytes:
        """The key at that fraction (0 to just below 1) of the array, which must not be empty."""
        return self._keys[int(fraction * len(self._keys))]
