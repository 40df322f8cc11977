"""Glob patterns as in Redis: ``*``, ``?``, ``[a-c]``, ``[^x]``, and ``\\`` as the escape.

A pattern is split at its stars. The parts have fixed lengths, so the leftmost match of a part is always the right one,
and matching takes O(pattern x text) at most: no pattern blocks the server.

Details that follow Redis: a class without its end goes to the end of the pattern; ``[]`` matches nothing and ``[^]``
any byte; ``[c-a]`` is ``[a-c]``; ``]`` can end a range; a backslash at the end of the pattern is a literal one.
"""

from __future__ import annotations

import re
from functools import lru_cache

_STAR, _ANY, _OPEN, _CLOSE, _ESCAPE, _NOT, _DASH = b"*?[]\\^-"


class Glob:
    """A compiled pattern."""

    __slots__ = ("_first", "_last", "_middle", "_starred", "pattern")

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        parts = [_Part(tokens) for tokens in _split(pattern)]
        self._first = parts[0]
        self._last = parts[-1]
        self._middle = [part for part in parts[1:-1] if part.length]
        self._starred = len(parts) > 1

    def matches(self, text: bytes) -> bool:
        """Whether the pattern matches all of ``text``."""
        first, last = self._first, self._last
        if not self._starred:
            return len(text) == first.length and first.fits(text, 0)
        end = len(text) - last.length
        at = first.length
        if end < at or not first.fits(text, 0) or not last.fits(text, end):
            return False
        for part in self._middle:
            at = part.search(text, at, end)
            if at < 0:
                return False
            at += part.length
        return True


class _Part:
    """The part between two stars: a sequence of sets of bytes, often with one byte each."""

    __slots__ = ("_literal", "_regex", "length")

    def __init__(self, tokens: list[frozenset[int]]) -> None:
        self.length = len(tokens)
        self._literal: bytes | None = None
        self._regex: re.Pattern[bytes] | None = None
        if all(len(token) == 1 for token in tokens):
            self._literal = bytes([next(iter(token)) for token in tokens])
        else:
            self._regex = re.compile(b"".join(map(_regex, tokens)), re.DOTALL)

    def fits(self, text: bytes, at: int) -> bool:
        if self._literal is not None:
            return text.startswith(self._literal, at)
        assert self._regex is not None  # noqa: S101  # one of the two is always set
        return self._regex.match(text, at) is not None

    def search(self, text: bytes, start: int, end: int) -> int:
        """The position of the first match in text[start:end]; -1 if there is none."""
        if self._literal is not None:
            return text.find(self._literal, start, end)
        assert self._regex is not None  # noqa: S101
        found = self._regex.search(text, start, end)
        return -1 if found is None else found.start()


_EVERY = frozenset(range(256))


def _regex(allowed: frozenset[int]) -> bytes:
    if allowed == _EVERY:
        return b"."
    if not allowed:
        return b"(?!)"
    return b"[" + b"".join([b"\\x%02x" % code for code in sorted(allowed)]) + b"]"


def _split(pattern: bytes) -> list[list[frozenset[int]]]:
    """The parts between stars, each a list of the sets of bytes that match at its positions."""
    parts: list[list[frozenset[int]]] = [[]]
    at, end = 0, len(pattern)
    while at < end:
        code = pattern[at]
        if code == _STAR:
            parts.append([])
        elif code == _ANY:
            parts[-1].append(_EVERY)
        elif code == _OPEN:
            allowed, at = _class(pattern, at + 1)
            parts[-1].append(allowed)
        else:
            if code == _ESCAPE and at + 1 < end:
                at += 1
            parts[-1].append(frozenset((pattern[at],)))
        at += 1
    return parts


def _class(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """The class whose first byte after ``[`` is at ``at``: the set of its bytes, and the position of its end."""
    end = len(pattern)
    negated = at < end and pattern[at] == _NOT
    if negated:
        at += 1
    found: set[int] = set()
    while at < end and pattern[at] != _CLOSE:
        code = pattern[at]
        if code == _ESCAPE and at + 1 < end:
            at += 1
            found.add(pattern[at])
        elif at + 2 < end and pattern[at + 1] == _DASH:
            low, high = sorted((code, pattern[at + 2]))
            found.update(range(low, high + 1))
            at += 2
        else:
            found.add(code)
        at += 1
    return _EVERY - found if negated else frozenset(found), min(at, end - 1)


@lru_cache(maxsize=256)
def compiled(pattern: bytes) -> Glob:
    """The compiled pattern, from a cache of those used last."""
    return Glob(pattern)


def glob_match(pattern: bytes, text: bytes) -> bool:
    return compiled(pattern).matches(text)
