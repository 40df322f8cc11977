"""The order of delayed entries when some of them are passed, against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage.streams.duerows import MOST_EARLY, ROW, DueRows

TURNS = st.tuples(st.integers(0, 20), st.integers(0, 1 << 40))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "take", "pass", "remove", "reset"]), TURNS), max_size=60)


@given(STEPS)
def test_what_is_not_passed_is_due_in_order(steps: list[tuple[str, tuple[int, int]]]) -> None:
    rows, waiting, passed = DueRows(), set[tuple[int, int]](), set[tuple[int, int]]()
    for step, turn in steps:
        if step == "add" and turn not in waiting | passed:
            rows.insert(ROW.pack(*turn))
            waiting.add(turn)
        elif step == "remove" and turn in waiting:
            rows.rows.delete(ROW.pack(*turn))
            waiting.remove(turn)
        elif step in ("take", "pass") and waiting:  # the first one, as deliveries do
            first = min(waiting)
            waiting.remove(first)
            if step == "take":
                rows.rows.delete(ROW.pack(*first))
            else:
                rows.pass_over(*first)
                passed.add(first)
        elif step == "reset":
            rows.reset()
            waiting |= passed
            passed.clear()
        assert rows.first() == (min(waiting)[0] if waiting else None)
        until = turn[0]
        assert rows.due(until, 5) == [each for each in sorted(waiting) if each[0] <= until][:5]


def test_with_many_rows_before_the_passed_ones_these_are_included() -> None:
    rows = DueRows()
    rows.insert(ROW.pack(5, 0))
    rows.pass_over(5, 0)
    for ordinal in range(1, MOST_EARLY + 1):
        rows.insert(ROW.pack(4, ordinal))
    assert len(rows.due(9, 2 * MOST_EARLY)) == MOST_EARLY
    rows.insert(ROW.pack(4, MOST_EARLY + 1))
    assert len(rows.due(9, 2 * MOST_EARLY)) == MOST_EARLY + 2
