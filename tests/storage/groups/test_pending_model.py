"""The pending list against a plain dict: every operation, in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage.groups.pending import PendingRow, PendingTable
from storage.model import sortedrows
from tests.storage.groups.pendingkit import MAX_ID, NOW, check_sets, dumped, ids_of, raws, row

# few enough that they meet often, with neighbours in ms and in seq, and both ends of the range
IDS = [ms << 64 | seq for ms in range(6) for seq in range(6)] + [MAX_ID - 1, MAX_ID, NOW << 64, 1 << 127]
ids = st.sampled_from(IDS)
spans = st.integers(0, 40)
retries = st.integers(1, 40)
limits = st.integers(0, 3)
keys = st.sampled_from([b"", b"dead", b"other", b"\0\xff"])
OWNERS = [1, 2, 300, (1 << 32) - 1]
owners = st.sampled_from(OWNERS)


def falls_due(row: PendingRow, due: int, **others: Any) -> PendingRow:
    """The row with another due time, and what follows from it."""
    row = row._replace(due=due, **others)
    return row._replace(last=max(row.first, row.due - row.retry))


class Model(RuleBasedStateMachine):
    """Every operation on the table and on a dict, with chunks so small that they split and join all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(sortedrows, "CHUNK_BYTES", 240)
        self.table = PendingTable()
        self.model: dict[int, PendingRow] = {}
        self.given: dict[int, int] = {}  # when messages were given back
        self.now = NOW

    def teardown(self) -> None:
        self.patch.undo()

    # -- what the words mean, in the plainest form
    def again(self, row: PendingRow) -> bool:
        return (
            row.due > 0
            and (not row.max_deliveries or row.deliveries < row.max_deliveries)
            and (not row.expire or row.due < row.expire)
        )

    def leaves(self, row: PendingRow) -> tuple[int, str] | None:
        ends = []
        if row.expire:
            ends.append((row.expire, "expired"))
        if row.max_deliveries and row.deliveries >= row.max_deliveries:
            ends.append((row.due, "maxdeliveries"))
        return min(ends, default=None)

    # -- rules
    @rule(entry=ids, retry=retries, expire=spans, most=limits, key=keys)
    def add(self, entry: int, retry: int, expire: int, most: int, key: bytes) -> None:
        at = expire and self.now + expire
        self.table.add(raws(entry), self.now, self.now + retry, at, retry, most, key)
        self.model[entry] = row(entry, 1, self.now, self.now + retry, at, retry, most, key)

    @rule(entries=st.lists(ids, max_size=20), ordered=st.booleans(), retry=retries, expire=spans, most=limits, key=keys)
    def add_many(self, entries: list[int], ordered: bool, retry: int, expire: int, most: int, key: bytes) -> None:
        at = expire and self.now + expire
        if ordered:
            entries.sort()
        self.table.add(raws(*entries), self.now, self.now + retry, at, retry, most, key)
        for entry in entries:
            self.model[entry] = row(entry, 1, self.now, self.now + retry, at, retry, most, key)

    @rule(entries=st.lists(ids, max_size=20), owner=owners, back=spans, count=limits)
    def own_new(self, entries: list[int], owner: int, back: int, count: int) -> None:
        last = self.now - back
        self.table.own_new(raws(*entries), owner, last, count)
        for entry in entries:
            self.model[entry] = PendingRow(entry, count, last, 0, 0, 0, 0, b"", owner, last)

    @rule(
        entries=st.lists(ids, max_size=20), every=st.booleans(), owner=owners, back=spans,
        count=st.integers(-1, 3), step=st.sampled_from([-1, 0, 1]),
    )  # fmt: skip
    def own(self, entries: list[int], every: bool, owner: int, back: int, count: int, step: int) -> None:
        last = self.now - back
        if set(entries) - self.model.keys():
            if every:
                with pytest.raises(KeyError):
                    self.table.own(raws(*entries), owner, last, count, step)
            entries = [entry for entry in entries if entry in self.model]
        assert self.table.has_all(raws(*entries))
        self.table.own(raws(*entries), owner, last, count, step)
        for entry in set(entries):
            self.hand_over(entry, owner, last, count, step)

    @rule(entries=st.lists(ids, max_size=20), step=st.sampled_from([-1, 0]))
    def give_back(self, entries: list[int], step: int) -> None:
        entries = [entry for entry in entries if entry in self.model]
        last = self.table.next_of_nobody(self.now)
        kept = [self.given[entry] for entry, row in self.model.items() if row.due == row.owner == 0]
        assert last == max(self.now, max(kept, default=-1) + 1)
        self.table.own(raws(*entries), 0, last, -1, step)
        for entry in set(entries):
            self.hand_over(entry, 0, 0, -1, step)
            self.given[entry] = last

    def hand_over(self, entry: int, owner: int, last: int, count: int, step: int) -> None:
        old = self.model[entry]
        count = max(0, old.deliveries + step) if count < 0 else count
        self.model[entry] = PendingRow(entry, count, old.first, 0, 0, 0, 0, b"", owner, last)

    @rule(owner=owners)
    def forget(self, owner: int) -> None:
        theirs = [entry for entry, row in self.model.items() if row.owner == owner]
        assert self.table.forget(owner) == len(theirs)
        for entry in theirs:
            del self.model[entry]

    @rule(owner=st.sampled_from([*OWNERS, 0, 7]), start=ids, end=ids, count=st.integers(-1, 50), frozen=st.booleans())
    def rows_of(self, owner: int, start: int, end: int, count: int, frozen: bool) -> None:
        found = [
            self.model[entry] for entry in sorted(self.model)
            if start <= entry <= end and self.model[entry].owner == owner and not self.model[entry].due
        ]  # fmt: skip
        table = self.table.freeze() if frozen else self.table
        assert table.rows_of(owner, start, end, count) == found[: max(0, count)]

    @rule(back=spans, limit=st.integers(1, 12), page=st.booleans())
    def idle(self, back: int, limit: int, page: bool) -> None:
        theirs = [row for row in self.model.values() if not row.due]
        zone = sorted((row for row in theirs if not row.owner), key=lambda row: (self.given[row.id], row.id))
        old = sorted((row.last, row.id) for row in theirs if row.owner and row.last <= self.now - back)
        expected = zone + [self.model[entry] for _, entry in old]
        found = self.table.idle_before(self.now - back, None, limit)
        while page and found and len(more := self.table.idle_before(self.now - back, found[-1], limit)):
            found += more
        assert found == (expected if page else expected[:limit])

    @precondition(lambda self: any(row.due for row in self.model.values()))
    @rule(data=st.data(), retry=st.none() | retries, most=st.none() | limits, key=st.none() | keys, wait=spans)
    def redeliver(self, data: st.DataObject, retry: int | None, most: int | None, key: bytes | None, wait: int) -> None:
        entry = data.draw(st.sampled_from(sorted(entry for entry, row in self.model.items() if row.due)))
        row = self.model[entry]
        self.table.redeliver(raws(entry), self.now + wait, retry, most, key)
        self.model[entry] = falls_due(
            row,
            self.now + wait,
            deliveries=row.deliveries + 1,
            retry=row.retry if retry is None else retry,
            max_deliveries=row.max_deliveries if most is None else most,
            deadletter=row.deadletter if key is None else key,
        )

    @rule(entries=st.lists(ids, max_size=20), retry=st.none() | retries, key=st.none() | keys, wait=spans)
    def redeliver_many(self, entries: list[int], retry: int | None, key: bytes | None, wait: int) -> None:
        there = {entry for entry, row in self.model.items() if row.due}
        if entries and not set(entries) <= there:
            with pytest.raises(KeyError):
                self.table.redeliver(raws(*entries), self.now + wait, retry, None, key)
            entries = [entry for entry in entries if entry in there]
        self.table.redeliver(raws(*entries), self.now + wait, retry, None, key)
        for entry in set(entries):
            row = self.model[entry]
            self.model[entry] = falls_due(
                row,
                self.now + wait,
                deliveries=row.deliveries + 1,
                retry=row.retry if retry is None else retry,
                deadletter=row.deadletter if key is None else key,
            )

    @rule(entries=st.lists(ids, max_size=20), wait=spans)
    def set_due_many(self, entries: list[int], wait: int) -> None:
        there = [entry for entry in entries if entry in self.model and self.model[entry].due]
        assert self.table.set_due(raws(*entries), self.now + wait) == raws(*sorted(set(there)))
        for entry in there:
            self.model[entry] = falls_due(self.model[entry], self.now + wait)

    @rule(entry=ids, wait=spans)
    def set_due(self, entry: int, wait: int) -> None:
        there = entry in self.model and self.model[entry].due > 0
        assert self.table.set_due(raws(entry), self.now + wait) == raws(*[entry] * there)
        if there:
            self.model[entry] = falls_due(self.model[entry], self.now + wait)

    @rule(entry=ids)
    def remove(self, entry: int) -> None:
        assert self.table.remove(raws(entry)) == (self.model.pop(entry, None) is not None)

    @rule(entries=st.lists(ids, max_size=20))
    def remove_many(self, entries: list[int]) -> None:
        there = set(entries) & self.model.keys()
        assert self.table.remove(raws(*entries)) == len(there)
        for entry in there:
            del self.model[entry]

    @rule(span=spans)
    def wait(self, span: int) -> None:
        self.now += span

    @rule(limit=st.integers(0, 12))
    def due(self, limit: int) -> None:
        found = sorted(
            (row.due, entry)
            for entry, row in self.model.items()
            if self.again(row) and row.due <= self.now and not (row.expire and row.expire <= self.now)
        )
        assert self.table.due(self.now, limit) == [entry for _, entry in found[:limit]]

    @rule(limit=st.integers(0, 12))
    def drops(self, limit: int) -> None:
        ends = [(end, entry) for entry, row in self.model.items() if (end := self.leaves(row)) is not None]
        overdue = sorted((when, entry, why) for (when, why), entry in ends if when <= self.now)
        assert self.table.drops(self.now, limit) == [(entry, why) for _, entry, why in overdue[:limit]]

    @rule(start=ids, end=ids, count=st.integers(-1, 50))
    def rows(self, start: int, end: int, count: int) -> None:
        found = [self.model[entry] for entry in sorted(self.model) if start <= entry <= end]
        assert self.table.rows(start, end, count) == found[: max(0, count)]

    @rule()
    def reload(self) -> None:
        dump = dumped(self.table)
        assert dump[:4] == (b"TLP3" if any(not row.due for row in self.model.values()) else b"TLP2")
        self.table = PendingTable.load(dump)

    # -- always
    @invariant()
    def same_content(self) -> None:
        assert len(self.table) == len(self.model)
        assert ids_of(self.table) == sorted(self.model)
        assert self.table.rows(0, MAX_ID, 100) == [self.model[entry] for entry in sorted(self.model)]
        assert self.table.lowest() == min(self.model, default=None)
        assert self.table.highest() == max(self.model, default=None)
        for entry in IDS:
            assert self.table.get(entry) == self.model.get(entry)

    @invariant()
    def same_moments(self) -> None:
        ends = [end[0] for row in self.model.values() if (end := self.leaves(row)) is not None]
        assert self.table.next_drop() == min(ends, default=None)
        soonest = self.table.next_due()
        dues = [row.due for row in self.model.values() if self.again(row)]
        live = [row.due for row in self.model.values() if self.again(row) and not 0 < row.expire <= self.now]
        # what has expired may still be counted, until a due() has met it
        if soonest is None:
            assert not live
        else:
            assert soonest in dues
            assert soonest <= min(live, default=soonest)

    @invariant()
    def same_owners(self) -> None:
        theirs = [row for row in self.model.values() if not row.due]
        for owner in (0, *OWNERS):
            assert self.table.owned(owner) == sum(row.owner == owner for row in theirs)
        assert set(self.table.owners()) == {row.owner for row in theirs}
        assert self.table.first_idle() == min((row.last for row in theirs), default=None)

    @invariant()
    def sets_are_consistent(self) -> None:
        check_sets(self.table)


TestModel = pytest.mark.slow(Model.TestCase)
TestModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
