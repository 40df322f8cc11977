"""Differences between expected and actual values, as lines for people."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from difflib import SequenceMatcher
from typing import Any, Final

import msgspec

MOST: Final = 20  # lines for one output
SHOWN: Final = 200  # characters of a value


def plain(value: Any) -> Any:
    """Return a value with the types of YAML: bytes become text (base64 if they are not UTF-8), times ISO 8601."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return base64.b64encode(raw).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return value


def without(value: Any, paths: Sequence[str]) -> Any:
    """Return a plain value without the fields at these dotted paths."""
    for path in paths:
        value = _without(value, path.split("."))
    return value


def _without(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_without(each, names) for each in value]
    if not isinstance(value, dict) or names[0] not in value:
        return value
    if len(names) == 1:
        return {name: each for name, each in value.items() if name != names[0]}
    return {name: _without(each, names[1:]) if name == names[0] else each for name, each in value.items()}


def lists(expected: Sequence[Any], actual: Sequence[Any], what: str) -> list[str]:
    """Return the differences between two lists of plain values; empty if they are equal. ``what``: names the output."""
    found = list(_lists(expected, actual, what))
    more = len(found) - MOST
    return [*found[:MOST], f"... and {more} more differences"] if more > 1 else found


def _lists(expected: Sequence[Any], actual: Sequence[Any], what: str) -> Iterator[str]:
    """Yield the differences. Equal values are matched, so a missing value does not shift all that follow."""
    texts = [_key(each) for each in expected], [_key(each) for each in actual]
    for kind, left, left_end, right, right_end in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        paired = min(left_end - left, right_end - right)
        for number in range(paired):
            yield from values(expected[left + number], actual[right + number], f"{what}[{right + number}]")
        for each in expected[left + paired : left_end]:
            yield f"{what}: missing {shown(each)}"
        for number in range(right + paired, right_end):
            yield f"{what}[{number}]: unexpected {shown(actual[number])}"


def values(expected: Any, actual: Any, path: str) -> Iterator[str]:
    """Yield the differences between two plain values."""
    if isinstance(expected, dict) and isinstance(actual, dict) and (expected.keys() & actual.keys() or not expected):
        for name in expected:
            if name in actual:
                yield from values(expected[name], actual[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: missing, expected {shown(expected[name])}"
        for name in actual:
            if name not in expected:
                yield f"{path}.{name}: unexpected {shown(actual[name])}"
    elif isinstance(expected, list) and isinstance(actual, list):
        yield from _lists(expected, actual, path)
    elif not same(expected, actual):
        yield f"{path}: expected {shown(expected)}, got {shown(actual)}"


def same(expected: Any, actual: Any) -> bool:
    """Return whether two plain values are equal. Unlike in Python, 1 is not true, but 1 is 1.0."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    return bool(expected == actual)


def shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _key(value: Any) -> str:
    """Return a text that is the same for equal values."""
    try:
        return msgspec.json.encode(_numbers(value), order="deterministic").decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError):
        return repr(value)


def _numbers(value: Any) -> Any:
    """Return a value in which equal numbers have the same type."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value
