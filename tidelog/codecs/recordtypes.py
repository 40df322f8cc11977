"""Record types: their fields, the types of the fields, and how values are read from a record.

Record types are msgspec Structs, dataclasses, TypedDicts, pydantic models, and dicts with names as keys.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import sys
import types
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag
from operator import attrgetter
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from tidelog.client.entries import Entry

_BYTES: Final = (bytes,)
#: Scalars: from msgspec's name of the type to its name here, and the Python types of its values.
_SCALARS: Final[dict[str, tuple[str, tuple[type, ...]]]] = {
    "StrType": ("str", (str,)), "IntType": ("int", (int,)), "FloatType": ("float", (float, int)),
    "BoolType": ("bool", (bool,)), "BytesType": ("bytes", (bytes, bytearray, memoryview)),
    "ByteArrayType": ("bytes", (bytes, bytearray, memoryview)), "DateTimeType": ("datetime", (datetime.datetime,)),
    "DateType": ("date", (datetime.date,)), "TimeType": ("time", (datetime.time,)),
    "TimeDeltaType": ("timedelta", (datetime.timedelta,)), "UUIDType": ("uuid", (uuid.UUID,)),
    "DecimalType": ("decimal", (decimal.Decimal,)), "EnumType": ("enum", ()), "LiteralType": ("literal", ()),
}  # fmt: skip
#: The names of the scalars, in display order.
KINDS: Final = tuple(dict.fromkeys(kind for kind, _ in _SCALARS.values()))
#: The names of constraints in msgspec.
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


class CodecError(TypeError):
    """A codec can't encode a record type or a record. The text names the type, the field and a remedy."""


class UndecodableError(ValueError):
    """An entry is not a record of the expected type. ``key`` is its stream, ``entry`` the original entry."""

    def __init__(self, key: bytes, entry: Entry, reason: str) -> None:
        super().__init__(f"entry {entry.id} of {key.decode(errors='backslashreplace')}: {reason}")
        self.key = key
        self.entry = entry
        self.reason = reason

    def __reduce__(self) -> tuple[type[UndecodableError], tuple[bytes, Entry, str]]:
        return UndecodableError, (self.key, self.entry, self.reason)


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field of a record type."""

    attribute: str  # its name in Python
    name: str  # its name in an entry
    kind: str  # a value of _SCALARS, or "json" for anything that is not a single scalar
    nullable: bool  # whether it can be None
    default_is_none: bool  # whether it is None if it is missing
    required: bool
    accepts: tuple[type, ...]  # Python types of its values; empty unless it is a scalar
    narrower: bool  # whether it rejects some values of these types


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """The fields and properties of a record type."""

    type: Any  # the declared type
    title: str  # its name in messages
    fields: tuple[RecordField, ...]  # in the order of declaration; empty: a dict, with any names
    mapping: bool  # records are dicts: a TypedDict, or a dict
    pydantic: bool
    value: RecordField | None  # the values of a dict
    why_not_flat: str  # why it has no plain form; "" if it has one
    reads_back: bool  # whether a decoded record may differ from the original or be invalid, so that it must be compared

    def made(self, values: dict[str, Any]) -> Any:
        """Construct a record from the values of its fields, by their names in entries.

        Text is converted to numbers, times and so on according to the type. Bytes are used unchanged; text for a field
        with bytes is base64. Raises ValueError or TypeError if a value is invalid.
        """
        if self.pydantic:
            return self.type.model_validate(values, strict=False, by_name=True, by_alias=False)
        return msgspec.convert(values, self.type, strict=False, builtin_types=_BYTES)

    def check(self, record: object) -> None:
        """Raise CodecError unless the record has this type. Fields of a subclass would be lost, so it is refused."""
        if self.mapping:
            if not isinstance(record, dict):
                raise CodecError(f"a record must be a dict ({self.title}), not {shown(record)}")
        elif type(record) is not (get_origin(self.type) or self.type):
            raise CodecError(f"a record must be a {self.title}, not {shown(record)}")

    def all_are(self, records: Sequence[object]) -> bool:
        """Return whether ``check`` accepts all of these records. For dicts, False does not mean that it refuses one."""
        return set(map(type, records)) == {dict if self.mapping else get_origin(self.type) or self.type}

    def getter(self) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function from a record that is not a dict to its values, in the order of ``fields``."""
        names = [field.attribute for field in self.fields]
        get = attrgetter(*names)
        return get if len(names) > 1 else lambda record: (get(record),)


