"""The differences of two entries, by field, and by path in fields that are JSON.

Rule: everything here returns plain text, which templates escape. The cost is limited: ROWS rows, COMPARED bytes of a
value, and PATHS values in the JSON of a field.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.entries import Entry
from tidelog.console.infotext import text

ROWS: Final = 500
COMPARED: Final = 256 * 1024  # bytes of a value; the sizes of longer values are compared, too
PATHS: Final = 300  # values in the JSON of a field; a field with more is compared as text
DEEPEST: Final = 20  # nesting depth up to which JSON is compared by path
CONTEXT: Final = 60  # characters that are shown before and after a difference
DIFFERENCE: Final = 300  # characters of a difference


@dataclass(frozen=True)
class MarkedText:
    """A value: its differing part, and the equal parts before and after it."""

    before: str
    differing: str
    after: str


@dataclass(frozen=True)
class ComparedValue:
    """A field, or a path in its JSON. None: the entry does not have it."""

    name: str
    left: MarkedText | None
    right: MarkedText | None
    same: bool


def compared(left: Entry, right: Entry) -> tuple[list[ComparedValue], int]:
    """Return the values of two entries, at most ROWS, and how many more there are."""
    rows: list[ComparedValue] = []
    first, second = _numbered(left), _numbered(right)
    for name in dict.fromkeys([*first, *second]):
        rows += _field(name, first.get(name), second.get(name))
    return rows[:ROWS], max(0, len(rows) - ROWS)


def _numbered(entry: Entry) -> dict[str, bytes]:
    """Return the values of an entry by field. Fields that occur again get a number."""
    seen: Counter[bytes] = Counter()
    found = {}
    for name, value in entry.pairs:
        seen[name] += 1
        found[text(name) if seen[name] == 1 else f"{text(name)} ({seen[name]})"] = value
    return found


def _field(name: str, left: bytes | None, right: bytes | None) -> Iterator[ComparedValue]:
    if left is not None and right is not None and left != right:
        one, other = _paths(left), _paths(right)
        if one is not None and other is not None:
            for path in dict.fromkeys([*one, *other]):
                yield _value(f"{name}{path}", one.get(path), other.get(path))
            return
    yield _value(name, left, right)


def _value(name: str, left: bytes | None, right: bytes | None) -> ComparedValue:
    if left == right and left is not None:
        shown = MarkedText(_clipped(text(left[: 4 * DIFFERENCE])), "", "")
        return ComparedValue(name, shown, shown, True)
    one, other = (None if each is None else _shown(each) for each in (left, right))
    if one is None or other is None:
        only = _marked(one or other or "", 0, 0)
        return ComparedValue(name, None if one is None else only, None if other is None else only, False)
    start = _common(one, other)
    end = _common(one[start:][::-1], other[start:][::-1])
    return ComparedValue(name, _marked(one, start, end), _marked(other, start, end), False)


def _shown(value: bytes) -> str:
    shown = text(value[:COMPARED])
    return shown if len(value) <= COMPARED else f"{shown}… ({len(value):,} bytes, the first {COMPARED:,} are compared)"


def _common(one: str, other: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _marked(value: str, start: int, end: int) -> MarkedText:
    stop = len(value) - end
    before = value[max(0, start - CONTEXT) : start]
    after = value[stop : stop + CONTEXT]
    return MarkedText(
        ("…" if start > CONTEXT else "") + before, _clipped(value[start:stop]), after + ("…" if end > CONTEXT else "")
    )


def _clipped(value: str) -> str:
    return value if len(value) <= DIFFERENCE else f"{value[:DIFFERENCE]}…"


# -- JSON ----------------------------------------------------------------------------------------------------
def _paths(value: bytes) -> dict[str, bytes] | None:
    """Return the scalars of a JSON object or array by their paths. None: it is neither, or is too large."""
    if value[:1] not in (b"{", b"[") or len(value) > COMPARED:
        return None
    found: dict[str, bytes] = {}
    try:
        _flatten(json.loads(value), "", 0, found)
    except (ValueError, RecursionError):
        return None
    return found


def _flatten(value: Any, path: str, depth: int, found: dict[str, bytes]) -> None:
    """Add the scalars of a value. Raises ValueError if there are too many."""
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict) and value and depth < DEEPEST:
        parts = [(f"{path}.{text(name)}", part) for name, part in value.items()]
    elif isinstance(value, list) and value and depth < DEEPEST:
        parts = [(f"{path}[{at}]", part) for at, part in enumerate(value)]
    if len(found) + len(parts) > PATHS:
        raise ValueError("too many values")
    if not parts:
        found[path] = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    for name, part in parts:
        _flatten(part, name, depth + 1, found)
