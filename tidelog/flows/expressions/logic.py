"""Functions that choose between values."""

from __future__ import annotations

from typing import Any

from tidelog.flows.expressions.calls import Run
from tidelog.flows.expressions.declare import ANY, function


@function(ANY, example="coalesce(missing, null_too, 'tea')", result="tea", lazy=True)
def coalesce(value: Any, *values: Run) -> Any:
    """Returns the first value that is not null. The values after it are not evaluated. Unlike with ``||``, ``false``,
    and empty strings, lists, and objects are values.
    """
    for run in values:
        found = run(value)
        if found is not None:
            return found
    return None


@function(ANY, example="try(parse_json('{'), 'not JSON')", result="not JSON", lazy=True)
def try_(value: Any, *values: Run) -> Any:
    """Returns the first value whose evaluation does not fail. If all fail, the error is that of the last one."""
    for run in values[:-1]:
        try:
            return run(value)
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
            continue
    return values[-1](value)