def schema_of(record_type: Any) -> RecordSchema:
    """Return the schema of a record type. Raises CodecError if it is not a record type."""
    if record_type is dict or get_origin(record_type) is dict:
        return _dict_shape(record_type)
    if _is_pydantic(record_type):
        hints = get_type_hints(record_type)
        fields = tuple(
            _field(name, name, hints[name], info.is_required(), info.get_default() is None)
            for name, info in record_type.model_fields.items()
        )
        return _shape(record_type, fields, mapping=False, pydantic=True)
    try:
        info: Any = inspect.type_info(record_type)
    except (TypeError, ValueError, NameError) as error:
        raise CodecError(f"{_title(record_type)} can't be used as a record type: {error}") from None
    if not isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        raise CodecError(
            f"{_title(record_type)} is not a record type: use a msgspec.Struct, a dataclass, a TypedDict, a pydantic"
            " model, or dict"
        )
    fields = tuple(
        _made(field.name, field.encode_name, field.type, field.required, field.default is None) for field in info.fields
    )
    why = ""
    if isinstance(info, inspect.StructType) and (info.tag is not None or info.array_like):
        why = "it is tagged" if info.tag is not None else "it is array_like"
    return _shape(record_type, fields, mapping=isinstance(info, inspect.TypedDictType), pydantic=False, why=why)


def _is_pydantic(record_type: Any) -> bool:
    """Return whether the type is a pydantic model. pydantic need not be installed."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(record_type, type) and issubclass(record_type, pydantic.BaseModel)


def _shape(
    record_type: Any, fields: tuple[RecordField, ...], mapping: bool, pydantic: bool, why: str = ""
) -> RecordSchema:
    if not fields:
        raise CodecError(f"{_title(record_type)} has no fields: an entry has at least one")
    for field in fields:
        if why:
            break
        if field.kind == "json":
            why = f"its field {field.name!r} is not one scalar"
        elif field.nullable and not field.required and not field.default_is_none and not mapping:
            why = f"its field {field.name!r} may be None and has another default: both would be a field left out"
    if not why and not any(field.required and not field.nullable for field in fields) and not mapping:
        why = "all of its fields may be left out, and an entry has at least one"
    if not pydantic and not why:
        _check_readable(record_type)
    reads_back = pydantic or any(field.narrower for field in fields) or _has_code(record_type)
    return RecordSchema(record_type, _title(record_type), fields, mapping, pydantic, None, why, reads_back)


def _check_readable(record_type: Any) -> None:
    """Raise CodecError if msgspec can describe a type but not decode it, such as one with an Enum of tuples."""
    try:
        msgspec.json.Decoder(record_type)
    except TypeError as error:
        raise CodecError(f"{_title(record_type)} can't be used as a record type: {error}") from None


def _has_code(record_type: Any) -> bool:
    """Return whether constructing a record runs code of the type, or omits fields."""
    kind = get_origin(record_type) or record_type
    left_out = dataclasses.is_dataclass(kind) and not all(field.init for field in dataclasses.fields(kind))
    return left_out or hasattr(kind, "__post_init__")


def _dict_shape(record_type: Any) -> RecordSchema:
    key, value = get_args(record_type) or (str, str)
    if key is not str:
        raise CodecError(f"{_title(record_type)}: the keys of a dict are names, so its key type is str")
    field = _field("a value", "a value", str if value is Any else value, required=True, default_is_none=False)
    why = "its values are not scalars" if field.kind == "json" else ""
    return RecordSchema(
        record_type, _title(record_type), (), mapping=True, pydantic=False, value=field, why_not_flat=why,
        reads_back=field.narrower,
    )  # fmt: skip


def _field(attribute: str, name: str, hint: Any, required: bool, default_is_none: bool) -> RecordField:
    try:
        info = inspect.type_info(hint)
    except (TypeError, ValueError, NameError):
        info = inspect.AnyType()
    return _made(attribute, name, info, required, default_is_none)


def _made(attribute: str, name: str, info: Any, required: bool, default_is_none: bool) -> RecordField:
    nullable = isinstance(info, inspect.NoneType)
    if isinstance(info, inspect.UnionType):
        nullable = any(isinstance(one, inspect.NoneType) for one in info.types)
        rest = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        info = rest[0] if len(rest) == 1 else info
    if isinstance(info, inspect.LiteralType) and None in info.values:
        nullable = True
    kind, accepted = _SCALARS.get(type(info).__name__, ("json", ()))
    if kind == "enum":
        accepted = (info.cls,)
    elif kind == "literal":
        accepted = tuple({type(value) for value in info.values})
    return RecordField(attribute, name, kind, nullable, default_is_none, required, accepted, _narrower(kind, info))


def _narrower(kind: str, info: Any) -> bool:
    """Return whether a field rejects some values of the types that it accepts."""
    if kind == "enum":
        return issubclass(info.cls, Flag)
    return kind == "literal" or any(getattr(info, name, None) is not None for name in _CONSTRAINTS)


def _title(record_type: Any) -> str:
    if isinstance(record_type, type) and get_origin(record_type) is None:
        return record_type.__name__
    if get_origin(record_type) in (Union, types.UnionType):
        return " | ".join(map(_title, get_args(record_type)))
    return str(record_type).replace("typing.", "")


def shown(value: object) -> str:
    """Return a value for a message: its type, and the start of its repr()."""
    text = repr(value)
    return f"{type(value).__name__} {text[:60] + '...' if len(text) > 60 else text}"
