"""Loads the rows of a file into a stream: CSV, JSON lines or the output of ``tidelog dump``, by TMAPPEND in batches.

``read_rows`` converts the file to rows of bytes, and a ``Loader`` appends them; each can be used separately. A row has
its line numbers, so that messages can name a bad row, and an interrupted load can be continued.
"""

from __future__ import annotations

import csv
import io
import json
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

from tidelog.cli.lines import Pair, fields_from_json
from tidelog.client import Client
from tidelog.client.entries import StreamId
from tidelog.operating.tables import counted

if TYPE_CHECKING:
    import _csv

Format = Literal["csv", "jsonl", "dump"]
#: The error for a last CSV line without a line end. JSON shows by itself whether it is complete.
_CUT = "no line end: the file may be cut off. Append one if it is complete"
BATCH_BYTES = 1 << 20  # a batch is sent once its values have this many bytes, even if it has few rows


@dataclass(frozen=True, slots=True)
class Row:
    """A row that becomes an entry."""

    line: int  # where it begins; the first line is 1
    end_line: int  # where it ends: a quoted CSV value may contain line ends
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that can't become an entry, with the reason."""

    line: int
    end_line: int
    reason: str


def guess_format(name: str, source: io.BufferedReader) -> Format:
    """Guess the format from the file's name, or otherwise from its first character; consumes nothing."""
    lower = name.lower()
    if lower.endswith((".csv", ".tsv")):
        return "csv"
    if lower.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    return "jsonl" if source.peek(64).removeprefix(BOM_UTF8).lstrip()[:1] == b"{" else "csv"


Rows = Generator[Row | BadRow, None, None]


def read_rows(source: BinaryIO, form: Format, delimiter: str = ",") -> Rows:
    """Yield the rows of a file. Close the generator if you stop early. Raises ValueError if a CSV has no header."""
    return _csv_rows(source, delimiter) if form == "csv" else _json_rows(source, form)


def _csv_rows(source: BinaryIO, delimiter: str) -> Rows:
    # surrogateescape keeps bytes that are not UTF-8
    text = io.TextIOWrapper(source, "utf-8-sig", errors="surrogateescape", newline="")
    former = csv.field_size_limit(1 << 30)  # applies to the whole process
    try:
        lines = _Lines(text)
        yield from _records(csv.reader(lines, delimiter=delimiter, strict=True), lines)
    finally:
        csv.field_size_limit(former)
        text.detach()  # the caller closes the source


class _Lines:
    """The lines of a file, and whether the last line read lacks a line end."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._ended = True

    def cut(self) -> bool:
        return not self._ended

    def __iter__(self) -> Iterator[str]:
        for line in self._text:
            self._ended = line[-1:] in "\r\n"
            yield line


def _records(reader: _csv.Reader, lines: _Lines) -> Rows:
    names = [_raw(name) for name in next(reader, [])]
    if not names:
        raise ValueError("the first line must name the columns")
    if lines.cut():
        raise ValueError(f"the first line names the columns, and there is {_CUT}")
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            yield BadRow(line, reader.line_num, str(error))
            continue
        if values is None:
            return
        if not values:
            continue  # an empty line
        if lines.cut():
            yield BadRow(line, reader.line_num, _CUT)
        elif len(values) != len(names):
            yield BadRow(line, reader.line_num, f"{counted(len(values), 'value')} for {counted(len(names), 'column')}")
        else:
            yield Row(line, reader.line_num, list(zip(names, map(_raw, values), strict=True)))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def json_lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines of a file with their numbers, without a byte order mark."""
    for number, line in enumerate(source, 1):
        text = line.removeprefix(BOM_UTF8) if number == 1 else line
        if text.strip():
            yield number, text


def _json_rows(source: BinaryIO, form: Format) -> Rows:
    for number, line in json_lines(source):
        try:
            pairs = fields_from_json(json.loads(line)) if form == "dump" else _object_pairs(line)
            if not pairs:
                raise ValueError("no field with a value")
        except (ValueError, RecursionError) as error:
            yield BadRow(number, number, str(error) or "nested too deeply")
        else:
            yield Row(number, number, pairs)


def _object_pairs(line: bytes) -> list[Pair]:
    """Convert values: numbers as written, ``true`` and ``false``, nested values as JSON; null fields are omitted."""
    row = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    whole = json.loads(line) if any(isinstance(value, dict | list) for value in row.values()) else row
    return [(name, _value(value, whole[name])) for name, value in row.items() if value is not None]


def _value(value: object, whole: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":"))


class Loader:
    """Appends rows in batches: consecutive rows with the same fields, each batch completely or not at all."""

    def __init__(self, client: Client, key: str | bytes, batch: int = 500) -> None:
        self.client = client
        self.key = key
        self.batch = batch  # maximum rows per batch
        self.rows = 0  # rows appended
        self.line = 0  # all valid rows up to this line are appended
        self.first: StreamId | None = None  # ID of the first appended entry
        self.last: StreamId | None = None  # ID of the last one
        self._names: list[str | bytes] = []
        self._values: list[list[str | bytes]] = []
        self._bytes = 0
        self._from_line = 0
        self._to_line = 0

    @property
    def waiting(self) -> tuple[int, int] | None:
        """The first and last line of the rows that are not known to be appended; None if there are none."""
        return (self._from_line, self._to_line) if self._values else None

    def add(self, row: Row) -> None:
        """Add a row; sends the batch when it is full. Raises the errors of ``Client.tmappend``."""
        names = [name for name, _ in row.pairs]
        if names != self._names:
            self.flush()
            self._names = names
        if not self._values:
            self._from_line = row.line
        values = [value for _, value in row.pairs]
        self._values.append(values)
        self._to_line = row.end_line
        self._bytes += sum(map(len, values))
        if len(self._values) >= self.batch or self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the batch, if it has rows. Raises the errors of ``Client.tmappend``."""
        if not self._values:
            return
        span = self.client.tmappend(self.key, self._names, self._values)
        self.first = self.first or span.first
        self.last = span.last
        self.rows += len(self._values)
        self.line = self._to_line
        self._values = []
        self._bytes = 0
