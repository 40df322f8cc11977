"""Makes record types picklable, for other processes.

msgspec caches its data about a dataclass or a TypedDict in an attribute of the class, which can't be pickled. Spark and
joblib pickle the classes of a script or a notebook by value, with all attributes. The attribute is therefore removed:
msgspec creates it again on demand, and existing decoders keep their data.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import inspect

_CACHE: Final = "__msgspec_cache__"


def make_portable(record_type: Any) -> None:
    """Remove the attributes that prevent a type, and the types of its fields, from being pickled by value."""
    try:
        info = inspect.type_info(record_type)
    except (TypeError, ValueError, NameError):  # raised for pydantic models, which have no cache
        return
    _walk(info, set())


def _walk(info: Any, seen: set[int]) -> None:
    if isinstance(info, (list, tuple)):
        for part in info:
            _walk(part, seen)
        return
    if not isinstance(info, inspect.Type | inspect.Field) or id(info) in seen:
        return
    seen.add(id(info))
    kind = getattr(info, "cls", None)
    if isinstance(kind, type) and _CACHE in vars(kind):
        delattr(kind, _CACHE)
    for name in info.__struct_fields__:
        _walk(getattr(info, name), seen)
