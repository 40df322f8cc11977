"""Functions that parse strings in the formats of other programs."""

from __future__ import annotations

import csv
import re
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tidelog.flows.expressions.declare import ANY, LIST, STRING, TEXT, function
from tidelog.flows.expressions.strings import CHARACTER

_PAIR: Final = re.compile(r'[^\s=]+(?:="(?:[^"\\]|\\.)*"|=\S*)?')  # one alternative fits at each position: linear time
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


@function(TEXT, example="parse_json('{\"n\": 1}')", result={"n": 1})
def parse_json(text: str | bytes) -> Any:
    """Parses JSON."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"{text[:100]!r} is not JSON: {error}") from None


@function(ANY, example='to_json(`[1, {"a": null}]`)', result='[1,{"a":null}]')
def to_json(value: Any) -> str:
    """Converts a value to JSON. Unlike with ``to_string``, a string is quoted."""
    return msgspec.json.encode(value).decode()


@function(
    STRING,
    LIST,
    CHARACTER,
    example=r"""parse_csv(`"id;name\n7;tea"`, `null`, ';')""",
    result=[{"id": "7", "name": "tea"}],
)
def parse_csv(string: str, names: list[Any] | None = None, delimiter: str | None = None) -> list[dict[str, str]]:
    """Parses lines of CSV to a list of objects. The names of the fields are in the first line, or in a list of strings.
    Missing fields are omitted. A line with more fields is an error.
    """
    try:
        rows = list(csv.reader(string.splitlines(keepends=True), delimiter=delimiter or ",", strict=True))
    except csv.Error as error:
        raise ValueError(f"the string is not CSV: {error}") from None
    rows = [row for row in rows if row]
    if names is None:
        names, rows = (rows[0], rows[1:]) if rows else ([], [])
    if not all(isinstance(each, str) for each in names):
        raise ValueError("argument 2 (names) must be a list of strings")
    found: list[dict[str, str]] = []
    for number, row in enumerate(rows, 1):
        if len(row) > len(names):
            raise ValueError(f"row {number} has {len(row)} fields for {len(names)} names")
        found.append(dict(zip(names, row, strict=False)))
    return found


@function(
    STRING,
    example="parse_logfmt('level=warn msg=\"no tea\" retry')",
    result={"level": "warn", "msg": "no tea", "retry": True},
)
def parse_logfmt(string: str) -> dict[str, Any]:
    """Parses pairs of a name and a value (logfmt). Values with spaces are in double quotes. The value of a name alone
    is ``true``.
    """
    found: dict[str, Any] = {}
    for pair in _PAIR.findall(string):
        name, equals, value = pair.partition("=")
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = _ESCAPED.sub(lambda each: _ESCAPES.get(each[1], each[1]), value[1:-1])
        found[name] = value if equals else True
    return found


@function(STRING, STRING, STRING, example="parse_kv('a: 1; b: 2', ';', ':')", result={"a": "1", "b": "2"})
def parse_kv(string: str, separator: str | None = None, equals: str | None = None) -> dict[str, str]:
    """Parses pairs of a name and a value, by default separated by spaces, with ``=`` between name and value. Spaces
    around names and values are removed. The value of a name alone is an empty string. For values in quotes, see
    ``parse_logfmt``.
    """
    found: dict[str, str] = {}
    for pair in string.split(separator or None):
        name, _, value = pair.partition(equals or "=")
        if name.strip():
            found[name.strip()] = value.strip()
    return found


@function(
    STRING, example="parse_url('https://x.it:8080/tea?n=1')",
    result={"scheme": "https", "host": "x.it", "port": 8080, "path": "/tea", "query": {"n": "1"}, "fragment": ""},
)  # fmt: skip
def parse_url(string: str) -> dict[str, Any]:
    """Splits a URL into its parts. ``user`` is included if the URL contains it, and the password is omitted."""
    parts = urlsplit(string)
    found: dict[str, Any] = {"scheme": parts.scheme, "host": parts.hostname, "port": parts.port, "path": parts.path}
    if parts.username is not None:
        found["user"] = parts.username
    return found | {"query": _query(parts.query), "fragment": parts.fragment}


@function(STRING, example="parse_query('n=1&q=a+b')", result={"n": "1", "q": "a b"})
def parse_query(string: str) -> dict[str, str]:
    """Parses the query of a URL, or a form. If a name occurs several times, its last value is returned."""
    return _query(string.removeprefix("?"))


def _query(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=10_000))
