r"""The syntax of redis.conf: lines, words, quotes, include, units.

Rule 1: this module splits lines into words. ``directives`` interprets the words.
Rule 2: every error is a ``ConfigError`` with the file, the number and the text of the line.

A line is a directive's name and its words::

    # a comment is a line of its own
    maxmemory 64mb
    requirepass "a \x41 b"                 double quotes: \n \r \t \b \a \" \\ \xHH
    requirepass 'it\'s'                    single quotes: only \' is special
    include /etc/tidelog/conf.d/*.conf     a missing file is an error, a pattern without a match is not

Values are stored as text. Bytes that are not UTF-8 become surrogates (``surrogateescape``), so that a password of any
bytes is compared and rewritten unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

MAX_INCLUDE_DEPTH = 16  # maximum depth of nested includes; a deeper one is considered a cycle

_ESCAPES = {"n": 0x0A, "r": 0x0D, "t": 0x09, "b": 0x08, "a": 0x07}
_HEX = frozenset("0123456789abcdefABCDEF")
SPACE = " \t\n\r\v\f\0"  # separates words; only a line feed ends a line
_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1024,
    "m": 1000**2, "mb": 1024**2,
    "g": 1000**3, "gb": 1024**3,
}  # fmt: skip


class ConfigError(Exception):
    """A configuration that can't be used.

    ``text`` describes the error in one sentence. ``line`` is the invalid line, or None if it is not a single line.
    """

    def __init__(self, text: str, line: ConfigLine | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.line = line

    def report(self, version: str) -> str:
        """Return the lines that redis-server prints to standard error before it exits."""
        lines = ["", f"*** FATAL CONFIG FILE ERROR (tidelog {version}) ***"]
        if self.line is not None:
            lines += [self.line.where(), f">>> '{self.line.text}'"]
        lines.append(self.text)
        return "\n".join(lines) + "\n"


class ConfigLine:
    """One directive as written in a file, on standard input or on the command line."""

    __slots__ = ("number", "source", "text", "words")

    def __init__(self, source: str, number: int, text: str, words: list[str]) -> None:
        self.source = source  # path as given; "-": standard input; "": the command line
        self.number = number  # the first line is 1; 0 on the command line
        self.text = text  # as written, without surrounding blanks
        self.words = words  # the name, then the values, unquoted; never empty

    def where(self) -> str:
        if not self.source:
            return "Reading the command line"
        name = "standard input" if self.source == "-" else f"file {self.source}"
        return f"Reading the configuration file, at line {self.number} of {name}"


def split_words(text: str) -> list[str]:
    """Split a line into words and remove quotes. Raises ValueError if they are unbalanced.

    A closing quote must be followed by a blank or the end: ``"a"b`` is an error, as in Redis.
    """
    words: list[str] = []
    at = _skip_blanks(text, 0)
    while at < len(text):
        word, at = _word(text, at)
        words.append(word.decode("utf-8", "surrogateescape"))
        at = _skip_blanks(text, at)
    return words


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def _word(text: str, at: int) -> tuple[bytes, int]:
    """Return the word that begins at ``at``, and the position after it. Raises ValueError."""
    word = b""
    while at < len(text) and text[at] not in SPACE:
        if text[at] in "\"'":
            quoted, at = _quoted(text, at)
            return word + quoted, at
        word += text[at].encode("utf-8", "surrogateescape")
        at += 1
    return word, at


def _quoted(text: str, at: int) -> tuple[bytes, int]:
    """Return the content of the quotes that open at ``at``, and the position after them. Raises ValueError."""
    quote, end = text[at], len(text)
    content = b""
    at += 1
    while at < end and text[at] != quote:
        if text[at] == "\\" and at + 1 < end and (quote == '"' or text[at + 1] == "'"):
            char, at = _escaped(text, at + 1, quote)
            content += char
        else:
            content += text[at].encode("utf-8", "surrogateescape")
            at += 1
    if at == end or (at + 1 < end and text[at + 1] not in SPACE):
        raise ValueError("Unbalanced quotes in configuration line")
    return content, at + 1


def _escaped(text: str, at: int, quote: str) -> tuple[bytes, int]:
    """Return the byte or character of an escape whose backslash is before ``at``, and the position after it."""
    char = text[at]
    if quote == '"' and char == "x" and at + 2 < len(text) and _HEX.issuperset(text[at + 1 : at + 3]):
        return bytes([int(text[at + 1 : at + 3], 16)]), at + 3
    if quote == '"' and char in _ESCAPES:
        return bytes([_ESCAPES[char]]), at + 1
    return char.encode("utf-8", "surrogateescape"), at + 1


def quote(value: str) -> str:
    """Return the word as written in a line: plain if that is unambiguous, otherwise in double quotes."""
    if value and value.isprintable() and not any(c in " \"'\\" for c in value) and not value.startswith("#"):
        return value
    out = []
    for c in value:
        if c in '"\\':
            out.append("\\" + c)
        elif c.isprintable():
            out.append(c)
        else:
            out.append("".join(f"\\x{b:02x}" for b in c.encode("utf-8", "surrogateescape")))
    return '"' + "".join(out) + '"'


def parse_memory(text: str) -> int:
    """Parse ``1024``, ``64mb``, ``1gb``, ``1k`` (1000) or ``1kb`` (1024), in any case, to bytes. Raises ValueError."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = _UNITS.get(text[len(digits) :].lower())
    number = digits[1:] if digits[:1] == "-" else digits
    if unit is None or not (number.isascii() and number.isdigit()):
        raise ValueError("argument must be a memory value")
    return int(digits) * unit


