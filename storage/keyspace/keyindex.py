"""All keys in order of creation, for pages of SCAN and random keys, which a dict does not support.

Rule 1: each key has a number, one more than that of the key created before it, until it is removed.
Rule 2: a scan proceeds from high numbers to low ones. Its cursor is the lowest number that it has returned. A key that
exists during the whole scan is returned once, whatever else is removed. A key that is created after the first call is
not returned, so that only a key that is removed and created again can be returned twice.

    _firsts   1         1025      3073           a number at or below all keys of the block, above those before it
    _blocks   k k k ..  k k ...   k k k ...      lists of up to BLOCK keys; only the block of an empty index is empty
    _columns  None      5 9 ...   None           the numbers of the block's keys; None if they are consecutive
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

BLOCK: Final = 1024  # maximum keys of a block; removing one moves the keys after it in the block
SMALL: Final = BLOCK // 4  # a block that shrinks to this size is joined with a neighbor
DENSE: Final = 32  # keys of a block; if that many are removed at once, the block is rebuilt


class KeyIndex:
    """The index. It takes 80 to 90 bytes per key. A change is O(log n) and moves a few hundred pointers."""

    __slots__ = ("_blocks", "_column", "_columns", "_firsts", "_last", "_next", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._blocks: list[list[bytes]] = [[]]
        self._columns: list[array[int] | None] = [None]
        self._firsts: list[int] = [1]
        self._last = self._blocks[0]  # the block to which keys are added
        self._column = self._columns[0]  # the numbers of that block
        self._next = 1  # the number of the next key

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, key: bytes) -> None:
        """Add a key, which must be new."""
        number = self._next
        self._next = number + 1
        self._numbers[key] = number
        if len(self._last) == BLOCK:
            self._blocks.append([])
            self._columns.append(None)
            self._firsts.append(number)
            self._find_last()
        if self._column is not None:
            self._column.append(number)
        self._last.append(key)

    def add_many(self, keys: list[bytes]) -> None:
        """Add keys, which must be new and distinct."""
        first = self._next
        self._next = first + len(keys)
        self._numbers.update(zip(keys, range(first, self._next), strict=True))
        at = 0
        while at < len(keys):
            if len(self._last) == BLOCK:
                self._blocks.append([])
                self._columns.append(None)
                self._firsts.append(first + at)
                self._find_last()
            some = keys[at : at + BLOCK - len(self._last)]
            if self._column is not None:
                self._column.extend(range(first + at, first + at + len(some)))
            self._last += some
            at += len(some)

    def _find_last(self) -> None:
        self._last, self._column = self._blocks[-1], self._columns[-1]

    def remove(self, key: bytes) -> None:
        """Remove a key, which must exist."""
        number = self._numbers.pop(key)
        at = bisect_right(self._firsts, number) - 1
        block, column = self._blocks[at], self._columns[at]
        if column is None:
            column = self._with_column(at)
        i = bisect_left(column, number)
        del block[i], column[i]
        if len(block) <= SMALL and len(self._blocks) > 1:
            self._shrunk(at, block)

    def remove_many(self, keys: list[bytes]) -> None:
        """Remove keys, which must exist and be distinct."""
        numbers = sorted(map(self._numbers.pop, keys))
        gone: set[bytes] = set()
        at = 0
        while at < len(numbers):
            slot = bisect_right(self._firsts, numbers[at]) - 1
            stop = len(numbers)
            if slot + 1 < len(self._firsts):
                stop = bisect_left(numbers, self._firsts[slot + 1], at)
            block, column = self._blocks[slot], self._columns[slot]
            if column is None:
                column = self._with_column(slot)
            if stop - at == len(block):
                block.clear()
                del column[:]
            elif stop - at < DENSE:
                for number in numbers[at:stop]:
                    i = bisect_left(column, number)
                    del block[i], column[i]
            else:
                gone = gone or set(keys)
                left = [(key, number) for key, number in zip(block, column, strict=True) if key not in gone]
                block[:] = [key for key, _ in left]
                column[:] = array("Q", [number for _, number in left])
            if len(block) <= SMALL and len(self._blocks) > 1:
                self._shrunk(slot, block)
            at = stop

    def _with_column(self, at: int) -> array[int]:
        """Create and return the numbers of a block, before a gap is created in it."""
        first = self._firsts[at]
        column = self._columns[at] = array("Q", range(first, first + len(self._blocks[at])))
        self._find_last()
        return column

    def _shrunk(self, at: int, block: list[bytes]) -> None:
        """Join a small block with a neighbor if both fit into one block with room to grow."""
        blocks, columns = self._blocks, self._columns
        for left in (at - 1, at):
            right = left + 1
            if left >= 0 and right < len(blocks) and len(blocks[left]) + len(blocks[right]) <= BLOCK - SMALL:
                column = columns[left]
                if column is None:
                    column = self._with_column(left)
                column += columns[right] or self._with_column(right)
                blocks[left] += blocks[right]
                at, block = right, []
                break
        if not block:
            del blocks[at], columns[at], self._firsts[at]
            self._find_last()

    def clear(self) -> dict[bytes, int]:
        """Remove all keys and return their container.

        Numbers start again from 1, so that a scan in progress may return keys that are created later.
        """
        old, self._numbers = self._numbers, {}
        self._blocks, self._columns, self._firsts = [[]], [None], [1]
        self._find_last()
        self._next = 1
        return old

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Return the next cursor and up to ``count`` keys. A scan starts with cursor 0 and is complete at cursor 0."""
        found: list[bytes] = []
        blocks = self._blocks
        at = len(blocks) - 1
        stop = len(self._last)
        if 0 < cursor < self._next:
            at = max(bisect_left(self._firsts, cursor) - 1, 0)
            column = self._columns[at]
            first = self._firsts[at]
            stop = min(max(cursor - first, 0), len(blocks[at])) if column is None else bisect_left(column, cursor)
        while stop or at:
            if not stop:
                at -= 1
                stop = len(blocks[at])
            start = max(0, stop - (count - len(found)))
            found += reversed(blocks[at][start:stop])
            stop = start
            if len(found) == count:
                break
        return self._numbers[found[-1]] if stop or at else 0, found

    def pick(self, fraction: float) -> bytes | None:
        """Return the key for a random ``fraction`` in [0, 1), with equal probability; None: try another fraction.

        On average, one try in four succeeds.
        """
        slot = fraction * len(self._blocks)
        block = self._blocks[int(slot)]
        i = int((slot - int(slot)) * (BLOCK if len(self._blocks) > 1 else len(block)))
        return block[i] if i < len(block) else None
