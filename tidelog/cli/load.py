"""Rows of a file into a stream: CSV, JSON lines or what ``tidelog dump`` wrote, by TMAPPEND in batches.

Two parts, each usable alone: readers turn bytes into rows (``read_rows``), a ``Loader`` appends them. Every row knows
its line, so that a bad one can be named and an interrupted load can go on where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Literal

from tidelog.cli.lines import Pair, fields_from_json
from tidelog.client.client import Client
from tidelog.client.entries import StreamId

if TYPE_CHECKING:
    import _csv

Format = Literal["csv", "jsonl", "dump"]
BATCH_BYTES = 1 << 20  # a batch is sent when it holds so much, however few rows that is


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes one entry."""

    line: int  # where it begins; the first line is 1
    end_line: int  # where it ends: a quoted CSV value may hold line ends
    pairs: list[Pair]


@dataclass(frozen=True, slots=True)
class BadRow:
    """What can't become one, and why."""

    line: int
    end_line: int
    reason: str


def guess_format(name: str, source: io.BufferedReader) -> Format:
    """By the file's name, else by its first character; nothing is consumed."""
    lower = name.lower()
    if lower.endswith((".csv", ".tsv")):
        return "csv"
    if lower.endswith((".jsonl", ".ndjson", ".json")):
        return "jsonl"
    return "jsonl" if source.peek(64).lstrip()[:1] == b"{" else "csv"


Rows = Generator[Row | BadRow, None, None]


def read_rows(source: BinaryIO, form: Format, delimiter: str = ",") -> Rows:
    """The rows of a file. ValueError if a CSV file has no header. Close it if you don't read to the end."""
    return _csv_rows(source, delimiter) if form == "csv" else _json_rows(source, form)


def _csv_rows(source: BinaryIO, delimiter: str) -> Rows:
    # surrogateescape: bytes that are not UTF-8 come through unchanged
    text = io.TextIOWrapper(source, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        csv.field_size_limit(1 << 30)
        yield from _records(csv.reader(text, delimiter=delimiter, strict=True))
    finally:
        text.detach()  # the source is its opener's to close


def _records(reader: _csv.Reader) -> Rows:
    names = [_raw(name) for name in next(reader, [])]
    if not names:
        raise ValueError("the first line must name the columns")
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
        if len(values) != len(names):
            yield BadRow(line, reader.line_num, f"{len(values)} values for {len(names)} columns")
        else:
            yield Row(line, reader.line_num, list(zip(names, map(_raw, values), strict=True)))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _json_rows(source: BinaryIO, form: Format) -> Rows:
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        try:
            pairs = fields_from_json(json.loads(line)) if form == "dump" else _object_pairs(line)
            if not pairs:
                raise ValueError("no field with a value")
        except (ValueError, RecursionError) as error:
            yield BadRow(number, number, str(error) or "nested too deeply")
        else:
            yield Row(number, number, pairs)


def _object_pairs(line: bytes) -> list[Pair]:
    """Numbers as they are written, true and false by name, nested values as JSON; a null is a field left out."""
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
    """Appends rows in batches. A batch holds consecutive rows with the same fields; it is in the stream whole or not
    at all."""

    def __init__(self, client: Client, key: str | bytes, batch: int = 500) -> None:
        self.client = client
        self.key = key
        self.batch = batch  # rows
        self.rows = 0  # appended
        self.line = 0  # every good row that ends up to this line is appended
        self.first: StreamId | None = None  # of what was appended
        self.last: StreamId | None = None
        self._names: list[str | bytes] = []
        self._values: list[list[str | bytes]] = []
        self._bytes = 0
        self._from_line = 0
        self._to_line = 0

    @property
    def waiting(self) -> tuple[int, int] | None:
        """First and last line of the rows gathered and not yet known to be appended; None if there is none."""
        return (self._from_line, self._to_line) if self._values else None

    def add(self, row: Row) -> None:
        """Take a row; sends the batch when it is full. Raises what ``Client.tmappend`` does."""
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
        """Append what is gathered."""
        if not self._values:
            return
        span = self.client.tmappend(self.key, self._names, self._values)
        self.first = self.first or span.first
        self.last = span.last
        self.rows += len(self._values)
        self.line = self._to_line
        self._values = []
        self._bytes = 0
