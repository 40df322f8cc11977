"""Which bytes are an entry: what the server writes is, whatever the values are; one byte more, less or other is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.keyspace.validation import check, is_entry
from storage.model.entries import entry_wire, id_bulk
from tests.storage.keyspace.replaykit import append_record

NUMBERS = st.integers(0, (1 << 64) - 1)
SPECIAL = [b"\r\n", b"$1\r\nx\r\n", b"*3\r\n", b"", b"x" * 4095, b"x" * 4096, b"x" * 70_000]
VALUES = st.one_of(st.binary(max_size=40), st.sampled_from(SPECIAL))
PAIRS = st.lists(VALUES, min_size=2, max_size=8).filter(lambda values: len(values) % 2 == 0)


@given(NUMBERS, NUMBERS, PAIRS)
def test_what_is_written_is_an_entry(ms: int, seq: int, values: list[bytes]) -> None:
    wire = entry_wire(id_bulk(ms, seq), values)
    assert is_entry(wire, b"%d.%d" % (ms, seq))
    assert not is_entry(wire, b"%d.%d" % (ms, seq + 1))
    assert not is_entry(wire + b"\r\n", b"%d.%d" % (ms, seq))
    check(append_record(b"key", ms, seq, wire))


def test_an_entry_of_many_fields() -> None:
    wire = entry_wire(id_bulk(1, 1), [b"v"] * 5000)
    assert is_entry(wire, b"1.1")
    assert not is_entry(wire.replace(b"*5001", b"*5003"), b"1.1")


@given(PAIRS, st.data())
def test_a_damaged_entry_is_none(values: list[bytes], data: st.DataObject) -> None:
    """Unless the damage is in a value, which may be any bytes."""
    wire = entry_wire(id_bulk(1, 1), values)
    at = data.draw(st.integers(0, len(wire) - 1))
    for bad in (wire[:at], wire[:at] + wire[at + 1 :], wire[:at] + b"0" + wire[at:]):
        if is_entry(bad, b"1.1"):
            words = _values(bad)
            assert entry_wire(id_bulk(1, 1), words) == bad


def _values(wire: bytes) -> list[bytes]:
    at, found = wire.index(b"\r\n") + 2, []
    while at < len(wire):
        end = wire.index(b"\r\n", at)
        size = int(wire[at + 1 : end])
        found.append(wire[end + 2 : end + 2 + size])
        at = end + 4 + size
    return found[1:]


@pytest.mark.parametrize(
    "wire",
    [
        b"", b"\r\n", b"*", b"*3", b"*3\r\n", b"*1\r\n$3\r\n1.1\r\n", b"*2\r\n$3\r\n1.1\r\n$0\r\n\r\n",
        b"*3\r\n$3\r\n1.1\r\n$0\r\n\r\n$-1\r\n", b"*3\r\n$3\r\n1.1\r\n$0\r\n\r\n$00\r\n\r\n",
        b"*03\r\n$3\r\n1.1\r\n$0\r\n\r\n$0\r\n\r\n", b"*3\r\n$3\r\n1.1\r\n$0\r\n\r\n$1\r\n\r\n",
        b"*3\r\n$3\r\n1.1\r\n$0\r\n\r\n$99999999999\r\nx\r\n", b"%3\r\n$3\r\n1.1\r\n$0\r\n\r\n$0\r\n\r\n",
        b"*9999999999\r\n$3\r\n1.1\r\n",
    ],
)  # fmt: skip
def test_what_is_no_entry(wire: bytes) -> None:
    assert not is_entry(wire, b"1.1")
    with pytest.raises(CorruptError, match=r"1\.1"):
        check(append_record(b"key", 1, 1, wire))
