"""Columns of numbers: vectors in both directions, and damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.history.varints import decode, encode

VECTORS = [
    ([], ""),
    ([0], "00"),
    ([127], "7f"),
    ([128], "8001"),
    ([300, 1], "ac0201"),
    ([2**64 - 1], "ffffffffffffffffff01"),
]


@pytest.mark.parametrize(("numbers", "column"), VECTORS)
def test_vectors(numbers: list[int], column: str) -> None:
    assert encode(numbers).hex() == column
    assert decode(bytes.fromhex(column), len(numbers)) == numbers


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_columns_are_read_as_they_were_written(numbers: list[int]) -> None:
    assert decode(encode(numbers), len(numbers)) == numbers


@pytest.mark.parametrize(
    ("column", "count"),
    [
        ("80", 1),  # ends within a number
        ("8000", 1),  # not the shortest encoding
        ("ffffffffffffffffff02", 1),  # 2**64 or more
        ("ffffffffffffffffffff01", 1),  # more than ten bytes
        ("0001", 1), ("00", 2), ("8001", 2), ("", 1),  # another number of numbers
    ],
)  # fmt: skip
def test_invalid_columns_are_refused(column: str, count: int) -> None:
    with pytest.raises(CorruptError):
        decode(bytes.fromhex(column), count)
