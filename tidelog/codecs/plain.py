"""The plain form: every field of a record is a field of the entry, its value as text.

    str    UTF-8            bool                   true, false
    bytes  unchanged        datetime, date, time   ISO 8601
    int    decimal          timedelta              ISO 8601 (PT5S)
    float  repr()           UUID, Decimal, Enum    text, or value
    None   the field is omitted

Decoding returns every value of these types unchanged. If a type can reject values (by a constraint, a Literal, a
validator), each encoded record is decoded immediately and compared.

Rule 1: records with the same types of values share a plan, so types are checked once per combination, not once per
        record.
Rule 2: fields that the type does not have are ignored when an entry is decoded: a newer program may have added them.
Rule 3: the trace context of an entry (``tidelog.client.tracecontext``) is no part of a record that is a dict. Fields of
        a dict with these names are therefore written first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from tidelog.client import tracecontext
from tidelog.client.entries import Entry
from tidelog.codecs.recordtypes import CodecError, RecordField, RecordSchema, UndecodableError, shown
from tidelog.codecs.roundtrip import difference
from tidelog.transport.call import Value

R = TypeVar("R")
_PLANS: Final = 1000  # combinations of types that are cached
_SENT_UNCHANGED: Final = (str, bytes, int, float)


class _Plan(NamedTuple):
    """How records with certain types of values are encoded."""

    fields: tuple[str, ...]
    texts: tuple[int, ...]  # indexes of values that are str
    steps: tuple[tuple[int, Callable[[Any], Value] | None], ...] | None  # None: the values are sent unchanged


class Plain(Generic[R]):
    """The plain codec of a record type. Raises CodecError if the type has no plain form."""

    name = "plain"

    def __init__(self, shape: RecordSchema) -> None:
        if shape.why_not_flat:
            raise CodecError(f"{shape.title} has no plain form: {shape.why_not_flat}. codec='json' takes any record")
        self.shape = shape
        self.plans: dict[tuple[Any, ...], _Plan] = {}
        self._get = shape.getter() if shape.fields and not shape.mapping else None
        self._traced = not tracecontext.has_either(field.name for field in shape.fields)
        self._named = {field.name: field for field in shape.fields}
        self._read: dict[bytes, tuple[str, bool]] = {  # name in the entry -> name for msgspec, whether it is bytes
            field.name.encode(): (field.name, field.kind == "bytes") for field in shape.fields
        }
        #: The names of the last entry with text only and with distinct, known names, and their names for msgspec.
        self._usual: tuple[tuple[bytes, ...], tuple[str, ...]] = ((), ())
        #: Fields without a default that are None if an entry lacks them.
        self._nulls = [field.name for field in shape.fields if field.required and field.nullable]

    def encode(self, record: R) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Return the names and values of the entry. Raises CodecError if the record does not have this type."""
        self.shape.check(record)
        kinds: tuple[Any, ...]
        if self._get is not None:
            names: tuple[str, ...] = ()
            values = self._get(record)
            kinds = tuple(map(type, values))
        else:
            held: dict[str, Any] = record  # type: ignore[assignment]  # checked
            names = tuple(held)
            values = tuple(held.values())
            kinds = (names, *map(type, values))
        plan = self._plan(kinds, names, values)
        for at in plan.texts:
            if not values[at].isascii():
                self._check_text(values[at])
        row: tuple[Value, ...] = values
        if plan.steps is not None:
            try:
                row = tuple([values[at] if text is None else text(values[at]) for at, text in plan.steps])
            except InexactError as error:
                raise self._inexact(str(error)) from None
        if self.shape.reads_back:
            self._read_again(record, plan.fields, row)
        return plan.fields, row

    def encode_alike(self, records: Sequence[R]) -> tuple[tuple[str, ...], Sequence[tuple[Value, ...]]] | None:
        """Return the names and values of entries, encoded by column. Returns None if the types of values differ."""
        if not records or not self.shape.all_are(records):
            return None
        names: tuple[str, ...] = ()
        if self._get is None:
            held: Sequence[dict[str, Any]] = records  # type: ignore[assignment]  # checked
            shapes = set(map(tuple, held))
            if len(shapes) > 1:
                return None
            (names,) = shapes
            rows = [tuple(record.values()) for record in held]
        else:
            rows = list(map(self._get, records))
        columns = list(zip(*rows, strict=True))
        kinds = [set(map(type, column)) for column in columns]
        if any(len(some) > 1 for some in kinds):
            return None
        types = [kind for some in kinds for kind in some]
        plan = self._plan((names, *types) if self._get is None else tuple(types), names, rows[0])
        written: list[tuple[Value, ...]] = rows
        if plan.steps is not None:
            made = [columns[at] if text is None else map(text, columns[at]) for at, text in plan.steps]
            try:
                written = list(zip(*made, strict=True))
            except InexactError as error:
                raise self._inexact(str(error)) from None
        if self.shape.reads_back:
            for record, row in zip(records, written, strict=True):
                self._read_again(record, plan.fields, row)
        return plan.fields, written

    def decode(self, entry: Entry, key: bytes) -> R:
        """Return the record. Raises UndecodableError if the entry is invalid. ``key``: its stream, for the message."""
        flat = entry.flat
        try:
            made: R = self.shape.made(self._values(flat[::2], flat[1::2]))
        except UnicodeDecodeError as error:
            raise UndecodableError(key, entry, f"{error.object!r} is not UTF-8") from None
        except (ValueError, TypeError) as error:  # msgspec's and pydantic's ValidationErrors are ValueErrors
            raise UndecodableError(key, entry, f"not a {self.shape.title}: {error}") from None
        return made

    # -- reading ---------------------------------------------------------------------------------------------
    def _values(self, names: tuple[bytes, ...], values: tuple[bytes, ...]) -> dict[str, Any]:
        value_field = self.shape.value
        if value_field is not None:
            if traced := tracecontext.count(names):
                names, values = names[:-traced], values[:-traced]
            raw = value_field.kind == "bytes"
            pairs = zip(names, values, strict=True)
            return {name.decode(): value if raw else value.decode() for name, value in pairs}
        usual, fields = self._usual  # one read: threads share a codec
        if names != usual and self._traced and (traced := tracecontext.count(names)) and names[:-traced] == usual:
            names, values = usual, values[:-traced]
        if names == usual:
            return dict(zip(fields, [value.decode() for value in values], strict=True))
        found: dict[str, Any] = dict.fromkeys(self._nulls)
        read = self._read
        for name, value in zip(names, values, strict=True):
            known = read.get(name)
            if known is not None:
                found[known[0]] = value if known[1] else value.decode()
        if len(found) == len(names) and not self._nulls and not any(read[name][1] for name in names):
            self._usual = names, tuple(found)
        return found

    def _plan(self, kinds: tuple[Any, ...], names: tuple[str, ...], values: tuple[Any, ...]) -> _Plan:
        """Return the plan for records with these types; ``values`` are those of one record. Raises CodecError."""
        plan = self.plans.get(kinds)
        if plan is None:
            plan = self._planned(names, values)
            if len(self.plans) >= _PLANS:
                self.plans.clear()
            self.plans[kinds] = plan
        return plan

    # -- writing ---------------------------------------------------------------------------------------------
    def _planned(self, names: tuple[str, ...], values: tuple[Any, ...]) -> _Plan:
        """Check the types of the values of one record, and return the plan for such records."""
        fields = list(self.shape.fields) if self._get is not None else [self._field(name) for name in names]
        if self.shape.mapping:
            missing = [field.name for field in self.shape.fields if field.required and field.name not in names]
            if missing:
                raise CodecError(f"{self.shape.title}: no field {missing[0]!r}")
        kept = []
        for at, (field, value) in enumerate(zip(fields, values, strict=True)):
            if value is None and field.nullable:
                continue
            other = isinstance(value, bool) and bool not in field.accepts  # bool is a subclass of int, datetime of date
            other = other or (field.kind == "date" and isinstance(value, datetime))
            if other or not isinstance(value, field.accepts):
                raise CodecError(
                    f"{self.shape.title}: the field {(names[at] if names else field.name)!r} is {field.kind},"
                    f" not {shown(value)}"
                )
            kept.append((at, _writer(type(value), field.kind)))
        if not kept:
            raise CodecError(f"{self.shape.title}: a record without a value, and an entry has at least one field")
        written = names or tuple(field.name for field in fields)
        direct = len(kept) == len(values) and all(text is None for _, text in kept)
        if self.shape.value is not None and tracecontext.has_either(written):
            kept = [kept[at] for at in tracecontext.first_those([written[at] for at, _ in kept])]
            direct = False
        for name in names:
            self._check_text(name)
        texts = tuple(at for at, _ in kept if isinstance(values[at], str))
        return _Plan(tuple(written[at] for at, _ in kept), texts, None if direct else tuple(kept))

    # -- checks --------------------------------------------------------------------------------------------------
    def _read_again(self, record: R, fields: tuple[str, ...], row: tuple[Value, ...]) -> None:
        """Raise CodecError unless decoding returns the same record."""
        names = tuple(name.encode() for name in fields)
        try:
            back = self.shape.made(self._values(names, tuple(map(_bytes, row))))
        except Exception as error:  # noqa: BLE001 - user-defined types may raise anything
            raise CodecError(f"{self.shape.title}: a record could not be read again: {error}") from None
        if found := difference(record, back):
            raise self._inexact(found)

    def _check_text(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CodecError(f"{self.shape.title}: a text can't be written: {error}") from None

    def _inexact(self, what: str) -> CodecError:
        return CodecError(f"{self.shape.title}: decoding would not return the same record: {what}")

    def _field(self, name: str) -> RecordField:
        if not isinstance(name, str):
            raise CodecError(f"{self.shape.title}: a name must be str, not {shown(name)}")
        field = self.shape.value or self._named.get(name)
        if field is None:
            raise CodecError(f"{self.shape.title} has no field {name!r}")
        return field


class InexactError(ValueError):
    """Decoding would not return a value unchanged. The text describes the difference."""


def _bytes(value: Value) -> bytes:
    """Return a value as it is sent to the server."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()


def _whole(value: int) -> int:
    """Encode an int for a field that is float."""
    try:
        same = float(value) == value
    except OverflowError:
        same = False
    if not same:
        raise InexactError(f"int {value if abs(value) < 10**60 else '...'} is not a float: it would be rounded")
    return int(value)


def _moment(value: Any) -> Value:
    """Encode a time. ISO 8601 has no seconds in the offset from UTC, which some historical zones have."""
    if value.tzinfo is not None:
        offset = value.utcoffset()
        if offset is not None and offset.total_seconds() % 60:
            raise InexactError(f"the zone of {value!r} has seconds: use value.astimezone(UTC)")
    return _text(value)


def _writer(kind: type, field: str) -> Callable[[Any], Value] | None:
    """Return a function that encodes values of this type for a field of this kind; None: they are sent unchanged."""
    if field == "float" and issubclass(kind, int):
        return _whole
    if field in ("datetime", "time"):
        return _moment
    if kind in _SENT_UNCHANGED:
        return None
    if kind is bool:
        return lambda value: b"true" if value else b"false"
    if kind in (bytearray, memoryview):
        return bytes
    if issubclass(kind, Enum):
        return lambda value: _text(value.value)
    for base in _SENT_UNCHANGED:
        if issubclass(kind, base):
            return base.__str__ if base is str else base
    return _text


def _text(value: Any) -> Value:
    plain = msgspec.to_builtins(value)
    if isinstance(plain, bool):
        return b"true" if plain else b"false"
    return plain if isinstance(plain, int | float) else str(plain)
