"""``csv``: one record is one message.

A record is a dict if the column names are known, and otherwise a list. All values are decoded as text. The codec
replaces ``separate`` without options by its own splitter (``csvrecords``), because a quoted field may contain line
breaks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any, ClassVar

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.base import NOTHING, check_encoding, encoded
from tidelog.flows.codecs.csvrecords import CsvRecordSplitter
from tidelog.flows.codecs.json import write_json
from tidelog.options.structs import Struct


class CsvOptions(Struct):
    """Options of ``csv``."""

    delimiter: str = ","  # One character, not a line break.
    quote: str = '"'  # One character, not a line break.
    columns: list[str] | None = None  # Names. `null`: from the header, or from the first dict that is written.
    header: bool = False  # `true`: the first record of each file or connection has the column names.
    encoding: str = "utf-8"  # A name in Python, of a superset of ASCII.

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote"):
            if len(getattr(self, name)) != 1 or getattr(self, name) in "\r\n":
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be one character, not a line break")
        if self.delimiter == self.quote:
            raise ValueError(f"delimiter and quote are both {self.quote!r}")
        check_encoding(self.encoding, self.delimiter + self.quote)
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError("columns has a name twice")


class CsvCodec:
    """Decodes and encodes records. ``names``: the column names, once they are known."""

    Options = CsvOptions
    delimited: ClassVar[bool] = False

    def __init__(self, options: CsvOptions) -> None:
        self._format: dict[str, Any] = {"delimiter": options.delimiter, "quotechar": options.quote}
        self._encoding = options.encoding
        self.header = options.header
        self.names = options.columns
        self._seen = False  # the header was decoded
        self._written = not options.header  # the header was encoded, or there is none

    def begun(self) -> None:
        """Omit the header, because the stream already has one."""
        self._written = True

    def splitter(self, most: int) -> CsvRecordSplitter:
        """Return a preprocessor that splits a stream into records. most: maximum size of a record in bytes."""
        delimiter, quote = (self._format[each].encode(self._encoding) for each in ("delimiter", "quotechar"))
        return CsvRecordSplitter(delimiter, quote, most)

    def decode(self, data: bytes, meta: dict[str, Any]) -> Any:  # noqa: ARG002 - a codec's signature
        text = str(data, self._encoding).removeprefix("\ufeff")  # Excel writes a byte order mark
        try:
            rows = list(csv.reader(io.StringIO(text, newline=""), strict=True, **self._format))
        except csv.Error as error:
            raise ValueError(f"not CSV: {error}") from None
        if not any(rows):
            return NOTHING  # an empty line
        if len(rows) != 1:
            raise ValueError(f"{len(rows)} records in one message: it must be one")
        row = rows[0]
        if self.header and not self._seen:
            self._seen = True
            if self.names is None:
                if len(set(row)) < len(row):
                    self._seen = False
                    raise ValueError(f"the header has a name twice: {', '.join(row)}; give the option columns")
                self.names = row
            return NOTHING
        if self.names is None:
            return row
        if len(row) != len(self.names):
            raise ValueError(f"{len(row)} fields for {len(self.names)} columns")
        return dict(zip(self.names, row, strict=True))

    def encode(self, value: Any, meta: Mapping[str, Any]) -> bytes:  # noqa: ARG002
        if isinstance(value, Mapping):
            row = self._row(value)
        elif isinstance(value, (list, tuple)):
            if self.names is not None and len(value) != len(self.names):
                raise RejectError(f"{len(value)} fields for {len(self.names)} columns")
            row = list(value)
        else:
            raise RejectError(f"the codec csv encodes dicts and lists, not {type(value).__name__}")
        line = self._line([_text(each) for each in row])
        if not self._written:
            if self.names is None:
                raise RejectError("the column names are not known: give the option columns, or write dicts")
            line = self._line(self.names) + b"\n" + line
            self._written = True
        return line

    def _row(self, value: Mapping[Any, Any]) -> list[Any]:
        if self.names is None:
            if not all(isinstance(each, str) for each in value):
                raise RejectError("column names must be text")
            self.names = list(value)
        unknown = [str(each) for each in value if each not in self.names]
        if unknown:
            raise RejectError(f"there is no column {', '.join(unknown)}: the columns are {', '.join(self.names)}")
        return [value.get(each) for each in self.names]

    def _line(self, row: list[str]) -> bytes:
        out = io.StringIO(newline="")
        try:
            csv.writer(out, lineterminator="\r\n", **self._format).writerow(row)  # so that it quotes both characters
        except csv.Error as error:
            raise RejectError(f"not encodable as CSV: {error}") from error
        return encoded(out.getvalue().removesuffix("\r\n"), self._encoding)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return write_json(value).decode()
