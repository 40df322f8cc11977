"""Pending lists of sizes that the model (test_pending_model) does not reach, and their limits."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from storage.groups import pending
from storage.groups.pending import PendingTable
from storage.groups.pendingformat import assemble
from storage.model.sortedrows import CHUNK_BYTES
from tests.storage.groups.pendingkit import (
    MAX_ID,
    NOW,
    check_sets,
    dumped,
    filled,
    ids_of,
    key_counts,
    range_count,
    raws,
    sequence,
    sets,
)


def test_appending_leaves_full_chunks() -> None:
    one, many = PendingTable(), filled(9000)
    for i, entry in enumerate(sequence(9000)):
        one.add(raws(entry), NOW + i, NOW + i + 1000, NOW + i + 5000, 1000)
    for table in (one, many):
        check_sets(table)
        for part in sets(table):
            sizes = {len(assemble([chunk])) - 4 for chunk in part.dump()[:-1]}
            assert sizes == {CHUNK_BYTES // len(part.first()) * len(part.first())}


def test_long_runs_fall_into_the_middle() -> None:
    table, low, high = PendingTable(), sequence(3000), sequence(3000, 9000)
    table.add(raws(*low), NOW, NOW + 10, 0, 10)
    table.add(raws(*high), NOW, NOW + 30, 0, 30)
    table.add(raws(*sequence(3000, 4000)), NOW, NOW + 20, 0, 20)
    assert ids_of(table) == low + sequence(3000, 4000) + high
    assert table.due(NOW + 20, 10_000) == low + sequence(3000, 4000)
    assert table.remove(raws(*ids_of(table)[1:-1])) == 8998
    assert ids_of(table) == [low[0], high[-1]]
    check_sets(table)


def test_drained_in_random_order_it_is_as_new() -> None:
    table = filled(6000)
    order = sequence(6000)
    random.Random(1).shuffle(order)
    for number, entry in enumerate(order):
        assert table.remove(raws(entry))
        if number % 500 == 0:
            check_sets(table)
    assert len(table) == 0
    assert (table.lowest(), table.highest(), table.next_due(), table.next_drop()) == (None, None, None, None)
    assert all(part.dump() == [b""] for part in sets(table))
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
    assert key_counts(table) <= (2, 0)
    table.add(raws(1), NOW, NOW, 0, 1, 0, b"a")
    loaded = PendingTable.load(dumped(table))
    loaded.add(raws(2), NOW, NOW, 0, 1, 0, b"b")
    assert [row.deadletter for row in loaded.rows(0, 9, 9)] == [b"a", b"b"]


def test_what_is_alike_is_one_run() -> None:
    table, ids = PendingTable(), sequence(1000)
    for entry in ids:
        table.add(raws(entry), NOW, NOW + 10, NOW + 90, 10)
    assert range_count(table) == 1
    for entry in ids[100:900]:
        table.redeliver(raws(entry), NOW + 20)
    assert [row.due for row in table.rows(0, MAX_ID, 1000)] == [NOW + 10] * 100 + [NOW + 20] * 800 + [NOW + 10] * 100
    assert range_count(table) == 3
    for entry in reversed(ids[100:900]):
        table.set_due(raws(entry), NOW + 10)
    assert range_count(table) == 3  # delivered twice
    assert table.due(NOW + 10, 1000) == ids
    for entry in ids[:100] + ids[900:]:
        table.redeliver(raws(entry), NOW + 10)
    assert range_count(table) == 1
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
    check_sets(batch)
