"""Long replies in pieces, and where slices end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import slicing
from commands.context import Chunks
from commands.slicing import AT_ONCE, LONG_PIECE, LONG_VALUE, SLICE_BYTES, gathered, long_array, long_bulk, slice_end
from resp import reply

LONG = bytes(range(256)) * ((LONG_VALUE + LONG_PIECE) // 256) + b"end"


def whole(answer: bytes | Chunks) -> bytes:
    return b"".join(answer.pieces) if isinstance(answer, Chunks) else answer


@pytest.mark.parametrize(("start", "stop"), [(0, -1), (0, 10), (7, LONG_VALUE), (1, -1), (5, LONG_VALUE + 6), (3, 3)])
def test_long_values(start: int, stop: int) -> None:
    expected = LONG[start:] if stop < 0 else LONG[start:stop]
    answer = long_bulk(LONG, start, stop)
    assert isinstance(answer, Chunks) == (len(expected) > LONG_VALUE)
    assert whole(answer) == reply.bulk(expected)


def test_the_pieces_of_a_long_value_are_short() -> None:
    answer = long_array([b"x", LONG, None, b"y"], reply.NULL_BULK)
    assert isinstance(answer, Chunks)
    pieces = list(answer.pieces)
    assert max(map(len, pieces)) <= LONG_PIECE
    expected = [reply.array_header(4), reply.bulk(b"x"), reply.bulk(LONG), reply.NULL_BULK, reply.bulk(b"y")]
    assert b"".join(pieces) == b"".join(expected)


@given(st.lists(st.integers(0, 3 * SLICE_BYTES), max_size=12), st.integers(0, 3))
def test_where_a_slice_ends(sizes: list[int], start: int) -> None:
    names = [bytes(size) for size in sizes]
    if start >= len(names):
        return
    end = slice_end(names, start)
    assert start < end <= len(names)
    assert end - start == 1 or sum(sizes[start:end]) <= SLICE_BYTES


def test_a_slice_of_short_names() -> None:
    names = [b"name"] * (AT_ONCE + 10)
    assert (slice_end(names, 0), slice_end(names, AT_ONCE)) == (AT_ONCE, len(names))


@given(st.lists(st.binary(max_size=50)))
def test_pieces_that_are_gathered(pieces: list[bytes]) -> None:
    assert b"".join(gathered(iter(pieces))) == b"".join(pieces)
    many = list(gathered(iter([b"x" * 1000] * 1000)))
    assert max(map(len, many)) <= slicing.PIECE_BYTES + 1000
    assert len(many) < 20
