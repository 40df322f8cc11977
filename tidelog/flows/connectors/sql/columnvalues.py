"""Values of events in columns of a database, and the reverse.

Rule 1: An event gets plain values, which every codec can encode.
Rule 2: A number keeps its digits. A decimal that a float cannot represent exactly becomes text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from tidelog.flows.api.errors import RejectError
from tidelog.flows.codecs.json import write_json

FIXED: Final = 8  # bytes of a number, a boolean, or a time, see size_of()
_SIMPLE: Final = frozenset((str, int, float, bool, bytes, type(None)))


def storable(value: Any) -> Any:
    """Return a value that all drivers accept: objects and lists are JSON text. Raises RejectError if there is none."""
    kind = type(value)
    if kind in _SIMPLE:
        if kind is str:
            _check_text(value)
        return value
    if isinstance(value, (Mapping, list, tuple)):
        text = write_json(value).decode()
        _check_text(text)
        return text
    if isinstance(value, (datetime, date, time, Decimal)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise RejectError(f"a value of type {kind.__name__} can't be stored in a column")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RejectError(f"text can't be encoded as UTF-8: {error.reason}") from None


def size_of(values: Iterable[Any]) -> int:
    """Return the size of values in bytes, approximately: text has its number of characters, and null 0.

    All other values have FIXED, because converting them to text would take longer than reading them from a row.
    """
    size = 0
    for value in values:
        if isinstance(value, (str, bytes, bytearray, memoryview)):
            size += len(value)
        elif isinstance(value, Mapping):
            size += size_of(value) + size_of(value.values())
        elif isinstance(value, (list, tuple)):
            size += size_of(value)
        elif value is not None:
            size += FIXED
    return size


def plain(value: Any) -> Any:
    """Return a value of a column as a value of an event: text, a number, a boolean, bytes, a list, or an object."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value)  # UUIDs, addresses, ranges


def _number(value: Decimal) -> int | float | str:
    if not value.is_finite():
        return str(value)
    if value == value.to_integral_value() and abs(value) < 1 << 63:
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else str(value)
