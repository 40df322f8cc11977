"""Requests: bytes in, lists of arguments out.

Rule 1: the usual case is hiredis's: a chunk of complete commands, each an array of bulk strings. hiredis reads replies, so it
takes more than a request may hold; what it returns counts only if it is proven to be just that (``_canonical_length``).
Rule 2: whatever is not proven goes through the exact parser, from the last boundary that is certain. It speaks Redis's
error texts, knows inline commands, and believes no length before it is within its limit.
Rule 3: bytes of an incomplete command are held by the exact parser only; a value of n bytes costs O(n), in however many chunks.

The proof: written canonically, a command's length follows from its arguments' lengths. If the sum over all commands equals the
chunk's and each argument is of type bytes, then nothing else can have stood there; if it is less, the rest is looked at exactly.
"""

from __future__ import annotations

import re
from itertools import chain

import hiredis

from resp.errors import ProtocolError
from resp.inline import split_inline

# A million elements or more, in any of the types for which hiredis would reserve memory at once. Three searches for a literal
# first byte are five times faster than one for a class of bytes.
_GIANTS = [re.compile(rb"%b\d{7}" % kind).search for kind in (rb"\*", rb">", rb"~")]

INLINE_LIMIT = 64 * 1024
# bytes that a bulk string of n bytes takes: "$n CRLF data CRLF"
_DIGITS = [1] * 10 + [2] * 90 + [3] * 900 + [4] * 9000 + [5] * 90_000
_WIRE = [digits + 5 + n for n, digits in enumerate(_DIGITS)]
_HEAD = [digits + 3 for digits in _DIGITS]  # "*n CRLF"
_wire_of = _WIRE.__getitem__
_head_of = _HEAD.__getitem__
_count_of = list.__len__
_len_of = bytes.__len__


def _canonical_length(commands: list[list[bytes]]) -> int:
    """Bytes that the commands take as arrays of bulk strings; 0 if they are none or too large for the tables."""
    try:
        if len(commands) == 1:
            args = commands[0]
            return _head_of(len(args)) + sum(map(_wire_of, map(_len_of, args))) if args else 0
        if not all(commands):
            return 0
        total = sum(map(_wire_of, map(_len_of, chain.from_iterable(commands))))
        return total + sum(map(_head_of, map(_count_of, commands)))
    except (TypeError, IndexError):
        return 0  # another type, or a length beyond the tables


def _giant(data: bytes) -> bool:
    return any([search(data) for search in _GIANTS])


class RequestDecoder:
    """feed() returns every complete command, in order; ``error`` is set once the peer broke the protocol."""

    def __init__(
        self, max_bulk: int = 512 << 20, max_multibulk: int = 1 << 20, max_buffer: int = 1 << 30
    ) -> None:
        self.max_bulk = max_bulk
        self.max_multibulk = max_multibulk
        self.max_buffer = max_buffer
        self.authenticated = True
        self.error: ProtocolError | None = None
        self._reader = hiredis.Reader()
        self._exact = _Exact(self)

    @property
    def buffered(self) -> int:
        """Bytes held for the incomplete command."""
        return self._exact.held

    def feed(self, data: bytes) -> list[list[bytes]]:
        if self.error is not None:
            return []
        if self._exact.held or not self.authenticated or not data.startswith(b"*") or _giant(data):
            return self._exactly(data, [])
        reader = self._reader
        commands: list[list[bytes]] = []
        try:
            reader.feed(data)
            command = reader.gets()
            while command is not False:
                commands.append(command)
                command = reader.gets()
        except hiredis.ProtocolError:
            pass  # an inline command, or nonsense: what came before it may still be proven
        proven = _canonical_length(commands)
        if proven == len(data):
            return commands
        self._reader = hiredis.Reader()  # it holds the beginning of a command
        if proven > len(data) or data[proven - 2 : proven] != b"\r\n":
            return self._exactly(data, [])
        return self._exactly(data[proven:], commands)

    def _exactly(self, data: bytes, commands: list[list[bytes]]) -> list[list[bytes]]:
        try:
            self._exact.feed(data, commands)
            if self._exact.held > self.max_buffer:
                raise ProtocolError("client query buffer limit exceeded")
        except ProtocolError as error:
            self.error = error
            self._exact = _Exact(self)
        return commands


