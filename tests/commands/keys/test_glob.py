"""Globs: results of Redis as vectors, a simple matcher as the model, and the time for hard patterns."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.keys.glob import Glob, glob_match

FITS = [
    (b"*", b""), (b"*", b"anything"), (b"", b""), (b"a", b"a"), (b"a*", b"a"), (b"a*", b"ab"), (b"*a", b"ba"),
    (b"a*b", b"ab"), (b"a*b*c", b"a1b2c"), (b"h?llo", b"hallo"), (b"?", b"\xff"), (b"?", b"\n"), (b"**", b"x"),
    (b"h[ae]llo", b"hello"), (b"h[^e]llo", b"hallo"), (b"h[a-c]llo", b"hbllo"), (b"h[c-a]llo", b"hbllo"),
    (b"[a-]", b"a"), (b"[^]x", b"ax"), (b"[abc", b"b"), (b"[a\\]b]", b"]"), (b"a\\*b", b"a*b"), (b"\\", b"\\"),
    (b"a\\", b"a\\"), (b"\\a", b"a"), (b"user:*:name", b"user:17:name"), (b"[\\^a]", b"^"), (b"[a-c-e]", b"-"),
]  # fmt: skip
MISSES = [
    (b"", b"a"), (b"a", b""), (b"a", b"ab"), (b"?", b""), (b"h[^e]llo", b"hello"), (b"[]", b"a"), (b"[]a]", b"a"),
    (b"a\\*b", b"axb"), (b"a*b*c", b"a1c2b"), (b"ab*ba", b"aba"), (b"[a-c]", b"d"), (b"A", b"a"), (b"*a?", b"a"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "text"), FITS)
def test_patterns_that_match(pattern: bytes, text: bytes) -> None:
    assert glob_match(pattern, text)


@pytest.mark.parametrize(("pattern", "text"), MISSES)
def test_patterns_that_do_not_match(pattern: bytes, text: bytes) -> None:
    assert not glob_match(pattern, text)


def test_case_matters() -> None:
    assert not glob_match(b"MAX*", b"maxclients")
    assert not glob_match(b"[A-Z]ax*", b"maxclients")


def model(pattern: bytes, text: bytes) -> bool:
    """The meaning of patterns in its simplest form; exponential."""
    if not pattern:
        return not text
    if pattern[0] == ord("*"):
        return any(model(pattern[1:], text[at:]) for at in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == ord("["):
        at, allowed = 1, set()
        negated = pattern[1:2] == b"^"
        at += negated
        while at < len(pattern) and pattern[at] != ord("]"):
            rest = pattern[at:]
            if rest[0] == ord("\\") and len(rest) >= 2:
                allowed.add(rest[1])
                at += 2
            elif len(rest) >= 3 and rest[1] == ord("-"):
                allowed.update(range(min(rest[0], rest[2]), max(rest[0], rest[2]) + 1))
                at += 3
            else:
                allowed.add(rest[0])
                at += 1
        return (text[0] in allowed) != negated and model(pattern[at + 1 :], text[1:])
    if pattern[0] == ord("?"):
        return model(pattern[1:], text[1:])
    if pattern[0] == ord("\\") and len(pattern) >= 2:
        pattern = pattern[1:]
    return pattern[0] == text[0] and model(pattern[1:], text[1:])


@given(st.text("ab*?[]^-\\", max_size=9), st.text("ab-]", max_size=7))
def test_matches_agree_with_the_model(pattern: str, text: str) -> None:
    assert Glob(pattern.encode()).matches(text.encode()) == model(pattern.encode(), text.encode())


@pytest.mark.parametrize("part", [b"a*", b"[ab]*", b"?*", b"*"])
def test_matching_takes_at_most_pattern_times_text(part: bytes) -> None:
    # Matched with plain backtracking, each of these takes longer than the universe is old.
    started = perf_counter()
    assert not glob_match(part * 300 + b"b", b"a" * 20_000)
    assert perf_counter() - started < 5
