"""IDs: text both ways, and the bounds of ranges ([1], [2])."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import INVALID_ID, CommandError
from storage.model.ids import MASK64, MAX_ID, format_id, parse_id, parse_range_end, parse_range_start

TOP = b"18446744073709551615"  # 2**64 - 1
numbers = st.integers(0, MASK64)

# text, what a plain command reads, the first ID of a range that starts there, the last of one that ends there
READ = [
    (b"0", 0, 0, MASK64),
    (b"5", 5 << 64, 5 << 64, 5 << 64 | MASK64),
    (b"5.0", 5 << 64, 5 << 64, 5 << 64),
    (b"5.7", 5 << 64 | 7, 5 << 64 | 7, 5 << 64 | 7),
    (b"5-7", 5 << 64 | 7, 5 << 64 | 7, 5 << 64 | 7),
    (b"005.007", 5 << 64 | 7, 5 << 64 | 7, 5 << 64 | 7),
    (TOP, MASK64 << 64, MASK64 << 64, MAX_ID),
    (TOP + b"." + TOP, MAX_ID, MAX_ID, MAX_ID),
]

MALFORMED = [
    b"", b".", b"-", b"+", b"x", b"5.", b".5", b"5-", b"-5", b"5.x", b"x.5", b"5.7.1", b"5-7-1", b"5.7-1", b"5-7.1",
    b"+5", b" 5", b"5 ", b"5\n", b"5. 7", b"5_0", b"0x5", b"1e3", b"(5", b"5.-7", b"18446744073709551616",
    b"5.18446744073709551616", b"9" * 50, b"\xb2", "\u0665".encode(),
]  # fmt: skip


def joined(ms: int, seq: int) -> int:
    return ms << 64 | seq


@pytest.mark.parametrize(("text", "plain", "start", "end"), READ)
def test_reads_an_id(text: bytes, plain: int, start: int, end: int) -> None:
    assert (parse_id(text), parse_range_start(text), parse_range_end(text)) == (plain, start, end)


@pytest.mark.parametrize("text", MALFORMED)
def test_refuses_what_is_no_id(text: bytes) -> None:
    with pytest.raises(CommandError) as caught:
        parse_id(text)
    assert caught.value.text == INVALID_ID


MALFORMED_BOUNDS = [*(set(MALFORMED) - {b"-", b"+", b"(5"}), b"(", b"(-", b"(+", b"((5"]


@pytest.mark.parametrize("text", sorted(MALFORMED_BOUNDS))
def test_refuses_what_is_no_bound(text: bytes) -> None:
    for parse in (parse_range_start, parse_range_end):
        with pytest.raises(CommandError) as caught:
            parse(text)
        assert caught.value.text == INVALID_ID


def test_a_default_seq_completes_a_plain_ms_only() -> None:
    assert parse_id(b"5", 9) == joined(5, 9)
    assert parse_id(b"5.0", 9) == joined(5, 0)


def test_open_ends() -> None:
    assert parse_range_start(b"-") == 0
    assert parse_range_start(b"+") == MAX_ID
    assert parse_range_end(b"-") == 0
    assert parse_range_end(b"+") == MAX_ID


def test_exclusive_bounds() -> None:
    assert parse_range_start(b"(5.7") == joined(5, 8)
    assert parse_range_start(b"(5") == joined(5, 1)
    assert parse_range_start(b"(5." + TOP) == joined(6, 0)
    assert parse_range_end(b"(5.7") == joined(5, 6)
    assert parse_range_end(b"(5.0") == joined(4, MASK64)
    assert parse_range_end(b"(5") == joined(5, MASK64 - 1)


def test_exclusive_bounds_that_no_id_meets() -> None:
    assert parse_range_start(b"(" + TOP + b"." + TOP) == MAX_ID + 1
    assert parse_range_end(b"(0.0") == -1


@given(numbers, numbers)
def test_text_comes_back(ms: int, seq: int) -> None:
    text = format_id(joined(ms, seq))
    assert text == f"{ms}.{seq}".encode()
    assert parse_id(text) == parse_id(text.replace(b".", b"-")) == joined(ms, seq)


@given(st.text("0123456789.-+( x", max_size=12).map(str.encode))
def test_any_text_is_an_id_or_an_error(text: bytes) -> None:
    for parse in (parse_id, parse_range_start, parse_range_end):
        try:
            value = parse(text)
        except CommandError:
            continue
        assert -1 <= value <= MAX_ID + 1
