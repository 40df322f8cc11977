"""Splits a stream of CSV into records (RFC 4180): a line break within quotes is part of a field.

Rule 1: a quote opens a quoted field only where a field begins. Elsewhere it is text, as in ``5" disk``.
Rule 2: a record that exceeds the limit, or that has no closing quote at the end of the stream, is split into its lines.
        A stray quote therefore corrupts one line only. The time is linear in the number of bytes.
"""

from __future__ import annotations

from typing import Final

from tidelog.flows.interceptors.base import BadMessage

BOM: Final = b"\xef\xbb\xbf"


class CsvRecordSplitter:
    """A preprocessor that splits a stream, such as ``separate``. most: maximum size of a record in bytes."""

    def __init__(self, delimiter: bytes, quote: bytes, most: int) -> None:
        self._delimiter = delimiter
        self._quote = quote
        self._most = most
        self._buffer = bytearray()
        self._looked = 0  # bytes of the buffer with examined lines, which belong to the current record
        self._searched = 0  # bytes of the buffer that have no line break after ``_looked``
        self._quoted = False  # whether ``_looked`` is within quotes
        self._first = True  # no record was returned yet, so a byte order mark is possible
        self._skipped = 0  # dropped bytes of a line that is too long, which count to the size of the next one
        self._skipping = False
        self.sizes: list[int] = []

    def feed(self, data: bytes) -> list[bytes]:
        self.sizes = []
        self._buffer += data
        pieces: list[bytes] = []
        at = 0  # the beginning of the record
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            if self._skipping:
                self._skipped += end + 1 - at
                self._skipping = False
                at = self._looked = self._searched = end + 1
                continue
            self._quoted = self._open(bytes(self._buffer[self._looked : end]))
            self._looked = self._searched = end + 1
            if not self._quoted:
                self._piece(self._buffer[at:end], 1, pieces)
                at = end + 1
            elif end - at > self._most:
                self._lines(self._buffer[at : end + 1], pieces)
                at = end + 1
        del self._buffer[:at]
        self._looked -= at
        self._searched = len(self._buffer)
        if self._skipping:
            self._skip()
        elif len(self._buffer) > self._most + 1:  # a \r may be part of the line break
            self._too_long(pieces)
        return pieces

    def end(self) -> list[bytes]:
        self.sizes = []
        pieces: list[bytes] = []
        if self._buffer and not self._skipping:
            self._lines(self._buffer, pieces)
        self._buffer = bytearray()
        self._looked = self._searched = self._skipped = 0
        self._quoted = self._skipping = False
        self._first = True
        return pieces

    def _open(self, line: bytes) -> bool:
        """Return whether the quotes of a field are still open at the end of a line."""
        quote, delimiter, quoted, at = self._quote, self._delimiter, self._quoted, 0
        if not quoted and quote not in line:
            return False
        if self._first and line.startswith(BOM):
            at = len(BOM)
        while True:
            if not quoted and line.startswith(quote, at):
                quoted = True
                at += len(quote)
            if quoted:
                at = line.find(quote, at)
                if at < 0:
                    return True
                at += len(quote)
                if line.startswith(quote, at):  # a doubled quote is text
                    at += len(quote)
                    continue
                quoted = False
            at = line.find(delimiter, at)
            if at < 0:
                return False
            at += len(delimiter)

    def _piece(self, record: bytes | bytearray, line_end: int, pieces: list[bytes]) -> None:
        self._first = False
        self.sizes.append(self._skipped + len(record) + line_end)
        self._skipped = 0
        record = bytes(record).removesuffix(b"\r")
        text = f"a record of more than {self._most} bytes"
        pieces.append(record if len(record) <= self._most else BadMessage.of(record[: self._most], text))

    def _lines(self, data: bytes | bytearray, pieces: list[bytes]) -> None:
        """Split a record into its lines (Rule 2)."""
        lines = bytes(data).split(b"\n")
        rest = lines.pop()
        for each in lines:
            self._piece(each, 1, pieces)
        if rest:
            self._piece(rest, 0, pieces)
        self._quoted = False

    def _too_long(self, pieces: list[bytes]) -> None:
        """Handle a buffer that exceeds the limit and has no line break after ``_looked``."""
        self._lines(self._buffer[: self._looked], pieces)
        del self._buffer[: self._looked]
        self._looked = 0
        self._searched = len(self._buffer)
        if len(self._buffer) > self._most + 1:
            pieces.append(BadMessage.of(self._buffer[: self._most], f"a line of more than {self._most} bytes"))
            self.sizes.append(0)
            self._first = False
            self._skipping = True
            self._skip()

    def _skip(self) -> None:
        self._skipped += len(self._buffer)
        self._buffer.clear()
        self._looked = self._searched = 0
