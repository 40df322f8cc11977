"""Numbers: taken only in the one form in which Redis prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.parse import INT_MAX, INT_MIN, integer, is_integer, positive, timeout_ms
from resp.errors import CommandError


@given(st.integers(INT_MIN, INT_MAX))
def test_every_64_bit_number_is_taken(value: int) -> None:
    assert integer(b"%d" % value) == value
    assert is_integer(b"%d" % value)


WRONG = [
    b"", b" 1", b"1 ", b"+1", b"01", b"-0", b"1_0", b"0x1", b"1.0", b"1e3", b"-", b"one", b"\xd9\xa1", b"1\0",
    b"9223372036854775808", b"-9223372036854775809", b"9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("raw", WRONG)
def test_nothing_else_is(raw: bytes) -> None:
    assert not is_integer(raw)
    with pytest.raises(CommandError, match=r"^ERR value is not an integer or out of range$"):
        integer(raw)


def test_positive_and_timeout_have_their_own_texts() -> None:
    assert (positive(b"0"), timeout_ms(b"0"), timeout_ms(b"1500")) == (0, 0, 1500)
    with pytest.raises(CommandError, match=r"^ERR value is out of range, must be positive$"):
        positive(b"-1")
    with pytest.raises(CommandError, match=r"^ERR timeout is negative$"):
        timeout_ms(b"-1")
    with pytest.raises(CommandError, match=r"^ERR timeout is not an integer or out of range$"):
        timeout_ms(b"soon")
