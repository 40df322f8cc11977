"""Converts entries to values, and values to entries.

    plain     the value is a dict with the entry's fields: text, or bytes if a field is not UTF-8
    json      the whole value is in the field ``data`` as JSON, as in topics
    msgpack   the same in MessagePack

The trace context of an entry (``tidelog.client.tracecontext``) is in the metadata of its event, not in the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from tidelog.client import tracecontext
from tidelog.client.tracecontext import TraceContext
from tidelog.flows.api.errors import RejectError
from tidelog.transport.call import Value

FieldCodec = Literal["plain", "json", "msgpack"]
Written = tuple[tuple[Any, ...], Sequence[Value]]  # names, values

FIELD: Final = "data"  # as in tidelog.codecs.packed
ALONE: Final = "value"  # the field for a value without field names
_FIELDS: Final = (FIELD,)
_AS_THEY_ARE: Final = frozenset((str, bytes, int, float))


class EntryCodec:
    """One of the three codecs."""

    def __init__(self, name: FieldCodec) -> None:
        self.name = name
        self.decode = _FieldCodec().decode if name == "plain" else _DataCodec(name).decode
        self.encode = _fields if name == "plain" else _DataCodec(name).encode


def with_context(written: Written, meta: Mapping[str, Any], context: TraceContext = tracecontext.NONE) -> Written:
    """Return names and values with the trace context in ``meta``; ``context`` if ``meta`` has none."""
    names, values = written
    more, texts = tracecontext.of_mapping(meta) if tracecontext.PARENT in meta else context
    if not more or tracecontext.has_either(names):
        return written
    return (*names, *more), [*values, *texts]


def entry_size(names: Iterable[Any], values: Iterable[Value]) -> int:
    """Return the size of an entry's fields in bytes. Text that is not ASCII counts as its number of characters."""
    return sum(len(each) if isinstance(each, (str, bytes)) else len(str(each)) for each in (*names, *values))


class _FieldCodec:
    """Decodes ``plain``. It caches the field names of the last entry, because most entries of a stream share them."""

    def __init__(self) -> None:
        self._raw: Sequence[bytes] = ()
        self._names: list[str] = []

    def decode(self, flat: Sequence[bytes]) -> Any:
        """Return the dict. ``flat``: names and values in turn."""
        raw, values = flat[::2], flat[1::2]
        if raw != self._raw:
            self._names = [_name(each) for each in raw]
            self._raw = raw
        try:
            return dict(zip(self._names, map(bytes.decode, values), strict=True))
        except UnicodeDecodeError:
            return dict(zip(self._names, map(_text, values), strict=True))


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _fields(value: Any) -> Written:
    """Return names and values. Raises RejectError if the entry would have no field, or one can't be encoded."""
    if type(value) is not dict:
        value = dict(value) if isinstance(value, Mapping) else {ALONE: value}
    if tracecontext.has_either(value):
        names = list(value)
        value = {names[at]: value[names[at]] for at in tracecontext.first_those(names)}
    if _AS_THEY_ARE.issuperset(map(type, value.values())) and value:
        return tuple(value), list(value.values())
    made = {str(name): _plain(each) for name, each in value.items() if each is not None}
    if not made:
        raise RejectError("an entry needs at least one field, and this value has none that is not null")
    return tuple(made), list(made.values())


def _plain(value: Any) -> Value:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        known: Value = value
        return known
    if kind is bool:
        return "true" if value else "false"
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise RejectError(f"a {kind.__name__} can't be written: {error}") from None


class _DataCodec:
    def __init__(self, form: str) -> None:
        self._form = form
        self._encoder: Any = (msgspec.json.Encoder() if form == "json" else msgspec.msgpack.Encoder()).encode
        self._decoder: Any = (msgspec.json.Decoder() if form == "json" else msgspec.msgpack.Decoder()).decode

    def decode(self, flat: Sequence[bytes]) -> Any:
        """Return the value. Raises ValueError if the entry has no field ``data``, or it is not valid."""
        if len(flat) == 2 and flat[0] == b"data":
            return self._decoder(flat[1])
        for at in range(0, len(flat), 2):
            if flat[at] == b"data":
                return self._decoder(flat[at + 1])
        raise ValueError(f"the entry has no field {FIELD!r}, which codec {self._form} needs: use codec: plain")

    def encode(self, value: Any) -> Written:
        """Return the names and values. Raises RejectError if the value can't be encoded."""
        try:
            return _FIELDS, (self._encoder(value),)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RejectError(f"a value can't be written as {self._form}: {error}") from None
