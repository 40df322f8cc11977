"""``grok``: named patterns for the lines of logs, as in Logstash.

The library of patterns is in ``grokpatterns``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from tidelog.flows.expressions.declare import STRING, Kind, function, number
from tidelog.flows.expressions.grokpatterns import GROK
from tidelog.flows.expressions.patterns import LONGEST, TextPattern, compiled, require_re2
from tidelog.options.structs import nearest

_REFERENCE: Final = re.compile(r"%\{(\w+)(?::([\w.-]*))?(?::(\w+))?\}")
_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "int": lambda text: number(int(text)), "float": lambda text: number(float(text)), "string": str,
}  # fmt: skip


class Grok(NamedTuple):
    """A compiled pattern and its fields: the number of the group, the path, and the conversion."""

    pattern: TextPattern
    fields: tuple[tuple[int, tuple[str, ...], Callable[[str], Any]], ...]


@lru_cache(64)  # for patterns that are no literals
def _grok(text: str) -> Grok:
    """Compile a pattern. Raises ValueError if it is not valid."""
    require_re2()
    fields: dict[str, tuple[str, Callable[[str], Any]]] = {}  # by group
    size = 0

    def expand(found: re.Match[str], depth: int = 0) -> str:
        nonlocal size
        name, field, kind = found.groups()
        if name not in GROK:
            raise ValueError(f"there is no grok pattern {name}; {nearest(name, GROK)}")
        if kind is not None and kind not in _TYPES:
            raise ValueError(f"the type {kind!r} in {found[0]} is not known: use {', '.join(_TYPES)}")
        size += len(GROK[name])
        if depth > 10 or size > LONGEST:
            raise ValueError(f"the pattern {text!r:.100} is larger than {LONGEST:,} characters")
        inner = _REFERENCE.sub(lambda each: expand(each, depth + 1), GROK[name])
        if not field:
            return f"(?:{inner})"
        group = f"grok{len(fields)}"
        fields[group] = (field, _TYPES[kind or "string"])
        return f"(?P<{group}>{inner})"

    if len(text) > LONGEST:
        raise ValueError(f"a pattern of {len(text):,} characters: at most {LONGEST:,} are allowed")
    pattern = compiled.__wrapped__(_REFERENCE.sub(expand, text))
    found = []
    for group, at in sorted(pattern.names, key=lambda each: each[1]):
        field, convert = fields.get(group, (group, str))
        found.append((at, tuple(field.split(".")), convert))
    return Grok(pattern, tuple(found))


@function(
    STRING, Kind("a grok pattern", STRING.types, _grok), needs=require_re2,
    example="grok('10.0.0.7 GET /tea 200', '%{IP:client} %{WORD:method} %{PATH:path} %{INT:status:int}')",
    result={"client": "10.0.0.7", "method": "GET", "path": "/tea", "status": 200},
)  # fmt: skip
def grok(string: str, pattern: Grok) -> dict[str, Any] | None:
    """Returns the fields of a line as an object, or null if the pattern does not match. ``%{NAME:field}`` is a pattern
    of the [library](#grok-patterns), ``%{NAME:field:int}`` and ``%{NAME:field:float}`` convert it to a number, and
    ``%{NAME}`` has no field. ``client.ip`` is a field of an object. Other parts of the pattern are a regular
    expression, in which ``(?P<field>...)`` is also a field. Fields without a match are omitted.
    """
    found = pattern.pattern.search(string)
    if found is None:
        return None
    fields: dict[str, Any] = {}
    for group, path, convert in pattern.fields:
        raw = found.group(group)
        if raw is None:
            continue
        value = convert(raw.decode())
        if len(path) == 1:
            fields[path[0]] = value
            continue
        inside = fields
        for name in path[:-1]:
            following = inside.setdefault(name, {})
            if not isinstance(following, dict):
                raise ValueError(f"the field {'.'.join(path)} is part of a field that is not an object")
            inside = following
        inside[path[-1]] = value
    return fields
