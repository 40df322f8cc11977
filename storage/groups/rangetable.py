"""The table below a pending list (``pending``): its messages, their runs, and where these are found by time.

Rule 1: no Python object per message. Neighbours whose times, counts and so on are the same are a *run*, which holds
those once. So messages that are delivered together, or one after the other on the same terms, cost little more than
their IDs.
Rule 2: what changes runs is here, and keeps all sets in step.

Rows of bytes in four ordered sets (``sortedrows``)::

    _rows    | ID 16 |            of each message
    _runs    0        16        24      32         40        48             52                 56      60        61
             +--------+---------+-------+----------+---------+--------------+------------------+-------+---------+
             | low 16 |first u64|due u64|expire u64|retry u64|deliveries u32|max-deliveries u32|key u32|swept u8 |
             +--------+---------+-------+----------+---------+--------------+------------------+-------+---------+
    _due     | due u64 | low 16 |   of each run whose messages may be delivered again
    _drop    | when u64 | low 16 |  of each run whose messages must leave one day

A run is all messages from its ``low`` to below the next run's. It has at least one, though maybe none at its low
itself. The lowest run begins at or below the lowest message. What follows ``low`` in its row are the run's terms.

Numbers are big-endian, so that rows sort as bytes. ``key`` is the slot of the dead letter key in a table of its own,
from 1; 0 for none. A message may be delivered again while its deliveries are below max-deliveries (0: no limit) and it
falls due before it expires. It leaves when it expires (0: never) or, delivered for the last time, when it would fall
due: whichever comes first. ``swept`` is 1 once due() has found the run expired; it is then no longer in _due.

Messages that a consumer owns never fall due, never expire and have no dead letters. So their runs need none of that and
say in its place when the messages were last delivered, how often, and to whom::

    owned    0        16        24       32             40          48          52        56          60      61
             +--------+---------+--------+--------------+-----------+-----------+---------+-----------+-------+
             | low 16 |first u64|last u64|deliveries u64| 8 zeros   | 4 zeros   |owner u32| 4 zeros   | 2   u8|
             +--------+---------+--------+--------------+-----------+-----------+---------+-----------+-------+

They are in neither _due nor _drop, but in the sets of ``owned``, by owner and by last delivery. Owner 0 is nobody: the
message was given back.

Rule 3: what is delivered while nothing else is pending is *fresh*: it is in none of these sets, but kept as it came.
Most readers acknowledge all that they have read before they read on, and then it never was in them. Whoever looks at a
set makes the fresh ones enter first: the sets are properties.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from storage.groups.ownerindex import Owned, owner_of
from storage.groups.pendingformat import ID_SIZE, OWNED, RUN_SIZE
from storage.groups.ranges import (
    Fixed,
    NewTerms,
    changed,
    delivered_terms,
    emptied,
    owned_terms,
    pack_time,
    touched,
    unpack_run,
)
from storage.model.sortedrows import SortedRows
from storage.model.timers import NEVER

FEW: Final = 64  # messages for which an empty table is filled at once
FRESH: Final = 16  # messages that need not enter the sets: as objects, more would take more memory than there
ENTRY: Final = 24  # width of _due and _drop
UNLIMITED: Final = bytes(9)  # max-deliveries, key and swept of most runs
FOREVER: Final = bytes(8)  # when messages expire that do not
NOT_OWNED: Final = -1
NONE: Final[list[bytes]] = []  # never changed


class RunTable:
    """Pending messages by ID, by due time and by the time at which they must leave: the changes below all others."""

    __slots__ = (
        "_all", "_by_due", "_by_drop", "_by_low", "_by_owner", "_fresh", "_fresh_due", "_fresh_expire", "_fresh_first",
        "_fresh_owner", "_fresh_rest", "_free", "_highest", "_keys", "_slots", "_users",
    )  # fmt: skip

    def __init__(self) -> None:
        self._all = SortedRows(ID_SIZE, ID_SIZE)
        self._by_low = SortedRows(RUN_SIZE, ID_SIZE)
        self._by_due = SortedRows(ENTRY, ENTRY)
        self._by_drop = SortedRows(ENTRY, ENTRY)
        self._by_owner: Owned | None = None
        self._fresh = NONE  # messages (ascending), which are all that are pending; empty: see the sets
        # the terms of these: of what TREAD has delivered, or of what an owner got
        self._fresh_first = self._fresh_due = 0  # or ``last``
        self._fresh_expire = 0
        self._fresh_rest = 0  # ``retry``, or deliveries to the owner
        self._fresh_owner = NOT_OWNED
        self._highest = b""  # no ID above it was ever added
        # dead letter keys, each held once: slot n is _keys[n - 1], used by _users[n - 1] runs
        self._keys: list[bytes] = []
        self._users: list[int] = []
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []  # slots without users; their keys are empty

    def __len__(self) -> int:
        return len(self._fresh) or self._all.count

    # -- the sets ---------------------------------------------------------------------------------------------
    @property
    def _rows(self) -> SortedRows:
        if self._fresh:
            self._enter()
        return self._all

    @property
    def _runs(self) -> SortedRows:
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
    def _owned(self) -> Owned | None:
        """None: no message was ever a consumer's."""
        if self._fresh:
            self._enter()
        return self._by_owner

    def _enter(self) -> None:
        """Let the fresh messages enter the sets, which are empty. All or nothing, also without memory: readers do this,
        and go on."""
        raws = self._fresh
        self._fresh = NONE
        try:
            self._fill_from(raws, self._fresh_owner)
        except MemoryError:
            self._clear()
            self._fresh = raws
            raise

    def _fill_from(self, raws: list[bytes], owner: int) -> None:
        """Fill the sets, which are empty, with messages that were fresh."""
        if owner == NOT_OWNED:
            terms = delivered_terms(self._fresh_first, self._fresh_due, self._fresh_expire, self._fresh_rest, 0, 0)
        else:
            terms = owned_terms(self._fresh_first, self._fresh_due, self._fresh_rest, owner)
            self._has_owners().count(owner, len(raws))
        self._begin(raws, raws[0] + terms)

    def _is_first(self, raws: list[bytes]) -> bool:
        """Whether these messages (ascending) are few, newer than all that ever were pending, and nothing else is.

        Then they can be fresh, and the caller makes them so.
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
            if not self._rows.count and len(raws) <= FEW:
                self._begin(raws, low + terms)
                return
            self._rows.insert_many(b"".join(raws))
            if self._runs.last()[ID_SIZE:] != terms:
                self._put(low + terms)
        else:
            if high > self._highest:
                self._highest = high
            self._remove(raws)
            self._rows.insert_many(b"".join(raws))
            first_run = self._runs.first()
            below = len(raws) if not first_run else bisect_left(raws, first_run[:ID_SIZE])
            if below:  # nothing else is there
                self._assign(low, raws[below - 1], terms)
            self._change(raws[below:], Fixed(terms))

    def _remove(self, raws: list[bytes]) -> int:
        """``raws``: IDs, ascending."""
        if self._rows.count == len(raws) and self._are_all(raws):
            self._clear()
            return len(raws)
        if len(raws) == 1:
            gone = raws if self._rows.delete(raws[0]) else []
        else:
            gone = self._rows.delete_many(raws) if self._rows.count else []
        if not gone:
            return 0
        run = self._runs.floor(gone[0])
        low = run[:ID_SIZE]
        border = self._runs.above(low)[:ID_SIZE]
        owned = self._owned
        if border and gone[-1] >= border:
            if owned is not None:
                owned.lose(self._runs, gone)
            self._exchange(emptied(self._rows, self._runs, gone), [])
            return len(gone)
        if owned is not None and run[-1] == OWNED:
            owned.count(owner_of(run), -len(gone))
        left = self._rows.above(low, itself=True)  # nearly always they are of one run
        if not left or (border and left >= border):
            self._take(run)
        return len(gone)

    def _begin(self, raws: list[bytes], run: bytes) -> None:
        """Fill an empty table with few messages, which are one run."""
        self._rows.begin(raws[0] if len(raws) == 1 else b"".join(raws))
        self._runs.begin(run)
        if run[-1] == OWNED:
            self._has_owners().begin(run)
            return
        due, drop, slot = indexed(run)
        if due:
            self._due.begin(due)
        if drop:
            self._drop.begin(drop)
        if slot:
            self._users[slot - 1] += 1

    def _are_all(self, raws: list[bytes]) -> bool:
        """Whether nothing else is pending, and that can be told at once: nearly always where one reader acknowledges
        all that it has read before it reads on."""
        if not raws or self._slots:
            return False
        return self._rows.is_all(raws[0] if len(raws) == 1 else b"".join(raws))

    def _clear(self) -> None:
        """Remove all messages; none may have a dead letter key."""
        self._rows.clear()
        self._runs.clear()
        self._due.clear()
        self._drop.clear()
        if self._owned is not None:
            self._owned.clear()

    def _has_owners(self) -> Owned:
        if self._by_owner is None:
            self._by_owner = Owned()
        return self._by_owner

    def _unowned(self, raws: list[bytes]) -> list[bytes]:
        """Those of these messages (ascending, all pending) that are not OWNED."""
        if self._owned is None or not self._owned.counts:
            return raws
        found: list[bytes] = []
        for run, _, start, stop in touched(self._runs, raws):
            if run[-1] != OWNED:
                found += raws[start:stop]
        return found

    # -- runs ------------------------------------------------------------------------------------------------
    def _change(self, raws: list[bytes], new: NewTerms) -> None:
        """Give other terms to messages, which are ascending and all pending."""
        if len(raws) > 1:
            self._exchange(*changed(self._rows, self._runs, raws, new))
        elif raws:
            raw = raws[0]
            self._assign(raw, raw, new.of(self._runs.floor(raw)))

    def _exchange(self, taken: list[bytes], put: list[bytes]) -> None:
        """Remove runs, and add others in their places. Both are ascending."""
        if not taken and not put:
            return
        old, new = [indexed(run) for run in taken], [indexed(run) for run in put]
        if self._owned is not None:
            self._owned.exchange(taken, put)
        for _, _, slot in new:  # first, so that no key is forgotten that goes on being used
            if slot:
                self._users[slot - 1] += 1
        for _, _, slot in old:
            if slot:
                self._free_slot(slot)
        self._runs.exchange([run[:ID_SIZE] for run in taken], put)
        self._due.exchange(sorted([due for due, _, _ in old if due]), sorted([due for due, _, _ in new if due]))
        self._drop.exchange(sorted([drop for _, drop, _ in old if drop]), sorted([drop for _, drop, _ in new if drop]))

    def _assign(self, low: bytes, high: bytes, terms: bytes) -> None:
        """Give these terms to all messages from ``low`` to ``high`` (both pending), which are of one run, or new."""
        runs = self._runs
        old = runs.floor(low)
        row = self._rows.above(high)
        after = runs.floor(row) if row else b""  # the run of the next message
        if old and old[ID_SIZE:] == terms and (not after or after == old or after[:ID_SIZE] > high):
            return
        slot = int.from_bytes(terms[-5:-1], "big")
        if slot:  # in use meanwhile, even if the last run with this key is removed below
            self._users[slot - 1] += 1
        if after and after[:ID_SIZE] <= high:  # its messages after ``high`` become a run of their own
            rest = row + after[ID_SIZE:]
            self._put(rest)
            if after != old:
                self._take(after)
            after = rest
        if old and self._rows.above(old[:ID_SIZE], itself=True) >= low:  # it has no messages before ``low``
            self._take(old)
            old = runs.floor(low)
        if after and after[ID_SIZE:] == terms:
            self._take(after)
        if not old or old[ID_SIZE:] != terms:
            self._put(low + terms)
        if slot:
            self._free_slot(slot)

    def _put(self, run: bytes) -> None:
        self._runs.insert(run)
        if run[-1] == OWNED:
            self._has_owners().put(run)
            return
        due, drop, slot = indexed(run)
        if due:
            self._due.insert(due)
        if drop:
            self._drop.insert(drop)
        if slot:
            self._users[slot - 1] += 1

    def _take(self, run: bytes) -> None:
        self._runs.delete(run[:ID_SIZE])
        if run[-1] == OWNED:
            self._has_owners().take(run)
            return
        due, drop, slot = indexed(run)
        if due:
            self._due.delete(due)
        if drop:
            self._drop.delete(drop)
        if slot:
            self._free_slot(slot)

    def _of(self, low: bytes, limit: int) -> list[bytes]:
        """At most ``limit`` messages of the run that begins at ``low``."""
        return self._rows.span(low, self._runs.above(low)[:ID_SIZE], limit)

    # -- dead letter keys ------------------------------------------------------------------------------------
    def _take_slot(self, key: bytes) -> int:
        """The key's slot; it is in use until _free_slot()."""
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
    """The same IDs in order, each once. They mostly are already."""
    last = b""
    for raw in raws:
        if raw <= last:
            return sorted(set(raws))
        last = raw
    return raws


def indexed(run: bytes) -> tuple[bytes, bytes, int]:
    """A run's rows in _due and _drop, empty where it has none, and the slot of its key. OWNED ones have none of it."""
    if run[-1] == OWNED:
        return b"", b"", 0
    if run[52:61] == UNLIMITED:  # nearly always: no limit of deliveries, no dead letters, not swept
        low = run[:ID_SIZE]
        due_at, leaves_by = run[24:32], run[32:40]
        if leaves_by == FOREVER:
            return due_at + low, b"", 0
        return due_at + low if due_at < leaves_by else b"", leaves_by + low, 0
    low, _, due, expire, _, deliveries, most, slot, swept = unpack_run(run)
    again = not most or deliveries < most
    leaves = leaves_at(due, expire, deliveries, most)
    return (
        run[24:32] + low if again and not swept and (not expire or due < expire) else b"",
        pack_time(leaves) + low if leaves != NEVER else b"",
        slot,
    )


def leaves_at(due: int, expire: int, deliveries: int, max_deliveries: int) -> int:
    """When a message must leave, in ms since epoch, or NEVER."""
    if max_deliveries and deliveries >= max_deliveries and (not expire or due < expire):
        return due
    return expire
