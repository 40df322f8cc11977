"""Decodes requests fast: one pass over a chunk finds the complete commands in canonical form.

Canonical form is what every client sends: lengths of up to seven digits, CR LF after each header and each argument.
The pass knows nothing else and has no state. It stops at anything else: an inline command, an error, a command whose
end has not arrived. ExactDecoder then continues after the last complete command. So the limits and the error texts are
in ``resp.exact`` only.

Consecutive calls that begin with the same words, such as a pipeline of appends to one stream, become one ``Alike``
object, if ``SharedDecoding.heads`` has their command. It holds what follows those words in each call. The arguments of
the calls are decoded only on demand, by calls().

A short chunk that repeats the previous chunk of its length is not decoded again. A reader of a group repeats the same
call all the time, and decoding its arguments takes 5,000 instructions.

Rule 1: the pass is used between two commands only, for chunks in which no complete command can exceed a limit.
Rule 2: it allocates no memory for the lengths that a header announces.

Decision: this loop, compiled by mypyc, instead of hiredis. hiredis parses replies, so it accepts more than a request
may contain, and proving that its result is right takes longer than its parsing. A GET in a pipeline takes 90 ns in
this loop and 270 ns with hiredis and the proof; a value of 4 KB takes 250 ns instead of 3400. Interpreted, the loop is
slower than hiredis for commands with many arguments, which are therefore given to ``SharedDecoding.parser``, see
``resp.hiredisparser``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from resp.exact import ExactDecoder

CR: Final = 13
LF: Final = 10
DOLLAR: Final = 36
ASTERISK: Final = 42
ZERO: Final = 48
DIGITS: Final = 7  # maximum digits of a length; a chunk that contains a longer one is never complete
LARGEST: Final = 10**DIGITS  # bytes; ExactDecoder decodes larger chunks
MOST_ALIKE: Final = 1000  # maximum calls in one Alike object
AT_ONCE: Final = 16  # number of identical calls that are compared together
OTHERS: Final = 4  # number of calls to decode before looking for alike calls again
SHORT: Final = 256  # bytes; shorter chunks are remembered
SECRETIVE: Final = b"AHCahc"  # first letters of AUTH, HELLO, ACL, CONFIG, whose arguments may contain a password

# Returns the number of words, two or more, that a call must share with those after it to be alike; 0 if its arguments
# are needed.
Head = Callable[[list[bytes]], int]


class Alike:
    """Two or more consecutive calls of one command that begin with the same words."""

    __slots__ = ("argv", "bodies", "head")

    def __init__(self, argv: list[bytes], head: bytes, bodies: list[bytes]) -> None:
        self.argv = argv  # the first call
        self.head = head  # wire bytes of the shared words, without the last CR LF
        # The wire bytes of each call after the head. If the last item is the same object as the first, all items are.
        self.bodies = bodies

    def calls(self) -> list[list[bytes]]:
        """Decode the arguments of all calls."""
        calls: list[Call] = [self.argv]
        _canonical(self.head.join([b"", *self.bodies[1:]]), 0, calls, [], None)
        return cast(list[list[bytes]], calls)


Call = list[bytes] | Alike
# Adds complete commands as _canonical() does, from an offset on, and returns the offset after them.
Parser = Callable[[bytes, int, list[Call], list[int]], int]


class SharedDecoding:
    """The state that the decoders of one server share."""

    __slots__ = ("decoded", "heads", "parser", "recent")

    def __init__(self, heads: dict[bytes, Head] | None = None, parser: Parser | None = None) -> None:
        self.heads = heads  # keyed by command; None: do not create Alike objects
        self.parser = parser  # for chunks whose first command has ten arguments or more; None: the loop is faster
        # By length, the last chunk that contained exactly one command, and its arguments if it arrived twice.
        self.recent = [b""] * SHORT
        self.decoded: list[list[bytes] | None] = [None] * SHORT


class RequestDecoder(ExactDecoder):
    """Decodes one peer's requests; see ExactDecoder for limits, attributes and errors."""

    def __init__(
        self, shared: SharedDecoding, max_bulk: int = 512 * 1024 * 1024, max_multibulk: int = 1024 * 1024,
        max_buffer: int = 1024 * 1024 * 1024,
    ) -> None:  # fmt: skip
        super().__init__(max_bulk, max_multibulk, max_buffer)
        self._shared = shared
        self.limit(max_bulk, max_buffer)

    def limit(self, max_bulk: int, max_buffer: int) -> None:
        """Change the limits. The header of an argument that was accepted stays accepted, but the total size of its
        command is checked against the new ``max_buffer``."""
        super().limit(max_bulk, max_buffer)
        # The complete commands in a chunk of up to this size can't exceed a limit: an argument takes six bytes or more.
        self._at_once = min(LARGEST, max_bulk, max_buffer, 6 * self.max_multibulk)

    def calls(self, data: bytes) -> list[Call]:
        """Decode a chunk; return every call that is now complete, in order. Never raises: see ``error``."""
        size, shared = len(data), self._shared
        known = size < SHORT and data == shared.recent[size]
        if known and not self._midway and self.authenticated and self.error is None and size <= self._at_once:
            decoded = shared.decoded[size]
            if decoded is not None:
                return [decoded.copy()]
        if self._midway or self.error is not None or not self.authenticated:
            return self._continued(data)
        return self._between(data, 0, [], known)

    def _continued(self, data: bytes) -> list[Call]:
        """Decode a chunk that begins inside a command, or that has to be decoded exactly."""
        commands: list[list[bytes]] = []
        at = 0
        if self._midway and self.authenticated:
            at = len(data) - self._parse(data, 0, commands, once=True)
        if at == len(data):
            return list(commands)
        if self._midway or self.error is not None or not self.authenticated:
            self._parse(data, at, commands, once=False)
            return list(commands)
        return self._between(data, at, list(commands), known=False)

    def _between(self, data: bytes, at: int, calls: list[Call], known: bool) -> list[Call]:
        """Decode the rest of a chunk from ``at`` on, where a command begins. ``calls``: those before it."""
        size, shared = len(data), self._shared
        end = at
        if size - at <= self._at_once:
            ends: list[int] = []
            if shared.parser is not None and size - at > 3 and data[at] == ASTERISK and data[at + 2] != CR:
                end = shared.parser(data, at, calls, ends)
            done = _canonical(data, end, calls, ends, shared.heads)
            if ends:
                end = ends[-1]
            if done == 1 and not at and size < SHORT and end == size:  # the chunk is one call
                call = calls[0]
                if isinstance(call, list) and call[0][:1] not in SECRETIVE:
                    shared.recent[size], shared.decoded[size] = data, call.copy() if known else None
        if end < size:
            rest: list[list[bytes]] = []
            self._parse(data, end, rest, once=False)
            calls += rest
        return calls


