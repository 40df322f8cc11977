"""All keys in an array, for what a dict can't do: SCAN's pages, and a key picked at random.

Rule 1: the array has no holes. A key that goes is replaced by the last one, so a key only ever moves *down*.
Rule 2: a scan walks down. Its cursor is the number of places still to be visited: whatever stood below it stays below
it, so a key that is there from a scan's first call to its last is returned; one that comes or goes meanwhile may be.
A key can be returned twice, as in Redis.
"""

from __future__ import annotations


class KeyIndex:
    """About 75 bytes a key; every method but ``clear`` is O(1) for each key that it touches."""

    __slots__ = ("_keys", "_places")

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._places: dict[bytes, int] = {}  # where each key stands in _keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """``key`` must not be there yet."""
        self._places[key] = len(self._keys)
        self._keys.append(key)

    def remove(self, key: bytes) -> None:
        """``key`` must be there."""
        place = self._places.pop(key)
        last = self._keys.pop()
        if place < len(self._keys):
            self._keys[place] = last
            self._places[last] = place

    def clear(self) -> None:
        self._keys.clear()
        self._places.clear()

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Up to ``count`` keys and the cursor to go on from. Cursor 0 begins; 0 returned: that was the last page."""
        top = min(cursor, len(self._keys)) if cursor else len(self._keys)
        below = max(0, top - count)
        return below, self._keys[below:top]

    def pick(self, fraction: float) -> bytes:
        """The key at that fraction (0 to just below 1) of the array, which must not be empty."""
        return self._keys[int(fraction * len(self._keys))]
