"""The pending list of a group: messages that were delivered with RETRY and not yet acknowledged.

Rule 1: no Python object per message. Neighbours whose times, counts and so on are the same are a *run*, which holds
those once. So messages that are delivered together, or one after the other on the same terms, cost little more than
their IDs.
Rule 2: nothing here scans: what falls due and what must leave is found by time, in O(log n).
Rule 3: no clock; ``now`` and due times are arguments, in ms since epoch.

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
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice, pairwise
from operator import lt
from typing import Final, NamedTuple

from resp.errors import CorruptError
from storage.groups.pendingdump import ID_SIZE, RUN_SIZE, cut, head, parse
from storage.groups.runs import Again, DueAt, Fixed, NewTerms, changed, emptied, pack_terms, pack_time, unpack_run
from storage.groups.sortedrows import SortedRows
from storage.timers import NEVER

ENTRY: Final = 24  # width of _due and _drop
SWEEP: Final = 1000  # expired runs that one due() looks at


class PendingRow(NamedTuple):
    """One pending message. Times in ms since epoch."""

    id: int
    deliveries: int  # 1 after the first
    first: int  # when it was delivered first
    due: int  # when it is delivered again
    expire: int  # when it is given up, or NEVER
    retry: int  # ms from a delivery to the next
    max_deliveries: int  # 0: no limit
    deadletter: bytes  # key of the stream it is moved to when it is given up; empty for none


class PendingTable:
    """Pending messages by ID, by due time and by the time at which they must leave."""

    __slots__ = ("_drop", "_due", "_free", "_highest", "_keys", "_rows", "_runs", "_slots", "_users")

    def __init__(self) -> None:
        self._rows = SortedRows(ID_SIZE, ID_SIZE)
        self._runs = SortedRows(RUN_SIZE, ID_SIZE)
        self._due = SortedRows(ENTRY, ENTRY)
        self._drop = SortedRows(ENTRY, ENTRY)
        self._highest = b""  # no ID above it was ever added
        # dead letter keys, each held once: slot n is _keys[n - 1], used by _users[n - 1] runs
        self._keys: list[bytes] = []
        self._users: list[int] = []
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []  # slots without users; their keys are empty

    def __len__(self) -> int:
        return self._rows.count

    # -- changes ---------------------------------------------------------------------------------------------
    def add(
        self, raws: list[bytes], first: int, due: int, expire: int, retry: int, max_deliveries: int = 0,
        deadletter: bytes = b"",
    ) -> None:  # fmt: skip
        """Messages (IDs of 16 bytes each) were delivered for the first time; those that are pending are replaced.

        A batch costs little more than one message if its IDs ascend and are neighbours.
        """
        if raws:
            self._add(_ascending(raws), first, due, expire, retry, max_deliveries, deadletter)

    def _add(
        self, raws: list[bytes], first: int, due: int, expire: int, retry: int, most: int, deadletter: bytes
    ) -> None:  # fmt: skip
        slot = self._take_slot(deadletter) if deadletter else 0
        terms = pack_terms(first, due, expire, retry, 1, most, slot, 0)
        low, high = raws[0], raws[-1]
        if low > self._highest:
            self._highest = high
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
        if slot:
            self._free_slot(slot)

    def redeliver(
        self, raws: list[bytes], due: int, retry: int | None = None, max_deliveries: int | None = None,
        deadletter: bytes | None = None, own_retry: bool = False,
    ) -> None:  # fmt: skip
        """Messages (IDs of 16 bytes each) were delivered again; None keeps what they had.

        ``own_retry``: each is due as much after ``due`` as its own retry time. Raises KeyError, and changes nothing, if
        one isn't pending.
        """
        raws = _ascending(raws)
        if len(self._rows.present(raws)) != len(raws):
            raise KeyError("a message that isn't pending")
        taken = self._take_slot(deadletter) if deadletter else 0
        self._change(raws, Again(due, own_retry, retry, max_deliveries, None if deadletter is None else taken))
        if taken:
            self._free_slot(taken)

    def set_due(self, raws: list[bytes], due: int) -> list[bytes]:
        """Let messages (IDs of 16 bytes each) fall due at ``due``; returns those that are pending, ascending."""
        if len(raws) == 1:
            found = raws if self._rows.get(raws[0]) else []
        else:
            found = self._rows.present(_ascending(raws))
        self._change(found, DueAt(due))
        return found

    def remove(self, raws: list[bytes]) -> int:
        """Messages (IDs of 16 bytes each) were acknowledged or given up; returns how many of them were pending."""
        return self._remove(_ascending(raws))

    def _remove(self, raws: list[bytes]) -> int:
        """``raws``: IDs, ascending."""
        gone = self._rows.delete_many(raws) if self._rows.count else []
        if not gone:
            return 0
        run = self._runs.floor(gone[0])
        low = run[:ID_SIZE]
        border = self._runs.above(low)[:ID_SIZE]
        if border and gone[-1] >= border:
            self._exchange(emptied(self._rows, self._runs, gone), [])
            return len(gone)
        left = self._rows.above(low, itself=True)  # nearly always they are of one run
        if not left or (border and left >= border):
            self._take(run)
        return len(gone)

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
        old, new = [_indexed(run) for run in taken], [_indexed(run) for run in put]
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
        due, drop, slot = _indexed(run)
        if due:
            self._due.insert(due)
        if drop:
            self._drop.insert(drop)
        if slot:
            self._users[slot - 1] += 1

    def _take(self, run: bytes) -> None:
        self._runs.delete(run[:ID_SIZE])
        due, drop, slot = _indexed(run)
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

    # -- by time ---------------------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """The earliest moment at which a message falls due that may be delivered again; None if there is none."""
        entry = self._due.first()
        return int.from_bytes(entry[:8], "big") if entry else None

    def due(self, now: int, limit: int) -> list[int]:
        """IDs of messages that are due at ``now`` and not expired, by (due time, ID), at most ``limit``.

        Expired runs that are found are removed from the due index, so that they are found once: they won't be delivered
        again, even if the clock goes back. One call removes at most SWEEP of them; it may then return fewer messages
        than there are, and next_due() is still in the past.
        """
        entries = self._due.span(b"", pack_time(now + 1), limit + SWEEP if self._overdue(now) else limit)
        found: list[int] = []
        expired: list[bytes] = []
        for entry in entries:
            if len(found) >= limit or len(expired) >= SWEEP:
                break
            run = self._runs.get(entry[8:])
            expire = int.from_bytes(run[32:40], "big")
            if expire and expire <= now:
                expired.append(run)
            else:
                found += [int.from_bytes(raw, "big") for raw in self._of(entry[8:], limit - len(found))]
        for run in expired:
            self._due.delete(run[24:32] + run[:ID_SIZE])
            self._runs.replace(run[:-1] + b"\1")
        return found

    def due_at(self, now: int) -> int:
        """About how many messages are due at ``now``; one look costs what a thousand runs cost at most."""
        number = 0
        for entry in self._due.span(b"", pack_time(now + 1), SWEEP + 1):
            low = entry[8:]
            number += self._rows.between(low, self._runs.above(low)[:ID_SIZE])
            if number > SWEEP:
                break
        return number

    def _overdue(self, now: int) -> bool:
        leaves = self.next_drop()
        return leaves is not None and leaves <= now

    def next_drop(self) -> int | None:
        """The earliest moment at which a message must leave; None if there is none."""
        entry = self._drop.first()
        return int.from_bytes(entry[:8], "big") if entry else None

    def drops(self, now: int, limit: int) -> list[tuple[int, str]]:
        """Messages that must leave at ``now``, earliest first, each with "expired" or "maxdeliveries"."""
        found: list[tuple[int, str]] = []
        for entry in self._drop.span(b"", pack_time(now + 1), limit):
            why = "expired" if self._runs.get(entry[8:])[32:40] == entry[:8] else "maxdeliveries"
            found += [(int.from_bytes(raw, "big"), why) for raw in self._of(entry[8:], limit - len(found))]
            if len(found) >= limit:
                break
        return found

    # -- by ID -----------------------------------------------------------------------------------------------
    def get(self, entry_id: int) -> PendingRow | None:
        raw = entry_id.to_bytes(16, "big")
        return self._open(raw, self._runs.floor(raw)) if self._rows.get(raw) else None

    def _open(self, raw: bytes, run: bytes) -> PendingRow:
        _, first, due, expire, retry, deliveries, most, slot, _ = unpack_run(run)
        key = self._keys[slot - 1] if slot else b""
        return PendingRow(int.from_bytes(raw, "big"), deliveries, first, due, expire, retry, most, key)

    def rows(self, start: int, end: int, count: int) -> list[PendingRow]:
        """Messages with start <= ID <= end, in order, at most ``count``."""
        found: list[PendingRow] = []
        run = border = b""
        for raw in self._rows.span(start.to_bytes(16, "big"), _after(end), count):
            if not run or (border and raw >= border):
                run = self._runs.floor(raw)
                border = self._runs.above(raw)[:ID_SIZE]
            found.append(self._open(raw, run))
        return found

    def between(self, start: int, end: int) -> int:
        """The number of messages with start <= ID <= end."""
        return self._rows.between(start.to_bytes(16, "big"), _after(end))

    def freeze(self) -> PendingTable:
        """A copy for rows(), which costs next to nothing."""
        other = PendingTable()
        other._rows, other._runs, other._keys = self._rows.freeze(), self._runs.freeze(), self._keys.copy()
        return other

    def lowest(self) -> int | None:
        raw = self._rows.first()
        return int.from_bytes(raw, "big") if raw else None

    def highest(self) -> int | None:
        raw = self._rows.last()
        return int.from_bytes(raw, "big") if raw else None

    # -- the whole -------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Estimate of what the list takes in memory."""
        keys = sum(map(len, self._keys)) + 150 * len(self._keys)
        sets = self._rows.memory_bytes() + self._runs.memory_bytes()
        return sets + self._due.memory_bytes() + self._drop.memory_bytes() + keys

    def parts(self) -> list[bytes]:
        """The table as a dump (see ``pendingdump``), in parts.

        They cost next to nothing and never change; any thread may assemble() them later.
        """
        return [*head(self._rows.count, self._runs.count, self._keys), *self._runs.dump(), *self._rows.dump()]

    @classmethod
    def load(cls, data: bytes) -> PendingTable:
        """The table from its dump. Raises CorruptError."""
        table = cls()
        table._keys, runs, rows = parse(data)
        table._users = [0] * len(table._keys)
        if runs or rows:
            table._fill(runs, rows)
        table._slots = {key: slot for slot, key in enumerate(table._keys, 1) if table._users[slot - 1]}
        table._free = [slot for slot, users in enumerate(table._users, 1) if not users]
        return table

    def _fill(self, runs: list[bytes], rows: bytes) -> None:
        """Fill an empty table, whose keys are known, with the runs and rows of a dump."""
        raws = cut(rows, ID_SIZE)
        lows = [run[:ID_SIZE] for run in runs]
        if not (all(map(lt, raws, islice(raws, 1, None))) and all(map(lt, lows, islice(lows, 1, None)))):
            raise CorruptError("a pending list is damaged: its rows are out of order")
        self._rows.fill(rows)
        if not runs or not raws or lows[0] > raws[0] or lows[-1] > raws[-1] or any(
            self._rows.above(low, itself=True) >= border for low, border in pairwise(lows)
        ):  # fmt: skip
            raise CorruptError("a pending list is damaged: its runs and its rows don't fit together")
        self._highest = raws[-1]
        self._runs.fill(b"".join(runs))
        dues: list[bytes] = []
        drops: list[bytes] = []
        for run in runs:
            due, drop, slot = _indexed(run)
            if slot > len(self._keys):
                raise CorruptError("a pending list is damaged: a row names an unknown key")
            if due:
                dues.append(due)
            if drop:
                drops.append(drop)
            if slot:
                self._users[slot - 1] += 1
        dues.sort()
        drops.sort()
        self._due.fill(b"".join(dues))
        self._drop.fill(b"".join(drops))


def _after(end: int) -> bytes:
    """The ID after this one, as 16 bytes; empty if it is the last."""
    last = (end + 1).to_bytes(17, "big")
    return b"" if last[0] else last[1:]


def _ascending(raws: list[bytes]) -> list[bytes]:
    return raws if all(map(lt, raws, islice(raws, 1, None))) else sorted(set(raws))


def _indexed(run: bytes) -> tuple[bytes, bytes, int]:
    """A run's rows in _due and _drop, empty where it has none, and the slot of its key."""
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
