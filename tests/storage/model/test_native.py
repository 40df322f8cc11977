"""What C makes of IDs and records, where it was compiled, against the same in Python."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commands.parse import raw_ids
from resp.errors import CommandError
from storage.model import records
from storage.model.ids import MASK64, PARSED, RAWS, format_id, parse_id
from storage.nodes.node import Node
from tests.storage.model.test_ids import MALFORMED, READ

numbers = st.integers(0, MASK64)
ids = st.integers(0, (1 << 128) - 1)
raws = st.lists(st.binary(min_size=16, max_size=16), max_size=20)
names = st.binary(max_size=300)

needs_c = pytest.mark.skipif(
    RAWS is None or PARSED is None or records.OWN_RECORD is None, reason="no C modules here (pip install -e .)"
)


# -- IDs ---------------------------------------------------------------------------------------------------------------
@needs_c
@given(st.lists(ids))
def test_ids_are_parsed(entries: list[int]) -> None:
    texts = [format_id(entry) for entry in entries]
    assert PARSED is not None
    assert PARSED([b"TACK", *texts], 1) == [entry.to_bytes(16, "big") for entry in entries]


@needs_c
@pytest.mark.parametrize("text", [text for text, *_ in READ])
def test_every_form_of_an_id_is_parsed(text: bytes) -> None:
    assert PARSED is not None
    assert PARSED([text], 0) == [parse_id(text).to_bytes(16, "big")]


@needs_c
@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_id_is_left_to_python(text: bytes) -> None:
    assert PARSED is not None
    assert PARSED([b"1.1", text], 0) is None
    with pytest.raises(CommandError):
        raw_ids([b"1.1", text])


@needs_c
@given(st.binary(max_size=45) | st.from_regex(rb"[0-9]{1,22}[.\-]?[0-9]{0,22}", fullmatch=True))
@example(b"0" * 20 + b".1")
@example(b"0" * 21 + b".1")
def test_both_refuse_the_same(text: bytes) -> None:
    try:
        wanted: list[bytes] | None = [parse_id(text).to_bytes(16, "big")]
    except CommandError:
        wanted = None
    assert PARSED is not None
    assert PARSED([text], 0) == wanted


@needs_c
@given(st.data(), st.integers(0, 1 << 62), st.sampled_from("BHIQ"), st.sampled_from("BHIQ"), st.integers(0, 20))
def test_ids_of_entries(data: st.DataObject, base: int, ms_code: str, seq_code: str, count: int) -> None:
    def column(code: str) -> array[int]:
        top = (1 << 8 * array(code).itemsize) - 1
        return array(code, data.draw(st.lists(st.integers(0, min(top, 1 << 62)), min_size=count, max_size=count)))

    ms, seq = column(ms_code), column(seq_code)
    lo = data.draw(st.integers(0, count))
    hi = data.draw(st.integers(lo, count))
    node = Node(base, ms, seq, array("I", range(count)), b"")
    assert RAWS is not None
    assert RAWS(base, ms, seq, lo, hi) == [entry.to_bytes(16, "big") for entry in node.ids(lo, hi)]


@needs_c
@pytest.mark.parametrize(("lo", "hi"), [(-1, 1), (2, 1), (0, 3), (3, 3)])
def test_entries_that_are_not_there(lo: int, hi: int) -> None:
    assert RAWS is not None
    with pytest.raises(IndexError):
        RAWS(0, array("Q", (1, 2)), array("B", (1, 2)), lo, hi)
    with pytest.raises(IndexError):
        RAWS(0, array("Q", (1, 2, 3, 4)), array("B", (1, 2)), 2, 3)


# -- records -----------------------------------------------------------------------------------------------------------


@needs_c
@pytest.mark.interpreted
@given(names, names, ids, numbers, numbers, numbers, st.integers(0, (1 << 32) - 1), st.integers(0, 255), raws)
def test_a_read(
    key: bytes, name: bytes, offset: int, now: int, retry: int, expire: int, most: int, flags: int, new: list[bytes]
) -> None:  # fmt: skip
    made = records.deliver(key, name, offset, now, retry, expire, most, b"", flags, new, [], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "DELIVER_RECORD", None)
        assert made == records.deliver(key, name, offset, now, retry, expire, most, b"", flags, new, [], [])


@needs_c
@pytest.mark.interpreted
@given(names, names, raws)
def test_an_acknowledgement(key: bytes, name: bytes, entries: list[bytes]) -> None:
    made = records.ack(key, name, entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "ACK_RECORD", None)
        assert made == records.ack(key, name, entries)


@needs_c
@pytest.mark.interpreted
@given(
    names, names, st.integers(0, (1 << 32) - 1), st.integers(0, 255), ids, st.integers(-1, 1 << 63), numbers, numbers,
    numbers, raws, raws, raws,
)  # fmt: skip
def test_a_read_of_a_consumer(
    key: bytes, group: bytes, number: int, flags: int, offset: int, entries_read: int, last: int, now: int, count: int,
    new: list[bytes], again: list[bytes], gone: list[bytes],
) -> None:  # fmt: skip
    words = key, group, number, flags, offset, entries_read, last, now, count, new, again, gone
    made = records.own(*words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "OWN_RECORD", None)
        assert made == records.own(*words)
