"""Messages that are delivered while nothing else is pending: they enter the sets when somebody looks at these."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.groups.pending import PendingTable
from storage.groups.rangetable import FRESH
from storage.model.sortedrows import SortedRows
from tests.storage.groups.pendingkit import MAX_ID, NOW, dumped, is_fresh, raws, sets

Step = Callable[[PendingTable], object]
few = st.lists(st.integers(1, 12), min_size=1, max_size=5)
times = st.sampled_from([NOW, NOW + 5, NOW + 10])


def refused(step: Step) -> Step:
    def tried(table: PendingTable) -> object:
        try:
            return step(table)
        except (KeyError, CorruptError) as error:
            return type(error)

    return tried


delivered = st.builds(
    lambda ids, first, expire, retry, most, key: lambda table: table.add(
        raws(*ids), first, first + retry, expire, retry, most, key
    ),
    few, times, st.sampled_from([0, NOW + 1, NOW + 20]), st.sampled_from([1, 15]), st.sampled_from([0, 0, 0, 2]),
    st.sampled_from([b"", b"", b"", b"dead"]),
)  # fmt: skip
owned = st.builds(
    lambda ids, owner, last, count: lambda table: table.own_new(raws(*ids), owner, last, count),
    few, st.sampled_from([0, 1, 2]), times, st.sampled_from([1, 3]),
)  # fmt: skip
acknowledged = st.builds(lambda ids: lambda table: table.remove(raws(*ids)), few)
changed = st.one_of(
    st.builds(lambda ids, due: refused(lambda table: table.redeliver(raws(*ids), due, 7)), few, times),
    st.builds(lambda ids, due: lambda table: table.set_due(raws(*sorted(set(ids))), due), few, times),
    st.builds(lambda ids, who: refused(lambda table: table.own(raws(*ids), who, NOW + 3)), few, st.integers(0, 2)),
    st.builds(lambda who: lambda table: table.forget(who), st.integers(0, 2)),
)
redis_reads = st.one_of(
    st.sampled_from([
        len, PendingTable.next_due, PendingTable.next_drop, PendingTable.lowest, PendingTable.highest,
        PendingTable.owners, PendingTable.first_idle, PendingTable.memory_bytes, dumped,
    ]),
    st.builds(lambda now: lambda table: table.due(now, 10), times),
    st.builds(lambda now: lambda table: table.due_at(now), times),
    st.builds(lambda now: lambda table: table.drops(now, 10), times),
    st.builds(lambda who: lambda table: (table.owned(who), table.raws_of(who, 10)), st.integers(0, 2)),
    st.builds(lambda entry: lambda table: table.get(entry), st.integers(1, 12)),
    st.builds(lambda ids: lambda table: table.present(raws(*sorted(set(ids)))), few),
    st.builds(lambda ids: lambda table: table.has_all(raws(*ids)), few),
    st.just(lambda table: table.freeze().rows(0, MAX_ID, 100)),
    st.just(lambda table: table.between(0, MAX_ID)),
    st.just(lambda table: table.idle_before(NOW + 100, None, 100)),
    st.just(lambda table: table.next_of_nobody(NOW)),
)  # fmt: skip


@given(st.lists(st.one_of(delivered, owned, acknowledged, changed, redis_reads), max_size=12))
@example([lambda table: table.add(raws(1, 2), NOW, NOW + 5, 0, 5), lambda table: table.remove(raws(2, 1)), len, dumped])
@example([lambda table: table.add(raws(1), NOW, NOW + 15, NOW + 1, 15)])
@example([lambda table: table.own_new(raws(1), 2, NOW, 1), lambda table: table.own_new(raws(2), 1, NOW, 1), dumped])
def test_nobody_can_tell_whether_messages_are_in_the_sets(steps: list[Step]) -> None:
    """One table is looked at after each step, so nothing stays fresh in it."""
    left_alone, looked_at = PendingTable(), PendingTable()
    for step in steps:
        assert step(left_alone) == step(looked_at)
        assert sets(looked_at)[0].count == len(left_alone) == len(looked_at)
        assert not is_fresh(looked_at)
        assert left_alone.next_due() == looked_at.next_due()  # which don't look at the sets, either
        assert left_alone.next_drop() == looked_at.next_drop()
    assert left_alone.rows(0, MAX_ID, 100) == looked_at.rows(0, MAX_ID, 100)
    assert dumped(left_alone) == dumped(looked_at)
    assert dumped(PendingTable.load(dumped(left_alone))) == dumped(looked_at)


def test_what_is_acknowledged_as_it_came_never_enters_the_sets() -> None:
    table = PendingTable()
    for at in range(1, 100, 2):
        table.add(raws(at, at + 1), NOW, NOW + 5, NOW + 9, 5)
        assert (len(table), table.next_due(), table.next_drop()) == (2, NOW + 5, NOW + 9)
        assert is_fresh(table)
        assert table.remove(raws(at, at + 1)) == 2
        assert (len(table), table.next_due(), table.next_drop()) == (0, None, None)
    table.add(raws(99, 100), NOW, NOW + 5, NOW + 9, 5)
    assert not is_fresh(table)  # they are not above all that were added before


def test_many_enter_the_sets_at_once() -> None:
    table = PendingTable()
    table.add(raws(*range(1, FRESH + 1)), NOW, NOW + 5, 0, 5)
    assert is_fresh(table)
    table = PendingTable()
    table.add(raws(*range(1, FRESH + 2)), NOW, NOW + 5, 0, 5)
    assert not is_fresh(table)
    assert len(table) == FRESH + 1


@pytest.mark.interpreted
@pytest.mark.parametrize("owner", [None, 7])
@pytest.mark.parametrize("at", range(4))
def test_a_reader_without_memory_loses_nothing(owner: int | None, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table, begun, begin = PendingTable(), [0], SortedRows.begin

    def exhausted(rows: SortedRows, row: bytes) -> None:
        if begun[0] == at:
            raise MemoryError
        begun[0] += 1
        begin(rows, row)

    if owner is None:
        table.add(raws(3, 4), NOW, NOW + 10, NOW + 20, 10)
    else:
        table.own_new(raws(3, 4), owner, NOW, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SortedRows, "begin", exhausted)
        with pytest.raises(MemoryError):
            table.rows(0, MAX_ID, 10)
    assert len(table) == 2
    assert [row.id for row in table.rows(0, MAX_ID, 10)] == [3, 4]
    assert table.owners() == ([] if owner is None else [owner])
    assert table.remove(raws(3, 4)) == 2
