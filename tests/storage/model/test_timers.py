"""Timers against a plain dict; what is cancelled leaves memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.model.timers import GROUP_EXPIRY, KEY_EXPIRY, STAGE_EXPIRY, Item, Timers

NAMES = st.sampled_from([b"a", b"b", b"c"])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), st.sampled_from([KEY_EXPIRY, GROUP_EXPIRY]), NAMES, st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.sampled_from([KEY_EXPIRY, GROUP_EXPIRY]), NAMES, st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(b""), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.just(0), st.just(b""), st.just(0)),
    ),
    max_size=200,
)


@settings(deadline=None)
@given(MOVES)
def test_against_a_dict(moves: list[tuple[str, int, bytes, int]]) -> None:
    timers = Timers()
    model: dict[Item, int] = {}
    for what, kind, key, when in moves:
        item = (kind, key, b"")
        if what == "arm":
            timers.arm(kind, key, b"", when)
            model[item] = min(when, model.get(item, when))
        elif what == "cancel":
            timers.cancel(kind, key)
            model.pop(item, None)
        elif what == "clear":
            timers.clear()
            model.clear()
        else:
            taken = timers.take(when)
            if taken is None:
                assert not model or min(model.values()) > when
            else:
                assert model[taken] == min(model.values()) <= when
                del model[taken]
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)


def test_earliest_first() -> None:
    timers = Timers()
    for when in (5, 3, 9, 3, 7):
        timers.arm(KEY_EXPIRY, b"%d" % when, b"", when)
    assert [timers.take(8) for _ in range(5)] == [
        (KEY_EXPIRY, b"3", b""), (KEY_EXPIRY, b"5", b""), (KEY_EXPIRY, b"7", b""), None, None,
    ]  # fmt: skip
    assert timers.next() == 9


def test_a_later_moment_does_not_replace_an_earlier_one() -> None:
    timers = Timers()
    timers.arm(KEY_EXPIRY, b"k", b"", 5)
    timers.arm(KEY_EXPIRY, b"k", b"", 50)
    assert timers.take(5) == (KEY_EXPIRY, b"k", b"")
    assert timers.take(500) is None


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """The memory that was allocated since the start of the test and is still in use."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


def test_memory_follows_what_is_armed(traced: Callable[[], int]) -> None:
    timers = Timers()
    for n in range(10_000):
        timers.arm(KEY_EXPIRY, b"%d" % n, b"", 10**6 + n)
        timers.cancel(KEY_EXPIRY, b"%d" % n)
    assert len(timers) == 0
    assert traced() < 600_000
    for n in range(10_000):
        timers.arm(STAGE_EXPIRY, b"%d" % n, b"", 10**6 + n)
    timers.arm(KEY_EXPIRY, b"7", b"", 10**6)
    timers.arm(STAGE_EXPIRY, b"7", b"group", 10**6 + 1)
    timers.cancel_all(STAGE_EXPIRY, [b"none", *[b"%d" % n for n in range(10_000)]])
    assert traced() < 600_000
    assert timers.take(10**7) == (KEY_EXPIRY, b"7", b"")
    assert timers.take(10**7) == (STAGE_EXPIRY, b"7", b"group")
    assert len(timers) == 0
    for n in range(10_000):  # moved forward again and again
        timers.arm(KEY_EXPIRY, b"k", b"", 10**6 - n)
    assert len(timers) == 1
    assert traced() < 600_000


def test_long_names_do_not_wait_for_their_time(traced: Callable[[], int]) -> None:
    """Neither those of what was cancelled, nor the copies that came with earlier moments."""
    name = b"n" * 300_000
    timers = Timers()
    for n in range(50):
        timers.arm(KEY_EXPIRY, b"%d" % n + name, b"", 10**6)
        timers.cancel(KEY_EXPIRY, b"%d" % n + name)
        timers.arm(GROUP_EXPIRY, bytes(name), b"", 10**6 - n)
        timers.arm(STAGE_EXPIRY, b"%d" % n + name, b"", 10**6)
        timers.cancel_all(STAGE_EXPIRY, [b"%d" % n + name])
    assert traced() < 2_500_000
    assert timers.take(10**6) == (GROUP_EXPIRY, name, b"")
