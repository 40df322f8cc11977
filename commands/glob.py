"""Glob patterns as in Redis: ``*``, ``?``, ``[a-c]``, ``[^x]``, and ``\\`` as the escape.

Rule 1: no pattern blocks the server. A pattern has at most MAX_PATTERN bytes. Compiling takes time in proportion to its
length, and matching takes at most a small constant for each byte of the text.

A pattern is split at its stars. The parts have fixed lengths, so the leftmost match of a part is always the right one.
Parts of single bytes are searched as bytes, parts with a few byte sets (``?`` and classes) as regular expressions. A
pattern with more sets than that becomes an automaton, which takes one step for each byte of the text.

Details that follow Redis: a class without its end extends to the end of the pattern; ``[]`` matches nothing and ``[^]``
any byte; ``[c-a]`` is ``[a-c]``; ``]`` can end a range; a backslash at the end of the pattern is a literal one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from resp.errors import CommandError

MAX_PATTERN = 4096  # bytes; a longer one is refused
SHORT = 128  # bytes; a shorter pattern takes little memory
# maximum tokens of a pattern that is matched by regular expressions; a pattern of single bytes may have more
MAX_TOKENS = 256
MAX_SEARCHED = 64  # maximum tokens of a part between two stars: the search takes up to that many steps for each byte
MAX_TOGETHER = 5000  # maximum bytes of the patterns with sets in one call; compiling takes some microseconds per byte
MAX_CLASSES = 16  # maximum in a pattern; each takes some 20 microseconds to compile
GLOB_BYTES = 1000  # memory of a pattern's objects
PART_BYTES = 150  # memory of one of its parts

_STAR, _ANY, _OPEN, _CLOSE, _ESCAPE, _NOT, _DASH = b"*?[]\\^-"
_EVERY = (1 << 256) - 1

_SETS = re.compile(rb"[?\[\\]")
_STARS = re.compile(rb"\*+")

# A token is the set of bytes that match at a position: bit b is set if byte b matches.
Token = int


def check_length(pattern: bytes) -> None:
    """Raise CommandError if the pattern is too long (Rule 1)."""
    if len(pattern) > MAX_PATTERN:
        raise CommandError(f"ERR the pattern has {len(pattern)} bytes; at most {MAX_PATTERN} are allowed")


class Glob:
    """A compiled pattern. Raises CommandError if it is too long."""

    __slots__ = ("_automaton", "_first", "_last", "_least", "_starred", "middle", "pattern")

    def __init__(self, pattern: bytes) -> None:
        check_length(pattern)
        self.pattern = pattern
        self._automaton: _Automaton | None = None
        if not _SETS.search(pattern):  # bytes and stars only, as in nearly all patterns
            texts = _STARS.split(pattern)
            self._starred = len(texts) > 1
            self._least = sum(map(len, texts))
            plain = [_Part([], text) for text in texts]
            self._first, self.middle, self._last = plain[0], plain[1:-1], plain[-1]
            return
        parts = _split(pattern)
        self._starred = len(parts) > 1
        self._least = sum(map(len, parts))  # size of the shortest text that matches
        searchable = _searchable(parts)
        if not searchable:
            self._automaton = _Automaton(parts)
        found = [_Part(part) for part in parts] if searchable else [_Part([])]
        self._first, self.middle, self._last = found[0], found[1:-1], found[-1]

    def memory_bytes(self) -> int:
        """Return the approximate memory in bytes; for an automaton, after it has processed every byte."""
        size = GLOB_BYTES + 3 * len(self.pattern) + PART_BYTES * len(self.middle)
        return size if self._automaton is None else size + self._automaton.memory_bytes()

    @property
    def literal(self) -> bytes | None:
        """The only text that matches, if the pattern is a literal; None for other patterns."""
        return self._first.literal if not self._starred and self._automaton is None else None

    @property
    def beginning(self) -> bytes | None:
        """The literal of a pattern of a literal and a star, which matches all texts that begin with it; else None."""
        ends = self._starred and self._automaton is None and not self.middle and not self._last.length
        return self._first.literal if ends else None

    @property
    def method(self) -> str:
        """How the pattern is matched: ``searches`` or ``automaton``."""
        return "searches" if self._automaton is None else "automaton"

    def matches(self, text: bytes) -> bool:
        """Return whether the pattern matches all of ``text``."""
        if len(text) < self._least:
            return False
        if self._automaton is not None:
            return self._automaton.matches(text)
        first, last = self._first, self._last
        if not self._starred:
            return len(text) == first.length and first.fits(text, 0)
        end = len(text) - last.length
        at = first.length
        if not first.fits(text, 0) or not last.fits(text, end):
            return False
        for part in self.middle:
            at = part.search(text, at, end)
            if at < 0:
                return False
            at += part.length
        return True


class _Part:
    """The part between two stars: a sequence of byte sets, many of them with one byte."""

    __slots__ = ("_regex", "length", "literal")

    def __init__(self, tokens: list[Token], literal: bytes | None = None) -> None:
        self.length = len(tokens if literal is None else literal)
        self.literal = literal
        self._regex: re.Pattern[bytes] | None = None
        if literal is not None:
            return
        if all(map(_single, tokens)):
            self.literal = bytes([token.bit_length() - 1 for token in tokens])
        else:
            self._regex = re.compile(b"".join(map(_regex, tokens)), re.DOTALL)

    def fits(self, text: bytes, at: int) -> bool:
        if self.literal is not None:
            return text.startswith(self.literal, at)
        assert self._regex is not None  # noqa: S101  # one of the two is always set
        return self._regex.match(text, at) is not None

    def search(self, text: bytes, start: int, end: int) -> int:
        """Return the position of the first match in text[start:end]; -1 if there is none."""
        if self.literal is not None:
            return text.find(self.literal, start, end)
        assert self._regex is not None  # noqa: S101
        found = self._regex.search(text, start, end)
        return -1 if found is None else found.start()


class _Automaton:
    """All positions that the pattern can have reached, as the bits of one number: one step for each byte of the text.
    Bit n is set if the first n tokens match what was read, whatever the stars matched."""

    __slots__ = ("_end", "_loops", "_masks", "_places")

    def __init__(self, parts: list[list[Token]]) -> None:
        states: dict[Token, bytearray] = {}  # token -> bits of the states after it
        size = sum(map(len, parts)) // 8 + 1
        at = self._loops = 0
        for part in parts:
            for token in part:
                at += 1
                bits = states.get(token)
                if bits is None:
                    bits = states[token] = bytearray(size)
                bits[at >> 3] |= 1 << (at & 7)
            if part is not parts[-1]:
                self._loops |= 1 << at
        self._end = 1 << at
        self._places = [(token, int.from_bytes(bits, "little")) for token, bits in states.items()]
        self._masks: dict[int, int] = {}  # byte -> the states that it can lead to; computed when the byte is first read

    def matches(self, text: bytes) -> bool:
        masks, loops, states = self._masks, self._loops, 1
        for byte in text:
            mask = masks.get(byte)
            if mask is None:
                mask = self._mask(byte)
            states = ((states << 1) & mask) | (states & loops)
            if not states:
                return False
        return states & self._end != 0

    def memory_bytes(self) -> int:
        number = self._end.bit_length() // 8 + PART_BYTES
        return (len(self._places) + 256) * number

    def _mask(self, byte: int) -> int:
        mask = 0
        for token, states in self._places:
            if token >> byte & 1:
                mask |= states
        self._masks[byte] = mask
        return mask


def _single(token: Token) -> bool:
    """Return whether exactly one byte matches."""
    return token != 0 and token & (token - 1) == 0


def _searchable(parts: list[list[Token]]) -> bool:
    """Return whether byte searches and regular expressions match the pattern in little time."""
    classes = others = 0
    for part in parts:
        more = [token for token in part if not _single(token)]
        if more and part is not parts[0] and part is not parts[-1] and len(part) > MAX_SEARCHED:
            return False
        others += len(more)
        classes += len(more) - more.count(_EVERY)
    return not others or (classes <= MAX_CLASSES and sum(map(len, parts)) <= MAX_TOKENS)


def _regex(token: Token) -> bytes:
    if token == _EVERY:
        return b"."
    if token == 0:
        return b"(?!)"
    negated = token.bit_count() > 128  # the shorter of the two forms
    named = _EVERY ^ token if negated else token
    codes = b"".join([b"\\x%02x" % code for code in range(256) if named >> code & 1])
    return (b"[^%b]" if negated else b"[%b]") % codes


def _split(pattern: bytes) -> list[list[Token]]:
    """Return the parts between stars; only the first and the last can be empty. ``*?*`` is treated as ``?*``."""
    parts: list[list[Token]] = [[]]
    starred = False  # there was a star, and since then only ``?``
    at, end = 0, len(pattern)
    while at < end:
        code = pattern[at]
        if code == _STAR:
            starred = True
        elif code == _ANY:
            parts[-1].append(_EVERY)
        else:
            if starred:
                parts.append([])
                starred = False
            if code == _OPEN:
                token, at = _class(pattern, at + 1)
                parts[-1].append(token)
            else:
                if code == _ESCAPE and at + 1 < end:
                    at += 1
                parts[-1].append(1 << pattern[at])
        at += 1
    if starred:
        parts.append([])
    return parts


def _class(pattern: bytes, at: int) -> tuple[Token, int]:
    """Parse the class whose first byte after ``[`` is at ``at``. Return the set of its bytes, and the end position."""
    end = len(pattern)
    negated = at < end and pattern[at] == _NOT
    if negated:
        at += 1
    found = 0
    while at < end and pattern[at] != _CLOSE:
        code = pattern[at]
        if code == _ESCAPE and at + 1 < end:
            at += 1
            found |= 1 << pattern[at]
        elif at + 2 < end and pattern[at + 1] == _DASH:
            low, high = sorted((code, pattern[at + 2]))
            found |= (2 << high) - (1 << low)
            at += 2
        else:
            found |= 1 << code
        at += 1
    return _EVERY ^ found if negated else found, min(at, end - 1)


def compiled(pattern: bytes) -> Glob:
    """Return the compiled pattern, from a cache of the latest ones. Raises CommandError."""
    return _compiled(pattern) if len(pattern) <= SHORT else _long(pattern)


def check_together(patterns: Iterable[bytes]) -> None:
    """Raise CommandError if one call would take too long to compile all these patterns. A lone star costs little."""
    size = sum([len(pattern) for pattern in patterns if _SETS.search(pattern)])
    if size > MAX_TOGETHER:
        raise CommandError(
            f"ERR the patterns with ?, [ or \\ in one call can have at most {MAX_TOGETHER} bytes together, not {size}"
        )


@lru_cache(maxsize=256)
def _compiled(pattern: bytes) -> Glob:
    return Glob(pattern)


@lru_cache(maxsize=8)  # a long pattern can take a few hundred kilobytes
def _long(pattern: bytes) -> Glob:
    return Glob(pattern)


def glob_match(pattern: bytes, text: bytes) -> bool:
    """Return whether the pattern matches. Raises CommandError if it is too long."""
    return compiled(pattern).matches(text)
