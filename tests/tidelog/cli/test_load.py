"""Files into rows: no server needed."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tidelog.cli.load import BadRow, Format, Row, guess_format, read_rows


def read(data: bytes, form: Format, delimiter: str = ",") -> list[Row | BadRow]:
    return list(read_rows(io.BytesIO(data), form, delimiter))


def values(rows: list[Row | BadRow]) -> list[list[str | bytes]]:
    assert all(isinstance(row, Row) for row in rows), rows
    return [[value for _, value in row.pairs] for row in rows if isinstance(row, Row)]


def test_csv() -> None:
    rows = read(b'\xef\xbb\xbftemp,date\r\n47.8,"2010,1"\r\n\r\n"4""7",\r\n', "csv")
    assert rows == [
        Row(2, 2, [(b"temp", b"47.8"), (b"date", b"2010,1")]),
        Row(4, 4, [(b"temp", b'4"7'), (b"date", b"")]),
    ]


def test_csv_keeps_bytes_and_names_the_line_a_row_begins_in() -> None:
    rows = read(b'a;b\n"one\ntwo";\xff\n1\n5;6\n', "csv", ";")
    assert rows[0] == Row(2, 3, [(b"a", b"one\ntwo"), (b"b", b"\xff")])
    assert rows[1] == BadRow(4, 4, "1 value for 2 columns")
    assert rows[2] == Row(5, 5, [(b"a", b"5"), (b"b", b"6")])


def test_csv_that_ends_within_a_quote() -> None:
    rows = read(b'a\n1\n"2', "csv")
    assert rows[0] == Row(2, 2, [(b"a", b"1")])
    assert isinstance(rows[1], BadRow)
    assert rows[1].line == 3


def test_csv_without_a_line_end_may_be_cut_off() -> None:
    for data in (b"a,b\n1,tea\n2,mi", b"a,b\r1,tea\r2,mi", b'a,b\n1,tea\n2,"mi"'):
        good, bad = read(data, "csv")
        assert isinstance(good, Row)
        assert isinstance(bad, BadRow)
        assert (bad.line, bad.reason.partition(":")[0]) == (3, "no line end")
    for data in (b"a,b", b"[{}, {}]", b"1,tea"):
        with pytest.raises(ValueError, match="the first line names the columns, and there is no line end"):
            read(data, "csv")
    assert read(b"a,b\n", "csv") == []


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    data = b'\xef\xbb\xbf{"a": "1"}\n{"a": "2"}'
    assert guess_format("-", io.BufferedReader(io.BytesIO(data))) == "jsonl"
    assert read(data, "jsonl") == [Row(1, 1, [("a", "1")]), Row(2, 2, [("a", "2")])]


def test_csv_without_a_header() -> None:
    with pytest.raises(ValueError, match="first line"):
        read(b"", "csv")


def test_json_lines() -> None:
    data = b'{"a": 1.10, "b": "x", "c": true, "d": null, "e": [1.5, "y"], "f": 10000000000000000000001}\n\n{"a": NaN}\n'
    assert read(data, "jsonl") == [
        Row(1, 1, [("a", "1.10"), ("b", "x"), ("c", "true"), ("e", '[1.5,"y"]'), ("f", "10000000000000000000001")]),
        Row(3, 3, [("a", "NaN")]),
    ]


@pytest.mark.parametrize("line", [b"[1]", b"5", b"{", b"{}", b'{"a": null}', b'{"a": "\xff"}', b"[" * 100_000])
def test_bad_json_lines_are_named_and_the_rest_is_read(line: bytes) -> None:
    bad, good = read(line + b'\n{"a": "1"}', "jsonl")
    assert isinstance(bad, BadRow)
    assert (bad.line, bool(bad.reason)) == (1, True)
    assert good == Row(2, 2, [("a", "1")])


@pytest.mark.parametrize(
    ("name", "data", "form"),
    [
        ("a.csv", b"{", "csv"),
        ("a.TSV", b"{", "csv"),
        ("a.jsonl", b"x", "jsonl"),
        ("a.ndjson", b"", "jsonl"),
        ("<stdin>", b' {"a": 1}', "jsonl"),
        ("<stdin>", b"a,b", "csv"),
        ("<stdin>", b"", "csv"),
    ],
)
def test_format_is_guessed(name: str, data: bytes, form: Format) -> None:
    source: Any = io.BufferedReader(io.BytesIO(data))
    assert guess_format(name, source) == form
    assert source.read() == data


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1}',
        "[]",
        '{"fields": 5}',
        '{"fields": {"a": 5}}',
        '{"fields": [["a"]]}',
        '{"fields": {"a": {"base64": "?"}}}',
    ],
)
def test_lines_that_are_no_dump_are_refused(line: str) -> None:
    (row,) = read(line.encode(), "dump")
    assert isinstance(row, BadRow)
