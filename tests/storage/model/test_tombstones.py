"""Marks against a set of numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from resp.errors import CorruptError
from storage.model.tombstones import BITMAP, CHUNK, FULL, Tombstones, check, numbers, packed

END = 5 * CHUNK
ORDINAL = st.one_of(
    st.integers(0, END), st.integers(0, 40), st.integers(CHUNK - 20, CHUNK + 20),
    st.integers(3 * CHUNK - 5, 3 * CHUNK + 5),
)  # fmt: skip


class MarksMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tombstones = Tombstones()
        self.model: set[int] = set()
        self.store: dict[int, bytes] = {}

    @rule(ordinals=st.sets(ORDINAL, min_size=1, max_size=20))
    def add(self, ordinals: set[int]) -> None:
        assert self.tombstones.add(sorted(ordinals)) == len(ordinals - self.model)
        self.model |= ordinals

    @rule(lo=ORDINAL, size=st.sampled_from([1, 300, 600, CHUNK, 2 * CHUNK]), step=st.sampled_from([1, 1, 2, 7]))
    def add_many(self, lo: int, size: int, step: int) -> None:
        self.add(set(range(lo, lo + size, step)))

    @rule(ordinal=ORDINAL)
    def drop_before(self, ordinal: int) -> None:
        self.tombstones.drop_before(ordinal)
        self.model = {number for number in self.model if number >= ordinal}

    @rule(lo=ORDINAL, size=st.sampled_from([0, 1, 10, 600, CHUNK, 3 * CHUNK]))
    def ask(self, lo: int, size: int) -> None:
        tombstones, hi = self.tombstones, lo + size
        inside = [number for number in range(lo, hi) if number in self.model]
        living = [number for number in range(lo, hi) if number not in self.model]
        for frozen in (tombstones, tombstones.freeze(lo, hi)):
            assert frozen.marked(lo, hi) == inside
            assert [number for run in frozen.live_ranges(lo, hi) for number in range(*run)] == living
            assert all(start < stop for start, stop in frozen.live_ranges(lo, hi))
            assert frozen.count(lo, hi) == len(inside)
            assert frozen.has(lo) == (lo in self.model)
            until, ranges = lo, []
            while until < hi:
                some, until = frozen.ranges(until, hi, 2)
                assert all(one[1] < other[0] for one, other in pairwise(some))
                ranges += some
            assert [number for each in ranges for number in range(*each)] == inside
        assert tombstones.before(lo) == sum(number < lo for number in self.model)
        first = lo
        while first in self.model:
            first += 1
        assert tombstones.live_from(lo) == first
        last = lo - 1
        while last in self.model:
            last -= 1
        assert tombstones.live_below(lo) == last
        for count in (1, len(living) // 2, len(living)):
            if 0 < count <= len(living):
                assert tombstones.after(lo, count, hi) == living[count - 1] + 1
                assert tombstones.ahead(hi, count, lo) == living[-count]
        assert tombstones.after(lo, len(living) + 1, hi) == hi
        assert tombstones.ahead(hi, len(living) + 1, lo) == lo

    @rule()
    def store_and_restore(self) -> None:
        for chunk, container in self.tombstones.take_changed():
            if container:
                assert check(container) == len(numbers(container))
                self.store[chunk] = container
            else:
                self.store.pop(chunk, None)
        assert self.tombstones.take_changed() == []
        restored = Tombstones()
        for chunk, container in sorted(self.store.items()):
            restored.restore(chunk, container)
        assert restored.chunks() == self.tombstones.chunks()
        assert (restored.total, restored.bytes) == (self.tombstones.total, self.tombstones.bytes)
        self.tombstones = restored

    @invariant()
    def total_is_right(self) -> None:
        assert self.tombstones.total == len(self.model)


TestMarksMachine = MarksMachine.TestCase
TestMarksMachine.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


@given(st.sets(st.integers(0, CHUNK - 1), min_size=1))
def test_containers_hold_what_was_packed(offsets: set[int]) -> None:
    container = packed(sorted(offsets))
    assert numbers(container) == sorted(offsets)
    assert check(container) == len(offsets)


def test_a_full_chunk_is_shared() -> None:
    tombstones = Tombstones()
    tombstones.add(list(range(CHUNK)))
    assert tombstones.chunks()[0][1] is FULL
    assert tombstones.live_from(0) == CHUNK
    assert tombstones.live_below(CHUNK) == -1


@pytest.mark.parametrize(
    "container",
    [
        b"", b"\0", b"\0\2\0\1", b"\0\1\0\1", b"\x20\0", bytes(BITMAP), b"\1" + bytes(BITMAP),
        b"\xff" * 8 + bytes(BITMAP - 8),
    ],
    ids=["empty", "odd", "descending", "twice", "beyond", "no marks", "long", "few as a bitmap"],
)  # fmt: skip
def test_damaged_containers_are_refused(container: bytes) -> None:
    with pytest.raises(CorruptError):
        check(container)
