"""Compares a record with its decoded form, and describes the first difference.

Rule 1: values that compare equal are the same. If values of a type never compare equal, or do not compare by their
        content, their fields are compared.
Rule 2: parts that a type excludes from comparisons (private attributes of pydantic models, ``compare=False``) may
        differ.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec

NO_NUMBER: Final = "JSON has no NaN and no infinity: codec='msgpack' has"
_DEEPEST: Final = 200  # nesting depth up to which parts are compared


def difference(sent: Any, back: Any) -> str:
    """Describe the first difference, with its path; "" if there is none."""
    return "" if _equal(sent, back) else _compared(sent, back, "", 0)


def _equal(sent: Any, back: Any) -> bool:
    try:
        return bool(sent == back)
    except Exception:  # noqa: BLE001 - a signalling NaN, naive and aware times, user code: compare the parts
        return False


def _compared(sent: Any, back: Any, path: str, depth: int) -> str:
    if _equal(sent, back):
        return ""
    if type(sent) is type(back) and depth < _DEEPEST:
        find = _finder(sent)
        if find is not None:
            return find(sent, back, path, depth + 1)
        if repr(sent) == repr(back):
            if "__eq__" not in _methods(sent) or _is_nan(sent):
                return ""
            return f"{path or 'it'} comes back as another value, which looks the same: {_shown(back)}"
    hint = f" ({NO_NUMBER})" if back is None and isinstance(sent, float) else ""
    return f"{path or 'it'}: {_shown(sent)} comes back as {_shown(back)}{hint}"


def _methods(value: Any) -> set[str]:
    """Return the names that the type of a value or its base classes define."""
    return {name for kind in type(value).__mro__[:-1] for name in vars(kind)}


def _is_nan(value: Any) -> bool:
    return math.isnan(value) if isinstance(value, float) else isinstance(value, Decimal) and value.is_nan()


_Find = Callable[[Any, Any, str, int], str]


def _finder(value: Any) -> _Find | None:
    """Return a function that compares the parts of two such values; None: the value has no parts."""
    if isinstance(value, dict):
        return _in_dicts
    if isinstance(value, list | tuple):
        return _in_sequences
    names = _names(value)
    if names:
        return lambda sent, back, path, depth: _in_fields(names, sent, back, path, depth)
    return None


def _names(value: Any) -> list[str]:
    """Return the names of the fields of a Struct, a dataclass or a model."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value) if field.compare]
    fields = getattr(type(value), "model_fields", None)
    return list(fields) if isinstance(fields, dict) else []


def _in_fields(names: Iterable[str], sent: Any, back: Any, path: str, depth: int) -> str:
    for name in names:
        missing: Any = msgspec.UNSET
        found = _compared(
            getattr(sent, name, missing), getattr(back, name, missing), f"{path}.{name}" if path else name, depth
        )  # fmt: skip
        if found:
            return found
    extra = getattr(sent, "__pydantic_extra__", None), getattr(back, "__pydantic_extra__", None)
    return "" if extra[0] == extra[1] else _compared(*extra, path, depth)


def _in_dicts(sent: dict[Any, Any], back: dict[Any, Any], path: str, depth: int) -> str:
    if sent.keys() != back.keys():
        lost = next((key for key in sent if key not in back), None)
        if lost is None:
            return f"{path or 'it'} comes back with {_shown(next(key for key in back if key not in sent))}"
        return f"{path or 'it'}: the key {_shown(lost)} does not come back as it is"
    for key, value in sent.items():
        where = f"{path}[{key!r}]" if path or not isinstance(key, str) else key
        found = _compared(value, back[key], where, depth)
        if found:
            return found
    return ""


def _in_sequences(sent: Any, back: Any, path: str, depth: int) -> str:
    if len(sent) != len(back):
        return f"{path or 'it'}: {len(sent)} values come back as {len(back)}"
    for at, (one, other) in enumerate(zip(sent, back, strict=True)):
        found = _compared(one, other, f"{path}[{at}]", depth)
        if found:
            return found
    return ""


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - user code
        text = "..."
    return f"{type(value).__name__} {text[:60] + '...' if len(text) > 60 else text}"
