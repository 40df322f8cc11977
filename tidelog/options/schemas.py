"""JSON schemas of options, as the components of an OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from tidelog.options.onerror import ErrorPolicy
from tidelog.options.start import StartPosition
from tidelog.options.units import Duration, Size

REF: Final = "#/components/schemas/{name}"
_KINDS: Final[dict[type, dict[str, Any]]] = {
    Duration: {"type": ["number", "string"], "description": "seconds, or text such as 200ms, 5s, 1m30s"},
    Size: {"type": ["integer", "string"], "description": "bytes, or text such as 64KB, 1MB"},
    StartPosition: {"type": "string", "description": "earliest, latest, an ID, or a time with its zone"},
}


def schemas(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """Return the schemas of structures, and of those that they contain, by name."""
    _, found = msgspec.json.schema_components(map(_plain, kinds), schema_hook=_schema, ref_template=REF)
    return found


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, ErrorPolicy):
        steps = [{"enum": kind.actions()}, {"type": "object", "required": ["retry"]}]
        about = "retry: {...}, if any, and the final action"
        return {"type": "array", "minItems": 1, "items": {"anyOf": steps}, "description": about}
    return next(dict(schema) for each, schema in _KINDS.items() if issubclass(kind, each))


@cache
def _plain(kind: Any) -> Any:
    """Return a type whose structures have defaults that msgspec can describe: no subclasses of float, int and str."""
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(map(_plain, get_args(kind)))]  # noqa: UP007 - the members are computed
    if get_origin(kind) in (list, dict):
        return get_origin(kind)[tuple(map(_plain, get_args(kind)))]
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return kind
    fields: list[Any] = []
    for each in msgspec.structs.fields(kind):
        base = next((one.__base__ for one in _KINDS if isinstance(each.default, one)), None)
        default: Any = {
            "default": each.default if base is None else base(each.default), "default_factory": each.default_factory
        }  # fmt: skip
        fields.append((each.encode_name, _plain(each.type), msgspec.field(**default)))
    strict = kind.__struct_config__.forbid_unknown_fields
    return msgspec.defstruct(kind.__name__, fields, namespace={"__doc__": kind.__doc__}, kw_only=True,
                             forbid_unknown_fields=strict)  # fmt: skip
