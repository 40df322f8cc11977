"""The pending list of a group: messages that were delivered, with RETRY or to a consumer, and not yet acknowledged.

Rule 1: no Python object per message; see ``runtable`` for the rows of bytes.
Rule 2: nothing here scans: what falls due and what must leave is found by time, in O(log n).
Rule 3: no clock; ``now`` and due times are arguments, in ms of served time (``keyspace``, Rule 6). When a message was
delivered first, and when a consumer got it last, is in wall-clock time, as Redis shows it.
"""

from __future__ import annotations

from itertools import islice, pairwise
from operator import lt
from typing import Final, NamedTuple

from resp.errors import CorruptError
from storage.groups.ownerindex import moment, owner_of
from storage.groups.pendingformat import ID_SIZE, OWNED, cut, head, parse
from storage.groups.ranges import (
    Again,
    DueAt,
    Owning,
    delivered_terms,
    owned_terms,
    pack_time,
    unpack_run,
    unpack_time,
)
from storage.groups.rangetable import NONE, NOT_OWNED, RunTable, ascending, indexed
from storage.model.sortedrows import PackedRows
from storage.model.timers import NEVER

SWEEP: Final = 1000  # expired runs that one due() looks at
AT_ONCE: Final = 10_000  # messages that forget() removes together
ZEROS: Final = bytes(12)
NEVER_AGO: Final = (1 << 63) - 1  # ms since epoch: later than any delivery


class PendingRow(NamedTuple):
    """One pending message. Times in ms: ``due`` and ``expire`` in served time, the others since the epoch."""

    id: int
    deliveries: int  # 1 after the first
    first: int  # when it was delivered first
    due: int  # when it is delivered again; 0: never, as a consumer's, or nobody's
    expire: int  # when it is given up, or NEVER
    retry: int  # ms from a delivery to the next
    max_deliveries: int  # 0: no limit
    deadletter: bytes  # key of the stream it is moved to when it is given up; empty for none
    owner: int = 0  # number of its consumer; 0: nobody's, or delivered by TREAD (then ``due`` is above 0)
    # When it was delivered last; 0: it was given back. Of what TREAD delivered it is what ``due`` and ``retry`` tell:
    # not exact after TNACK or TTOUCH, maybe in the future, and for a server that was away see delivered().
    last: int = 0

    def delivered(self, away: int) -> int:
        """``last``, with the keyspace's ``away``."""
        return max(self.first, self.due - self.retry + away) if self.due else self.last


