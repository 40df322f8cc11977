"""Numbers and IDs in arguments. A number is accepted only in the form in which Redis prints it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.parse import INT_MAX, INT_MIN, id_parts, integer, is_integer, positive, raw_ids, timeout_ms
from resp.errors import CommandError
from storage.model.ids import parse_id


@given(st.integers(INT_MIN, INT_MAX))
def test_every_64_bit_number_is_accepted(value: int) -> None:
    assert integer(b"%d" % value) == value
    assert is_integer(b"%d" % value)


WRONG = [
    b"", b" 1", b"1 ", b"+1", b"01", b"-0", b"1_0", b"0x1", b"1.0", b"1e3", b"-", b"one", b"\xd9\xa1", b"1\0",
    b"9223372036854775808", b"-9223372036854775809", b"9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("raw", WRONG)
def test_other_texts_are_refused(raw: bytes) -> None:
    assert not is_integer(raw)
    with pytest.raises(CommandError, match=r"^ERR value is not an integer or out of range$"):
        integer(raw)


def test_positive_and_timeout_have_their_own_error_texts() -> None:
    assert (positive(b"0"), timeout_ms(b"0"), timeout_ms(b"1500")) == (0, 0, 1500)
    with pytest.raises(CommandError, match=r"^ERR value is out of range, must be positive$"):
        positive(b"-1")
    with pytest.raises(CommandError, match=r"^ERR timeout is negative$"):
        timeout_ms(b"-1")
    with pytest.raises(CommandError, match=r"^ERR timeout is out of range$"):
        timeout_ms(b"9223372036854775807")
    with pytest.raises(CommandError, match=r"^ERR timeout is not an integer or out of range$"):
        timeout_ms(b"soon")


NUMBERS = st.one_of(
    st.integers(0, 2000), st.integers(0, (1 << 64) + 5), st.sampled_from(["", "007", "x", "1_0", "+1", " 1", "1.2"])
)
IDS = st.lists(st.builds("{}{}{}".format, NUMBERS, st.sampled_from([".", "-", "", ".."]), NUMBERS), max_size=5)


def parsed(texts: list[bytes]) -> list[int] | str:
    try:
        return [parse_id(text) for text in texts]
    except CommandError as error:
        return error.text


@given(IDS)
def test_all_parsers_of_ids_agree(names: list[str]) -> None:
    """parse_id(), id_parts() and raw_ids() accept the same texts and give the same IDs."""
    texts = [name.encode() for name in names]
    wanted = parsed(texts)
    if isinstance(wanted, str):
        with pytest.raises(CommandError) as refused:
            raw_ids(texts)
        assert refused.value.text == wanted
        with pytest.raises(CommandError, match=wanted):
            [id_parts(text) for text in texts]
    else:
        assert [int.from_bytes(raw, "big") for raw in raw_ids(texts)] == wanted
        assert [ms << 64 | seq for ms, seq in map(id_parts, texts)] == wanted
