"""IDs as X commands read and print them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commands.redis_streams.ids import added_id, range_end, range_start, strict_id, xid_bulk
from resp.errors import CommandError
from storage.model.ids import MASK64, MAX_ID

INVALID = "ERR Invalid stream ID specified as stream command argument"


def an_id(ms: int, seq: int) -> int:
    return ms << 64 | seq


def test_printed() -> None:
    assert xid_bulk(an_id(1486475519747, 12)) == b"$16\r\n1486475519747-12\r\n"
    assert xid_bulk(0) == b"$3\r\n0-0\r\n"
    assert xid_bulk(MAX_ID) == b"$41\r\n18446744073709551615-18446744073709551615\r\n"


@pytest.mark.parametrize("text", [b"5-7", b"5.7", b"05-007"])
def test_complete(text: bytes) -> None:
    assert strict_id(text) == range_start(text) == range_end(text) == an_id(5, 7)
    assert added_id(text) == (5, 7)


def test_incomplete() -> None:
    assert strict_id(b"5") == range_start(b"5") == an_id(5, 0)
    assert strict_id(b"5", 9) == an_id(5, 9)
    assert range_end(b"5") == an_id(5, MASK64)
    assert added_id(b"5") == (5, 0)
    assert added_id(b"5-*") == added_id(b"5.*") == (5, -1)


def test_ends_of_ranges() -> None:
    assert (range_start(b"-"), range_start(b"+")) == (0, MAX_ID) == (range_end(b"-"), range_end(b"+"))
    assert range_start(b"(5") == an_id(5, 1)
    assert range_end(b"(5") == an_id(5, MASK64 - 1)
    assert range_start(b"(5-%d" % MASK64) == an_id(6, 0)
    assert range_end(b"(5-0") == an_id(4, MASK64)
    with pytest.raises(CommandError, match="invalid start ID for the interval"):
        range_start(b"(%d-%d" % (MASK64, MASK64))
    with pytest.raises(CommandError, match="invalid end ID for the interval"):
        range_end(b"(0-0")


@pytest.mark.parametrize("parse", [strict_id, added_id, range_start, range_end], ids=lambda parse: parse.__name__)
@pytest.mark.parametrize(
    "text", [b"", b"x", b"5-", b"-5", b"5-x", b"5-7-9", b"(", b"(-", b"(+", b"$", b"5-**", b"%d" % (1 << 64), b" 5"]
)
def test_invalid(parse: Callable[[bytes], object], text: bytes) -> None:
    with pytest.raises(CommandError) as raised:
        parse(text)
    assert raised.value.text == INVALID


@pytest.mark.parametrize("text", [b"-", b"+", b"*", b"(5"])
def test_words_that_are_no_ids(text: bytes) -> None:
    for parse in (strict_id, added_id):
        with pytest.raises(CommandError):
            parse(text)
