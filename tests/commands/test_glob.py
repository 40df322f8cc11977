"""Globs: results of Redis as vectors, a simple matcher as the model, and the work that hard patterns make."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import glob
from commands.glob import Glob, glob_match
from resp.errors import CommandError

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


SPECIAL = st.sampled_from(["*", "?", "[", "]", "^", "-", "\\", "a", "b", "[ab]", "[^a]", "[a-b]*", "?*", "*?", "b*a"])
PATTERNS = st.lists(SPECIAL, max_size=12).map("".join)


@given(PATTERNS, st.text("ab-]", max_size=7))
def test_matches_agree_with_the_model(pattern: str, text: str) -> None:
    assert Glob(pattern.encode()).matches(text.encode()) == model(pattern.encode(), text.encode())


@given(PATTERNS, st.text("ab-]", max_size=7))
def test_the_automaton_agrees_with_the_model(pattern: str, text: str) -> None:
    """Whatever the limits for searches are: a pattern of classes that can be anything goes past them."""
    filler = "[\\a^]" * (glob.MAX_CLASSES + 1)
    found = Glob((filler + pattern).encode())
    assert found.method == "automaton"
    assert found.matches(b"a" * (glob.MAX_CLASSES + 1) + text.encode()) == model(pattern.encode(), text.encode())


# -- work --------------------------------------------------------------------------------------------------------------
class Counted(bytes):
    """A text that counts how often it is read byte by byte."""

    steps = 0

    def __iter__(self) -> Iterator[int]:
        for byte in bytes(self):
            self.steps += 1
            yield byte


HARD = [b"[^a]" * 1000, b"[^a]*" * 800, b"*[ab]" * 800 + b"x", b"a*" * 900 + b"?" * 300 + b"b", b"*[ab]" * 17 + b"x",
        b"*?" * 2048, b"*" + b"?a" * 33 + b"*b", b"?" * 257]  # fmt: skip


@pytest.mark.parametrize("pattern", HARD, ids=range(len(HARD)))
def test_a_hard_pattern_takes_one_step_a_byte(pattern: bytes) -> None:
    found = Glob(pattern)
    assert found.method == "automaton"
    text = Counted(b"ab" * 10_000)
    found.matches(text)
    assert text.steps <= len(text)


@given(st.lists(SPECIAL, max_size=400).map("".join))
def test_searches_are_short(pattern: str) -> None:
    """A search takes as many steps a byte as its part has tokens, and no byte is in two searches."""
    found = Glob(pattern.encode())
    for part in found.middle:
        assert part.literal or part.length <= 64


@pytest.mark.parametrize("pattern", [b"foo*", b"*:12*", b"user:[0-9]*:na?e", b"k[^1-3]", b"x" * 4096, b"*" * 4096])
def test_ordinary_patterns_are_searched(pattern: bytes) -> None:
    assert Glob(pattern).method == "searches"


def test_stars_in_a_row_are_one() -> None:
    found = Glob(b"a*?" * 2 + b"**" * 1000 + b"?*b")
    assert [part.length for part in found.middle] == [3]
    assert found.matches(b"a1a23b")
    assert not found.matches(b"a1a2b")


def test_a_long_pattern_is_refused() -> None:
    with pytest.raises(CommandError, match="ERR the pattern has 4097 bytes; at most 4096 are allowed"):
        Glob(b"a" * 4097)
