"""Ranges of slots, and their distribution over groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.slots import SLOTS, SlotMove, counts, distributed, divided, parse, ranges, shown, wanted

GROUPS = ["1", "2", "3", "4"]


def test_ranges_in_texts() -> None:
    assert parse(["5", "0-3", "9,10"]) == [0, 1, 2, 3, 5, 9, 10]
    assert ranges([0, 1, 2, 3, 5, 9, 10]) == ["0-3", "5", "9-10"]
    assert shown([0, 2, 4, 6, 8, 10]) == "0 2 4 6 and 2 more ranges"
    assert parse(["0-16383"]) == list(range(SLOTS))


@pytest.mark.parametrize("word", ["x", "-1", "16384", "5-3", "0-99999", "1-2-3", "\uff10"])
def test_texts_that_are_no_ranges(word: str) -> None:
    with pytest.raises(ClusterError, match="is not a range of slots: write 0-4095"):
        parse([word])


def test_a_new_cluster_is_divided_in_order() -> None:
    owners = ["2"] * SLOTS
    assert divided(owners, ["1", "2", "3"]) == [
        SlotMove(tuple(range(5461)), "2", "1"),
        SlotMove(tuple(range(10922, SLOTS)), "2", "3"),
    ]
    assert divided(["1"] * SLOTS, ["1"]) == []


def test_slots_with_keys_stay() -> None:
    owners = ["1"] * SLOTS
    moves = distributed(owners, ["1", "2"], {"1": set(range(100, SLOTS))})
    assert moves == [SlotMove(tuple(range(100)), "1", "2")]
    assert distributed(owners, ["1", "2"], {"1": set(range(SLOTS))}) == []
    assert distributed(owners, ["1", "2"], {}) == []


def applied(owners: list[str], moves: list[SlotMove]) -> list[str]:
    after = list(owners)
    for move in moves:
        assert list(move.slots) == sorted(set(move.slots))
        for slot in move.slots:
            assert after[slot] == move.source
            after[slot] = move.target
    return after


@given(
    st.lists(st.tuples(st.sampled_from(["", *GROUPS]), st.integers(1, 5000)), max_size=12), st.sampled_from(["", "2"])
)
def test_empty_slots_are_distributed_evenly(parts: list[tuple[str, int]], without: str) -> None:
    owners = [group for group, count in parts for _ in range(count)][:SLOTS]
    owners += ["1"] * (SLOTS - len(owners))
    before = counts(owners, GROUPS)
    moves = distributed(owners, GROUPS, {group: set() for group in GROUPS}, without)
    after = counts(applied(owners, moves), GROUPS)
    sharing = [after[group] for group in GROUPS if group != without]
    assert sum(after.values()) == SLOTS
    assert max(sharing) - min(sharing) <= 1
    assert not without or after[without] == 0
    targets = wanted(before, without)
    least = sum(max(0, before[group] - targets[group]) for group in GROUPS) + owners.count("")
    assert sum(len(move.slots) for move in moves) == least
