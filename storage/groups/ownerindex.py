"""The ranges of a pending list that consumers own, by owner and by last delivery.

Messages that TREAD delivered have no owner and are not in this index. A list without consumers has no index. Two
ordered sets (``sortedrows``) contain an entry for each range that is OWNED::

    _by_owner  | owner u32 | low 16 |
    _by_last   | last u64  | low 16 |    ``last`` + 2**63 if the range has an owner

Messages that were returned without an acknowledgement belong to nobody (0). The next reader gets them first, so they
precede all others in _by_last. Their ``last`` is not a time of delivery but their order among each other.
"""

from __future__ import annotations

from typing import Final

from storage.groups.rangerow import HAS_OWNER, ID_SIZE, KIND, OWNED, TIME_SIZE, last_row, owner_of, owner_row, pack_time
from storage.groups.ranges import ranges_of
from storage.model.sortedrows import SortedRows

OWNER_SIZE: Final = 4
BY_OWNER: Final = OWNER_SIZE + ID_SIZE
BY_LAST: Final = TIME_SIZE + ID_SIZE
COUNT_BYTES: Final = 150  # memory of an owner's count


class OwnerIndex:
    """The ranges of one pending list that are OWNED, and the number of messages of each owner."""

    __slots__ = ("_by_last", "_by_owner", "counts", "passed")

    def __init__(self) -> None:
        self._by_owner = SortedRows(BY_OWNER, BY_OWNER)
        self._by_last = SortedRows(BY_LAST, BY_LAST)
        self.counts: dict[int, int] = {}  # number of messages by owner; no count is 0
        # A row of _by_last, but with the ID of a message. The entries of all messages up to it were deleted, so
        # searches for idle messages start after it. Not stored; empty if unknown.
        self.passed = b""

    # -- changes ---------------------------------------------------------------------------------------------
    def put(self, range_: bytes) -> None:
        self._by_owner.insert(owner_row(range_))
        self._by_last.insert(last_row(range_))

    def begin(self, range_: bytes) -> None:
        """Add the first range to an empty index."""
        self.passed = b""
        self._by_owner.begin(owner_row(range_))
        self._by_last.begin(last_row(range_))

    def clear(self) -> None:
        self.passed = b""
        self._by_owner.clear()
        self._by_last.clear()
        self.counts.clear()

    def take(self, range_: bytes) -> None:
        self._by_owner.delete(owner_row(range_))
        self._by_last.delete(last_row(range_))

    def exchange(self, taken: list[bytes], put: list[bytes]) -> None:
        """Replace ranges with others. Ranges that are not OWNED are ignored."""
        old = [range_ for range_ in taken if range_[KIND] == OWNED]
        new = [range_ for range_ in put if range_[KIND] == OWNED]
        self._by_owner.exchange(
            sorted([owner_row(range_) for range_ in old]), sorted([owner_row(range_) for range_ in new])
        )
        self._by_last.exchange(
            sorted([last_row(range_) for range_ in old]), sorted([last_row(range_) for range_ in new])
        )

    def count(self, owner: int, more: int) -> None:
        """Add ``more`` to the number of an owner's messages (subtract if negative)."""
        number = self.counts.get(owner, 0) + more
        if number:
            self.counts[owner] = number
        else:
            self.counts.pop(owner, None)

    def lose(self, ranges: SortedRows, raws: list[bytes]) -> None:
        """Subtract messages (ascending IDs, all in ``ranges``) from the counts of their owners."""
        for range_, _, start, stop in ranges_of(ranges, raws):
            if range_[KIND] == OWNED:
                self.count(owner_of(range_), start - stop)

    def note(self, owner: int, last: int) -> None:
        """Reset ``passed`` if messages that an owner gets, with this last delivery, may precede it."""
        if self.passed and pack_time(HAS_OWNER + last if owner else last) <= self.passed[:TIME_SIZE]:
            self.passed = b""

    # -- reading ---------------------------------------------------------------------------------------------
    def lows(self, owner: int, start: bytes, limit: int) -> list[bytes]:
        """Return the ``low`` fields of at most ``limit`` ranges of an owner, from ``start`` on."""
        end = (owner + 1).to_bytes(5, "big")
        rows = self._by_owner.span(owner.to_bytes(OWNER_SIZE, "big") + start, b"" if end[0] else end[1:], limit)
        return [row[OWNER_SIZE:] for row in rows]

    def by_last(self, start: bytes, last: int, limit: int) -> list[bytes]:
        """Return at most ``limit`` rows of _by_last from ``start`` on, without an owner or delivered by ``last``."""
        return self._by_last.span(start, pack_time(HAS_OWNER + min(max(last, -1), HAS_OWNER - 2) + 1), limit)

    def begin_of(self, position: bytes) -> bytes:
        """Return the row of _by_last whose range contains the first message after ``position`` (see ``passed``)."""
        row = self._by_last.floor(position)
        return row if row[:TIME_SIZE] == position[:TIME_SIZE] else position

    def newest_of_nobody(self) -> int:
        """Return the highest ``last`` of messages without an owner; -1 if there are none."""
        row = self._by_last.floor(pack_time(HAS_OWNER))
        last = int.from_bytes(row[:TIME_SIZE], "big") if row else HAS_OWNER
        return last if last < HAS_OWNER else -1

    def freeze(self) -> OwnerIndex:
        """Return a copy that supports lows()."""
        other = OwnerIndex()
        other._by_owner = self._by_owner.freeze()
        return other

    def fill(self, ranges: list[bytes]) -> None:
        """Fill an empty index with ranges that are all OWNED. The caller sets the counts."""
        self._by_owner.fill(b"".join(sorted([owner_row(range_) for range_ in ranges])))
        self._by_last.fill(b"".join(sorted([last_row(range_) for range_ in ranges])))

    def memory_bytes(self) -> int:
        return self._by_owner.memory_bytes() + self._by_last.memory_bytes() + COUNT_BYTES * len(self.counts) + 300
