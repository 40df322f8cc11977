"""Entries in the form that X commands send, against a parser of replies."""

from __future__ import annotations

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.nodes.redisform import redis_entries, redis_entry

NUMBERS = st.one_of(st.integers(0, MASK64), st.integers(0, 120), st.integers(1_700_000_000_000, 1_700_000_000_012))
WORDS = st.one_of(st.binary(max_size=12), st.sampled_from([b"*5\r\n$3\r\n1.0\r\n", b".", b"", b"x" * 5000, b"\r\n"]))
PAIRS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6)
VALUES = PAIRS.map(lambda pairs: [word for pair in pairs for word in pair])
ENTRIES = st.tuples(NUMBERS, NUMBERS, VALUES)


def parsed(data: bytes) -> list[object]:
    reader = hiredis.Reader()
    reader.feed(data)
    found = []
    while (reply := reader.gets()) is not False:
        found.append(reply)
    return found


def test_the_bytes_of_one() -> None:
    wire = b"*5\r\n$15\r\n1486475519747.0\r\n$6\r\nsensor\r\n$2\r\n01\r\n$1\r\nt\r\n$4\r\n21.5\r\n"
    assert redis_entry(wire) == (
        b"*2\r\n$15\r\n1486475519747-0\r\n*4\r\n$6\r\nsensor\r\n$2\r\n01\r\n$1\r\nt\r\n$4\r\n21.5\r\n"
    )


def test_none() -> None:
    assert redis_entries([]) == b""


@given(st.lists(ENTRIES, max_size=12))
def test_as_a_parser_sees_them(entries: list[tuple[int, int, list[bytes]]]) -> None:
    wires = [entry_wire(id_bulk(ms, seq), values) for ms, seq, values in entries]
    expected = [[b"%d-%d" % (ms, seq), values] for ms, seq, values in entries]
    assert parsed(redis_entries(wires)) == expected
    assert [parsed(redis_entry(wire)) for wire in wires] == [[entry] for entry in expected]


def test_more_fields_than_tables_have() -> None:
    values = [b"%d" % n for n in range(4000)]
    lists = [values, values[:2], values]
    wires = [entry_wire(id_bulk(5, seq), some) for seq, some in enumerate(lists)]
    assert parsed(redis_entries(wires)) == [[b"5-%d" % seq, some] for seq, some in enumerate(lists)]
