"""Framing: splits a stream into messages, and delimits messages in a stream.

    separate                 a line break or a delimiter after each message; optional after the last one
    length_prefixed          the length in 1, 2, 4 or 8 bytes before each message
    textual_length_prefixed  the length in decimal digits and a space before each message (RFC 6587, 3.4.1)
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from tidelog.flows.api.errors import RejectError
from tidelog.flows.interceptors.base import BadMessage, BrokenStreamError, MessagePostprocessor
from tidelog.options.structs import Struct
from tidelog.options.units import Size

Delimiter = Annotated[str, msgspec.Meta(min_length=1)]
DIGITS: Final = 10  # maximum number of digits of a textual length


class SeparateOptions(Struct):
    """Options of the preprocessor ``separate``."""

    delimiter: Delimiter | None = None  # In UTF-8, such as `"\u0000"` for a null byte. `null`: `\n` or `\r\n`.
    max_length: Size | None = None  # Maximum size of a message. `null`: `max_bytes` of the connector.


class Separate:
    """Splits a stream at delimiters.

    A message that is too long is returned as BadMessage as soon as that is known. The rest of it is skipped.
    """

    Options = SeparateOptions

    def __init__(self, options: SeparateOptions, most: int) -> None:
        self._lines = options.delimiter is None
        self._delimiter = (options.delimiter or "\n").encode()
        self._most = most if options.max_length is None else min(most, options.max_length)
        self._buffer = bytearray()
        self._skipped = 0  # dropped bytes of a message that is too long, which count to the size of the next one
        self._skipping = False
        self.sizes: list[int] = []

    def feed(self, data: bytes) -> list[bytes]:
        self.sizes = sizes = []
        buffer, delimiter = self._buffer, self._delimiter
        searched = max(0, len(buffer) - len(delimiter) + 1)
        buffer += data
        pieces: list[bytes] = []
        if buffer.find(delimiter, searched) >= 0:
            whole = bytes(buffer)
            found: list[bytes] = whole.split(delimiter)
            self._buffer = buffer = bytearray(found.pop())
            if self._skipping:
                self._skipped += len(found[0]) + len(delimiter)
                self._skipping = False
                del found[0]
            if found:
                more = len(delimiter)
                sizes += [len(each) + more for each in found]
                sizes[0] += self._skipped
                self._skipped = 0
                if self._lines and b"\r" in whole:
                    found = [each.removesuffix(b"\r") for each in found]
                pieces = found
                if max(map(len, found)) > self._most:
                    pieces = [each if len(each) <= self._most else self._bad(each) for each in found]
        if self._skipping:
            self._skip()
        elif len(buffer) > self._most + len(delimiter) - 1 + self._lines:  # a \r may be part of the line break
            pieces.append(self._bad(buffer))
            sizes.append(0)
            self._skipping = True
            self._skip()
        return pieces

    def _skip(self) -> None:
        keep = len(self._delimiter) - 1  # possibly the beginning of a delimiter
        gone = max(0, len(self._buffer) - keep)
        del self._buffer[:gone]
        self._skipped += gone

    def _bad(self, data: bytes | bytearray) -> BadMessage:
        return BadMessage.of(data[: self._most], f"a message of more than {self._most} bytes")

    def end(self) -> list[bytes]:
        rest, skipping = self._buffer, self._skipping
        size = len(rest) + self._skipped
        self._buffer, self._skipping, self._skipped = bytearray(), False, 0
        if skipping or not rest:
            self.sizes = []
            return []
        self.sizes = [size]
        if self._lines and rest.endswith(b"\r"):
            del rest[-1:]
        return [bytes(rest) if len(rest) <= self._most else self._bad(rest)]


class AddSeparatorOptions(Struct):
    """Options of the postprocessor ``separate``."""

    delimiter: Delimiter = "\n"  # In UTF-8.
    within: Literal["write", "reject"] = "write"
    # `write` or `reject` a message that contains the delimiter, which readers would split.


class AddSeparator(MessagePostprocessor):
    """Adds the delimiter after each message."""

    Options = AddSeparatorOptions

    def __init__(self, options: AddSeparatorOptions) -> None:
        self._delimiter = options.delimiter.encode()
        self._reject = options.within == "reject"

    def process(self, data: bytes) -> list[bytes]:
        if self._reject and self._delimiter in data:
            raise RejectError(f"the message contains the delimiter {self._delimiter!r}")
        return [data + self._delimiter]


class LengthPrefixOptions(Struct):
    """Options of ``length_prefixed``."""

    width: Literal[1, 2, 4, 8] = 8  # Bytes of the length: 1, 2, 4 or 8.
    order: Literal["big", "little"] = "big"  # Byte order of the length: `big` or `little`.


class _Prefixed:
    """The base of preprocessors that split a stream at lengths."""

    def __init__(self, _: Struct, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self.sizes: list[int] = []

    def end(self) -> list[bytes]:
        rest, self._buffer = self._buffer, bytearray()
        self.sizes = [len(rest)] if rest else []
        return [BadMessage.of(rest[: self._most], "the stream ended within a message")] if rest else []


class LengthPrefixed(_Prefixed):
    """Splits a stream at binary lengths. A length above the limit ends the stream."""

    Options = LengthPrefixOptions

    def __init__(self, options: LengthPrefixOptions, most: int) -> None:
        super().__init__(options, most)
        self._width = options.width
        self._order: Literal["big", "little"] = options.order

    def feed(self, data: bytes) -> list[bytes]:
        self.sizes = []
        pieces: list[bytes] = []
        buffer, width, at = self._buffer, self._width, 0
        buffer += data
        try:
            while len(buffer) - at >= width:
                length = int.from_bytes(buffer[at : at + width], self._order)
                if length > self._most:
                    raise BrokenStreamError(f"a message of {length} bytes exceeds the limit of {self._most}", pieces)
                if len(buffer) - at - width < length:
                    break
                pieces.append(bytes(buffer[at + width : at + width + length]))
                self.sizes.append(width + length)
                at += width + length
        finally:
            del buffer[:at]
        return pieces


class AddLengthPrefix(MessagePostprocessor):
    """Adds the length before each message."""

    Options = LengthPrefixOptions

    def __init__(self, options: LengthPrefixOptions) -> None:
        self._width = options.width
        self._order: Literal["big", "little"] = options.order

    def process(self, data: bytes) -> list[bytes]:
        try:
            return [len(data).to_bytes(self._width, self._order) + data]
        except OverflowError:
            raise RejectError(f"{len(data)} bytes exceed a length of {self._width} bytes") from None


class TextualLengthPrefixed(_Prefixed):
    """Splits a stream at lengths in decimal digits, followed by a space."""

    Options = Struct

    def feed(self, data: bytes) -> list[bytes]:
        self.sizes = []
        pieces: list[bytes] = []
        buffer, at = self._buffer, 0
        buffer += data
        try:
            while True:
                space = buffer.find(b" ", at, at + DIGITS + 1)
                digits = bytes(buffer[at : at + DIGITS + 1] if space < 0 else buffer[at:space])
                wrong = self._wrong(digits, space >= 0)
                if wrong:
                    raise BrokenStreamError(wrong, pieces)
                if space < 0 or len(buffer) - space - 1 < int(digits):
                    break
                after = space + 1 + int(digits)
                pieces.append(bytes(buffer[space + 1 : after]))
                self.sizes.append(after - at)
                at = after
        finally:
            del buffer[:at]
        return pieces

    def _wrong(self, digits: bytes, complete: bool) -> str:
        if digits and not (digits.isdigit() and len(digits) <= DIGITS):
            return f"{digits!r} is not a length: a message must begin with its length in digits and a space"
        if complete and not digits:
            return "a message begins with a space: its length is missing"
        if complete and int(digits) > self._most:
            return f"a message of {int(digits)} bytes exceeds the limit of {self._most}"
        return ""


class AddTextualLengthPrefix(MessagePostprocessor):
    """Adds the length in digits and a space before each message."""

    def process(self, data: bytes) -> list[bytes]:
        return [b"%d " % len(data) + data]
