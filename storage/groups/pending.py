"""The pending list of a group: messages that were delivered, with RETRY or to a consumer, and not yet acknowledged.

Rule 1: a message is not a Python object; see ``rangetable`` for the rows of bytes.
Rule 2: nothing is scanned. Messages that are due or must leave are found in O(log n), in indexes by time.
Rule 3: no clock is read. ``now`` and due times are arguments, in ms of served time (Rule 6 of ``keyspace``). The first
delivery of a message and the last delivery to a consumer are in wall-clock time, as Redis shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from operator import lt
from typing import Final, NamedTuple

from resp.errors import CorruptError
from storage.groups.pendingformat import cut, head, parse
from storage.groups.rangerow import (
    EXPIRE,
    ID_SIZE,
    KEY,
    KIND,
    OWNED,
    OWNER,
    RETRY,
    SWEPT,
    TIME_SIZE,
    due_row,
    index_rows,
    last_time,
    owner_of,
    pack_terms,
    pack_time,
    unpack_range,
    unpack_time,
)
from storage.groups.ranges import delivered_terms, new_due_time, new_owner, owned_terms, redelivered
from storage.groups.rangetable import NO_IDS, NOT_OWNED, RangeTable, ascending
from storage.model.sortedrows import PackedRows
from storage.model.timers import NEVER

SWEEP: Final = 1000  # maximum expired ranges that one due() removes
AT_ONCE: Final = 10_000  # number of messages that forget() removes at a time
RUN: Final = 1000  # messages that runs() yields at most
ZEROS: Final = bytes(12)
NEVER_AGO: Final = (1 << 63) - 1  # ms since epoch; later than any delivery


class PendingRow(NamedTuple):
    """One pending message. Times in ms: ``due`` and ``expire`` in served time, the others since the epoch."""

    id: int
    deliveries: int  # 1 after the first delivery
    first: int  # time of the first delivery
    due: int  # time of the next delivery; 0: never, the message belongs to a consumer or has no owner
    expire: int  # time at which it leaves the list, or NEVER
    retry: int  # ms between deliveries
    max_deliveries: int  # 0: no limit
    deadletter: bytes  # key of the stream for its dead letter; empty: no dead letter
    owner: int = 0  # number of its consumer; 0: no owner, or delivered by TREAD (then ``due`` is above 0)
    # Time of the last delivery; 0: returned without an acknowledgement. If TREAD delivered the message, this is
    # ``due - retry``: inexact after TNACK or TTOUCH, possibly in the future. delivered() corrects it for downtimes.
    last: int = 0

    def delivered(self, away: int) -> int:
        """Return ``last``, corrected by the keyspace's ``away``."""
        return max(self.first, self.due - self.retry + away) if self.due else self.last


