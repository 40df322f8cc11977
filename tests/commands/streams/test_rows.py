"""Rows of FIELDS and VALUES: byte for byte the entries that they would be if each were written alone."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.streams import rows as subject
from commands.streams.rows import FieldRows
from resp.errors import CommandError
from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64

WORDS = st.one_of(st.binary(max_size=12), st.sampled_from([b"", b"\r\n", b"%d%b", b"$1\r\n", b"x" * 5000]))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[bytes], list[list[bytes]]]:
    fields = draw(st.lists(WORDS, min_size=1, max_size=5))
    row = st.lists(WORDS, min_size=len(fields), max_size=len(fields))
    return fields, draw(st.lists(row, min_size=1, max_size=12))


def words(fields: list[bytes], table: list[list[bytes]]) -> list[bytes]:
    return [b"fields", b"%d" % len(fields), *fields, b"values", *[value for row in table for value in row]]


def pairs(fields: list[bytes], row: list[bytes]) -> list[bytes]:
    return [word for pair in zip(fields, row, strict=True) for word in pair]


def made(fields: list[bytes], count: int) -> FieldRows:
    return FieldRows(words(fields, [[b"v"] * len(fields)] * count), "tstage")


def whole(rows: FieldRows) -> tuple[array[int], bytes]:
    return rows.bare(0, rows.total)


@given(tables())
def test_entries_without_ids(table: tuple[list[bytes], list[list[bytes]]]) -> None:
    fields, values = table
    expected = [entry_wire(b"", pairs(fields, row)) for row in values]
    rows = FieldRows(words(fields, values), "tstage")
    sizes, joined = whole(rows)
    assert sizes == array("I", map(len, expected))
    assert joined == b"".join(expected)
    half = rows.total // 2
    if half:
        (first, before), (second, after) = rows.bare(0, half), rows.bare(half, rows.total)
        assert (first + second, before + after) == (sizes, joined)


@given(tables(), st.sampled_from([0, 8, 95, 994, 1000, 9_995, 123_456, MASK64 - 20]), st.data())
def test_entries_with_ids(table: tuple[list[bytes], list[list[bytes]]], seq: int, data: st.DataObject) -> None:
    fields, values = table
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    expected = [entry_wire(id_bulk(7, seq + n), pairs(fields, row)) for n, row in enumerate(values[start:stop])]
    rows = FieldRows(words(fields, values), "tmappend")
    assert rows.total == len(values)
    sizes, joined = rows.written(7, seq, start, stop)
    assert (sizes.tolist(), joined) == (list(map(len, expected)), b"".join(expected))


def test_many_fields() -> None:
    fields = [b"f%d" % n for n in range(600)]
    _, joined = whole(made(fields, 2))
    assert joined == 2 * entry_wire(b"", pairs(fields, [b"v"] * 600))


def test_what_is_kept_of_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "KNOWN_LENGTHS", 20)
    for n in range(2 * subject.KNOWN_FIELDS):
        whole(made([b"field%d" % n], 1))
    whole(made([b"f" * 2 * subject.KNOWN_BYTES], 1))
    assert 1 <= len(subject._known) <= subject.KNOWN_FIELDS
    assert all(len(stem) <= subject.KNOWN_BYTES for stem in subject._known)
    for size in range(100):
        table = [[b"x" * size]]
        assert whole(FieldRows(words([b"f"], table), "tstage"))[1] == entry_wire(b"", [b"f", b"x" * size])
        assert all(len(texts) <= 21 for texts, _ in subject._known.values())


@pytest.mark.parametrize(
    "wrong",
    [
        [b"FIELD", b"1", b"f", b"VALUES", b"v"], [b"FIELDS", b"0", b"f", b"VALUES", b"v"],
        [b"FIELDS", b"9", b"f", b"VALUES", b"v"], [b"FIELDS", b"1", b"f", b"VALUE", b"v"],
        [b"FIELDS", b"1", b"f", b"VALUES"], [b"FIELDS", b"2", b"f", b"g", b"VALUES", b"v"],
        [b"FIELDS", b"2", b"f", b"VALUES"],
    ],
)  # fmt: skip
def test_what_is_no_table(wrong: list[bytes]) -> None:
    with pytest.raises(CommandError):
        FieldRows(wrong, "tstage")


def test_fields_count_with_every_row() -> None:
    with pytest.raises(CommandError):
        FieldRows(words([b"f" * 6_000_000], [[b""]] * 90), "tstage")