class PendingTable(RunTable):
    """Pending messages by ID, by due time and by the time at which they must leave; and by who owns them."""

    __slots__ = ()

    # -- changes ---------------------------------------------------------------------------------------------
    def add(
        self, raws: list[bytes], first: int, due: int, expire: int, retry: int, max_deliveries: int = 0,
        deadletter: bytes = b"",
    ) -> None:  # fmt: skip
        """Messages (IDs of 16 bytes each) were delivered for the first time; those that are pending are replaced.

        A batch costs little more than one message if its IDs ascend and are neighbours.
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

    def redeliver(
        self, raws: list[bytes], due: int, retry: int | None = None, max_deliveries: int | None = None,
        deadletter: bytes | None = None, own_retry: bool = False,
    ) -> None:  # fmt: skip
        """Messages (IDs of 16 bytes each) were delivered again; None keeps what they had.

        ``own_retry``: each is due as much after ``due`` as its own retry time. Raises KeyError, and changes nothing, if
        one isn't pending, or is OWNED.
        """
        raws = ascending(raws)
        if len(self._unowned(self._rows.present(raws))) != len(raws):
            raise KeyError("a message that isn't pending")
        taken = self._take_slot(deadletter) if deadletter else 0
        self._change(raws, Again(due, own_retry, retry, max_deliveries, None if deadletter is None else taken))
        if taken:
            self._free_slot(taken)

    def set_due(self, raws: list[bytes], due: int) -> list[bytes]:
        """Let messages (IDs of 16 bytes each) fall due at ``due``; returns those that are pending, ascending.

        OWNED ones don't count.
        """
        if len(raws) == 1:
            found = raws if self._rows.get(raws[0]) else []
        else:
            found = self._rows.present(ascending(raws))
        found = self._unowned(found)
        self._change(found, DueAt(due))
        return found

    def remove(self, raws: list[bytes]) -> int:
        """Messages (IDs of 16 bytes each) were acknowledged or given up; returns how many of them were pending."""
        if self._fresh and raws == self._fresh:  # nearly always
            self._fresh = NONE
            return len(raws)
        return self._remove(raws if len(raws) == 1 else ascending(raws))

    # -- consumers -------------------------------------------------------------------------------------------
    def own_new(self, raws: list[bytes], owner: int, last: int, deliveries: int) -> None:
        """Messages (IDs of 16 bytes each) become pending as an owner's; those that are pending are replaced."""
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
            owned.count(owner, len(raws))  # after what _add() has removed, which may be theirs

    def own(self, raws: list[bytes], owner: int, last: int, count: int = -1, step: int = 1) -> None:
        """Pending messages (IDs of 16 bytes each) become an owner's, delivered at ``last``.

        Their deliveries are ``count`` from now on or, if that is -1, ``step`` more. Raises KeyError, and changes
        nothing, if one isn't pending.
        """
        raws = ascending(raws)
        if len(self._rows.present(raws)) != len(raws):
            raise KeyError("a message that isn't pending")
        if raws:
            owned = self._has_owners()
            owned.note(owner, last)
            owned.lose(self._runs, raws)
            owned.count(owner, len(raws))
            self._change(raws, Owning(owner, last, count, step))

    def forget(self, owner: int) -> int:
        """Remove all messages of an owner; returns how many there were."""
        number = 0
        raws = self.raws_of(owner, AT_ONCE)
        while raws:
            number += self._remove(raws)
            raws = self.raws_of(owner, AT_ONCE)
        return number

    def raws_of(self, owner: int, count: int) -> list[bytes]:
        """An owner's first messages (IDs of 16 bytes each, ascending), at most ``count``."""
        raws: list[bytes] = []
        if self._owned is not None:
            for low in self._owned.lows(owner, b"", count):
                raws += self._of(low, count - len(raws))
                if len(raws) >= count:
                    break
        return raws

    def owned(self, owner: int) -> int:
        """How many messages an owner has."""
        return 0 if self._owned is None else self._owned.counts.get(owner, 0)

    def owners(self) -> list[int]:
        """Those who have messages; 0 is nobody."""
        return [] if self._owned is None else list(self._owned.counts)

    def rows_of(self, owner: int, start: int, end: int, count: int) -> list[PendingRow]:
        """An owner's messages with start <= ID <= end, in order, at most ``count``."""
        found: list[PendingRow] = []
        owned = self._owned
        if owned is None or count <= 0 or start > end:
            return found
        raw, after = start.to_bytes(16, "big"), _after(end)
        run = self._runs.floor(raw)  # it may begin before ``start``
        lows = [run[:ID_SIZE]] if run and run[-1] == OWNED and owner_of(run) == owner and run[:ID_SIZE] < raw else []
        lows += owned.lows(owner, raw, count)
        for low in lows:
            if after and low >= after:
                break
            run, border = self._runs.get(low), self._runs.above(low)[:ID_SIZE]
            if after and (not border or after < border):
                border = after
            found += [self._open(row, run) for row in self._rows.span(max(low, raw), border, count - len(found))]
            if len(found) >= count:
                break
        return found

    def idle_before(self, ms: int, start: PendingRow | None, limit: int) -> list[PendingRow]:
        """Messages of consumers that were last delivered at ``ms`` or before, oldest first; at most ``limit``.

        What was given back comes before them, in the order in which that happened. ``start``: the last row of the call
        before, to go on after it; it must not have changed since. Without it, those that were passed are left out.
        """
        found: list[PendingRow] = []
        owned = self._owned
        if owned is None or limit <= 0:
            return found
        place = owned.passed if start is None else self._place(start)
        begin = owned.begin_of(place) if place else b""
        for entry in owned.by_last(begin, ms, limit + 1):
            low = entry[8:]
            run, border = self._runs.get(low), self._runs.above(low)[:ID_SIZE]
            if entry == begin:
                low = self._rows.above(place[8:])
                if not low or (border and low >= border):
                    continue
            found += [self._open(row, run) for row in self._rows.span(low, border, limit - len(found))]
            if len(found) >= limit:
                break
        return found

    def _place(self, row: PendingRow) -> bytes:
        """Where a consumer's message is in the order of idle_before()."""
        raw = row.id.to_bytes(16, "big")
        return moment(self._runs.floor(raw)) + raw

    def pass_idle(self, row: PendingRow) -> None:
        """The entries of all messages up to this one, in the order of idle_before(), are gone, or the messages are
        about to be delivered: idle_before() and first_idle() leave them out, until others come before it."""
        if self._owned is not None:
            self._owned.passed = self._place(row)

    def pass_none(self) -> None:
        """Entries may be there again."""
        if self._owned is not None:
            self._owned.passed = b""

    def first_idle(self) -> int | None:
        """The earliest last delivery of consumers' messages, 0 if one was given back; None if there are none."""
        rows = self.idle_before(NEVER_AGO, None, 1)
        return rows[0].last if rows else None

    def next_of_nobody(self, now: int) -> int:
        """``last`` for messages that are given back now, so that they come after those that were before."""
        return now if self._owned is None else max(now, self._owned.newest_of_nobody() + 1)

    def present(self, raws: list[bytes]) -> list[bytes]:
        """Those of these IDs (16 bytes each, ascending) that are pending."""
        return self._rows.present(raws) if raws and self._rows.count else []

    def has_all(self, raws: list[bytes]) -> bool:
        """Whether these messages (IDs of 16 bytes each) are all pending."""
        raws = ascending(raws)
        return len(self._rows.present(raws)) == len(raws)

    # -- by time ---------------------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """The earliest moment at which a message falls due that may be delivered again; None if there is none."""
        if self._fresh:
            if self._fresh_owner != NOT_OWNED:
                return None
            return self._fresh_due if not self._fresh_expire or self._fresh_due < self._fresh_expire else None
        entry = self._due.first()
        return unpack_time(entry)[0] if entry else None

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
        if self._fresh:
            return self._fresh_expire if self._fresh_owner == NOT_OWNED and self._fresh_expire else None
        entry = self._drop.first()
        return unpack_time(entry)[0] if entry else None

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
        _, first, due, expire, retry, deliveries, most, slot, kind = unpack_run(run)
        entry_id = int.from_bytes(raw, "big")
        if kind == OWNED:  # these mean something else then
            return PendingRow(entry_id, expire, first, NEVER, NEVER, 0, 0, b"", most, due if most else 0)
        key = self._keys[slot - 1] if slot else b""
        last = max(first, due - retry)
        return PendingRow(entry_id, deliveries, first, due, expire, retry, most, key, 0, last)

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

    def below(self, border: int, count: int) -> list[bytes]:
        """IDs of the first messages below ``border``, at most ``count``; 16 bytes each."""
        return self._rows.span(b"", _after(border - 1), count) if border > 0 else []

    def between(self, start: int, end: int) -> int:
        """The number of messages with start <= ID <= end."""
        return self._rows.between(start.to_bytes(16, "big"), _after(end))

    def freeze(self) -> PendingTable:
        """A copy for rows() and rows_of(), which costs next to nothing."""
        other = PendingTable()
        if self._owned is not None:
            other._by_owner = self._owned.freeze()
        other._all, other._by_low, other._keys = self._rows.freeze(), self._runs.freeze(), self._keys.copy()
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
        if self._owned is not None:
            sets += self._owned.memory_bytes()
        return sets + self._due.memory_bytes() + self._drop.memory_bytes() + keys

    def parts(self) -> list[bytes | PackedRows]:
        """The table as a dump (see ``pendingdump``), in parts.

        They cost next to nothing and never change; any thread may assemble() them later.
        """
        owned = self._owned is not None and len(self._owned.counts) > 0
        return [*head(self._rows.count, self._runs.count, self._keys, owned), *self._runs.dump(), *self._rows.dump()]

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
        owned: list[bytes] = []
        for run in runs:
            if run[-1] == OWNED:
                owned.append(run)
                continue
            due, drop, slot = indexed(run)
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
        if owned:
            self._fill_owned(owned)

    def _fill_owned(self, runs: list[bytes]) -> None:
        """The same with the runs that are OWNED."""
        owned = self._has_owners()
        for run in runs:
            _, first, last, deliveries, *_ = unpack_run(run)
            if max(first, last, deliveries) >> 63 or run[40:52] != ZEROS or run[56:60] != ZEROS[:4]:
                raise CorruptError("a pending list is damaged: what an owner's run says makes no sense")
            low = run[:ID_SIZE]
            owned.count(owner_of(run), self._rows.between(low, self._runs.above(low)[:ID_SIZE]))
        owned.fill(runs)


def _after(end: int) -> bytes:
    """The ID after this one, as 16 bytes; empty if it is the last."""
    last = (end + 1).to_bytes(17, "big")
    return b"" if last[0] else last[1:]
