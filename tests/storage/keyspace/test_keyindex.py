"""The array of keys: a plain set is the model, and a walk never misses a key that stays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.keyspace import keyindex
from storage.keyspace.keyindex import KeyIndex

pytestmark = pytest.mark.interpreted

KEYS = st.integers(0, 30).map(lambda n: b"k%d" % n)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), KEYS), max_size=20)


def walk_all(index: KeyIndex) -> list[bytes]:
    return index.page(0, len(index) + 1)[1]


def change(index: KeyIndex, model: set[bytes], steps: list[tuple[str, bytes]]) -> None:
    for what, key in steps:
        if what == "add" and key not in model:
            index.add(key)
            model.add(key)
        elif what == "remove" and key in model:
            index.remove(key)
            model.discard(key)


@given(STEPS)
def test_holds_what_a_set_holds(steps: list[tuple[str, bytes]]) -> None:
    index, model = KeyIndex(), set[bytes]()
    change(index, model, steps)
    assert len(index) == len(model)
    assert sorted(walk_all(index)) == sorted(model)


@settings(max_examples=300)
@given(st.sets(KEYS, min_size=1), st.integers(1, 7), st.lists(STEPS, max_size=40), st.booleans())
def test_a_walk_returns_each_key_once(
    keys: set[bytes], count: int, changes: list[list[tuple[str, bytes]]], tiny: bool
) -> None:
    """Every key that is there from the first call to the last, and none twice that was not removed and made again."""
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            patch.setattr(keyindex, "BLOCK", 8)
            patch.setattr(keyindex, "SMALL", 2)
        index, model = KeyIndex(), set[bytes]()
        change(index, model, [("add", key) for key in sorted(keys)])
        stayed = set(model)
        cursor, found = index.page(0, count)
        seen = list(found)
        removed: set[bytes] = set()
        for steps in changes:
            if cursor == 0:
                break
            change(index, model, steps)
            removed |= {key for what, key in steps if what == "remove"}
            cursor, found = index.page(cursor, count)
            assert len(found) == count or not cursor
            seen += found
        while cursor:
            cursor, found = index.page(cursor, count)
            seen += found
        assert stayed - removed <= set(seen)
        twice = {key for key in seen if seen.count(key) > 1}
        assert twice <= removed


@pytest.mark.parametrize("seed", range(6))
def test_blocks_split_and_join(seed: int) -> None:
    """More keys than a block has, in the order in which they were made, whatever is removed."""
    rng = random.Random(seed)
    index, model = KeyIndex(), dict[bytes, None]()
    made = 0
    for keep in (9000, 100, 5000, 0, 2000):
        new = [b"%d" % number for number in range(made, made + keep - len(model))]
        made += len(new)
        if seed < 2:
            index.add_many(new)
        else:
            for key in new:
                index.add(key)
        model.update(dict.fromkeys(new))
        gone = rng.sample(list(model), len(model) - keep) if seed % 2 else list(model)[: len(model) - keep]
        if seed > 3:
            index.remove_many(gone)
        for key in gone:
            if seed <= 3:
                index.remove(key)
            del model[key]
        assert index.page(0, len(model) + 1) == (0, list(model)[::-1])
        assert len(index) == len(model)
        picked = {found for _ in range(200) if (found := index.pick(rng.random())) is not None}
        assert picked <= set(model)
        assert len(picked) > 20 or not keep


def test_a_still_array_is_walked_once_each_in_the_fewest_pages() -> None:
    index = KeyIndex()
    keys = [b"k%d" % n for n in range(25)]
    for key in keys:
        index.add(key)
    cursor, found, pages = 0, [], 0
    while True:
        cursor, page = index.page(cursor, 10)
        found += page
        pages += 1
        if not cursor:
            break
    assert (sorted(found), pages) == (sorted(keys), 3)


def test_a_cursor_from_nowhere_and_an_empty_array() -> None:
    index = KeyIndex()
    assert index.page(0, 10) == (0, [])
    index.add(b"a")
    assert index.page(1 << 63, 10) == (0, [b"a"])
    index.clear()
    assert (len(index), index.page(5, 10)) == (0, (0, []))


def test_pick_reaches_every_key() -> None:
    index = KeyIndex()
    for n in range(4):
        index.add(b"%d" % n)
    assert [index.pick(f) for f in (0.0, 0.25, 0.5, 0.75, 0.999999)] == [b"0", b"1", b"2", b"3", b"3"]
