"""Fields by path, such as ``customer.city``: changes are made to copies.

An expression can thus use the whole value for a field, and no object becomes part of itself.
"""

from __future__ import annotations

from typing import Any

from tidelog.flows.expressions.declare import ExpressionError, described
from tidelog.flows.expressions.grammar import path


def field_path(name: str, option: str) -> list[str]:
    """Return the names in a path. Raises ValueError, which names the option, if it is not one."""
    try:
        return path(name)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def with_field(value: Any, names: list[str], found: Any, depth: int = 0) -> dict[str, Any]:
    """Return a copy of an object with another value of a field. Missing objects on its path are created."""
    if isinstance(value, dict):
        changed = value.copy()
    elif value is None and depth:
        changed = {}
    else:
        where = f"the field {'.'.join(names[:depth])}" if depth else "the value"
        raise ExpressionError(f"{where} is {described(value)}: an object is needed for the field {'.'.join(names)}")
    name = names[depth]
    last = depth == len(names) - 1
    changed[name] = found if last else with_field(changed.get(name), names, found, depth + 1)
    return changed


def without_field(value: Any, names: list[str], depth: int = 0) -> Any:
    """Return a copy of an object without a field. A value without the field is returned itself."""
    name = names[depth]
    if not isinstance(value, dict) or name not in value:
        return value
    changed = value.copy()
    if depth == len(names) - 1:
        del changed[name]
    else:
        changed[name] = without_field(value[name], names, depth + 1)
    return changed
