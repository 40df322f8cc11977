"""Decodes requests incrementally and exactly, with the limits and error texts of Redis. ``decode`` is the fast path.

Rule 1: no memory is allocated for bytes that have not arrived, whatever length a header announces.
Rule 2: a length is checked as soon as its header is complete, before its data.
Rule 3: the boundaries of chunks affect neither the commands nor the error.
Rule 4: each byte of an argument is copied a bounded number of times, regardless of the chunks.

    *3 CRLF  $7 CRLF TAPPEND CRLF  ...     a command: the number of arguments, then for each its length and its bytes
    *0 CRLF, *-1 CRLF                      no command, skipped
    PING hello CRLF                        anything else is an inline command, up to the line feed (resp.inline)

Lengths are decimal, without plus sign or leading zeros. As in Redis, a header ends with CR and any one byte, and the
two bytes after an argument are skipped unread.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from resp.errors import ProtocolError, QueryBufferError
from resp.inline import split_inline

LINE_LIMIT: Final = 64 * 1024  # maximum bytes of an inline command, or of a header, without its end
UNAUTHENTICATED_MULTIBULK: Final = 10  # maximum arguments
UNAUTHENTICATED_BULK: Final = 16384  # maximum bytes of an argument

CR, LF, DOLLAR, ASTERISK, ZERO = b"\r\n$*0"

BATCH: Final = 16  # if at least this many arguments are missing, the decoder tries to decode them as a batch
SHORT: Final = 4096  # bytes; only shorter arguments can be decoded as a batch
_length = [b"$%d" % n for n in range(SHORT)].__getitem__


class ExactDecoder:
    """Decodes one peer's requests. After an error it ignores all bytes.

    ``max_bulk``: bytes of one argument; ``max_multibulk``: arguments of one command; ``max_buffer``: bytes of one
    command on the wire, including headers, which is also the maximum that the decoder buffers.
    """

    def __init__(
        self, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024, max_buffer: int = 1024 * 1024 * 1024
    ) -> None:
        self.max_bulk = max_bulk
        self.max_multibulk = max_multibulk
        self.max_buffer = max_buffer
        self.authenticated = True  # False: much lower limits
        self.error: ProtocolError | None = None  # once set, the connection replies and closes
        self._midway = False  # a part of a command is buffered
        self._line = b""  # the beginning of a line whose end has not arrived
        self._argv: list[bytes] = []  # complete arguments of an incomplete command
        self._missing = 0  # number of arguments that have not arrived; 0: between commands
        self._wire = 0  # bytes of the command so far: complete headers and arguments
        self._value: BytesIO | None = None  # an incomplete argument (grows in place, becomes bytes without a copy)
        self._need = 0  # number of bytes of it that have not arrived, including the two after it

    @property
    def buffered(self) -> int:
        """The number of buffered bytes of an incomplete command, including headers."""
        held = self._wire + len(self._line)
        return held if self._value is None else held - self._need

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Decode a chunk; return every command that is now complete, in order. Never raises: see ``error``."""
        commands: list[list[bytes]] = []
        self._parse(data, 0, commands, once=False)
        return commands

    def first(self, data: bytes) -> tuple[list[list[bytes]], bytes]:
        """Decode like feed(), but only up to the end of the first command or empty line. Also returns the bytes after
        it.

        Used before the login, because the command may change the limits.
        """
        commands: list[list[bytes]] = []
        left = self._parse(data, 0, commands, once=True)
        return commands, data[len(data) - left :]

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits. Accepted headers remain accepted."""
        self.max_bulk, self.max_buffer = max_bulk, max_buffer

    def _parse(self, data: bytes, at: int, commands: list[list[bytes]], *, once: bool) -> int:
        """Parse ``data`` from ``at`` on, append commands, set ``error``. With ``once``, stop after one command.

        Returns the number of remaining bytes.
        """
        left = 0
        if self.error is None:
            try:
                left = self._advance(data, at, commands, once)
            except ProtocolError as error:
                self.error = error
                self._line = b""
                self._argv = []
                self._missing = self._wire = self._need = 0
                self._value = None
            self._midway = bool(self._missing or self._line)
        return left

    def _advance(self, data: bytes, at: int, commands: list[list[bytes]], once: bool) -> int:
        if self._line:  # at most LINE_LIMIT bytes
            data = self._line + (data[at:] if at else data)
            self._line = b""
            at = 0
        size = len(data)
        tried = False  # whether decoding the arguments of this command in ``data`` as a batch was tried
        while at < size:
            if self._value is not None:
                at = self._fill(self._value, data, at)
            elif self._missing >= BATCH and not tried:
                at = self._batch(data, at)
                tried = True
            elif self._missing:
                at = self._argument(data, at)
                if at < 0:
                    break
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
            tried = False
            if once:
                return size - at
        return 0

    def _argument(self, data: bytes, at: int) -> int:
        """Read an argument's header and the part of its value that has arrived. Returns the index after that.

        Returns -1 if the header's end has not arrived.
        """
        end = self._line_end(data, at, CR, "too big bulk count string")
        if end < 0:
            return -1
        length = self._bulk_length(data, at, end)
        self._wire += end + 2 - at + length + 2
        if self._wire > self.max_buffer:
            raise QueryBufferError()
        at = end + 2
        if len(data) - at >= length + 2:
            self._argv.append(data[at : at + length])
            self._missing -= 1
            return at + length + 2
        self._value = BytesIO()
        self._need = length + 2
        return self._fill(self._value, data, at)

    def _batch(self, data: bytes, at: int) -> int:
        """Decode the arguments at ``at`` as a batch if they are short and contain no line ends. Returns the index after
        them, or ``at``.

        Split at line ends, such arguments are headers and values in turn, each header that of the value after it.
        """
        words = data[at:].split(b"\r\n", 2 * self._missing)
        whole = (len(words) - 1) & ~1  # without the last word, which is incomplete or follows the arguments
        values = words[1:whole:2]
        try:
            if words[:whole:2] != list(map(_length, map(len, values))):
                return at
        except IndexError:
            return at
        taken = sum(map(len, words[:whole])) + 2 * whole
        if self.max_bulk < SHORT or self._wire + taken > self.max_buffer:  # possibly an error: one by one
            return at
        self._argv += values
        self._missing -= len(values)
        self._wire += taken
        return at + taken

    def _start(self, data: bytes, at: int) -> tuple[int, list[bytes]]:
        """Read a command's first line: an inline command, or the number of arguments.

        Returns the index after it, -1 if its end has not arrived, and the inline command's words.
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
        """Return the index of the ``mark`` that ends the line at ``at``; -1: not arrived, the line is buffered."""
        end = data.find(mark, at, at + LINE_LIMIT + 1)
        if end < 0 and len(data) - at > LINE_LIMIT:
            raise ProtocolError(too_big)
        if end < 0 or (mark == CR and end + 1 == len(data)):
            self._line = data[at:]
            if self.buffered > self.max_buffer:
                raise QueryBufferError()
            return -1
        if end + (2 if mark == CR else 1) - at > self.max_buffer:
            raise QueryBufferError()
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
        """Add bytes to the incomplete argument; return the index after them."""
        if self._wire > self.max_buffer and self.buffered > self.max_buffer:  # the limit has been lowered
            raise QueryBufferError()
        take = min(self._need, len(data) - at)
        text = min(take, self._need - 2)  # the last two are its line end; negative: one of these has already arrived
        if text > 0:
            value.write(memoryview(data)[at : at + text])
        self._need -= take
        if self._need == 0:
            self._argv.append(value.getvalue())
            self._value = None
            self._missing -= 1
        return at + take


def _integer(text: bytes) -> int | None:
    """Parse a decimal number in canonical form and within 64 bits; return None for anything else."""
    digits = text[1:] if text.startswith(b"-") else text
    if not digits.isdigit() or len(text) > 20 or (digits[0] == ZERO and len(text) > 1):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
