"""Runs programs on two servers, and makes a program that they answer differently as short as it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tests.wire.xprograms.generate import with_consumers
from tests.wire.xprograms.masks import counts, masked, parted, reworded, unbounded
from tests.wire.xprograms.typed import Reply, Typed, Words, replies, shown

T = TypeVar("T")
FLUSH: Words = (b"FLUSHALL",)


class Difference(NamedTuple):
    """A command that was answered differently."""

    at: int
    words: Words
    ours: Reply
    theirs: Reply


def differences(ours: Typed, theirs: Typed, program: list[Words]) -> list[Difference]:
    """Run on both, from nothing."""
    whole = [FLUSH, *(with_consumers(program) if theirs.old else program)]
    left, right = ours.raw(whole), theirs.raw(whole)
    if left == right:
        return []
    mine, wanted = (masked(whole, replies(data)[: len(whole)], theirs.version) for data in (left, right))
    found: list[Difference] = []
    for at, (words, one, other) in enumerate(zip(whole, mine, wanted, strict=True)):
        if one != other and not (theirs.old and one == reworded(one, other)):
            if not found and (
                parted(words, one, other) if theirs.old else counts(program) and unbounded(one, other)
            ):
                return []
            found.append(Difference(at - 1, words, one, other))
    return found


def shrunk(program: list[T], differs: Callable[[list[T]], bool]) -> list[T]:
    """A part of it that still differs, and of which nothing can be left out."""
    size = max(1, len(program) // 2)
    while True:
        at, before = 0, len(program)
        while at < len(program):
            shorter = program[:at] + program[at + size :]
            if shorter and differs(shorter):
                program = shorter
            else:
                at += size
        if size == 1 and len(program) == before:
            return program
        size = max(1, size // 2)


def smallest(ours: Typed, theirs: Typed, program: list[Words]) -> list[Words]:
    """Shrink to the difference that came first, told by its command and what kind of replies it had."""
    first = kind(differences(ours, theirs, program)[0])

    def differs(shorter: list[Words]) -> bool:
        found = differences(ours, theirs, shorter)
        return bool(found) and kind(found[0]) == first

    return shrunk(program, differs) if differs(program) else program


def kind(found: Difference) -> tuple[bytes, str, str]:
    return found.words[0].upper(), found.ours.kind, found.theirs.kind


def report(ours: Typed, theirs: Typed, program: list[Words]) -> str:
    """The shortest form of the program, to be typed into redis-cli, and what both say."""
    if not differences(ours, theirs, program):
        return "it does not happen again"
    short = smallest(ours, theirs, program)
    found = {difference.at: difference for difference in differences(ours, theirs, short)}
    lines = []
    for at, words in enumerate(with_consumers(short) if theirs.old else short):
        lines.append(" ".join(quoted(word) for word in words))
        if at in found:
            lines += [f"    ours:   {shown(found[at].ours, '    ')}", f"    theirs: {shown(found[at].theirs, '    ')}"]
    return "\n".join(lines)


def quoted(word: bytes) -> str:
    """As redis-cli takes it."""
    text = word.decode("latin-1")
    if text and all(" " < letter <= "~" and letter not in "\"'\\" for letter in text):
        return text
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\x{ord(c):02x}" for c in text) + '"'
