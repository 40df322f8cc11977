"""SQL with named parameters, and statements that insert rows.

    SELECT name FROM customers WHERE id = :customer.id AND region = :meta.region

``:customer.id`` is ``value["customer"]["id"]`` of the event, and ``:meta.region`` is ``meta["region"]``. A parameter is
passed to the database separately from the text, so a value can't change the statement. Strings, quoted names, comments,
and casts (``::int``) have no parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.flows.api.errors import RejectError
from tidelog.flows.connectors.sql.columnvalues import storable

_SKIPPED: Final = r"""
      "(?:[^"]|"")*+" | `[^`]*`
    | --[^\n]* | /\*.*?\*/
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | ::
    | :(?P<name>[A-Za-z_]\w*(?:\.\w+)*)
"""
_STANDARD: Final = re.compile(rf"[eE]'(?:[^'\\]|\\.|'')*+'|'(?:[^']|'')*+'|{_SKIPPED}", re.DOTALL | re.VERBOSE)
_BACKSLASH: Final = re.compile(rf"'(?:[^'\\]|\\.|'')*+'|{_SKIPPED}", re.DOTALL | re.VERBOSE)
MISSING: Final = object()


@dataclass(frozen=True)
class Dialect:
    """How a database writes names, parameters, and conflicts."""

    quote: str  # of names
    placeholder: str  # with {n}: the number of a parameter, from 1. Without: each occurrence is a parameter of its own
    backslashes: bool = False  # strings contain escapes
    on_duplicate: bool = False  # ON DUPLICATE KEY UPDATE instead of ON CONFLICT

    def table(self, name: str) -> str:
        """Return the name of a table in quotes. A dot separates the schema from the table."""
        return ".".join(self.name(each) for each in name.split("."))

    def name(self, name: str) -> str:
        return self.escaped(f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}")

    def escaped(self, text: str) -> str:
        return text.replace("%", "%%") if self.placeholder == "%s" else text


class Statement:
    """A statement with parameters. ``sql``: for the driver; ``names``: of its parameters, in order."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.names: list[str] = []
        parts: list[str] = []
        at = 0
        for found in (_BACKSLASH if dialect.backslashes else _STANDARD).finditer(text):
            name = found["name"]
            if name is None:
                continue
            parts += [dialect.escaped(text[at : found.start()]), self._placeholder(name, dialect)]
            at = found.end()
        self.sql = "".join(parts) + dialect.escaped(text[at:])

    def _placeholder(self, name: str, dialect: Dialect) -> str:
        if "{n}" not in dialect.placeholder:
            self.names.append(name)
            return dialect.placeholder
        if name not in self.names:
            self.names.append(name)
        return dialect.placeholder.format(n=self.names.index(name) + 1)

    def parameters(self, value: Any, meta: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the parameters of an event. Raises RejectError if one is missing."""
        found = [lookup(each, value, meta) for each in self.names]
        for name, each in zip(self.names, found, strict=True):
            if each is MISSING:
                raise RejectError(f"the event has no {name!r} for the parameter :{name}")
        return tuple(storable(each) for each in found)


def lookup(path: str, value: Any, meta: Mapping[str, Any]) -> Any:
    """Return the value at a path such as ``customer.id`` or ``meta.key``; MISSING: there is none."""
    first, *rest = path.split(".")
    names = rest if first == "meta" and rest else [first, *rest]
    found: Any = meta if first == "meta" and rest else value
    for name in names:
        if not isinstance(found, Mapping) or name not in found:
            return MISSING
        found = found[name]
    return found


def insertion(table: str, columns: Sequence[str], mode: str, key: Sequence[str], dialect: Dialect) -> str:
    """Return the statement that inserts a row. mode: ``insert``, ``upsert`` or ``ignore``; key: of ``upsert``."""
    names = [dialect.name(each) for each in columns]
    marks = ", ".join(dialect.placeholder.format(n=number) for number in range(1, len(columns) + 1))
    text = f"INSERT INTO {dialect.table(table)} ({', '.join(names)}) VALUES ({marks})"
    if mode == "insert":
        return text
    changed = [dialect.name(each) for each in columns if mode == "upsert" and each not in key]
    if dialect.on_duplicate:
        changes = [f"{each} = VALUES({each})" for each in changed] or [f"{names[0]} = {names[0]}"]
        return f"{text} ON DUPLICATE KEY UPDATE {', '.join(changes)}"
    target = f" ({', '.join(dialect.name(each) for each in key)})" if key else ""
    if not changed:
        return f"{text} ON CONFLICT{target} DO NOTHING"
    return f"{text} ON CONFLICT{target} DO UPDATE SET {', '.join(f'{each} = excluded.{each}' for each in changed)}"

