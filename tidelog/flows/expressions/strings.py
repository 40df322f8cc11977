"""Functions of strings. Those of JMESPath Community (JEP-14) have its names and arguments."""

from __future__ import annotations

from tidelog.flows.expressions.declare import INTEGER, SCALAR, STRING, TEXT, Kind, function, limited


def _one_character(text: str) -> str:
    if len(text) != 1:
        raise ValueError(f"{text!r:.50} has {len(text)} characters: it must have one")
    return text


def _natural(given: float) -> int:
    assert INTEGER.convert is not None  # noqa: S101 - declared so
    found: int = INTEGER.convert(given)
    if found < 0:
        raise ValueError(f"{found} is negative")
    return found


NATURAL = Kind("a whole number of at least 0", INTEGER.types, _natural)
CHARACTER = Kind("a string of one character", STRING.types, _one_character)


@function(STRING, example="lower('TEA')", result="tea")
def lower(string: str) -> str:
    """Converts to lower case."""
    return string.lower()


@function(STRING, example="upper('tea')", result="TEA")
def upper(string: str) -> str:
    """Converts to upper case."""
    return string.upper()


@function(STRING, example="capitalize('green TEA')", result="Green tea")
def capitalize(string: str) -> str:
    """Converts the first character to upper case, and the others to lower case."""
    return string.capitalize()


@function(STRING, STRING, example="trim('  tea ')", result="tea")
def trim(string: str, characters: str | None = None) -> str:
    """Removes these characters at both ends, by default white space."""
    return string.strip(characters or None)


@function(STRING, STRING, example="trim_left('007', '0')", result="7")
def trim_left(string: str, characters: str | None = None) -> str:
    """Removes these characters at the beginning."""
    return string.lstrip(characters or None)


@function(STRING, STRING, example=r'trim_right(`"tea\n"`)', result="tea")
def trim_right(string: str, characters: str | None = None) -> str:
    """Removes these characters at the end."""
    return string.rstrip(characters or None)


@function(STRING, STRING, example="remove_prefix('eu-west', 'eu-')", result="west")
def remove_prefix(string: str, prefix: str) -> str:
    """Removes a prefix, if the string has it."""
    return string.removeprefix(prefix)


@function(STRING, STRING, example="remove_suffix('a.csv', '.csv')", result="a")
def remove_suffix(string: str, suffix: str) -> str:
    """Removes a suffix, if the string has it."""
    return string.removesuffix(suffix)


@function(STRING, STRING, NATURAL, example="split('a,b,c', ',', 1)", result=["a", "b,c"])
def split(string: str, separator: str, count: int | None = None) -> list[str]:
    """Splits at a separator, at most ``count`` times. If the separator is empty, it splits into characters."""
    if separator:
        return string.split(separator, -1 if count is None else count)
    count = len(string) - 1 if count is None else min(count, len(string) - 1)
    return [*string[:count], string[count:]] if string else []


@function(STRING, STRING, STRING, NATURAL, example="replace('a-b-c', '-', '+', 1)", result="a+b-c")
def replace(string: str, old: str, new: str, count: int | None = None) -> str:
    """Replaces a substring, at most ``count`` times. See also ``regex_replace``."""
    found = string.count(old) if count is None else min(count, string.count(old))
    limited(len(string) + found * (len(new) - len(old)))
    return string.replace(old, new, -1 if count is None else count)


@function(SCALAR, example="concat('n', 7, '-', `true`)", result="n7-true")
def concat(*values: str | float) -> str:
    """Joins strings, numbers, and booleans. To join a list, use ``join``."""
    parts = [each if isinstance(each, str) else _shown(each) for each in values]
    limited(sum(map(len, parts)))
    return "".join(parts)


def _shown(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@function(STRING, NATURAL, example="repeat('ab', 3)", result="ababab")
def repeat(string: str, count: int) -> str:
    """Repeats a string."""
    limited(len(string) * count)
    return string * count


@function(STRING, INTEGER, INTEGER, example="substring('2026-11-27', 0, 4)", result="2026")
def substring(string: str, start: int, end: int | None = None) -> str:
    """Returns the characters from ``start`` up to, and not including, ``end``. Negative positions count from the end of
    the string.
    """
    return string[start:end]


@function(STRING, STRING, INTEGER, INTEGER, example="find_first('a-b-c', '-')", result=1)
def find_first(string: str, substring: str, start: int | None = None, end: int | None = None) -> int | None:
    """Returns the position of the first occurrence of a substring, or null."""
    found = string.find(substring, start, end) if substring else -1
    return None if found < 0 else found


@function(STRING, STRING, INTEGER, INTEGER, example="find_last('a-b-c', '-')", result=3)
def find_last(string: str, substring: str, start: int | None = None, end: int | None = None) -> int | None:
    """Returns the position of the last occurrence of a substring, or null."""
    found = string.rfind(substring, start, end) if substring else -1
    return None if found < 0 else found


@function(STRING, NATURAL, CHARACTER, example="pad_left('7', 3, '0')", result="007")
def pad_left(string: str, width: int, character: str | None = None) -> str:
    """Adds a character, by default a space, at the beginning until the string has this length."""
    limited(width)
    return string.rjust(width, character or " ")


@function(STRING, NATURAL, CHARACTER, example="pad_right('tea', 5, '.')", result="tea..")
def pad_right(string: str, width: int, character: str | None = None) -> str:
    """Adds a character, by default a space, at the end until the string has this length."""
    limited(width)
    return string.ljust(width, character or " ")


@function(TEXT, STRING, example="decode_text(base64_decode_bytes('/w=='), 'latin-1')", result="\xff")
def decode_text(text: str | bytes, encoding: str | None = None) -> str:
    """Converts bytes to a string, by default from UTF-8. Sources with the codec ``binary`` send bytes."""
    if isinstance(text, str):
        return text
    try:
        return bytes(text).decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the bytes are not {error.encoding}, because of byte {error.start}") from None
