"""Functions of regular expressions.

Decision: RE2 evaluates them, in time linear in the length of the text. With ``re``, one event can block all flows of a
process for hours (``(a+)+$``). In return, there are no back references, and no look-around.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tidelog.flows.expressions.declare import STRING, Kind, function, limited

LONGEST: Final = 10_000  # characters of a pattern
MATCHES: Final = 10_000  # of one call, which take up to 30 ms
_MEMORY: Final = 4 * 2**20  # bytes of one compiled pattern, with its cache of states
_GROUP: Final = re.compile(r"\$(?:(\$)|(\d+)|\{(\w+)\})")  # in a replacement


def require_re2() -> None:
    """Raise ValueError if the package is missing."""
    try:
        import re2  # noqa: F401
    except ModuleNotFoundError:
        text = "regular expressions need the package google-re2: pip install 'tidelog[flows-regex]'"
        raise ValueError(text) from None


class TextPattern(NamedTuple):
    """A regular expression that RE2 has compiled."""

    regex: Any
    names: tuple[tuple[str, int], ...]  # its named groups, with their numbers
    groups: int  # the number of all groups

    def search(self, text: str) -> Any:
        """Return the first match in the UTF-8 of a text. For strings, the package would compute positions, too."""
        return self.regex.search(text.encode())

    def matches(self, text: str) -> Iterator[Any]:
        """Yield all matches. Raises ValueError if there are too many."""
        for count, found in enumerate(self.regex.finditer(text)):
            if count == MATCHES:
                raise ValueError(f"the pattern has more than {MATCHES:,} matches")
            yield found


@lru_cache(64)  # for patterns that are no literals
def compiled(pattern: str) -> TextPattern:
    """Compile a pattern. Raises ValueError if it is not valid."""
    require_re2()
    import re2

    if len(pattern) > LONGEST:
        raise ValueError(f"a pattern of {len(pattern):,} characters: at most {LONGEST:,} are allowed")
    options = re2.Options()
    options.log_errors = False  # they would be written to standard error
    options.max_mem = _MEMORY
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        (raw,) = error.args
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
        hint = " (RE2 has no look-around and no back references)" if "(?" in text or "escape" in text else ""
        raise ValueError(f"the pattern {pattern!r:.200} is not valid: {text}{hint}") from None
    return TextPattern(regex, tuple(regex.groupindex.items()), regex.groups)


PATTERN: Final = Kind("a regular expression", STRING.types, compiled)


@function(STRING, PATTERN, example="regex_matches('order-7', '^order-[0-9]+$')", result=True, needs=require_re2)
def regex_matches(string: str, pattern: TextPattern) -> bool:
    """Returns whether a regular expression matches a part of the string. Use ``^`` and ``$`` for the whole string."""
    return pattern.search(string) is not None


@function(STRING, PATTERN, example="regex_find('tea: 12 EUR', '[0-9]+')", result="12", needs=require_re2)
def regex_find(string: str, pattern: TextPattern) -> str | None:
    """Returns the first match, or null."""
    found = pattern.search(string)
    return None if found is None else found.group().decode()


@function(STRING, PATTERN, example="regex_find_all('a1 b22', '[0-9]+')", result=["1", "22"], needs=require_re2)
def regex_find_all(string: str, pattern: TextPattern) -> list[str]:
    """Returns all matches."""
    return [each.group() for each in pattern.matches(string)]


@function(
    STRING, PATTERN, example="regex_capture('ann@x.it', '(?P<user>[^@]+)@(?P<host>.+)')",
    result={"user": "ann", "host": "x.it"}, needs=require_re2,
)  # fmt: skip
def regex_capture(string: str, pattern: TextPattern) -> dict[str, str | None] | None:
    """Returns the named groups of the first match as an object, or null if there is no match."""
    found = pattern.search(string)
    if found is None:
        return None
    return {name: None if (raw := found.group(number)) is None else raw.decode() for name, number in pattern.names}


@function(
    STRING, PATTERN, example="regex_capture_all('a=1 b=2', '(?P<k>[a-z])=(?P<v>[0-9])')",
    result=[{"k": "a", "v": "1"}, {"k": "b", "v": "2"}], needs=require_re2,
)  # fmt: skip
def regex_capture_all(string: str, pattern: TextPattern) -> list[dict[str, str | None]]:
    """Returns the named groups of all matches, as a list of objects."""
    return [{name: each.group(number) for name, number in pattern.names} for each in pattern.matches(string)]


@function(
    STRING, PATTERN, STRING, example="regex_replace('4111-2222', '([0-9]+)-([0-9]+)', '****-$2')", result="****-2222",
    needs=require_re2,
)  # fmt: skip
def regex_replace(string: str, pattern: TextPattern, replacement: str) -> str:
    """Replaces all matches. In the replacement, ``$1`` and ``${name}`` are groups, and ``$$`` is a dollar sign."""
    parts = _replacement(replacement, pattern.names, pattern.groups)
    pieces: list[str] = []
    size = at = 0
    for found in pattern.matches(string):
        pieces.append(string[at : found.start()])
        pieces += [each if isinstance(each, str) else found.group(each) or "" for each in parts]
        size += sum(map(len, pieces[-len(parts) - 1 :]))
        limited(size)
        at = found.end()
    pieces.append(string[at:])
    limited(size + len(pieces[-1]))
    return "".join(pieces)


@lru_cache(256)
def _replacement(text: str, names: tuple[tuple[str, int], ...], groups: int) -> tuple[str | int, ...]:
    """Return the parts of a replacement: texts, and the numbers of groups."""
    parts: list[str | int] = []
    at = 0
    for found in _GROUP.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
        dollar, number, name = found.groups()
        if dollar:
            parts.append("$")
        elif (group := int(number) if number else dict(names).get(name)) is None or group > groups:
            raise ValueError(f"argument 3 (replacement): the pattern has no group {number or name!r}")
        else:
            parts.append(group)
    return (*parts, text[at:])


@function(STRING, PATTERN, example="regex_split('a, b;c', '[,;] *')", result=["a", "b", "c"], needs=require_re2)
def regex_split(string: str, pattern: TextPattern) -> list[str]:
    """Splits at all matches."""
    return list(_between(string, pattern.matches(string)))


def _between(string: str, matches: Iterator[Any]) -> Iterator[str]:
    at = 0
    for found in matches:
        yield string[at : found.start()]
        at = found.end()
    yield string[at:]