class _Exact:
    """Incremental parser of requests. State: the arguments so far, and what is known of the next."""

    __slots__ = ("_args", "_bulk", "_line", "_limits", "_missing", "_parts", "_want", "held")

    def __init__(self, limits: RequestDecoder) -> None:
        self._limits = limits
        self._line = b""  # an incomplete line
        self._args: list[bytes] = []
        self._missing = 0  # arguments still to come; 0: between commands
        self._bulk = -1  # length of the bulk string under way, -1: its header comes next
        self._parts: list[bytes] = []  # its bytes so far, and the CRLF
        self._want = 0  # bytes of it still to come, CRLF included
        self.held = 0

    def feed(self, data: bytes, out: list[list[bytes]]) -> None:
        """Append complete commands to ``out``. Raises ProtocolError."""
        limits = self._limits
        at, end = 0, len(data)
        while at < end:
            if self._bulk >= 0:
                take = min(self._want, end - at)
                self._parts.append(data[at : at + take] if take < end or at else data)
                self.held += take
                self._want -= take
                at += take
                if not self._want:
                    self._end_of_bulk(out)
                continue
            stop = data.find(b"\n", at)
            if stop < 0:
                self._line += data[at:]
                self.held += end - at
                self._check_line()
                return
            line = self._line + data[at:stop]
            self.held -= len(self._line)
            self._line = b""
            at = stop + 1
            if self._missing:
                self._bulk_header(line)
            elif line[:1] == b"*":
                self._array_header(line)
            else:
                if len(line) > INLINE_LIMIT:
                    raise ProtocolError("too big inline request")
                words = split_inline(line.removesuffix(b"\r"))
                if words:
                    out.append(words)
            if self._bulk > limits.max_bulk:
                raise ProtocolError("invalid bulk length")

    def _check_line(self) -> None:
        """A line that doesn't end: how long may it get?"""
        if len(self._line) <= INLINE_LIMIT:
            if self._missing and self._line[:1] != b"$":
                self._bulk_header(self._line)
            return
        if self._missing:
            raise ProtocolError("too big bulk count string")
        raise ProtocolError("too big mbulk count string" if self._line[:1] == b"*" else "too big inline request")

    def _array_header(self, line: bytes) -> None:
        count = _number(line[1:])
        limits = self._limits
        if count is None or count > limits.max_multibulk:
            raise ProtocolError("invalid multibulk length")
        if count > 10 and not limits.authenticated:
            raise ProtocolError("unauthenticated multibulk length")
        if count > 0:
            self._missing = count
            self._args = []

    def _bulk_header(self, line: bytes) -> None:
        if line[:1] != b"$":
            raise ProtocolError(f"expected '$', got '{chr(line[0]) if line else ' '}'")
        size = _number(line[1:])
        limits = self._limits
        if size is None or size < 0 or size > limits.max_bulk:
            raise ProtocolError("invalid bulk length")
        if size > 16384 and not limits.authenticated:
            raise ProtocolError("unauthenticated bulk length")
        self._bulk = size
        self._want = size + 2

    def _end_of_bulk(self, out: list[list[bytes]]) -> None:
        value = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        self._args.append(value[: self._bulk])
        self._bulk = -1
        self._missing -= 1
        if not self._missing:
            out.append(self._args)
            self._args = []
            self.held = 0


def _number(text: bytes) -> int | None:
    """As Redis's string2ll: digits with an optional minus, no leading zero, no spaces."""
    text = text.removesuffix(b"\r")
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or (digits[0] == 0x30 and text != b"0"):
        return None
    return int(text)
