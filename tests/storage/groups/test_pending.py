"""The pending list against a plain dict, its dumps against damage, its memory against 150 bytes a message."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from resp.errors import CorruptError
from storage.groups import pending
from storage.groups.pending import PendingRow, PendingTable
from storage.groups.pendingformat import OWNED, assemble
from storage.model import sortedrows
from tests.storage.model.test_sortedrows import check_chunks

NOW = 1_700_000_000_000
MAX_ID = (1 << 128) - 1

# few enough that they meet often, with neighbours in ms and in seq, and both ends of the range
IDS = [ms << 64 | seq for ms in range(6) for seq in range(6)] + [MAX_ID - 1, MAX_ID, NOW << 64, 1 << 127]
ids = st.sampled_from(IDS)
spans = st.integers(0, 40)
retries = st.integers(1, 40)
limits = st.integers(0, 3)
keys = st.sampled_from([b"", b"dead", b"other", b"\0\xff"])
OWNERS = [1, 2, 300, (1 << 32) - 1]
owners = st.sampled_from(OWNERS)


def raws(*entries: int) -> list[bytes]:
    return [entry.to_bytes(16, "big") for entry in entries]


def row(
    entry: int, deliveries: int, first: int, due: int, expire: int, retry: int, most: int, key: bytes
) -> PendingRow:  # fmt: skip
    """What TREAD delivered."""
    return PendingRow(entry, deliveries, first, due, expire, retry, most, key, 0, max(first, due - retry))


def falls_due(row: PendingRow, due: int, **others: Any) -> PendingRow:
    """The row with another due time, and what follows from it."""
    row = row._replace(due=due, **others)
    return row._replace(last=max(row.first, row.due - row.retry))


def ids_of(table: PendingTable) -> list[int]:
    return [row.id for row in table.rows(0, MAX_ID, len(table))]


def dumped(table: PendingTable) -> bytes:
    return bytes(assemble(table.parts()))


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
    def each_run_has_messages(self) -> None:
        lows = [run[:16] for run in self.table._runs.span(b"", b"", 1000)]
        raws = self.table._rows.span(b"", b"", 1000)
        owners = [bisect_right(lows, raw) for raw in raws]
        assert sorted(set(owners)) == list(range(1, len(lows) + 1))

    @invariant()
    def chunks_are_in_order(self) -> None:
        for part in (self.table._rows, self.table._runs, self.table._due, self.table._drop):
            check_chunks(part)
        owned = self.table._owned
        if owned is not None:
            runs = [run for run in self.table._runs.span(b"", b"", 1000) if run[-1] == OWNED]
            for part in (owned._by_owner, owned._by_last):
                check_chunks(part)
                assert sorted(entry[-16:] for entry in part.span(b"", b"", 1000)) == [run[:16] for run in runs]


TestModel = pytest.mark.slow(Model.TestCase)
TestModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.slow
def test_a_message_of_many_consumers_takes_little_memory() -> None:
    """Each delivered alone, to one of ten."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table, chance = PendingTable(), random.Random(1)
        for i, entry in enumerate(sequence(60_000)):
            table.own_new(raws(entry), chance.randrange(1, 11), NOW + i, 1)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took / len(table) <= 50
    assert 0.8 < table.memory_bytes() / took < 1.25  # the estimate is honest


