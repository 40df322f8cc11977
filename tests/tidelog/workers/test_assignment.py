"""Assignment: shares by capacity, as few moves as possible, the same everywhere."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.workers.coordination.assignment import assign

NAMES = st.sampled_from([f"w{number}" for number in range(8)])
PREVIOUS = st.lists(st.one_of(st.none(), NAMES), max_size=24)
MEMBERS = st.dictionaries(NAMES, st.integers(0, 4), max_size=6)
PARTITIONS = st.integers(0, 24)


def moves(before: list[str | None], after: list[str | None]) -> int:
    """How many partitions are somebody else's than before."""
    padded = before[: len(after)] + [None] * (len(after) - len(before))
    return sum(old != new for old, new in zip(padded, after, strict=True))


@given(PREVIOUS, MEMBERS, PARTITIONS)
def test_shares_are_by_capacity(previous: list[str | None], members: dict[str, int], partitions: int) -> None:
    owners = assign(previous, members, partitions)
    assert len(owners) == partitions
    total = sum(members.values())
    if not total:
        assert owners == [None] * partitions
        return
    assert None not in owners
    for name, capacity in members.items():
        share = partitions * capacity / total
        assert int(share) <= owners.count(name) <= -int(-share // 1)


@given(PREVIOUS, st.dictionaries(NAMES, st.integers(1, 3), min_size=1, max_size=5), PARTITIONS)
def test_no_other_balanced_assignment_moves_fewer(
    previous: list[str | None], members: dict[str, int], partitions: int
) -> None:
    total = sum(members.values())
    shares = {name: partitions * capacity // total for name, capacity in members.items()}
    uneven = [name for name, capacity in members.items() if partitions * capacity % total]
    extra = partitions - sum(shares.values())
    had = {name: previous[:partitions].count(name) for name in members}
    kept = max(
        sum(min(had[name], shares[name] + (name in chosen)) for name in members)
        for chosen in combinations(uneven, extra)
    )
    assert moves(previous, assign(previous, members, partitions)) == partitions - kept


@given(PREVIOUS, MEMBERS, PARTITIONS)
def test_it_does_not_depend_on_the_order_of_members(
    previous: list[str | None], members: dict[str, int], partitions: int
) -> None:
    turned = dict(reversed(members.items()))
    assert assign(previous, members, partitions) == assign(previous, turned, partitions)


@given(PREVIOUS, MEMBERS, PARTITIONS)
def test_again_is_the_same(previous: list[str | None], members: dict[str, int], partitions: int) -> None:
    once = assign(previous, members, partitions)
    assert assign(once, members, partitions) == once


@pytest.mark.parametrize("partitions", [1, 2, 7, 16, 100])
def test_a_member_that_joins_takes_its_share_and_nothing_else_moves(partitions: int) -> None:
    owners: list[str | None] = []
    members: dict[str, int] = {}
    for number in range(20):
        before = owners
        members[f"w{number:02}"] = 1
        owners = assign(before, members, partitions)
        if number:
            assert owners.count(f"w{number:02}") == moves(before, owners) == partitions // (number + 1)


@given(st.integers(2, 8), PARTITIONS)
def test_a_member_that_leaves_moves_only_what_it_had(number: int, partitions: int) -> None:
    members = {f"w{at}": 1 for at in range(number)}
    before = assign([], members, partitions)
    had = before.count("w1")
    del members["w1"]
    assert moves(before, assign(before, members, partitions)) == had


def test_examples() -> None:
    assert assign([], {"a": 1, "b": 1}, 5) == ["a", "a", "a", "b", "b"]
    assert assign(["b", None, "c"], {"a": 1, "b": 1}, 4) == ["b", "a", "a", "b"]
    assert assign(["a"] * 4, {"a": 1, "b": 3}, 4) == ["a", "b", "b", "b"]
    assert assign(["a", "a"], {"a": 0}, 2) == [None, None]


def test_a_negative_capacity() -> None:
    with pytest.raises(ValueError, match="capacity"):
        assign([], {"a": -1}, 4)
