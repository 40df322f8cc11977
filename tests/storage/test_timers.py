"""The agenda against a plain dict; and nothing of what is gone stays in it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.timers import GROUP_EXPIRY, KEY_EXPIRY, STAGE_EXPIRY, Agenda, Item

NAMES = st.sampled_from([b"a", b"b", b"c"])
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("file"), st.sampled_from([KEY_EXPIRY, GROUP_EXPIRY]), NAMES, st.integers(0, 20)),
        st.tuples(st.just("forget"), st.sampled_from([KEY_EXPIRY, GROUP_EXPIRY]), NAMES, st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(b""), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.just(0), st.just(b""), st.just(0)),
    ),
    max_size=200,
)


@settings(deadline=None)
@given(MOVES)
def test_against_a_dict(moves: list[tuple[str, int, bytes, int]]) -> None:
    agenda = Agenda()
    model: dict[Item, int] = {}
    for what, kind, key, when in moves:
        item = (kind, key, b"")
        if what == "file":
            agenda.file(kind, key, b"", when)
            model[item] = min(when, model.get(item, when))
        elif what == "forget":
            agenda.forget(kind, key)
            model.pop(item, None)
        elif what == "clear":
            agenda.clear()
            model.clear()
        else:
            taken = agenda.take(when)
            if taken is None:
                assert not model or min(model.values()) > when
            else:
                assert model[taken] == min(model.values()) <= when
                del model[taken]
        assert agenda.next() == min(model.values(), default=None)
        assert len(agenda) == len(model)


def test_earliest_first() -> None:
    agenda = Agenda()
    for when in (5, 3, 9, 3, 7):
        agenda.file(KEY_EXPIRY, b"%d" % when, b"", when)
    assert [agenda.take(8) for _ in range(5)] == [
        (KEY_EXPIRY, b"3", b""), (KEY_EXPIRY, b"5", b""), (KEY_EXPIRY, b"7", b""), None, None,
    ]  # fmt: skip
    assert agenda.next() == 9


def test_a_later_moment_does_not_replace_an_earlier_one() -> None:
    agenda = Agenda()
    agenda.file(KEY_EXPIRY, b"k", b"", 5)
    agenda.file(KEY_EXPIRY, b"k", b"", 50)
    assert agenda.take(5) == (KEY_EXPIRY, b"k", b"")
    assert agenda.take(500) is None


def test_memory_follows_what_is_filed() -> None:
    agenda = Agenda()
    for n in range(10_000):
        agenda.file(KEY_EXPIRY, b"%d" % n, b"", 10**6 + n)
        agenda.forget(KEY_EXPIRY, b"%d" % n)
    assert len(agenda) == 0
    assert len(agenda._heap) <= 64
    for n in range(10_000):
        agenda.file(STAGE_EXPIRY, b"%d" % n, b"", 10**6 + n)
    agenda.file(KEY_EXPIRY, b"7", b"", 10**6)
    agenda.file(STAGE_EXPIRY, b"7", b"group", 10**6 + 1)
    agenda.forget_all(STAGE_EXPIRY, [b"none", *[b"%d" % n for n in range(10_000)]])
    assert len(agenda._heap) <= 64
    assert agenda.take(10**7) == (KEY_EXPIRY, b"7", b"")
    assert agenda.take(10**7) == (STAGE_EXPIRY, b"7", b"group")
    assert len(agenda) == 0
    for n in range(10_000):  # moved forward again and again
        agenda.file(KEY_EXPIRY, b"k", b"", 10**6 - n)
    assert len(agenda) == 1
    assert len(agenda._heap) <= 64