# -- sizes that the model doesn't reach ---------------------------------------------------------------------
def sequence(count: int, start: int = 0) -> list[int]:
    """IDs as a stream gives them: three in each millisecond."""
    return [NOW + i // 3 << 64 | i % 3 for i in range(start, start + count)]


def filled(count: int) -> PendingTable:
    table = PendingTable()
    for start in range(0, count, 100):
        table.add(raws(*sequence(100, start)), NOW + start, NOW + start + 1000, NOW + start + 5000, 1000)
    return table


def test_appending_leaves_full_chunks() -> None:
    one, many = PendingTable(), filled(9000)
    for i, entry in enumerate(sequence(9000)):
        one.add(raws(entry), NOW + i, NOW + i + 1000, NOW + i + 5000, 1000)
    for table in (one, many):
        for part in (table._rows, table._runs, table._due, table._drop):
            check_chunks(part)
            assert {len(part._chunk(i)) for i in range(len(part._chunks) - 1)} == {part._capacity}


def test_long_runs_fall_into_the_middle() -> None:
    table, low, high = PendingTable(), sequence(3000), sequence(3000, 9000)
    table.add(raws(*low), NOW, NOW + 10, 0, 10)
    table.add(raws(*high), NOW, NOW + 30, 0, 30)
    table.add(raws(*sequence(3000, 4000)), NOW, NOW + 20, 0, 20)
    assert ids_of(table) == low + sequence(3000, 4000) + high
    assert table.due(NOW + 20, 10_000) == low + sequence(3000, 4000)
    assert table.remove(raws(*ids_of(table)[1:-1])) == 8998
    assert ids_of(table) == [low[0], high[-1]]
    check_chunks(table._rows)
    check_chunks(table._due)


def test_drained_in_random_order_it_is_as_new() -> None:
    table = filled(6000)
    order = sequence(6000)
    random.Random(1).shuffle(order)
    for number, entry in enumerate(order):
        assert table.remove(raws(entry))
        if number % 500 == 0:
            check_chunks(table._rows)
            check_chunks(table._due)
            check_chunks(table._drop)
    assert len(table) == 0
    assert (table.lowest(), table.highest(), table.next_due(), table.next_drop()) == (None, None, None, None)
    assert table._rows._chunks == table._runs._chunks == table._due._chunks == table._drop._chunks == [b""]
    assert dumped(table) == dumped(PendingTable())


@pytest.mark.interpreted
def test_due_passes_over_any_number_of_expired_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "SWEEP", 100)
    table = PendingTable()
    for entry in sequence(1000):
        table.add(raws(entry), NOW, NOW + 10, NOW + 20, 10, 0, b"%d" % entry)  # a run each
    table.add(raws(*sequence(5, 1000)), NOW, NOW + 15, 0, 15)
    rounds = 0
    while not (found := table.due(NOW + 50, 10)):
        soonest = table.next_due()
        assert soonest is not None
        assert soonest <= NOW + 50  # there is more: the caller asks again
        rounds += 1
        assert rounds <= 10
    assert rounds == 10
    assert found == sequence(5, 1000)
    assert table.next_due() == NOW + 15
    assert len(table.drops(NOW + 50, 2000)) == 1000  # they are still to be dropped


def test_redeliver_needs_the_message() -> None:
    table = PendingTable()
    with pytest.raises(KeyError):
        table.redeliver(raws(1), NOW)
    assert table.get(1) is None


def test_deliveries_stop_counting_at_the_largest_number() -> None:
    table = PendingTable()
    table.add(raws(1), NOW, NOW, 0, 1)
    raw = bytearray(dumped(table)[:-4])
    raw[-29:-25] = b"\xff\xff\xff\xff"
    table = PendingTable.load(bytes(raw) + struct.pack(">I", zlib.crc32(raw)))
    table.redeliver(raws(1), NOW + 1)
    row = table.get(1)
    assert row is not None
    assert row.deliveries == (1 << 32) - 1


def test_dead_letter_keys_are_forgotten_with_their_last_message() -> None:
    table = PendingTable()
    for i in range(1, 1000):
        table.add(raws(i), NOW, NOW, 0, 1, 0, b"dead-%d" % i)
        table.redeliver(raws(i), NOW, deadletter=b"dead-%d" % (i + 1))
        table.remove(raws(i))
    assert len(table._keys) <= 2
    assert not table._slots
    table.add(raws(1), NOW, NOW, 0, 1, 0, b"a")
    loaded = PendingTable.load(dumped(table))
    loaded.add(raws(2), NOW, NOW, 0, 1, 0, b"b")
    assert [row.deadletter for row in loaded.rows(0, 9, 9)] == [b"a", b"b"]


# -- dumps ---------------------------------------------------------------------------------------------------
def test_golden_dump() -> None:
    table = PendingTable()
    table.add(raws(5 << 64 | 7), 1000, 2000, 9000, 1000, 3, b"dead")
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.redeliver(raws(6 << 64), 3000, 500)
    golden = bytes.fromhex(
        "544c5032 0000000000000002 0000000000000002 00000001 00000004 64656164 "
        "00000000000000050000000000000007 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 00 "
        "00000000000000060000000000000000 00000000000003e9 0000000000000bb8 0000000000000000 00000000000001f4 "
        "00000002 00000000 00000000 00 "
        "00000000000000050000000000000007 00000000000000060000000000000000"
    )
    golden += struct.pack(">I", zlib.crc32(golden))
    assert dumped(table) == golden
    loaded = PendingTable.load(golden)
    assert loaded.rows(0, MAX_ID, 9) == table.rows(0, MAX_ID, 9)
    assert loaded.next_due() == 2000
    assert loaded.next_drop() == 9000
    assert dumped(loaded) == golden


