"""The patterns of a user, and the search for those that match a name.

A pattern is a literal, a prefix (a literal followed by a star), or a general pattern. Literals and prefixes are looked
up in dicts, so the cost of a check is the number of different prefix lengths plus the number of general patterns.
Different patterns can be the same literal or prefix (``a*`` and ``a**``). All but the first are stored as general ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from commands.glob import Glob

FEW: Final = 8  # up to this many patterns are compared one by one


class Pattern:
    """``~pattern``, ``%R~pattern``, ``%W~pattern``, or ``&pattern``. Immutable."""

    __slots__ = ("glob", "read", "write")

    def __init__(self, pattern: bytes, read: bool = True, write: bool = True) -> None:
        self.glob = Glob(pattern)
        self.read = read  # the contents of the keys may be read
        self.write = write  # the contents of the keys may be changed

    def word(self) -> bytes:
        """Return the word of ACL LIST for a key pattern."""
        access = b"~" if self.read and self.write else b"%R~" if self.read else b"%W~"
        return access + self.glob.pattern


class Matcher:
    """Finds the patterns that match a name."""

    __slots__ = ("_beginnings", "_lengths", "_literals", "_others")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._others = list(patterns)  # patterns that are compared one by one
        self._literals: dict[bytes, Pattern] = {}
        self._beginnings: dict[bytes, Pattern] = {}  # keyed by the text before the star
        if len(self._others) > FEW:
            self._sort_out()
        self._lengths = sorted({len(beginning) for beginning in self._beginnings})

    def _sort_out(self) -> None:
        every, self._others = self._others, []
        for pattern in every:
            glob = pattern.glob
            if glob.literal is not None and glob.literal not in self._literals:
                self._literals[glob.literal] = pattern
            elif glob.beginning is not None and glob.beginning not in self._beginnings:
                self._beginnings[glob.beginning] = pattern
            else:
                self._others.append(pattern)

    def matching(self, name: bytes) -> Iterator[Pattern]:
        """Yield the patterns that match the name."""
        if self._literals and name in self._literals:
            yield self._literals[name]
        size = len(name)
        for length in self._lengths:
            if length > size:
                break
            found = self._beginnings.get(name[:length])
            if found is not None:
                yield found
        for pattern in self._others:
            if pattern.glob.matches(name):
                yield pattern
