"""Requests, byte by byte and incrementally: slow, exact, in the words of Redis. ``decode`` is the fast way to the same.

Rule 1: a length is believed only so far as it permits to wait: nothing is reserved for bytes that have not come.
Rule 2: a length is judged when its header is there, before its data.
Rule 3: how the stream is cut into chunks changes nothing: not the commands, not the error.
Rule 4: each byte of an argument is copied a bounded number of times, however it arrives.

    *3 CRLF  $7 CRLF TAPPEND CRLF  ...     a command: how many arguments, then for each its length and its bytes
    *0 CRLF, *-1 CRLF                      no command, passed over
    PING hello CRLF                        anything else is an inline command, up to the line feed (resp.inline)

Lengths are decimal, without plus sign or leading zeros. As in Redis a header ends with CR and any one byte, and the two
bytes after an argument are passed over unread.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from resp.errors import ProtocolError
from resp.inline import split_inline

LINE_LIMIT: Final = 64 * 1024  # bytes of an inline command, or of a header, without its end
UNAUTHENTICATED_MULTIBULK: Final = 10  # arguments
UNAUTHENTICATED_BULK: Final = 16384  # bytes of an argument

CR, LF, DOLLAR, ASTERISK, ZERO = b"\r\n$*0"

MANY = 16  # arguments still to come from which on they are looked at together
SHORT = 4096  # bytes; arguments below that can be
_length = [b"$%d" % n for n in range(SHORT)].__getitem__


class ExactDecoder:
    """Decoder of one peer's requests. After an error it takes nothing more.

    ``max_bulk``: bytes of one argument; ``max_multibulk``: arguments of one command; ``max_buffer``: bytes of one
    command on the wire, headers included, and so also the most that is ever held.
    """

    def __init__(
        self, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024, max_buffer: int = 1024 * 1024 * 1024
    ) -> None:
        self.max_bulk = max_bulk
        self.max_multibulk = max_multibulk
        self.max_buffer = max_buffer
        self.authenticated = True  # False: much tighter limits
        self.error: ProtocolError | None = None  # set when the stream broke; the connection says so and closes
        self._midway = False  # part of a command is held
        self._line = b""  # beginning of a line whose end has not come
        self._argv: list[bytes] = []  # complete arguments of the command under way
        self._missing = 0  # arguments still to come; 0: between commands
        self._wire = 0  # bytes of the command up to here: complete headers and arguments
        self._value: BytesIO | None = None  # argument under way (grows in place, becomes bytes without a copy)
        self._need = 0  # bytes of it still to come, the two after it included

    @property
    def buffered(self) -> int:
        """Bytes held for the incomplete command, headers included."""
        held = self._wire + len(self._line)
        return held if self._value is None else held - self._need

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take what arrived; return every command that is now complete, in order. Never raises: see ``error``."""
        commands: list[list[bytes]] = []
        self._parse(data, commands, once=False)
        return commands

    def first(self, data: bytes) -> tuple[list[list[bytes]], bytes]:
        """Like feed(), up to the end of the first command or empty line; returns what stands behind it, too.

        For a peer that hasn't logged in: the command may change what is allowed after it.
        """
        commands: list[list[bytes]] = []
        rest = self._parse(data, commands, once=True)
        return commands, rest

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits; a header that was accepted stays accepted."""
        self.max_bulk, self.max_buffer = max_bulk, max_buffer

    def _parse(self, data: bytes, commands: list[list[bytes]], *, once: bool) -> bytes:
        """Parse ``data``, append commands, set ``error``; with ``once`` stop after one command and return the rest."""
        rest = b""
        if self.error is None:
            try:
                rest = self._advance(data, commands, once)
            except ProtocolError as error:
                self.error = error
                self._line = b""
                self._argv = []
                self._missing = self._wire = self._need = 0
                self._value = None
            self._midway = bool(self._missing or self._line)
        return rest

    def _advance(self, data: bytes, commands: list[list[bytes]], once: bool) -> bytes:
        if self._line:  # at most LINE_LIMIT bytes
            data = self._line + data
            self._line = b""
        at, size = 0, len(data)
        looked = False  # what is in ``data`` of this command was looked at together
        while at < size:
            if self._value is not None:
                at = self._fill(self._value, data, at)
            elif self._missing >= MANY and not looked:
                at = self._many(data, at)
                looked = True
            elif self._missing:
                end = self._line_end(data, at, CR, "too big bulk count string")
                if end < 0:
                    break
                length = self._bulk_length(data, at, end)
                self._wire += end + 2 - at + length + 2
                if self._wire > self.max_buffer:
                    raise _over_limit()
                at = end + 2
                if size - at >= length + 2:
                    self._argv.append(data[at : at + length])
                    self._missing -= 1
                    at += length + 2
                else:
                    self._value = BytesIO()
                    self._need = length + 2
                    at = self._fill(self._value, data, at)
            else:
                at, argv = self._start(data, at)
                if at < 0:
                    break
                if argv:
                    commands.append(argv)
            if self._missing:
                continue
            if self._argv:
                commands.append(self._argv)
                self._argv = []
            self._wire = 0
            looked = False
            if once:
                return data[at:]
        return b""

    def _many(self, data: bytes, at: int) -> int:
        """Take arguments at ``at`` all at once, if they are short and none has a line end in it; returns the place
        after them.

        Cut at each line end, such arguments are headers and values in turn, each header the one of its value.
        """
        words = data[at:].split(b"\r\n", 2 * self._missing)
        whole = (len(words) - 1) & ~1  # the last word has no end yet, or is what follows
        values = words[1:whole:2]
        try:
            if words[:whole:2] != list(map(_length, map(len, values))):
                return at
        except IndexError:
            return at
        taken = sum(map(len, words[:whole])) + 2 * whole
        if self.max_bulk < SHORT or self._wire + taken > self.max_buffer:  # one by one: there is an error to find
            return at
        self._argv += values
        self._missing -= len(values)
        self._wire += taken
        return at + taken

    def _start(self, data: bytes, at: int) -> tuple[int, list[bytes]]:
        """Read a command's first line: an inline command whole, else how many arguments will follow.

        Returns the place after it, -1 if its end has not come, and the inline command's words.
        """
        if data[at] != ASTERISK:
            end = self._line_end(data, at, LF, "too big inline request")
            if end < 0:
                return -1, []
            line = data[at:end]
            return end + 1, split_inline(line[:-1] if line.endswith(b"\r") else line)
        end = self._line_end(data, at, CR, "too big mbulk count string")
        if end < 0:
            return -1, []
        count = _integer(data[at + 1 : end])
        if count is None or count > self.max_multibulk:
            raise ProtocolError("invalid multibulk length")
        if count > UNAUTHENTICATED_MULTIBULK and not self.authenticated:
            raise ProtocolError("unauthenticated multibulk length")
        if count > 0:
            self._missing = count
            self._wire = end + 2 - at
        return end + 2, []

    def _line_end(self, data: bytes, at: int, mark: int, too_big: str) -> int:
        """Place of the ``mark`` that ends the line at ``at``; -1, and the line is held, if not all of it has come."""
        end = data.find(mark, at, at + LINE_LIMIT + 1)
        if end < 0 and len(data) - at > LINE_LIMIT:
            raise ProtocolError(too_big)
        if end < 0 or (mark == CR and end + 1 == len(data)):
            self._line = data[at:]
            if self.buffered > self.max_buffer:
                raise _over_limit()
            return -1
        if end + (2 if mark == CR else 1) - at > self.max_buffer:
            raise _over_limit()
        return end

    def _bulk_length(self, data: bytes, at: int, end: int) -> int:
        first = data[at]
        if first != DOLLAR:
            shown = chr(first) if first < 128 else f"\\x{first:02x}"
            raise ProtocolError(f"expected '$', got '{shown}'")
        length = _integer(data[at + 1 : end])
        if length is None or not 0 <= length <= self.max_bulk:
            raise ProtocolError("invalid bulk length")
        if length > UNAUTHENTICATED_BULK and not self.authenticated:
            raise ProtocolError("unauthenticated bulk length")
        return length

    def _fill(self, value: BytesIO, data: bytes, at: int) -> int:
        """Take bytes of the argument under way; returns the place after them."""
        take = min(self._need, len(data) - at)
        text = min(take, self._need - 2)  # the last two are its line end; negative: one of those has come already
        if text > 0:
            value.write(memoryview(data)[at : at + text])
        self._need -= take
        if self._need == 0:
            self._argv.append(value.getvalue())
            self._value = None
            self._missing -= 1
        return at + take


def _integer(text: bytes) -> int | None:
    """Decimal in its one canonical form and within 64 bits; None for anything else."""
    digits = text[1:] if text.startswith(b"-") else text
    if not digits.isdigit() or len(text) > 20 or (digits[0] == ZERO and len(text) > 1):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


def _over_limit() -> ProtocolError:
    return ProtocolError("query buffer limit exceeded")