def test_golden_dump_with_owners() -> None:
    table = PendingTable()
    table.own_new(raws(5 << 64 | 7, 5 << 64 | 8), 3, 1000, 1)
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.own(raws(5 << 64 | 8), 4, 1500)
    table.own_new(raws(7 << 64), 4, 900, (1 << 63) - 1)
    table.own(raws(7 << 64), 0, 1600)
    golden = bytes.fromhex(
        "544c5033 0000000000000004 0000000000000004 00000000 "
        "00000000000000050000000000000007 00000000000003e8 00000000000003e8 0000000000000001 0000000000000000 "
        "00000000 00000003 00000000 02 "
        "00000000000000050000000000000008 00000000000003e8 00000000000005dc 0000000000000002 0000000000000000 "
        "00000000 00000004 00000000 02 "
        "00000000000000060000000000000000 00000000000003e9 00000000000007d1 0000000000000000 00000000000003e8 "
        "00000001 00000000 00000000 00 "
        "00000000000000070000000000000000 0000000000000384 0000000000000640 7fffffffffffffff 0000000000000000 "
        "00000000 00000000 00000000 02 "
        "00000000000000050000000000000007 00000000000000050000000000000008 00000000000000060000000000000000 "
        "00000000000000070000000000000000"
    )
    golden += struct.pack(">I", zlib.crc32(golden))
    assert dumped(table) == golden
    loaded = PendingTable.load(golden)
    assert loaded.rows(0, MAX_ID, 9) == table.rows(0, MAX_ID, 9)
    assert [loaded.owned(owner) for owner in (0, 3, 4)] == [1, 1, 1]
    assert [row.id for row in loaded.idle_before(1500, None, 9)] == [7 << 64, 5 << 64 | 7, 5 << 64 | 8]
    assert loaded.drops(10**15, 9) == []
    assert loaded.due(10**15, 9) == [6 << 64]
    assert dumped(loaded) == golden


