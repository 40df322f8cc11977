"""Converts the text that PostgreSQL writes for a column to a value of an event.

Rule 1: Values have the types that ``sql`` reads: numbers, booleans, text, bytes, and lists; JSON is decoded. A decimal
        that a float can't represent exactly remains text.
Rule 2: A value of any other type, such as a UUID or a range, or one that Python can't represent, such as ``infinity``,
        remains text.
Rule 3: The connection has the settings of SETTINGS, so that the text does not depend on the server.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final

import msgspec
from psycopg import adapters

from tidelog.flows.connectors.sql.columnvalues import plain

SETTINGS: Final = (
    "-c datestyle=ISO,MDY -c intervalstyle=iso_8601 -c timezone=UTC -c extra_float_digits=1 -c bytea_output=hex"
)
Converter = Callable[[str], Any]

_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)([+-]\d\d(?::\d\d)*)?")
_ITEM: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)  # of an array, quoted or not


def _bool(text: str) -> bool:
    return text == "t"


def _float(text: str) -> float | str:
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


def _numeric(text: str) -> Any:
    return plain(Decimal(text))


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _time(text: str) -> str:
    """Return a time in the form of ISO 8601: PostgreSQL writes a space, and the zone without minutes."""
    found = _TIME.fullmatch(text)
    if found is None:
        return text
    zone = found[3] or ""
    return f"{found[1]}T{found[2]}{zone}{':00' if len(zone) == 3 else ''}"


_CONVERTERS: Final[dict[str, Converter]] = {
    "bool": _bool, "int2": int, "int4": int, "int8": int, "oid": int, "float4": _float, "float8": _float,
    "numeric": _numeric, "json": _json, "jsonb": _json, "bytea": _bytes, "timestamp": _time, "timestamptz": _time,
}  # fmt: skip


@lru_cache(1000)
def converter(oid: int) -> Converter:
    """Return the function that converts the text of a type."""
    info = adapters.types.get(oid)
    if info is None:
        return str
    one = _CONVERTERS.get(info.name, str)
    return partial(_array, info.delimiter, one) if info.array_oid == oid else one


def _array(delimiter: str, one: Converter, text: str) -> Any:
    """Return an array as nested lists. An array with other bounds (``[0:1]={1,2}``) remains text."""
    if not text.startswith("{") or delimiter != ",":
        return text
    stack: list[list[Any]] = [[]]
    at = 0
    while at < len(text):
        mark = text[at]
        if mark == "{":
            stack.append([])
        elif mark == "}":
            ended = stack.pop()
            stack[-1].append(ended)
        elif mark != ",":
            found = _ITEM.match(text, at)
            if found is None:
                return text
            if found[1] is not None:
                stack[-1].append(one(re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL)))
            else:
                stack[-1].append(None if found[2] == "NULL" else one(found[2]))
            at = found.end()
            continue
        at += 1
    return stack[0][0] if len(stack) == 1 and stack[0] else text
