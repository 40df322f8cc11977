"""The table below a pending list (``pending``): its messages, their ranges, and the indexes of the ranges by time.

Rule 1: a message is not a Python object. Neighbors with the same terms form a range (``rangerow``), which stores the
terms once. Messages that are delivered together, or one after another with the same terms, cost little more than their
IDs.
Rule 2: this module makes all changes to ranges and keeps the sets consistent.
Rule 3: messages that are delivered while nothing else is pending are *fresh*. They are in none of the sets but stored
as the list that was delivered. Most readers acknowledge everything that they read before they read again, and their
messages never enter the sets: adding and removing a message then takes 400 instructions, not 6,000. The sets are
properties, which first insert the fresh messages.

Rows of bytes in four ordered sets (``sortedrows``)::

    _ids     | ID 16 |            each message
    _ranges  | range 61 |         each range: at least one message, but possibly none at its low
    _due     | due u64 | low 16 |   each range whose messages can be redelivered
    _drop    | when u64 | low 16 |  each range whose messages must leave at some time

The lowest range begins at or below the lowest message. Owned ranges are neither in _due nor in _drop but in the index
by owner (``ownerindex``).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from storage.groups.ownerindex import OwnerIndex
from storage.groups.rangerow import (
    ID_SIZE,
    KIND,
    OWNED,
    RANGE_SIZE,
    TERMS_KEY,
    TERMS_KIND,
    TIME_SIZE,
    index_rows,
    owner_of,
)
from storage.groups.ranges import (
    NewTerms,
    changed_ranges,
    delivered_terms,
    emptied_ranges,
    owned_terms,
    ranges_of,
)
from storage.model.sortedrows import SortedRows

FEW: Final = 64  # maximum messages with which an empty table is filled directly
FRESH: Final = 16  # maximum fresh messages; as Python objects, more would take more memory than in the sets
ENTRY: Final = TIME_SIZE + ID_SIZE  # width of _due and _drop
NOT_OWNED: Final = -1
NO_IDS: Final[list[bytes]] = []  # never changed


class RangeTable:
    """Pending messages by ID, by due time, and by the time at which they must leave."""

    __slots__ = (
        "_all", "_by_due", "_by_drop", "_by_low", "_by_owner", "_fresh", "_fresh_due", "_fresh_expire", "_fresh_first",
        "_fresh_owner", "_fresh_rest", "_free", "_highest", "_keys", "_slots", "_users",
    )  # fmt: skip

    def __init__(self) -> None:
        self._all = SortedRows(ID_SIZE, ID_SIZE)
        self._by_low = SortedRows(RANGE_SIZE, ID_SIZE)
        self._by_due = SortedRows(ENTRY, ENTRY)
        self._by_drop = SortedRows(ENTRY, ENTRY)
        self._by_owner: OwnerIndex | None = None
        self._fresh = NO_IDS  # messages (ascending), the only pending ones; if empty, the sets contain all messages
        # the terms of the fresh messages, delivered by TREAD or to an owner
        self._fresh_first = self._fresh_due = 0  # or ``last``
        self._fresh_expire = 0
        self._fresh_rest = 0  # ``retry``, or the deliveries to the owner
        self._fresh_owner = NOT_OWNED
        self._highest = b""  # the highest ID that was ever added
        # dead-letter keys, each stored once: slot n is _keys[n - 1], which _users[n - 1] ranges use
        self._keys: list[bytes] = []
        self._users: list[int] = []
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []  # slots without users; their keys are empty

    def __len__(self) -> int:
        return len(self._fresh) or self._all.count

    # -- the sets ---------------------------------------------------------------------------------------------
    @property
    def _ids(self) -> SortedRows:
        if self._fresh:
            self._enter()
        return self._all

    @property
    def _ranges(self) -> SortedRows:
        if self._fresh:
            self._enter()
        return self._by_low

    @property
    def _due(self) -> SortedRows:
        if self._fresh:
            self._enter()
        return self._by_due

    @property
    def _drop(self) -> SortedRows:
        if self._fresh:
            self._enter()
        return self._by_drop

    @property
    def _owner_index(self) -> OwnerIndex | None:
        """The index by owner; None if no consumer has ever had a message."""
        if self._fresh:
            self._enter()
        return self._by_owner

    def _enter(self) -> None:
        """Insert the fresh messages into the empty sets.

        Changes nothing if it raises MemoryError: readers also call this, and the server continues to run.
        """
        raws = self._fresh
        self._fresh = NO_IDS
        try:
            self._fill_from(raws, self._fresh_owner)
        except MemoryError:
            self._clear()
            self._fresh = raws
            raise

    def _fill_from(self, raws: list[bytes], owner: int) -> None:
        """Insert messages that were fresh into the empty sets."""
        if owner == NOT_OWNED:
            terms = delivered_terms(self._fresh_first, self._fresh_due, self._fresh_expire, self._fresh_rest, 0, 0)
        else:
            terms = owned_terms(self._fresh_first, self._fresh_due, self._fresh_rest, owner)
            self._has_owners().count(owner, len(raws))
        self._begin(raws, raws[0] + terms)

    def _is_first(self, raws: list[bytes]) -> bool:
        """Return whether these messages (ascending) can be fresh; the caller then stores them as such.

        They must be few and newer than all messages ever added, and nothing else may be pending.
        """
        if self._all.count or self._fresh or len(raws) > FRESH or raws[0] <= self._highest:
            return False
        self._highest = raws[-1]
        return True

    # -- messages ---------------------------------------------------------------------------------------------
    def _add(self, raws: list[bytes], terms: bytes) -> None:
        low, high = raws[0], raws[-1]
        if low > self._highest:
            self._highest = high
            if not self._ids.count and len(raws) <= FEW:
                self._begin(raws, low + terms)
                return
            self._ids.insert_many(b"".join(raws))
            if self._ranges.last()[ID_SIZE:] != terms:
                self._put(low + terms)
        else:
            if high > self._highest:
                self._highest = high
            self._remove(raws)
            self._ids.insert_many(b"".join(raws))
            first_range = self._ranges.first()
            below = len(raws) if not first_range else bisect_left(raws, first_range[:ID_SIZE])
            if below:  # these precede all ranges
                self._assign(low, raws[below - 1], terms)
            self._change(raws[below:], lambda _: terms)

    def _remove(self, raws: list[bytes]) -> int:
        """Remove messages (ascending IDs) and return how many of them were pending."""
        if self._ids.count == len(raws) and self._are_all(raws):
            self._clear()
            return len(raws)
        if len(raws) == 1:
            gone = raws if self._ids.delete(raws[0]) else []
        else:
            gone = self._ids.delete_many(raws) if self._ids.count else []
        if not gone:
            return 0
        range_ = self._ranges.floor(gone[0])
        low = range_[:ID_SIZE]
        border = self._ranges.above(low)[:ID_SIZE]
        owned = self._owner_index
        if border and gone[-1] >= border:
            if owned is not None:
                owned.lose(self._ranges, gone)
            self._exchange(emptied_ranges(self._ids, self._ranges, gone), [])
            return len(gone)
        if owned is not None and range_[KIND] == OWNED:
            owned.count(owner_of(range_), -len(gone))
        left = self._ids.above(low, itself=True)  # nearly always, all messages are in one range
        if not left or (border and left >= border):
            self._take(range_)
        return len(gone)

    def _begin(self, raws: list[bytes], range_: bytes) -> None:
        """Fill an empty table with a few messages that form one range."""
        self._ids.begin(raws[0] if len(raws) == 1 else b"".join(raws))
        self._ranges.begin(range_)
        if range_[KIND] == OWNED:
            self._has_owners().begin(range_)
            return
        due, drop, slot = index_rows(range_)
        if due:
            self._due.begin(due)
        if drop:
            self._drop.begin(drop)
        if slot:
            self._users[slot - 1] += 1

    def _are_all(self, raws: list[bytes]) -> bool:
        """Return True if these messages are known to be all pending ones, without a search.

        This is the common case: a single reader acknowledges everything that it read before it reads again.
        """
        if not raws or self._slots:
            return False
        return self._ids.is_all(raws[0] if len(raws) == 1 else b"".join(raws))

    def _clear(self) -> None:
        """Remove all messages. None may have a dead-letter key."""
        self._ids.clear()
        self._ranges.clear()
        self._due.clear()
        self._drop.clear()
        if self._owner_index is not None:
            self._owner_index.clear()

    def _has_owners(self) -> OwnerIndex:
        if self._by_owner is None:
            self._by_owner = OwnerIndex()
        return self._by_owner

    def _unowned(self, raws: list[bytes]) -> list[bytes]:
        """Return those of these messages (ascending, all pending) that are not OWNED."""
        if self._owner_index is None or not self._owner_index.counts:
            return raws
        found: list[bytes] = []
        for range_, _, start, stop in ranges_of(self._ranges, raws):
            if range_[KIND] != OWNED:
                found += raws[start:stop]
        return found

    # -- ranges ----------------------------------------------------------------------------------------------
    def _change(self, raws: list[bytes], new: NewTerms) -> None:
        """Change the terms of messages, which are ascending and all pending."""
        if len(raws) > 1:
            self._exchange(*changed_ranges(self._ids, self._ranges, raws, new))
        elif raws:
            raw = raws[0]
            self._assign(raw, raw, new(self._ranges.floor(raw)))

    def _exchange(self, taken: list[bytes], put: list[bytes]) -> None:
        """Replace ranges with others. Both are ascending."""
        if not taken and not put:
            return
        old, new = [index_rows(range_) for range_ in taken], [index_rows(range_) for range_ in put]
        if self._owner_index is not None:
            self._owner_index.exchange(taken, put)
        for _, _, slot in new:  # first, so that a key that remains in use is not freed
            if slot:
                self._users[slot - 1] += 1
        for _, _, slot in old:
            if slot:
                self._free_slot(slot)
        self._ranges.exchange([range_[:ID_SIZE] for range_ in taken], put)
        self._due.exchange(sorted([due for due, _, _ in old if due]), sorted([due for due, _, _ in new if due]))
        self._drop.exchange(sorted([drop for _, drop, _ in old if drop]), sorted([drop for _, drop, _ in new if drop]))

    def _assign(self, low: bytes, high: bytes, terms: bytes) -> None:
        """Give these terms to all messages from ``low`` to ``high`` (both pending), which are in one range or new."""
        ranges = self._ranges
        old = ranges.floor(low)
        row = self._ids.above(high)
        after = ranges.floor(row) if row else b""  # the range of the next message
        if old and old[ID_SIZE:] == terms and (not after or after == old or after[:ID_SIZE] > high):
            return
        slot = int.from_bytes(terms[TERMS_KEY:TERMS_KIND], "big")
        if slot:  # keeps the slot in use if the last range with this key is removed below
            self._users[slot - 1] += 1
        if after and after[:ID_SIZE] <= high:  # its messages after ``high`` become a separate range
            rest = row + after[ID_SIZE:]
            self._put(rest)
            if after != old:
                self._take(after)
            after = rest
        if old and self._ids.above(old[:ID_SIZE], itself=True) >= low:  # it has no messages before ``low``
            self._take(old)
            old = ranges.floor(low)
        if after and after[ID_SIZE:] == terms:
            self._take(after)
        if not old or old[ID_SIZE:] != terms:
            self._put(low + terms)
        if slot:
            self._free_slot(slot)

    def _put(self, range_: bytes) -> None:
        self._ranges.insert(range_)
        if range_[KIND] == OWNED:
            self._has_owners().put(range_)
            return
        due, drop, slot = index_rows(range_)
        if due:
            self._due.insert(due)
        if drop:
            self._drop.insert(drop)
        if slot:
            self._users[slot - 1] += 1

    def _take(self, range_: bytes) -> None:
        self._ranges.delete(range_[:ID_SIZE])
        if range_[KIND] == OWNED:
            self._has_owners().take(range_)
            return
        due, drop, slot = index_rows(range_)
        if due:
            self._due.delete(due)
        if drop:
            self._drop.delete(drop)
        if slot:
            self._free_slot(slot)

    def _of(self, low: bytes, limit: int) -> list[bytes]:
        """Return at most ``limit`` messages of the range that begins at ``low``."""
        return self._ids.span(low, self._ranges.above(low)[:ID_SIZE], limit)

    # -- dead-letter keys ------------------------------------------------------------------------------------
    def deadletters(self) -> list[bytes]:
        """Return the keys of the streams for the dead letters of all messages."""
        return list(self._slots)

    def _take_slot(self, key: bytes) -> int:
        """Return the slot of a key and mark it as used; _free_slot() releases it."""
        slot = self._slots.get(key, 0)
        if not slot:
            if self._free:
                slot = self._free.pop()
                self._keys[slot - 1] = key
            else:
                self._keys.append(key)
                self._users.append(0)
                slot = len(self._keys)
            self._slots[key] = slot
        self._users[slot - 1] += 1
        return slot

    def _free_slot(self, slot: int) -> None:
        self._users[slot - 1] -= 1
        if not self._users[slot - 1]:
            del self._slots[self._keys[slot - 1]]
            self._keys[slot - 1] = b""
            self._free.append(slot)


def ascending(raws: list[bytes]) -> list[bytes]:
    """Sort IDs and remove duplicates. Lists that are already sorted, the common case, are returned unchanged."""
    last = b""
    for raw in raws:
        if raw <= last:
            return sorted(set(raws))
        last = raw
    return raws
