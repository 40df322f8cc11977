"""Entries as values: what the last entry was like says nothing about the next one."""

from __future__ import annotations

import pytest

from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec

PAIRS = [
    ([b"n", b"1", b"city", b"Catania"], {"n": "1", "city": "Catania"}),
    ([b"n", b"2", b"city", b"\xc3\xa8"], {"n": "2", "city": "è"}),
    ([b"n", b"\xff", b"city", b"a"], {"n": b"\xff", "city": "a"}),
    ([b"n", b"3", b"city", b"b"], {"n": "3", "city": "b"}),
    ([b"city", b"c", b"n", b"4"], {"city": "c", "n": "4"}),
    ([b"n", b"5"], {"n": "5"}),
    ([b"n", b"6", b"n", b"7"], {"n": "7"}),
    ([b"\xfe", b"8"], {"\\xfe": "8"}),
    ([], {}),
]


def test_each_entry_has_its_own_names_whatever_came_before() -> None:
    for first, _ in PAIRS:
        for flat, value in PAIRS:
            decode = EntryCodec("plain").decode
            decode(first)
            assert decode(flat) == value


def test_a_name_without_a_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        EntryCodec("plain").decode([b"n", b"1", b"city"])