def test_messages_of_one_delivery_are_one_run_of_their_owner() -> None:
    table, ids = PendingTable(), sequence(1000)
    for start in range(0, 1000, 100):
        table.own_new(raws(*ids[start : start + 100]), 1 + start // 100, NOW + start, 1)
    assert table._runs.count == 10
    assert table.owned(3) == 100
    table.own(raws(*ids[150:950]), 99, NOW + 5000)
    assert [table.owned(owner) for owner in (1, 2, 3, 10, 99)] == [100, 50, 0, 50, 800]
    assert table._runs.count == 12  # they differ in when they were delivered first
    assert table.rows_of(99, ids[160], ids[169], 100) == table.rows(ids[160], ids[169], 100)
    assert table.remove(raws(*ids[::2])) == 500
    assert table.owned(99) == 400
    assert table.forget(99) == 400
    assert (len(table), table.owners()) == (100, [1, 2, 10])


def test_the_last_of_old_dumps_follows_from_the_due_time() -> None:
    table = PendingTable()
    table.add(raws(1), 1000, 2000, 0, 1000)
    table.redeliver(raws(1), 7500, 500)
    loaded = PendingTable.load(dumped(table)).get(1)
    assert loaded is not None
    assert (loaded.last, loaded.owner) == (7000, 0)


def test_a_dump_without_runs_is_still_read() -> None:
    table = PendingTable()
    table.add(raws(5 << 64 | 7, 5 << 64 | 8), 1000, 2000, 9000, 1000, 3, b"dead")
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.redeliver(raws(6 << 64), 3000, 500)
    old = bytes.fromhex(
        "544c5031 0000000000000003 00000001 00000004 64656164 "
        "00000000000000050000000000000007 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 "
        "00000000000000050000000000000008 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 "
        "00000000000000060000000000000000 00000000000003e9 0000000000000bb8 0000000000000000 00000000000001f4 "
        "00000002 00000000 00000000"
    )
    loaded = PendingTable.load(old + struct.pack(">I", zlib.crc32(old)))
    assert dumped(loaded) == dumped(table)


def test_what_is_alike_is_one_run() -> None:
    table, ids = PendingTable(), sequence(1000)
    for entry in ids:
        table.add(raws(entry), NOW, NOW + 10, NOW + 90, 10)
    assert table._runs.count == 1
    for entry in ids[100:900]:
        table.redeliver(raws(entry), NOW + 20)
    assert [row.due for row in table.rows(0, MAX_ID, 1000)] == [NOW + 10] * 100 + [NOW + 20] * 800 + [NOW + 10] * 100
    assert table._runs.count == 3
    for entry in reversed(ids[100:900]):
        table.set_due(raws(entry), NOW + 10)
    assert table._runs.count == 3  # delivered twice
    assert table.due(NOW + 10, 1000) == ids
    for entry in ids[:100] + ids[900:]:
        table.redeliver(raws(entry), NOW + 10)
    assert table._runs.count == 1
    assert table.remove(raws(*ids[::2])) == 500
    assert table.due(NOW + 10, 1000) == ids[1::2]
    assert table.drops(NOW + 90, 1000) == [(entry, "expired") for entry in ids[1::2]]


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98, 1])
def test_a_batch_is_the_same_as_one_by_one(share: float) -> None:
    """Neighbours with other times each, of which some, or nearly all, are in the batch."""
    rng = random.Random(share)
    order = sequence(3000)
    some = raws(*[entry for entry in order if rng.random() < share])
    batch, single = filled(3000), filled(3000)
    for table in (batch, single):
        for entry in order[500:2500]:
            table.set_due(raws(entry), NOW + entry % 1009)
    every = NOW + 90_000
    for raw in some:
        assert single.set_due([raw], every) == [raw]
    assert batch.set_due(some, every) == some
    assert batch.rows(0, MAX_ID, 3000) == single.rows(0, MAX_ID, 3000)
    for raw in some:
        single.redeliver([raw], every, own_retry=True)
    batch.redeliver(some, every, own_retry=True)
    assert batch.rows(0, MAX_ID, 3000) == single.rows(0, MAX_ID, 3000)
    assert batch.due(every + 1000, 3000) == single.due(every + 1000, 3000)
    assert batch.drops(every * 2, 3000) == single.drops(every * 2, 3000)
    for table in (batch, single):
        for entry in order[500:2500]:
            table.set_due(raws(entry), NOW + entry % 1009)
    assert sum(single.remove([raw]) for raw in some) == batch.remove(some) == len(some)
    assert dumped(batch) == dumped(single)
    for part in (batch._rows, batch._runs, batch._due, batch._drop):
        check_chunks(part)


def test_parts_are_a_snapshot() -> None:
    table = filled(500)
    dump, parts = dumped(table), table.parts()
    table.remove(raws(*sequence(250)))
    table.set_due(raws(*sequence(1, 400)), NOW)
    assert assemble(parts) == dump != dumped(table)


def small_dump() -> bytes:
    table = PendingTable()
    table.add(raws(1), NOW, NOW + 1, NOW + 9, 1, 2, b"dead")
    table.add(raws(2), NOW, NOW + 1, NOW + 9, 1, 2, b"letter")
    return dumped(table)


def damaged() -> Iterator[bytes]:
    dump = small_dump()
    for at in range(len(dump)):
        yield dump[:at]
        yield dump[:at] + bytes([dump[at] ^ 1]) + dump[at + 1 :]
    yield dump + b"\0"

    def sealed(body: bytes) -> bytes:
        return body + struct.pack(">I", zlib.crc32(body))

    body = dump[:-4]
    assert sealed(body) == dump
    yield sealed(b"TLP4" + body[4:])  # a format of tomorrow
    yield sealed(body[:4] + struct.pack(">Q", 3) + body[12:])  # counts that don't add up
    yield sealed(body[:12] + struct.pack(">Q", 3) + body[20:])
    yield sealed(body[:20] + struct.pack(">I", 7) + body[24:])
    head, runs, rows = body[:-154], body[-154:-32], body[-32:]
    yield sealed(head + runs + rows[16:] + rows[:16])  # rows out of order
    yield sealed(head + runs + rows[:16] * 2)  # the same row twice
    yield sealed(head + runs[61:] + runs[:61] + rows)  # the same of runs
    yield sealed(head + runs[:61] * 2 + rows)
    few, many = struct.pack(">QQ", 2, 0), struct.pack(">QQ", 0, 2)
    yield sealed(body[:4] + few + head[20:] + rows)  # rows without runs, runs without rows
    yield sealed(body[:4] + many + head[20:] + runs)
    yield sealed(head + runs + rows[16:] + bytes(15) + b"\x03")  # a run without rows
    yield sealed(head + runs[:59] + b"\x09" + runs[60:] + rows)  # a key that isn't there
    yield sealed(head + runs[:60] + b"\x02" + runs[61:] + rows)  # an owner's, which TLP2 can't have
    owned = b"TLP3" + head[4:]
    yield sealed(owned + runs[:60] + b"\x03" + runs[61:] + rows)  # a kind of run that isn't there
    of_owner = runs[:16] + struct.pack(">QQQQIIIB", 5, 5, 1, 0, 0, 7, 0, 2) + runs[61:]
    assert PendingTable.load(sealed(owned + of_owner + rows)).owned(7) == 1
    for at in (16, 24, 32, 40, 47, 48, 51, 56, 59):  # what must be 0
        yield sealed(owned + of_owner[:at] + b"\x80" + of_owner[at + 1 :] + rows)