def expanded(calls: list[Call], start: int = 0) -> list[list[bytes]]:
    """Return all calls from index ``start`` on, each with its arguments."""
    found: list[list[bytes]] = []
    for at in range(start, len(calls)):
        call = calls[at]
        if isinstance(call, Alike):
            found += call.calls()
        else:
            found.append(call)
    return found


def _canonical(
    data: bytes, at: int, calls: list[Call], ends: list[int], heads: dict[bytes, Head] | None
) -> int:
    """Add the complete calls in ``data`` from ``at`` on to ``calls``, and the offset after each to ``ends``. Returns
    the length of ``ends``.

    Stops before a command that is incomplete, not canonical, or empty. ``heads``: see SharedDecoding.
    """
    size = len(data)
    last = size - 4  # the last offset at which a header can begin; up to there, four bytes can be read unchecked
    look = 1  # the number of calls after which to look for alike calls
    while at <= last and data[at] == ASTERISK:
        start = at
        left = data[at + 1] - ZERO
        if data[at + 2] == CR:
            at += 4
            if left >= 10:  # not a digit
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
        calls.append(argv)
        ends.append(at)
        if heads is not None and len(ends) >= look and at <= last:
            look = _add_alike(data, start, argv, calls, ends, heads)
            at = ends[-1]
    return len(ends)


def _add_alike(
    data: bytes, start: int, argv: list[bytes], calls: list[Call], ends: list[int], heads: dict[bytes, Head]
) -> int:
    """Replace the last call, ``argv``, by an Alike object if calls that are like it follow. It begins at ``start``.

    Returns the number of calls that ``calls`` must have before this is tried again. Commands without a head, and calls
    with another key, usually come in long sequences.
    """
    at = ends[-1]
    head = heads.get(argv[0])
    if head is None:
        return len(ends) + OTHERS
    if len(argv) < 2:
        return 0
    command, key = len(argv[0]), len(argv[1])
    to_end = 10 + _digits(len(argv)) + _digits(command) + command + _digits(key) + key
    if at + to_end >= len(data) or data[at + to_end] != data[start + to_end]:
        return len(ends) + OTHERS  # the last byte of the key differs, so each call most likely has another key
    shared = head(argv)
    if shared:
        _find_alike(data, start, argv, shared, calls, ends)
    return 0


def _find_alike(
    data: bytes, start: int, argv: list[bytes], shared: int, calls: list[Call], ends: list[int]
) -> None:
    """Replace the last call by an Alike object if it shares the first ``shared`` words with those after it, and has the
    same number of words. Sets ``ends[-1]`` to the offset after the last one."""
    at = ends[-1]
    left, size = len(argv) - shared, 3 + _digits(len(argv))
    for word in argv[:shared]:
        size += 5 + _digits(len(word)) + len(word)
    head = data[start : start + size]
    if data[at : at + size] != head:
        return
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
    if len(bodies) > 1:
        calls[-1] = Alike(argv, head[: size - 2], bodies)
        ends[-1] = at


def _times(data: bytes, at: int, call: bytes) -> int:
    """Count the identical copies of ``call`` from ``at`` on, up to MOST_ALIKE - 1."""
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
    """Return the offset after the ``left`` arguments at ``at``; -1 if they are incomplete or not canonical."""
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
    """Return the number at ``at``, which ends at a CR; -1 if it is not canonical, too long, or incomplete."""
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
    """Return the number of digits of a number that has at most DIGITS."""
    if number < 100:
        return 1 if number < 10 else 2
    if number < 10_000:
        return 3 if number < 1000 else 4
    if number < 1_000_000:
        return 5 if number < 100_000 else 6
    return 7
