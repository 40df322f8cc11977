"""Pieces of many streams in few tasks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tidelog.client.entries import StreamId
from tidelog.spark.offsets import OffsetRange
from tidelog.spark.ranges import grouped

pytestmark = pytest.mark.quick


def pieces(numbers: list[int]) -> list[tuple[OffsetRange, int]]:
    return [(OffsetRange(f"s:{at % 7}", StreamId(at), StreamId(at + 1)), number) for at, number in enumerate(numbers)]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.integers(1, 50), st.none() | st.integers(1, 1000))
def test_each_piece_is_in_one_group(numbers: list[int], most: int, limit: int | None) -> None:
    given_pieces = pieces(numbers)
    counts = dict(given_pieces)
    groups = grouped(given_pieces, most, limit)
    assert Counter(span for group in groups for span in group) == Counter(counts.keys())
    assert all(group == sorted(group, key=lambda span: (span.key, span.after)) for group in groups)
    sizes = [sum(counts[span] for span in group) for group in groups]
    if limit is None:
        assert len(groups) <= most
        assert max(sizes) <= max(max(numbers), 2 * -(-sum(numbers) // most))
    else:
        assert all(size <= limit or len([span for span in group if counts[span]]) == 1
                   for size, group in zip(sizes, groups, strict=True))  # fmt: skip
    assert grouped(given_pieces[::-1], most, limit) == groups  # the order in which streams were found says nothing
