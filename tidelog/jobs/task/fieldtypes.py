"""The Arrow types of a topic's fields: the columns of a batch's tables, and those that returned tables may have.

    str, time, timedelta, uuid, decimal, enum, literal   string        int    int64       float   double
    bool       bool                                      bytes  binary                    date    date32
    datetime   timestamp[us, UTC]
    list[T], set[T]   list<T>      dict[str, T]   map<string, T>       a struct's fields  struct<...>
    anything else, such as a union, or a list of them    string with JSON

Rule 1: The types depend only on the declaration, so all batches have the same columns. Only if a topic is declared as
        ``dict`` do they come from its settings; if these contain no field, there is one column: ``fields``, a map, with
        the codec plain, and ``data``, JSON, with the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import inspect

from tidelog.arrow.inference import KINDS
from tidelog.topics import Topic, TopicSettings

FIELDS: Final = "fields"
DATA: Final = "data"
SCALARS: Final[dict[type, pa.DataType]] = {
    inspect.IntType: pa.int64(), inspect.FloatType: pa.float64(), inspect.BoolType: pa.bool_(),
    inspect.BytesType: pa.binary(), inspect.ByteArrayType: pa.binary(), inspect.DateType: pa.date32(),
    inspect.DateTimeType: pa.timestamp("us", "UTC"), inspect.StrType: pa.string(), inspect.TimeType: pa.string(),
    inspect.TimeDeltaType: pa.string(), inspect.UUIDType: pa.string(), inspect.DecimalType: pa.string(),
}  # fmt: skip
_NATIVE: Final = (bytes, datetime, date)  # accepted by Arrow without conversion

Fix = Callable[[Any], Any]


@dataclass(frozen=True)
class ColumnField:
    """A field of a topic, and a column of its tables."""

    name: str
    kind: str  # as in the settings of the topic
    type: pa.DataType
    required: bool = False  # an entry without it can't be decoded as the declared type
    nullable: bool = True  # an entry may contain null
    is_json: bool = False  # text with JSON
    fix: Fix | None = None  # converts builtin values for Arrow; None: not needed

    def array(self, values: list[Any]) -> pa.Array:
        """Return an array of values, None for missing ones. Raises ArrowInvalid or TypeError if one does not fit."""
        if self.kind not in ("str", "int", "float", "bool", "bytes", "date", "datetime"):
            values = msgspec.to_builtins(values, builtin_types=_NATIVE, enc_hook=_dumped)
        if self.kind in ("enum", "literal"):
            values = [None if value is None else str(value) for value in values]
        if self.fix is not None:
            values = [None if value is None else self.fix(value) for value in values]
        return pa.array(values, self.type)


def fields_of(topic: Topic[Any], facts: TopicSettings) -> tuple[ColumnField, ...]:
    """Return the fields of a topic; empty if neither type nor settings define them."""
    shape = topic.codec.shape
    if not shape.fields:
        return tuple(_of_kind(name, kind) for name, kind in facts.fields.items())
    made = []
    infos = infos_of(shape.type) if any(field.kind == "json" for field in shape.fields) else {}
    for field in shape.fields:
        if field.kind == "json":
            kind, fix, is_json = _of_info(infos.get(field.name))
        else:
            kind, fix, is_json = KINDS.get(field.kind, pa.string()), None, False
        made.append(ColumnField(field.name, field.kind, kind, field.required, field.nullable, is_json, fix))
    return tuple(made)


def _of_kind(name: str, kind: str) -> ColumnField:
    if kind == "json":
        return ColumnField(name, kind, pa.string(), is_json=True, fix=as_json)
    return ColumnField(name, kind, KINDS.get(kind, pa.string()))


def infos_of(record_type: Any) -> dict[str, Any]:
    """Return msgspec's description of each field, by its name in entries; also for pydantic's models."""
    if hasattr(record_type, "model_fields"):
        return {name: _info(field.annotation) for name, field in record_type.model_fields.items()}
    info: Any = inspect.type_info(record_type)
    return {field.encode_name: field.type for field in info.fields}


def _info(hint: Any) -> Any:
    try:
        return inspect.type_info(hint)
    except (TypeError, ValueError, NameError):
        return inspect.AnyType()


def _of_info(info: Any) -> tuple[pa.DataType, Fix | None, bool]:
    """Return the type of a field, the conversion of its values, and whether they are JSON."""
    if isinstance(info, inspect.UnionType):
        rest = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        info = rest[0] if len(rest) == 1 else info
    known = SCALARS.get(type(info))
    if known is not None:
        return known, None, False
    if isinstance(info, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType):
        kind, fix, is_json = _of_info(info.item_type)
        if not is_json:
            return pa.list_(kind), None if fix is None else _each(fix), False
    if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
        kind, fix, is_json = _of_info(info.value_type)
        if not is_json:
            return pa.map_(pa.string(), kind), _pairs(fix), False
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType) and not (
        isinstance(info, inspect.StructType) and (info.tag is not None or info.array_like)
    ):
        parts = {field.encode_name: _of_info(field.type) for field in info.fields}
        if not any(is_json for _, _, is_json in parts.values()):
            struct = pa.struct([(name, kind) for name, (kind, _, _) in parts.items()])
            fixes = {name: fix for name, (_, fix, _) in parts.items() if fix is not None}
            return struct, _members(fixes) if fixes else None, False
    return pa.string(), as_json, True


def _dumped(value: Any) -> Any:
    """Convert a pydantic model, which msgspec does not support. Raises TypeError for anything else."""
    if hasattr(value, "model_dump"):
        return value.model_dump(by_alias=False)
    raise TypeError(f"{type(value).__name__} is not a type that a column can contain")


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def _maybe(fix: Fix | None, value: Any) -> Any:
    return value if fix is None or value is None else fix(value)


def _each(fix: Fix) -> Fix:
    return lambda values: [_maybe(fix, value) for value in values]


def _pairs(fix: Fix | None) -> Fix:
    return lambda values: [(name, _maybe(fix, value)) for name, value in values.items()]


def _members(fixes: dict[str, Fix]) -> Fix:
    return lambda values: {name: _maybe(fixes.get(name), value) for name, value in values.items()}
