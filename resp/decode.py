"""Requests at C speed: one pass over what has arrived finds the commands that are complete and in canonical form.

Canonical is what every client sends: lengths of up to seven digits, CR LF after each header and each argument. The pass
knows nothing else, and keeps nothing. Where it meets anything else (an inline command, an error, the beginning of a
command whose end has not arrived), it stops, and ExactDecoder takes over from the last boundary on. So what is allowed,
and what an error says, stands there alone.

Of calls that begin with the same words as the one before them, as those of a pipeline of appends to one stream do, the
pass makes no arguments where ``heads`` says how many words these are: it finds their ends, and cuts out what comes
after those words. In the list of commands an empty one stands for each. Who needs its arguments asks for them by
complete().

A chunk of one short command that is, byte for byte, what the last chunk of its length was, is not decoded again:
readers of groups, and whoever asks how things are, send the same all the time.

Rule 1: it is used between two commands only, for chunks in which no complete command can exceed a limit.
Rule 2: it reserves no memory for what a header promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from resp.exact import ExactDecoder

CR: Final = 13
LF: Final = 10
DOLLAR: Final = 36
ASTERISK: Final = 42
ZERO: Final = 48
DIGITS: Final = 7  # of a length; a chunk with a longer one in it is never complete
LARGEST: Final = 10**DIGITS  # bytes of a chunk that the pass is given
MOST_ALIKE: Final = 1000  # calls that begin with the same words, at once
AT_ONCE: Final = 16  # calls that are compared as a whole
OTHERS: Final = 4  # calls that are decoded before one is looked at again, after one that can't be the first of a row
NOT_MADE: Final[list[bytes]] = []  # stands for a call whose arguments were not made; never changed
SHORT: Final = 256  # bytes of a chunk that is remembered
SECRETIVE: Final = b"AHCahc"  # AUTH, HELLO, ACL, CONFIG: what begins so may have a password, and is not remembered
# By its length, the last chunk of one command, from whomever; and this command, if the chunk has come twice
_chunks: Final = [b""] * SHORT
_decoded: Final = [NOT_MADE] * SHORT

# How many words at the beginning of a call those after it must have in common with it, two or more; 0: its arguments
# are needed.
Head = Callable[[list[bytes]], int]


class RequestDecoder(ExactDecoder):
    """Decodes one peer's requests; see ExactDecoder for limits, attributes and errors."""

    def __init__(
        self, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024, max_buffer: int = 1024 * 1024 * 1024
    ) -> None:
        super().__init__(max_bulk, max_multibulk, max_buffer)
        self.limit(max_bulk, max_buffer)
        # The chunk that feed() got last, if it began with several commands, and the offset after each of these. Calls
        # that are not made have the offset after the last one in their row. The caller must call forget() when it has
        # taken the commands.
        self.raw = b""
        self.ends: list[int] = []
        self.heads: dict[bytes, Head] | None = None  # by command; None: all arguments of all commands are made
        # By the position of a call whose followers are not made: what comes after its head, and after theirs, from the
        # CRLF before the next word on. If the last one is the first one, they all are.
        self.bodies: dict[int, list[bytes]] = {}

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits. The header of an argument that was accepted stays accepted; not the bytes of a command
        beyond ``max_buffer``."""
        super().limit(max_bulk, max_buffer)
        # The complete commands in a chunk of up to this size can't exceed a limit: an argument takes six bytes or more.
        self._at_once = min(LARGEST, max_bulk, max_buffer, 6 * self.max_multibulk)

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Take what arrived; return every command that is now complete, in order. Never raises: see ``error``."""
        size = len(data)
        known = size < SHORT and data == _chunks[size]
        if known and _decoded[size] and not self._midway and self.authenticated and self.error is None and (
            size <= self._at_once
        ):  # fmt: skip
            self.forget()
            return [_decoded[size].copy()]
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
        done = _canonical(data, at, commands, ends, None if at else self.heads, self.bodies)
        if done > 1 and not at:  # the bytes begin with the first of the commands
            self.raw, self.ends = data, ends
        elif done == 1 and not at and size < SHORT and ends[0] == size and commands[0][0][:1] not in SECRETIVE:
            if known:
                _decoded[size] = commands[0].copy()
            else:
                _chunks[size], _decoded[size] = data, NOT_MADE
        end = ends[-1] if ends else at
        if end < len(data):
            self._parse(data, end, commands, once=False)
        return commands

    def forget(self) -> None:
        """Drop the wire bytes of commands that were taken."""
        if self.raw:
            self.raw = b""
            self.ends = []
            if self.bodies:
                self.bodies = {}

    def complete(self, commands: list[list[bytes]], at: int) -> None:
        """Make the arguments of the calls of the last chunk from ``at`` on, which are like the one before."""
        bodies = self.bodies.get(at - 1)
        if bodies is None or commands[at]:
            return
        end = self.ends[at - 1]
        head = end - (self.ends[at - 2] if at > 1 else 0) - len(bodies[0])
        for body in bodies[1:]:
            start, end = end, end + head + len(body)
            made: list[list[bytes]] = []
            _canonical(self.raw[start:end], 0, made, [], None, {})
            commands[at], self.ends[at] = made[0], end
            at += 1

    def complete_all(self, commands: list[list[bytes]], start: int = 0) -> None:
        """Make the arguments of all calls of the last chunk from ``start`` on; a row that ended before stays."""
        for at, bodies in self.bodies.items():
            if at + len(bodies) > start:
                self.complete(commands, at + 1)


