"""``syslog_framing``: splits a stream of syslog messages (RFC 6587). The framing is detected for each message.

    12 <14>1 - - -...    octet counting: the length in decimal digits and a space before the message
    <14>hello\\n          a line break after each message; empty lines are skipped
"""

from __future__ import annotations

import re
from typing import Final

from tidelog.flows.interceptors.base import BadMessage
from tidelog.options.structs import Struct

DIGITS: Final = 10  # maximum number of digits of a length
_LENGTH: Final = re.compile(rb"(\d{1,10})( ?)")


class SyslogFraming:
    """A message that is too long is returned as BadMessage, without the end that has not arrived. Its rest is skipped.
    """

    Options = Struct

    def __init__(self, _: Struct, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._octets = 0  # bytes to skip of a message with a length
        self._line = False  # the rest of a line is skipped
        self._dropped = 0  # skipped bytes, which count to the size of the next message
        self.sizes: list[int] = []

    def feed(self, data: bytes) -> list[bytes]:
        self.sizes = []
        self._buffer += data
        at = 0
        pieces: list[bytes] = []
        while at < len(self._buffer):
            if self._octets or self._line:
                before, at = at, self._skip(at)
                self._dropped += at - before
                continue
            found = self._message(at)
            if found is None:
                break
            after, piece = found
            self._dropped += after - at
            at = after
            if piece is not None:
                pieces.append(piece)
                self.sizes.append(self._dropped)
                self._dropped = 0
        del self._buffer[:at]
        return pieces

    def _message(self, at: int) -> tuple[int, bytes | None] | None:
        """Return (index after it, the message that begins at ``at``; None for an empty line), or None: incomplete."""
        buffer = self._buffer
        found = _LENGTH.match(buffer, at)
        if found is not None and found[2]:
            length, start = int(found[1]), found.end()
            if length > self._most:
                self._octets = length
                return start, self._bad(buffer[start : start + self._most])
            after = start + length
            return (after, bytes(buffer[start:after])) if after <= len(buffer) else None
        if found is not None and found.end() == len(buffer) and len(found[1]) < DIGITS:
            return None  # more digits may follow
        end = buffer.find(b"\n", at)
        after = len(buffer) if end < 0 else end + 1
        line = buffer[at : after if end < 0 else end]
        if len(line) > self._most + 1:  # a \r may be part of the line break
            self._line = end < 0
            return after, self._bad(line[: self._most])
        if end < 0:
            return None
        line = line.removesuffix(b"\r")
        return after, bytes(line) if line else None

    def end(self) -> list[bytes]:
        rest, self._buffer = self._buffer, bytearray()
        skipped, self._octets, self._line = bool(self._octets or self._line), 0, False
        size, self._dropped, self.sizes = len(rest) + self._dropped, 0, []
        if skipped or not rest.strip():
            return []
        self.sizes = [size]
        if (found := _LENGTH.match(rest)) and (found[2] or found.end() == len(rest)):
            return [BadMessage.of(rest[: self._most], "the stream ended within a message")]
        return [bytes(rest.removesuffix(b"\r"))]

    def _skip(self, at: int) -> int:
        """Return the index after the bytes to skip."""
        if self._octets:
            skipped = min(self._octets, len(self._buffer) - at)
            self._octets -= skipped
            return at + skipped
        end = self._buffer.find(b"\n", at)
        self._line = end < 0
        return len(self._buffer) if end < 0 else end + 1

    def _bad(self, data: bytes | bytearray) -> BadMessage:
        return BadMessage.of(data, f"a message of more than {self._most} bytes")