def test_a_damaged_dump_is_refused() -> None:
    for blob in damaged():
        with pytest.raises(CorruptError, match="pending list"):
            PendingTable.load(blob)


def test_messages_that_are_passed_hide_no_others() -> None:
    """Those without an entry are left out, until one that has an entry comes before them."""
    for seed in range(60):
        chance = random.Random(seed)
        table, gone, hidden = PendingTable(), set[int](), 0
        last: dict[int, tuple[int, int]] = {}  # by ID: where it is in order
        for step in range(80):
            now = NOW + step // 3
            what = chance.random()
            living = [entry for entry in last if entry not in gone]
            if what < 0.4:
                new = sorted({chance.randrange(1, 60) for _ in range(chance.randint(1, 5))} - gone)
                table.own_new(raws(*new), chance.choice((1, 2)), now, 1)
                last.update({entry: (now, entry) for entry in new})
            elif what < 0.6 and living:
                entry, at = chance.choice(living), now - chance.choice((0, 0, 3, 20))
                table.own(raws(entry), chance.choice((1, 2)), at)
                last[entry] = (at, entry)
            elif what < 0.7 and last:
                entry = chance.choice(list(last))
                table.remove(raws(entry))
                del last[entry]
                gone.discard(entry)
            elif what < 0.8 and last:
                gone.add(chance.choice(list(last)))
            else:
                order = table.idle_before(now, None, 100)
                for row in order:
                    if row.id not in gone:
                        break
                    table.pass_idle(row)
            found = table.idle_before(NOW * 2, None, 100)
            assert [row.id for row in found if row.id not in gone] == [
                entry for _, entry in sorted(last.values()) if entry not in gone
            ]
            hidden += len(last) - len(found)
            assert table.first_idle() == (found[0].last if found else None)
        assert hidden or seed
        table.pass_none()
        assert len(table.idle_before(NOW * 2, None, 100)) == len(last) == len(table)


# -- memory --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("how", ["sequential", "after random acks", "mixed retry times"])
def test_150_bytes_a_message(how: str) -> None:
    """The same as benchmarks/pending_memory.py, which asks the operating system too, with fewer messages."""
    rng = random.Random(how)
    order = sequence(30_000)
    rng.shuffle(order)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = PendingTable()
        for i, entry in enumerate(sequence(30_000)):
            retry = rng.choice((1000, 5000, 60_000)) if how == "mixed retry times" else 1000
            table.add(raws(entry), NOW + i, NOW + i + retry, NOW + i + 3_600_000, retry, 9, b"dead")
        if how == "after random acks":
            for entry in order[:15_000]:
                table.remove(raws(entry))
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took / len(table) <= 150
    assert 0.9 < table.memory_bytes() / took < 1.25  # the estimate is honest


@pytest.mark.interpreted
def test_a_run_that_ends_on_the_bound_of_a_chunk_whose_first_row_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sortedrows, "CHUNK_BYTES", 240)
    rows = sortedrows.SortedRows(8, 8)
    number = [n.to_bytes(8, "big") for n in range(120)]
    rows.fill(b"".join(number[::2]))
    bound = rows._mins[1]
    assert rows.delete(bound) == bound
    at = number.index(bound)
    rows.insert_many(number[at - 1] + bound)
    assert rows.get(bound) == bound
    assert rows.span(b"", b"", 100) == sorted({*number[::2], number[at - 1]})
