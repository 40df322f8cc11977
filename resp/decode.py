"""Requests at C speed: one pass over what has arrived finds the commands that are complete and in canonical form.

Canonical is what every client sends: lengths of up to seven digits, CR LF after each header and each argument. The pass
knows nothing else, and keeps nothing. Where it meets anything else (an inline command, an error, the beginning of a
command whose end has not arrived), it stops, and ExactDecoder takes over from the last boundary on. So what is allowed,
and what an error says, stands there alone.

Rule 1: it is used between two commands only, for chunks in which no complete command can exceed a limit.
Rule 2: it reserves no memory for what a header promises.
"""

from __future__ import annotations

from typing import Final

from resp.exact import ExactDecoder

CR: Final = 13
LF: Final = 10
DOLLAR: Final = 36
ASTERISK: Final = 42
ZERO: Final = 48
DIGITS: Final = 7  # of a length; a chunk with a longer one in it is never complete
LARGEST: Final = 10**DIGITS  # bytes of a chunk that the pass is given


class RequestDecoder(ExactDecoder):
    """Decodes one peer's requests; see ExactDecoder for limits, attributes and errors."""

    def __init__(
        self, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024, max_buffer: int = 1024 * 1024 * 1024
    ) -> None:
        super().__init__(max_bulk, max_multibulk, max_buffer)
        self.limit(max_bulk, max_buffer)
        # The chunk that feed() got last, if it began with several commands, and the offset after each of these. The
        # caller must call forget() when it has taken the commands.
        self.raw = b""
        self.ends: list[int] = []

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits; a header that was accepted stays accepted."""
        super().limit(max_bulk, max_buffer)
        # The complete commands in a chunk of up to this size can't exceed a limit: an argument takes six bytes or more.
        self._at_once = min(LARGEST, max_bulk, max_buffer, 6 * self.max_multibulk)

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take what arrived; return every command that is now complete, in order. Never raises: see ``error``."""
        commands: list[list[bytes]] = []
        self.forget()
        at = 0
        if self._midway and self.authenticated:
            at = len(data) - self._parse(data, 0, commands, once=True)
            if at == len(data):
                return commands
        if self._midway or self.error is not None or not self.authenticated or len(data) - at > self._at_once:
            self._parse(data, at, commands, once=False)
            return commands
        ends: list[int] = []
        done = _canonical(data, at, commands, ends)
        if done > 1 and not at:  # the bytes begin with the first of the commands
            self.raw, self.ends = data, ends
        end = ends[-1] if ends else at
        if end < len(data):
            self._parse(data, end, commands, once=False)
        return commands

    def forget(self) -> None:
        """Drop the wire bytes of commands that were taken."""
        if self.raw:
            self.raw = b""
            self.ends = []


def _canonical(data: bytes, at: int, commands: list[list[bytes]], ends: list[int]) -> int:
    """Add the complete commands in ``data`` from ``at`` on to ``commands``, and the offset after each to ``ends``.

    Returns how many there are. Stops before a command that is not complete, not canonical, or has no arguments.
    """
    size = len(data)
    last = size - 4  # where the last header can begin; what is read from there on without asking is inside
    found = 0
    while at <= last and data[at] == ASTERISK:
        left = data[at + 1] - ZERO
        if data[at + 2] == CR:
            at += 4
            if left >= 10:  # no digit
                return found
        else:
            left = _number(data, at + 1, size)
            at += 3 + _digits(left)
        if left <= 0 or left > LARGEST or at > last or data[at - 1] != LF:
            return found
        argv: list[bytes] = []
        while left:
            if at > last or data[at] != DOLLAR:
                return found
            if data[at + 2] == CR:
                length = data[at + 1] - ZERO
                at += 4
                if not 0 <= length < 10:
                    return found
            else:
                length = _number(data, at + 1, size)
                at += 3 + _digits(length)
                if length < 10:
                    return found
            end = at + length
            if end + 2 > size or data[end] != CR or data[end + 1] != LF or data[at - 1] != LF:
                return found
            argv.append(data[at:end])
            at = end + 2
            left -= 1
        commands.append(argv)
        ends.append(at)
        found += 1
    return found


def _number(data: bytes, at: int, size: int) -> int:
    """The number at ``at``, which a CR follows; -1 if it is not canonical, too long, or its end has not arrived."""
    value = data[at] - ZERO
    if not 0 < value < 10:
        return -1
    at += 1
    stop = min(size, at + DIGITS)
    while at < stop:
        digit = data[at]
        if digit == CR:
            return value
        digit -= ZERO
        if not 0 <= digit < 10:
            return -1
        value = 10 * value + digit
        at += 1
    return -1


def _digits(number: int) -> int:
    """How many digits a number of at most DIGITS has."""
    if number < 100:
        return 1 if number < 10 else 2
    if number < 10_000:
        return 3 if number < 1000 else 4
    if number < 1_000_000:
        return 5 if number < 100_000 else 6
    return 7
