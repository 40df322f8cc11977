"""Messages that consumers own."""

from __future__ import annotations

import random

from storage.groups.pending import PendingTable
from tests.storage.groups.pendingkit import (
    NOW,
    range_count,
    raws,
    sequence,
)


def test_messages_of_one_delivery_are_one_run_of_their_owner() -> None:
    table, ids = PendingTable(), sequence(1000)
    for start in range(0, 1000, 100):
        table.own_new(raws(*ids[start : start + 100]), 1 + start // 100, NOW + start, 1)
    assert range_count(table) == 10
    assert table.owned(3) == 100
    table.own(raws(*ids[150:950]), 99, NOW + 5000)
    assert [table.owned(owner) for owner in (1, 2, 3, 10, 99)] == [100, 50, 0, 50, 800]
    assert range_count(table) == 12  # they differ in when they were delivered first
    assert table.rows_of(99, ids[160], ids[169], 100) == table.rows(ids[160], ids[169], 100)
    assert table.remove(raws(*ids[::2])) == 500
    assert table.owned(99) == 400
    assert table.forget(99) == 400
    assert (len(table), table.owners()) == (100, [1, 2, 10])


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