class PendingTable(RangeTable):
    """Pending messages by ID, by due time, by the time at which they must leave, and by owner."""

    __slots__ = ()

    # -- changes ---------------------------------------------------------------------------------------------
    def add(
        self, raws: list[bytes], first: int, due: int, expire: int, retry: int, max_deliveries: int = 0,
        deadletter: bytes = b"",
    ) -> None:  # fmt: skip
        """Add messages (IDs of 16 bytes each) that were delivered for the first time; pending ones are replaced.

        Many messages cost little more than one if their IDs are adjacent and ascending.
        """
        if raws:
            raws = raws if len(raws) == 1 else ascending(raws)
            if not deadletter and not max_deliveries and self._is_first(raws):
                self._fresh, self._fresh_owner = raws, NOT_OWNED
                self._fresh_first, self._fresh_due, self._fresh_expire, self._fresh_rest = first, due, expire, retry
                return
            slot = self._take_slot(deadletter) if deadletter else 0
            terms = delivered_terms(first, due, expire, retry, max_deliveries, slot)
            self._add(raws, terms)
            if slot:
                self._free_slot(slot)

    def copy(
        self, raws: list[bytes], times: tuple[int, int, int, int], deliveries: int, most: int, owner: int, kind: int,
        deadletter: bytes,
    ) -> None:  # fmt: skip
        """Add messages (IDs of 16 bytes each, ascending, not pending) with the terms of runs() of another table.

        ``times``: first, due (or last), expire, retry.
        """
        first, due, expire, retry = times
        if kind == OWNED:
            owned = self._has_owners()
            owned.note(owner, due)
            self._add(raws, owned_terms(first, due, deliveries, owner))
            owned.count(owner, len(raws))
            return
        slot = self._take_slot(deadletter) if deadletter else 0
        self._add(raws, pack_terms(first, due, expire, retry, deliveries, most, slot, 0))
        if slot:
            self._free_slot(slot)

    def redeliver(
        self, raws: list[bytes], due: int, retry: int | None = None, max_deliveries: int | None = None,
        deadletter: bytes | None = None, own_retry: bool = False,
    ) -> None:  # fmt: skip
        """Count another delivery of messages (IDs of 16 bytes each). None leaves a value unchanged.

        ``own_retry``: add each message's own retry time to ``due``. Raises KeyError and changes nothing if a message is
        not pending or is OWNED.
        """
        raws = ascending(raws)
        if len(self._unowned(self._ids.present(raws))) != len(raws):
            raise KeyError("a message that is not pending")
        taken = self._take_slot(deadletter) if deadletter else 0
        self._change(raws, redelivered(due, own_retry, retry, max_deliveries, None if deadletter is None else taken))
        if taken:
            self._free_slot(taken)

    def set_due(self, raws: list[bytes], due: int) -> list[bytes]:
        """Set the due time of messages (IDs of 16 bytes each). Return those that are pending, ascending.

        OWNED messages are ignored.
        """
        if len(raws) == 1:
            found = raws if self._ids.get(raws[0]) else []
        else:
            found = self._ids.present(ascending(raws))
        found = self._unowned(found)
        self._change(found, new_due_time(due))
        return found

    def remove(self, raws: list[bytes]) -> int:
        """Remove messages (IDs of 16 bytes each). Return how many of them were pending."""
        if self._fresh and raws == self._fresh:  # nearly always true
            self._fresh = NO_IDS
            return len(raws)
        return self._remove(raws if len(raws) == 1 else ascending(raws))

    # -- consumers -------------------------------------------------------------------------------------------
    def own_new(self, raws: list[bytes], owner: int, last: int, deliveries: int) -> None:
        """Add messages (IDs of 16 bytes each) that were delivered to an owner; pending ones are replaced."""
        if raws:
            raws = ascending(raws)
            if self._is_first(raws):
                self._fresh, self._fresh_owner = raws, owner
                self._fresh_first = self._fresh_due = last
                self._fresh_rest = deliveries
                return
            if self._fresh:
                self._enter()
            owned = self._has_owners()
            owned.note(owner, last)
            self._add(raws, owned_terms(last, last, deliveries, owner))
            owned.count(owner, len(raws))  # after _add(), which may remove messages of this owner

    def own(self, raws: list[bytes], owner: int, last: int, count: int = -1, step: int = 1) -> None:
        """Transfer pending messages (IDs of 16 bytes each) to an owner, with the last delivery at ``last``.

        Sets their deliveries to ``count`` or, if that is -1, adds ``step``. Raises KeyError and changes nothing if a
        message is not pending.
        """
        raws = ascending(raws)
        if len(self._ids.present(raws)) != len(raws):
            raise KeyError("a message that is not pending")
        if raws:
            owned = self._has_owners()
            owned.note(owner, last)
            owned.lose(self._ranges, raws)
            owned.count(owner, len(raws))
            self._change(raws, new_owner(owner, last, count, step))

    def forget(self, owner: int) -> int:
        """Remove all messages of an owner and return their number."""
        number = 0
        raws = self.raws_of(owner, AT_ONCE)
        while raws:
            number += self._remove(raws)
            raws = self.raws_of(owner, AT_ONCE)
        return number

    def raws_of(self, owner: int, count: int) -> list[bytes]:
        """Return the IDs (16 bytes each) of an owner's first ``count`` messages, ascending."""
        raws: list[bytes] = []
        if self._owner_index is not None:
            for low in self._owner_index.lows(owner, b"", count):
                raws += self._of(low, count - len(raws))
                if len(raws) >= count:
                    break
        return raws

    def owned(self, owner: int) -> int:
        """Return the number of an owner's messages."""
        return 0 if self._owner_index is None else self._owner_index.counts.get(owner, 0)

    def owners(self) -> list[int]:
        """Return the numbers of owners that have messages; 0 means no owner."""
        return [] if self._owner_index is None else list(self._owner_index.counts)

    def rows_of(self, owner: int, start: int, end: int, count: int) -> list[PendingRow]:
        """Return an owner's messages with start <= ID <= end, in order, at most ``count``."""
        found: list[PendingRow] = []
        owned = self._owner_index
        if owned is None or count <= 0 or start > end:
            return found
        raw, after = start.to_bytes(16, "big"), _after(end)
        range_ = self._ranges.floor(raw)  # it may begin before ``start``
        lows = owned.lows(owner, raw, count)
        if range_ and range_[KIND] == OWNED and owner_of(range_) == owner and range_[:ID_SIZE] < raw:
            lows.insert(0, range_[:ID_SIZE])
        for low in lows:
            if after and low >= after:
                break
            range_, border = self._ranges.get(low), self._ranges.above(low)[:ID_SIZE]
            if after and (not border or after < border):
                border = after
            found += [self._open(row, range_) for row in self._ids.span(max(low, raw), border, count - len(found))]
            if len(found) >= count:
                break
        return found

    def idle_before(self, ms: int, start: PendingRow | None, limit: int) -> list[PendingRow]:
        """Return messages of consumers that were last delivered at or before ``ms``, oldest first; at most ``limit``.

        Returned messages without an owner precede them, in the order of their return. ``start``: the last row of the
        previous call, which must be unchanged; the search continues after it. Without it, the messages that pass_idle()
        has marked are skipped.
        """
        found: list[PendingRow] = []
        owned = self._owner_index
        if owned is None or limit <= 0:
            return found
        position = owned.passed if start is None else self._idle_position(start)
        begin = owned.begin_of(position) if position else b""
        for entry in owned.by_last(begin, ms, limit + 1):
            low = entry[TIME_SIZE:]
            range_, border = self._ranges.get(low), self._ranges.above(low)[:ID_SIZE]
            if entry == begin:
                low = self._ids.above(position[TIME_SIZE:])
                if not low or (border and low >= border):
                    continue
            found += [self._open(row, range_) for row in self._ids.span(low, border, limit - len(found))]
            if len(found) >= limit:
                break
        return found

    def _idle_position(self, row: PendingRow) -> bytes:
        """Return the position of a consumer's message in the order of idle_before()."""
        raw = row.id.to_bytes(16, "big")
        return last_time(self._ranges.floor(raw)) + raw

    def pass_idle(self, row: PendingRow) -> None:
        """Make idle_before() and first_idle() skip all messages up to this one, in the order of idle_before().

        Their entries were deleted, or the messages are about to be delivered. This ends when a message with an earlier
        position is added.
        """
        if self._owner_index is not None:
            self._owner_index.passed = self._idle_position(row)

    def pass_none(self) -> None:
        """Stop skipping messages."""
        if self._owner_index is not None:
            self._owner_index.passed = b""

    def first_idle(self) -> int | None:
        """Return the earliest last delivery of consumers' messages; 0 if one was returned, None if there are none."""
        rows = self.idle_before(NEVER_AGO, None, 1)
        return rows[0].last if rows else None

    def next_of_nobody(self, now: int) -> int:
        """Return the ``last`` of messages that are returned now, which orders them after those returned earlier."""
        return now if self._owner_index is None else max(now, self._owner_index.newest_of_nobody() + 1)

    def present(self, raws: list[bytes]) -> list[bytes]:
        """Return those of these IDs (16 bytes each, ascending) that are pending."""
        return self._ids.present(raws) if raws and self._ids.count else []

    def has_all(self, raws: list[bytes]) -> bool:
        """Return whether these messages (IDs of 16 bytes each) are all pending."""
        raws = ascending(raws)
        return len(self._ids.present(raws)) == len(raws)

    # -- by time ---------------------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """Return the earliest due time of messages that can be redelivered; None if there are none."""
        if self._fresh:
            if self._fresh_owner != NOT_OWNED:
                return None
            return self._fresh_due if not self._fresh_expire or self._fresh_due < self._fresh_expire else None
        entry = self._due.first()
        return unpack_time(entry)[0] if entry else None

    def due(self, now: int, limit: int) -> list[int]:
        """Return the IDs of messages that are due at ``now`` and not expired, by (due time, ID), at most ``limit``.

        Expired ranges are removed from the due index, so that they are found only once and never redelivered, even if
        the clock is set back. One call removes at most SWEEP of them. It may then return fewer messages than are due,
        while next_due() is still in the past.
        """
        entries = self._due.span(b"", pack_time(now + 1), limit + SWEEP if self._overdue(now) else limit)
        found: list[int] = []
        expired: list[bytes] = []
        for entry in entries:
            if len(found) >= limit or len(expired) >= SWEEP:
                break
            range_ = self._ranges.get(entry[TIME_SIZE:])
            expire = int.from_bytes(range_[EXPIRE:RETRY], "big")
            if expire and expire <= now:
                expired.append(range_)
            else:
                found += [int.from_bytes(raw, "big") for raw in self._of(entry[TIME_SIZE:], limit - len(found))]
        for range_ in expired:
            self._due.delete(due_row(range_))
            self._ranges.replace(range_[:KIND] + SWEPT)
        return found

    def due_at(self, now: int) -> int:
        """Return roughly how many messages are due at ``now``. Reads at most SWEEP + 1 ranges."""
        number = 0
        for entry in self._due.span(b"", pack_time(now + 1), SWEEP + 1):
            low = entry[TIME_SIZE:]
            number += self._ids.between(low, self._ranges.above(low)[:ID_SIZE])
            if number > SWEEP:
                break
        return number

    def _overdue(self, now: int) -> bool:
        leaves = self.next_drop()
        return leaves is not None and leaves <= now

    def next_drop(self) -> int | None:
        """Return the earliest time at which a message must leave; None if there is none."""
        if self._fresh:
            return self._fresh_expire if self._fresh_owner == NOT_OWNED and self._fresh_expire else None
        entry = self._drop.first()
        return unpack_time(entry)[0] if entry else None

    def drops(self, now: int, limit: int) -> list[tuple[int, str]]:
        """Return the messages that must leave at ``now``, earliest first, each with "expired" or "maxdeliveries"."""
        found: list[tuple[int, str]] = []
        for entry in self._drop.span(b"", pack_time(now + 1), limit):
            range_ = self._ranges.get(entry[TIME_SIZE:])
            why = "expired" if range_[EXPIRE:RETRY] == entry[:TIME_SIZE] else "maxdeliveries"
            found += [(int.from_bytes(raw, "big"), why) for raw in self._of(entry[TIME_SIZE:], limit - len(found))]
            if len(found) >= limit:
                break
        return found

    # -- by ID -----------------------------------------------------------------------------------------------
    def get(self, entry_id: int) -> PendingRow | None:
        raw = entry_id.to_bytes(16, "big")
        return self._open(raw, self._ranges.floor(raw)) if self._ids.get(raw) else None

    def _open(self, raw: bytes, range_: bytes) -> PendingRow:
        _, first, due, expire, retry, deliveries, most, slot, kind = unpack_range(range_)
        entry_id = int.from_bytes(raw, "big")
        if kind == OWNED:  # the fields have other meanings
            return PendingRow(entry_id, expire, first, NEVER, NEVER, 0, 0, b"", most, due if most else 0)
        key = self._keys[slot - 1] if slot else b""
        last = max(first, due - retry)
        return PendingRow(entry_id, deliveries, first, due, expire, retry, most, key, 0, last)

    def rows(self, start: int, end: int, count: int) -> list[PendingRow]:
        """Return the messages with start <= ID <= end, in order, at most ``count``."""
        found: list[PendingRow] = []
        range_ = border = b""
        for raw in self._ids.span(start.to_bytes(16, "big"), _after(end), count):
            if not range_ or (border and raw >= border):
                range_ = self._ranges.floor(raw)
                border = self._ranges.above(raw)[:ID_SIZE]
            found.append(self._open(raw, range_))
        return found

    def runs(self) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
        """Yield all messages, at most RUN at a time: the row of their range, their dead-letter key, and their IDs.

        For a freeze(), which does not change meanwhile.
        """
        start = b""
        while raws := self._ids.span(start, b"", RUN):
            at = 0
            while at < len(raws):
                range_, border = self._ranges.floor(raws[at]), self._ranges.above(raws[at])[:ID_SIZE]
                stop = bisect_left(raws, border, at) if border else len(raws)
                slot = 0 if range_[KIND] == OWNED else int.from_bytes(range_[KEY:KIND], "big")
                yield range_, self._keys[slot - 1] if slot else b"", raws[at:stop]
                at = stop
            start = _after(int.from_bytes(raws[-1], "big"))
            if not start:
                break

    def below(self, border: int, count: int) -> list[bytes]:
        """Return the IDs (16 bytes each) of the first ``count`` messages below ``border``."""
        return self._ids.span(b"", _after(border - 1), count) if border > 0 else []

    def between(self, start: int, end: int) -> int:
        """Return the number of messages with start <= ID <= end."""
        return self._ids.between(start.to_bytes(16, "big"), _after(end))

    def freeze(self) -> PendingTable:
        """Return a cheap copy that supports rows() and rows_of()."""
        other = PendingTable()
        if self._owner_index is not None:
            other._by_owner = self._owner_index.freeze()
        other._all, other._by_low, other._keys = self._ids.freeze(), self._ranges.freeze(), self._keys.copy()
        return other

    def lowest(self) -> int | None:
        raw = self._fresh[0] if self._fresh else self._ids.first()
        return int.from_bytes(raw, "big") if raw else None

    def highest(self) -> int | None:
        raw = self._ids.last()
        return int.from_bytes(raw, "big") if raw else None

    # -- the whole -------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        keys = sum(map(len, self._keys)) + 150 * len(self._keys)
        sets = self._ids.memory_bytes() + self._ranges.memory_bytes()
        if self._owner_index is not None:
            sets += self._owner_index.memory_bytes()
        return sets + self._due.memory_bytes() + self._drop.memory_bytes() + keys

    def parts(self) -> list[bytes | PackedRows]:
        """Return a dump (see ``pendingformat``) in parts.

        The parts are cheap and immutable. Any thread may assemble() them later.
        """
        owned = self._owner_index is not None and len(self._owner_index.counts) > 0
        return [*head(self._ids.count, self._ranges.count, self._keys, owned), *self._ranges.dump(), *self._ids.dump()]

    @classmethod
    def load(cls, data: bytes) -> PendingTable:
        """Return the table of a dump. Raises CorruptError if the dump is damaged."""
        table = cls()
        table._keys, ranges, rows = parse(data)
        table._users = [0] * len(table._keys)
        if ranges or rows:
            table._fill(ranges, rows)
        table._slots = {key: slot for slot, key in enumerate(table._keys, 1) if table._users[slot - 1]}
        table._free = [slot for slot, users in enumerate(table._users, 1) if not users]
        return table

    def _fill(self, ranges: list[bytes], rows: bytes) -> None:
        """Fill an empty table, whose keys are set, with the ranges and IDs of a dump."""
        raws = cut(rows, ID_SIZE)
        lows = [range_[:ID_SIZE] for range_ in ranges]
        if not (all(map(lt, raws, islice(raws, 1, None))) and all(map(lt, lows, islice(lows, 1, None)))):
            raise CorruptError("a pending list is damaged: its rows are out of order")
        self._ids.fill(rows)
        if not ranges or not raws or lows[0] > raws[0] or lows[-1] > raws[-1] or any(
            self._ids.above(low, itself=True) >= border for low, border in pairwise(lows)
        ):  # fmt: skip
            raise CorruptError("a pending list is damaged: its ranges do not match its rows")
        self._highest = raws[-1]
        self._ranges.fill(b"".join(ranges))
        dues: list[bytes] = []
        drops: list[bytes] = []
        owned: list[bytes] = []
        for range_ in ranges:
            if range_[KIND] == OWNED:
                owned.append(range_)
                continue
            due, drop, slot = index_rows(range_)
            if slot > len(self._keys):
                raise CorruptError("a pending list is damaged: a range refers to an unknown key")
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
        if owned:
            self._fill_owned(owned)

    def _fill_owned(self, ranges: list[bytes]) -> None:
        """Add the OWNED ranges of the dump."""
        owned = self._has_owners()
        for range_ in ranges:
            _, first, last, deliveries, *_ = unpack_range(range_)
            if max(first, last, deliveries) >> 63 or range_[RETRY:OWNER] != ZEROS or range_[KEY:KIND] != ZEROS[:4]:
                raise CorruptError("a pending list is damaged: the range of an owner is invalid")
            low = range_[:ID_SIZE]
            owned.count(owner_of(range_), self._ids.between(low, self._ranges.above(low)[:ID_SIZE]))
        owned.fill(ranges)


def _after(end: int) -> bytes:
    """Return the ID after this one, as 16 bytes; empty if it is the highest ID."""
    last = (end + 1).to_bytes(17, "big")
    return b"" if last[0] else last[1:]
