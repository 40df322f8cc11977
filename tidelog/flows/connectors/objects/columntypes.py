"""The types of Parquet columns, by the names of Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TYPES: Final = {"timestamp": ("us", "UTC")}  # unit, zone


def column_types(columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the Arrow types of columns. Raises ValueError if one is not known."""
    if not columns:
        return {}
    import pyarrow as pa

    found = {}
    for name, text in columns.items():
        try:
            found[name] = pa.timestamp(*_TYPES[text]) if text in _TYPES else pa.type_for_alias(text)
        except ValueError:
            raise ValueError(
                f"columns: {name}: {text!r} is not a type; known are int64, float64, string, bool, binary, date32,"
                " timestamp, and other names of Arrow"
            ) from None
    return found
