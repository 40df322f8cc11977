"""Two ordered lists side by side, compared with sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.entries import SEQ_MAX
from tidelog.moving.merged import merged
from tidelog.moving.pages import Row, id_of

IDS = st.sets(st.tuples(st.sampled_from([0, 1, 2, SEQ_MAX]), st.sampled_from([0, 1, SEQ_MAX])))


def row(at: tuple[int, int]) -> Row:
    return b"%d-%d" % at, []


@given(IDS, IDS)
def test_pairs(left: set[tuple[int, int]], right: set[tuple[int, int]]) -> None:
    expected = [(row(at) if at in left else None, row(at) if at in right else None) for at in sorted(left | right)]
    both = merged(map(row, sorted(left)), map(row, sorted(right)), id_of)
    assert list(both) == expected