def parse_yes_no(text: str) -> bool:
    word = text.lower()
    if word not in ("yes", "no"):
        raise ValueError("argument must be 'yes' or 'no'")
    return word == "yes"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to ``word``; None if none is similar."""
    import difflib  # slow to import, and used only for errors

    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return close[0] if close else None


def read_file(path: str) -> Iterator[ConfigLine]:
    """Yield the lines of a file; an include is replaced by the lines of the included files. Raises ConfigError."""
    return read_text(_contents(path, None), path, 0)


def read_text(text: str, source: str, depth: int = 0) -> Iterator[ConfigLine]:
    """Yield the lines of a text from ``source``, without blank lines and comments. Raises ConfigError."""
    for number, raw in enumerate(text.split("\n"), 1):
        stripped = raw.strip(SPACE)
        if not stripped or stripped[0] == "#":
            continue
        line = ConfigLine(source, number, stripped, [])
        try:
            line.words = split_words(stripped)
        except ValueError as exc:
            raise ConfigError(str(exc), line) from None
        if not line.words:
            continue
        if line.words[0].lower() == "include" and len(line.words) == 2:
            yield from _include(line, depth)
        else:
            yield line


def read_flags(args: list[str], may_be_empty: Callable[[str], bool]) -> list[ConfigLine]:
    """Convert the words ``--name value ...`` to lines. Each ``--name`` starts a line. Raises ConfigError.

    As in redis-server, name and values may be one word (``"--save 900 1"``), and a value may begin with ``--`` if it is
    the first one after a name, unless the directive ``may_be_empty`` (``--save --port 7000``).
    """
    lines: list[ConfigLine] = []
    for word in args:
        last = lines[-1] if lines else None
        wanted = last is not None and len(last.words) == 1 and not may_be_empty(last.words[0].lower())
        if word.startswith("--") and len(word) > 2 and not wanted:
            lines.append(_flag(word))
        elif last is None:
            line = ConfigLine("", 0, word, [word])
            raise ConfigError("a directive on the command line is written --name value", line)
        else:
            last.words.append(word)
            last.text += " " + quote(word)
    found: list[ConfigLine] = []
    for line in lines:
        found += _include(line, 0) if line.words[0].lower() == "include" and len(line.words) == 2 else [line]
    return found


def _flag(word: str) -> ConfigLine:
    """Return the line that a word with ``--`` starts. Raises ConfigError."""
    line = ConfigLine("", 0, word, [word[2:]])
    if any(c in SPACE for c in word):
        try:
            line.words = split_words(word[2:])
        except ValueError as exc:
            raise ConfigError(str(exc), line) from None
        if not line.words:
            raise ConfigError("Bad directive or wrong number of arguments", line)
    return line


def _include(line: ConfigLine, depth: int) -> Iterator[ConfigLine]:
    if depth + 1 > MAX_INCLUDE_DEPTH:
        text = f"include is nested more than {MAX_INCLUDE_DEPTH} files deep: does a file include itself?"
        raise ConfigError(text, line)
    path = line.words[1]
    paths = [path]
    if any(c in path for c in "*?["):
        import glob  # rarely needed

        paths = sorted(glob.glob(path))
    for one in paths:
        yield from read_text(_contents(one, line), one, depth + 1)


def _contents(path: str, line: ConfigLine | None) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError as exc:
        what = f"Fatal error, can't open config file '{os.path.abspath(path)}': {exc.strerror}"
        raise ConfigError(what, line) from None
