"""Functions of objects and lists. ``items``, ``from_items``, ``zip`` and ``group_by`` are those of JMESPath Community
(JEP-13, JEP-18).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidelog.flows.expressions.declare import (
    ANY,
    EXPRESSION,
    INTEGER,
    LIST,
    MOST_ITEMS,
    OBJECT,
    STRING,
    described,
    function,
    limited,
)

_NAMES = '`{"id": 7, "name": "Ann", "card": "1234"}`'


@function(OBJECT, STRING, example=f"pick({_NAMES}, 'id', 'name')", result={"id": 7, "name": "Ann"})
def pick(object_: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns an object with only these fields."""
    return {name: object_[name] for name in names if name in object_}


@function(OBJECT, STRING, example=f"drop({_NAMES}, 'card')", result={"id": 7, "name": "Ann"})
def drop(object_: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns an object without these fields."""
    left = object_.copy()
    for name in names:
        left.pop(name, None)
    return left


@function(ANY, ANY, ANY, example="get(`{\"Rome\": \"IT\"}`, 'Oslo', 'unknown')", result="unknown")
def get(value: Any, key: Any, default: Any = None) -> Any:
    """Returns the field of an object or the item of a list whose name or position is computed, or the default."""
    if isinstance(value, dict):
        if not isinstance(key, str):
            raise ValueError(
                f"argument 2 (key) is {described(key)}: it must be a string, because the value is an object"
            )
        return value.get(key, default)
    if isinstance(value, list):
        if not isinstance(key, int):
            raise ValueError(
                f"argument 2 (key) is {described(key)}: it must be a whole number, because the value is a list"
            )
        return value[key] if -len(value) <= key < len(value) else default
    if value is None:
        return default
    raise ValueError(f"argument 1 (value) is {described(value)}: it must be an object or a list")


@function(OBJECT, STRING, example=f"has({_NAMES}, 'card')", result=True)
def has(object_: dict[str, Any], name: str) -> bool:
    """Returns whether an object has a field, even if it is null."""
    return name in object_


@function(OBJECT, OBJECT, example='merge_deep(`{"a": {"b": 1}}`, `{"a": {"c": 2}}`)', result={"a": {"b": 1, "c": 2}})
def merge_deep(object_: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merges two objects, and the objects in them. Other values of the second one replace those of the first one."""
    merged = object_.copy()
    for name, value in other.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = merge_deep(before, value) if both else value  # type: ignore[arg-type] # a dict
    return merged


@function(OBJECT, example='items(`{"a": 1}`)', result=[["a", 1]])
def items(object_: dict[str, Any]) -> list[list[Any]]:
    """Returns the fields as pairs of a name and a value."""
    return [[name, value] for name, value in object_.items()]


@function(LIST, example='from_items(`[["a", 1]]`)', result={"a": 1})
def from_items(pairs: list[Any]) -> dict[str, Any]:
    """Returns an object of pairs of a name and a value."""
    for number, each in enumerate(pairs):
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            raise ValueError(f"item {number} is {described(each)}: it must be a list of a string and a value")
    return dict(pairs)


@function(LIST, example='zip(`[1, 2]`, `["a", "b"]`)', result=[[1, "a"], [2, "b"]])
def zip_(*lists: list[Any]) -> list[list[Any]]:
    """Combines the first items of lists, their second items, and so on, up to the end of the shortest list."""
    return list(map(list, zip(*lists, strict=False)))


@function(LIST, EXPRESSION, example='group_by(`[{"n": 1, "c": "a"}]`, &c)', result={"a": [{"n": 1, "c": "a"}]})
def group_by(list_: list[Any], expression: Callable[[Any], Any]) -> dict[str, list[Any]]:
    """Groups the items by a string. Items for which it is null are omitted."""
    groups: dict[str, list[Any]] = {}
    for each in list_:
        key = expression(each)
        if isinstance(key, str):
            groups.setdefault(key, []).append(each)
        elif key is not None:
            raise ValueError(f"the &expression is {described(key)} for an item: it must be a string")
    return groups


@function(LIST, EXPRESSION, example="unique(`[2, 1, 2]`)", result=[2, 1])
def unique(list_: list[Any], expression: Callable[[Any], Any] | None = None) -> list[Any]:
    """Returns the items that differ from all items before them, or whose value of an ``&expression`` does."""
    found: dict[Any, Any] = {}
    for each in list_:
        key = each if expression is None else expression(each)
        plain = isinstance(key, str) or type(key) is int
        found.setdefault(key if plain else msgspec.json.encode(key, order="deterministic"), each)
    return list(found.values())


@function(LIST, EXPRESSION, example="any(`[1, 20]`, &(@ > 10))", result=True)
def any_(list_: list[Any], expression: Callable[[Any], Any]) -> bool:
    """Returns whether an ``&expression`` is ``true`` for an item. It must be a comparison, or a boolean."""
    return any(_boolean(expression(each)) for each in list_)


@function(LIST, EXPRESSION, example="all(`[1, 20]`, &(@ > 10))", result=False)
def all_(list_: list[Any], expression: Callable[[Any], Any]) -> bool:
    """Returns whether an ``&expression`` is ``true`` for all items."""
    return all(_boolean(expression(each)) for each in list_)


def _boolean(value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ValueError(f"the &expression is {described(value)} for an item: it must be true or false")


@function(LIST, ANY, example='index_of(`["a", "b"]`, \'b\')', result=1)
def index_of(list_: list[Any], value: Any) -> int | None:
    """Returns the position of the first item that equals a value, or null."""
    return list_.index(value) if value in list_ else None


@function(INTEGER, INTEGER, example="range(0, 3)", result=[0, 1, 2])
def range_(start: int, end: int) -> list[int]:
    """Returns the whole numbers from ``start`` up to, and not including, ``end``."""
    limited(end - start, MOST_ITEMS)
    return list(range(start, end))
