"""References: their bytes, and damage."""

from __future__ import annotations

import pytest

from resp.errors import CorruptError
from storage.nodes import reference
from storage.nodes.packed import open_packed
from storage.nodes.reference import Reference, is_reference

ONE = Reference(
    10, 1234, 5 << 64 | 1, 9 << 64 | 2, bytes(range(16)), 7, bytes(range(16, 32)), 1 << 40, 99, 0xABCDEF
)  # fmt: skip


def test_the_bytes() -> None:
    """A store of an earlier version has these bytes: they never change."""
    raw = ONE.pack()
    assert raw.hex() == (
        "544e03000a000000d204000005000000000000000100000000000000cb28e2cb"
        "000102030405060708090a0b0c0d0e0f0700000000000000101112131415161718191a1b1c1d1e1f"
        "000000000001000063000000efcdab000000000009000000000000000200000000000000"
    )
    assert reference.unpack(raw) == ONE
    assert (len(raw), is_reference(raw), is_reference(b"TN\1")) == (reference.SIZE, True, False)
    assert ONE.object == "0000000000000007-101112131415161718191a1b1c1d1e1f.tide"


def test_damage_is_detected() -> None:
    raw = ONE.pack()
    for at in range(len(raw)):
        with pytest.raises(CorruptError):
            reference.unpack(raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :])
    for wrong in (raw[:-1], raw + b"\0", b"", ONE._replace(entries=0).pack(), ONE._replace(last_id=1).pack()):
        with pytest.raises(CorruptError):
            reference.unpack(wrong)


def test_it_is_no_node() -> None:
    """Earlier versions refuse it like this."""
    with pytest.raises(CorruptError, match="a node has the unknown version 3; a newer tidelog may have written it"):
        open_packed(ONE.pack())