def _canonical(
    data: bytes, at: int, commands: list[list[bytes]], ends: list[int], heads: dict[bytes, Head] | None,
    bodies: dict[int, list[bytes]],
) -> int:  # fmt: skip
    """Add the complete commands in ``data`` from ``at`` on to ``commands``, and the offset after each to ``ends``.

    Both are empty, but for a first command that ended before ``at``. Returns how many there are. Stops before a command
    that is not complete, not canonical, or has no arguments.
    ``heads``, ``bodies``: those of RequestDecoder.
    """
    size = len(data)
    last = size - 4  # where the last header can begin; what is read from there on without asking is inside
    look = 1  # from which call on others like it are looked for
    while at <= last and data[at] == ASTERISK:
        start = at
        left = data[at + 1] - ZERO
        if data[at + 2] == CR:
            at += 4
            if left >= 10:  # no digit
                return len(ends)
        else:
            left = _number(data, at + 1, size)
            at += 3 + _digits(left)
        if left <= 0 or left > LARGEST or at > last or data[at - 1] != LF:
            return len(ends)
        argv: list[bytes] = []
        while left:
            if at > last or data[at] != DOLLAR:
                return len(ends)
            if data[at + 2] == CR:
                length = data[at + 1] - ZERO
                at += 4
                if not 0 <= length < 10:
                    return len(ends)
            else:
                length = _number(data, at + 1, size)
                at += 3 + _digits(length)
                if length < 10:
                    return len(ends)
            end = at + length
            if end + 2 > size or data[end] != CR or data[end + 1] != LF or data[at - 1] != LF:
                return len(ends)
            argv.append(data[at:end])
            at = end + 2
            left -= 1
        commands.append(argv)
        ends.append(at)
        if heads is not None and len(ends) >= look and at <= last:
            look = _add_alike(data, start, at, commands, ends, heads, bodies)
            at = ends[-1]
    return len(ends)


def _add_alike(
    data: bytes, start: int, at: int, commands: list[list[bytes]], ends: list[int], heads: dict[bytes, Head],
    bodies: dict[int, list[bytes]],
) -> int:  # fmt: skip
    """Add the calls after the last one in ``commands``, which lies between ``start`` and ``at``, that are like it.

    Returns how many calls there must be before this is tried again: of what ``heads`` does not have, and of calls with
    other keys, more will follow.
    """
    argv = commands[-1]
    head = heads.get(argv[0])
    if head is None:
        return len(ends) + OTHERS
    if len(argv) < 2:
        return 0
    command, key = len(argv[0]), len(argv[1])
    to_end = 10 + _digits(len(argv)) + _digits(command) + command + _digits(key) + key
    if at + to_end >= len(data) or data[at + to_end] != data[start + to_end]:
        return len(ends) + OTHERS  # the last byte of the key differs: most likely each call has another key
    alike = _alike(data, start, at, argv, head(argv), ends)
    if alike:
        bodies[len(commands) - 1] = alike
        commands += [NOT_MADE] * (len(alike) - 1)
    return 0


def _alike(data: bytes, start: int, at: int, argv: list[bytes], shared: int, ends: list[int]) -> list[bytes]:
    """What comes after the first ``shared`` words of the call ``argv``, and of each one after it that has as many words
    and begins with these; nothing if there is none. The call lies between ``start`` and ``at``.

    Adds to ``ends``, for each of the others, the offset after the last one.
    """
    if not shared:
        return []
    left, size = len(argv) - shared, 3 + _digits(len(argv))
    for word in argv[:shared]:
        size += 5 + _digits(len(word)) + len(word)
    head = data[start : start + size]
    if data[at : at + size] != head:
        return []
    call = data[start:at]
    times = _times(data, at, call)
    bodies = [call[size - 2 :]] * (1 + times)
    at += times * len(call)
    while len(bodies) < MOST_ALIKE and data[at : at + size] == head:
        end = _after(data, at + size, left)
        if end < 0:
            break
        bodies.append(data[at + size - 2 : end])
        at = end
    if len(bodies) == 1:
        return []
    ends += [at] * (len(bodies) - 1)
    return bodies


def _times(data: bytes, at: int, call: bytes) -> int:
    """How often the call comes again from ``at`` on, word for word, at most as often as calls are alike at once."""
    size, found = len(call), 0
    most = min((len(data) - at) // size, MOST_ALIKE - 1)
    if not most or data[at : at + size] != call:
        return 0
    step = min(AT_ONCE, most)
    several = call * step
    while found + step <= most and data[at : at + step * size] == several:
        found += step
        at += step * size
    while found < most and data[at : at + size] == call:
        found += 1
        at += size
    return found


def _after(data: bytes, at: int, left: int) -> int:
    """Where the ``left`` arguments that begin at ``at`` end; -1 if they are not complete or not canonical."""
    size = len(data)
    last = size - 4
    while left:
        if at > last or data[at] != DOLLAR:
            return -1
        if data[at + 2] == CR:
            length = data[at + 1] - ZERO
            at += 4
            if not 0 <= length < 10:
                return -1
        else:
            length = _number(data, at + 1, size)
            at += 3 + _digits(length)
            if length < 10:
                return -1
        end = at + length
        if end + 2 > size or data[end] != CR or data[end + 1] != LF or data[at - 1] != LF:
            return -1
        at = end + 2
        left -= 1
    return at


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
