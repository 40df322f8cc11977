"""All keys in the order in which they were made, for what a dict can't do: SCAN's pages, and a key picked at random.

Rule 1: a key has a number, one more than the key made before it, and keeps it until it is removed.
Rule 2: a scan walks from high numbers to low ones. Its cursor is the lowest number that it has returned. So a key that
exists from a scan's first call to its last is returned once, whatever is removed meanwhile. One that is made after the
first call is not returned, so only a key that is removed and made again can come twice: before and after.

    _firsts   1         1025      3073           a number that all keys of the block are at or above, but none before it
    _blocks   k k k ..  k k ...   k k k ...      lists of up to BLOCK keys; none is empty, but the only one of no keys
    _columns  None      5 9 ...   None           the numbers of the block's keys; None where they count up
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

BLOCK: Final = 1024  # keys; removing one moves those after it in its block
SMALL: Final = BLOCK // 4  # a block that shrinks to this is joined with a neighbour
DENSE: Final = 32  # keys of a block; it is made anew if as many are removed at once


class KeyIndex:
    """About 80 bytes a key, 90 where some were removed. A change is O(log n) and moves some hundred pointers."""

    __slots__ = ("_blocks", "_column", "_columns", "_firsts", "_last", "_next", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._blocks: list[list[bytes]] = [[]]
        self._columns: list[array[int] | None] = [None]
        self._firsts: list[int] = [1]
        self._last = self._blocks[0]  # to which keys are added
        self._column = self._columns[0]  # its numbers
        self._next = 1  # the number of the next key

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, key: bytes) -> None:
        """``key`` must be new."""
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
        """``keys`` must be new, and differ."""
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
        """``key`` must be one of the keys."""
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
        """``keys`` must be keys, and differ."""
        numbers = sorted(map(self._numbers.pop, keys))
        gone: set[bytes] = set()
        at = 0
        while at < len(numbers):
            place = bisect_right(self._firsts, numbers[at]) - 1
            stop = len(numbers)
            if place + 1 < len(self._firsts):
                stop = bisect_left(numbers, self._firsts[place + 1], at)
            block, column = self._blocks[place], self._columns[place]
            if column is None:
                column = self._with_column(place)
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
                self._shrunk(place, block)
            at = stop

    def _with_column(self, at: int) -> array[int]:
        """The numbers of a block, in which a gap is about to be."""
        first = self._firsts[at]
        column = self._columns[at] = array("Q", range(first, first + len(self._blocks[at])))
        self._find_last()
        return column

    def _shrunk(self, at: int, block: list[bytes]) -> None:
        """Join a small block with a neighbour, if both together leave room."""
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
        """Forget all keys; returns what held them. The numbers begin anew, so a scan in progress may return keys that
        are made from now on."""
        old, self._numbers = self._numbers, {}
        self._blocks, self._columns, self._firsts = [[]], [None], [1]
        self._find_last()
        self._next = 1
        return old

    def page(self, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """The next cursor and up to ``count`` keys. A scan begins with cursor 0 and is over when 0 is returned."""
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
        """A key for a random ``fraction`` (0 to just below 1), with the same chance for each; None: try another one.

        On average, a fourth of the tries hit.
        """
        place = fraction * len(self._blocks)
        block = self._blocks[int(place)]
        i = int((place - int(place)) * (BLOCK if len(self._blocks) > 1 else len(block)))
        return block[i] if i < len(block) else None
