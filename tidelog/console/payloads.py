"""How fields and values are displayed: as text, as JSON, as hex; and as commands that append them again.

Rule: everything here returns plain text, which templates escape.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Final

from tidelog.client.entries import Entry
from tidelog.console.infotext import text

SHORT: Final = 160  # characters of a value in a list
FIELDS: Final = 12  # fields of an entry in a list
LONG: Final = 64 * 1024  # bytes of a value in the display of one entry
ROW: Final = 16  # bytes of a row of hex


def short(entry: Entry) -> list[tuple[str, str]]:
    """Return the first fields of an entry with the beginnings of their values, for a list."""
    return [(text(name[:SHORT]), clipped(value)) for name, value in entry.pairs[:FIELDS]]


def clipped(value: bytes) -> str:
    """Return the beginning of a value in one line."""
    shown = text(value[: 4 * SHORT]).replace("\n", "⏎").replace("\t", " ")
    return f"{shown[:SHORT]}…" if len(shown) > SHORT or len(value) > 4 * SHORT else shown


def long(value: bytes) -> str:
    """Return a value for the display of one entry. Its end is left out if it is longer than LONG."""
    return _ended(text(value[:LONG]), len(value))


def as_json(entry: Entry) -> str:
    """Return an entry as JSON. Values that are JSON themselves are nested; values that are not UTF-8 are in hex."""
    pairs = [(text(name), _value(value)) for name, value in entry.pairs]
    nested: Any = dict(pairs) if len(dict(pairs)) == len(pairs) else [[name, value] for name, value in pairs]
    return json_text({"id": str(entry.id), "fields": nested})


def json_text(value: Any) -> str:
    """Return a value as indented JSON, of which the end is left out if it is longer than LONG."""
    shown = json.dumps(value, indent=2, ensure_ascii=False)
    return _ended(text(shown[:LONG]), len(shown))


def _value(value: bytes) -> Any:
    try:
        decoded = value.decode()
    except UnicodeDecodeError:
        return {"hex": value[:LONG].hex()}
    if decoded[:1] in "{[" and len(value) <= LONG:
        try:
            nested = json.loads(decoded)
            json.dumps(nested, indent=2)  # fails if it is nested too deeply
            return nested
        except (ValueError, RecursionError):
            pass
    return decoded


def as_hex(value: bytes) -> str:
    """Return a value as rows of an offset, bytes, and the printable characters among them."""
    rows = []
    for at in range(0, min(len(value), LONG // 4), ROW):
        part = value[at : at + ROW]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:08x}  {part.hex(' '):<{3 * ROW}} {shown}")
    return _ended("\n".join(rows), len(value), LONG // 4)


def _ended(shown: str, size: int, most: int = LONG) -> str:
    return shown if size <= most else f"{shown}\n… {size - most:,} of {size:,} bytes are not shown"


# -- code ----------------------------------------------------------------------------------------------------
def redis_cli(address: str, words: Sequence[bytes]) -> str:
    """Return a shell command that sends a command with redis-cli. address: its options, such as ``-p 6380``.

    Words that a shell can't pass are in a here-document, in the notation of redis-cli.
    """
    start = f"redis-cli {address}".strip()
    if all(_plain(word) for word in words):
        return f"{start} {' '.join(shlex.quote(word.decode()) for word in words)}"
    return f"{start} <<'END'\n{' '.join(_quoted(word) for word in words)}\nEND"


def _plain(word: bytes) -> bool:
    try:
        return word.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _quoted(word: bytes) -> str:
    shown = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word
    )  # fmt: skip
    return f'"{shown}"'


def python(url: str, key: bytes, entry: Entry, tidelog: bool) -> str:
    """Return a Python program that appends an entry again."""
    pairs = ",\n".join(f"    ({_literal(name)}, {_literal(value)})" for name, value in entry.pairs)
    fields = f"[\n{pairs},\n]"
    if tidelog:
        return (
            f"from tidelog import Client\n\nfields = {fields}\nwith Client({url!r}) as client:\n"
            f"    print(client.tappend({_literal(key)}, fields))\n"
        )
    return (
        f"import redis\n\nfields = {fields}\nwith redis.Redis.from_url({url!r}) as client:\n"
        f"    words = [word for pair in fields for word in pair]\n"
        f'    print(client.execute_command("XADD", {_literal(key)}, "*", *words))\n'
    )


def _literal(raw: bytes) -> str:
    return repr(raw.decode()) if _plain(raw) else repr(raw)
