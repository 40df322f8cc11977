"""What functions do with their state."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa

from tidelog.jobs.state import State
from tidelog.jobs.store import MemoryStore, StateError
from tidelog.jobs.store.keys import LONGEST, prefix_of, stored_keys
from tidelog.topics.partition import canonical


def in_memory(kind: type[Any], job: str = "test", store: MemoryStore | None = None) -> State[Any]:
    return State((store or MemoryStore()).begin(0), kind, job=job)


class Visit(msgspec.Struct):
    count: int
    pages: list[str]


class Other(msgspec.Struct):
    count: int


ID = UUID("12345678-1234-5678-1234-567812345678")
SAME = [
    [1, -20, 1 << 70],
    ["1", "-20", str(1 << 70)],
    [b"1", b"-20", b"%d" % (1 << 70)],
    ["1", -20, np.str_(1 << 70)],
    ("1", np.int64(-20), b"%d" % (1 << 70)),
    pa.array(["1", "-20", str(1 << 70)]),
    pa.array(["1", "-20", str(1 << 70)], pa.large_string()),
    pa.array(["1", "-20", str(1 << 70)]).dictionary_encode(),
    pa.chunked_array([["1"], ["-20", str(1 << 70)]]),
    pa.array([b"1", b"-20", b"%d" % (1 << 70)]),
    np.array(["1", "-20", str(1 << 70)]),
    np.array([1, -20, 1 << 70], object),
]


@pytest.mark.parametrize("keys", SAME, ids=range(len(SAME)))
def test_equal_keys_in_all_their_forms(keys: Any) -> None:
    state = in_memory(int)
    state.put_many(keys, [1, 2, 3])
    assert [state.get_many(other) for other in SAME] == [[1, 2, 3]] * len(SAME)
    state.delete_many(keys)
    assert list(state.scan()) == []


@pytest.mark.parametrize("keys", [pa.array([7, -8]), np.array([7, -8]), np.array([7, -8], np.int8), [7, -8]])
def test_integers_of_arrays(keys: Any) -> None:
    state = in_memory(str)
    state.put_many(keys, ["a", "b"])
    assert list(state.scan()) == [(b"-8", "b"), (b"7", "a")]


@given(st.lists(st.one_of(st.text(), st.binary(), st.integers(), st.uuids())), st.booleans())
def test_bytes_of_keys_are_those_of_topics(keys: list[Any], named: bool) -> None:
    prefix = prefix_of("p" * 37 if named else "", "")  # 37 is "%"
    for some in (keys, [key for key in keys if isinstance(key, str)], [key for key in keys if isinstance(key, int)]):
        assert stored_keys(some, prefix, "") == [prefix + canonical(key) for key in some]


def test_a_uuid_is_a_key() -> None:
    state = in_memory(int)
    state.put_many([ID], [1])
    assert state.get_many([str(ID)]) == [1]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([1.5], "float"), ([True], "bool"), ([None], "NoneType"), ("abc", "not one str"), (b"abc", "not one bytes"),
        (pa.array(["a", None]), "1 of 2 keys are null"), (pa.array([1.5]), "double"), (np.array([1.5]), "float"),
        (["x" * 431], "431 bytes.*use a hash"), (["\ud800"], "surrogates"),
    ],
)  # fmt: skip
def test_what_is_no_key(keys: Any, text: str) -> None:
    state = in_memory(int, job="count").space("seen", int)
    for call in (state.get_many, state.delete_many, lambda keys: state.put_many(keys, [1] * len(keys))):
        with pytest.raises(StateError, match=rf"job 'count', state, space 'seen': .*{text}"):
            call(keys)


def test_the_longest_key_ends_in_time_too(tmp_path: Any) -> None:
    from tidelog.jobs.store import StateStore

    key, name = b"k" * LONGEST, "s" * 64
    with StateStore.open(tmp_path / "0") as store:
        changes = store.begin(0)
        State(changes, int, job="j").space(name, int).put_many([key], [1], ttl=1)
        store.commit(changes, 1, "r")
        state: State[int] = State(store.begin(999), int, job="j").space(name, int)
        assert list(state.scan(key)) == [(key, 1)]
        assert list(State(store.begin(1000), int, job="j").space(name, int).scan()) == []


VALUES: list[tuple[Any, list[Any]]] = [
    (bytes, [b"", b"\x00\xff", b"i"]),
    (str, ["", "Müller\n"]),
    (int, [0, -1, (1 << 63) - 1, -(1 << 63)]),
    (int, [0, 1 << 63, -(1 << 63) - 1, 10**100]),
    (int, []),
    (float, [0.5, -math.inf, 1e300, 0.0]),
    (Visit, [Visit(1, ["a"]), Visit(2, [])]),
    (list[int], [[], [1, 2]]),
    (dict[str, int], [{"b": 1, "a": 2}]),
    (int | str, [1, "a"]),
]


@pytest.mark.parametrize("ttl", [None, 0.5, timedelta(milliseconds=500)])
@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_values_come_back(kind: Any, values: list[Any], ttl: Any) -> None:
    changes = MemoryStore().begin(0)
    state = State(changes, kind, job="j")
    keys = list(range(len(values)))
    state.put_many(keys, values, ttl)
    assert state.get_many([*keys, "none", *keys]) == [*values, None, *values]
    assert sorted(value for _, value in state.scan()) == sorted(values) if kind is int else True
    later = State(changes.child(499), kind, job="j")
    assert later.get_many(keys) == values
    over = State(changes.child(500), kind, job="j")
    assert over.get_many(keys) == (values if ttl is None else [None] * len(values))


def test_values_of_arrays() -> None:
    state, floats = in_memory(int), in_memory(float)
    state.put_many(["a", "b"], np.array([1, 2]))
    state.put_many(["c", "d"], pa.array([3, 4]))
    floats.put_many(["a", "b", "c"], [1, np.float64(2), np.int64(3)])
    assert state.get_many(["a", "b", "c", "d"]) == [1, 2, 3, 4]
    assert [type(value) for value in state.get_many(["a", "c"])] == [int, int]
    assert floats.get_many(["a", "b", "c"]) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 1.0), (int, "1"), (int, None), (int, True), (float, "1"), (float, None), (float, True), (float, 10**400),
        (str, b"a"), (str, None), (str, "\ud800"), (bytes, "a"), (bytes, bytearray(b"a")), (Visit, Other(1)),
        (Visit, None), (int | str, object()),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(kind: Any, value: Any) -> None:
    state, good = in_memory(kind, job="count"), next(values for one, values in VALUES if one == kind)
    with pytest.raises(StateError, match=r"job 'count', state: .* for the key b'second' is not a "):
        state.put_many(["first", "second"], [good[0], value])
    assert list(state.scan()) == []


@pytest.mark.parametrize(("kind", "other"), [(int, str), (str, bytes), (float, int), (bytes, Visit), (Visit, int)])
@pytest.mark.parametrize("ttl", [None, 10])
def test_a_stored_value_of_another_type_is_named(kind: Any, other: Any, ttl: float | None) -> None:
    values = next(values for one, values in VALUES if one == kind)
    state = in_memory(int, job="count")
    state.space("a", kind).put_many(["x"], values[:1], ttl)
    wrong = state.space("a", other)
    for read in (lambda: wrong.get_many(["none", "x"]), lambda: list(wrong.scan())):
        with pytest.raises(StateError, match=r"space 'a': the value of b'x' is not a .*another space"):
            read()


def test_a_struct_that_changed_is_named() -> None:
    state = in_memory(int, job="count")
    state.space("a", Other).put_many(["x"], [Other(1)])
    with pytest.raises(StateError, match="missing required field `pages`"):
        state.space("a", Visit).get_many(["x"])


def test_spaces_are_apart() -> None:
    state = in_memory(int)
    spaces: list[State[int]] = [state, *(state.space(name, int) for name in ("a", "b", "ab", "a.b", "\x61\x61"))]
    for number, space in enumerate(spaces):
        space.put_many(["", "a", "b"], [number] * 3)
    for number, space in enumerate(spaces):
        assert list(space.scan()) == [(b"", number), (b"a", number), (b"b", number)]
        assert list(space.scan("b")) == [(b"b", number)]
    spaces[1].delete_many(["a"])
    assert [space.get_many(["a"]) for space in spaces] == [[0], [None], [2], [3], [4], [5]]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ü", "a/b", "a\n"])
def test_names_of_spaces(name: str) -> None:
    with pytest.raises(StateError, match=r"job 'count'.*name"):
        in_memory(int, job="count").space(name)


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, timedelta(0)])
def test_times_to_live(ttl: Any) -> None:
    with pytest.raises(StateError, match="ttl must be more than 0 seconds"):
        in_memory(int).put_many(["a"], [1], ttl)


def test_a_very_long_time_to_live_is_for_ever() -> None:
    state = in_memory(int)
    state.put_many(["a"], [1], 1e300)
    assert state.get_many(["a"]) == [1]


def test_lengths_must_agree() -> None:
    with pytest.raises(StateError, match="2 keys with 1 values"):
        in_memory(int).put_many(["a", "b"], [1])


def test_the_last_of_equal_keys_counts() -> None:
    state = in_memory(int)
    state.put_many(["a", "b", 1, "1"], [1, 2, 3, 4])
    state.put_many(["a"], [5])
    assert state.get_many(["a", "a", "1"]) == [5, 5, 4]


def test_a_scan_shows_what_was_there_when_it_began() -> None:
    store = MemoryStore()
    first = store.begin(0)
    State(first, int, job="j").put_many(range(3000), range(3000))
    store.commit(first)
    state = State(store.begin(0), int, job="j")
    state.put_many([5000], [5000])
    seen = []
    for key, value in state.scan():
        seen.append(value)
        state.put_many([key, b"z" + key], [-1, -1])
    assert sorted(seen) == [*range(3000), 5000]
    assert set(state.get_many([0, 2999, 5000, "z0"])) == {-1}


def test_a_type_that_cannot_be_stored() -> None:
    class Plain:
        pass

    with pytest.raises(StateError, match="job 'count'"):
        in_memory(Plain, job="count").put_many(["a"], [Plain()])


def test_sets_and_dicts_are_the_same_bytes_in_every_process() -> None:
    program = """if True:
        from tidelog.jobs.state import State
        from tidelog.jobs.store import MemoryStore
        store = MemoryStore()
        changes = store.begin(0)
        State(changes, set[str], job="j").put_many(["a"], [{str(number) for number in range(100)}])
        print(store.commit(changes))
    """
    found = set()
    for seed in "123":
        run = [sys.executable, "-c", program]
        found.add(subprocess.run(run, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout)
    assert len(found) == 1


def test_functions_import_no_spark() -> None:
    program = "import sys, tidelog.jobs, tidelog.jobs.state; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
