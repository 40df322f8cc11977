"""Bulk conversion of values of one type to records (see ``records``) and back.

Rule 1: Every record carries a type tag, so a value is never decoded as another type; a mismatch raises StateError,
        which names the stored type.
Rule 2: Equal values encode to equal records in every process; sets and dicts are encoded in a canonical order.
        Comparing the digests of an epoch therefore shows whether a function is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.jobs.store.records import plain

Values: TypeAlias = Iterable[Any] | pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]

KINDS: Final = {"b": "bytes", "s": "str", "i": "int", "j": "int", "f": "float", "m": "a msgpack type"}
_INT: Final = np.dtype([("tag", "u1"), ("value", "<i8")])
_FLOAT: Final = np.dtype([("tag", "u1"), ("value", "<f8")])


class ValueCodec:
    """Converts values of one type to records and back.

    ``encode`` and ``decode`` raise TypeError and ValueError (including msgspec's errors) if a value is not of the type;
    ``first_wrong`` finds it.
    """

    def __init__(self, type_: Any) -> None:
        self.name = getattr(type_, "__name__", str(type_))
        self.encode, self.decode = _functions(type_)

    def first_wrong(self, values: Sequence[Any], convert: Callable[[list[Any]], Any]) -> tuple[int, str]:
        """Return the index of the first value that ``convert`` (``encode`` or ``decode``) rejects, and the reason."""
        for at, value in enumerate(values):
            try:
                convert([value])
            except (TypeError, ValueError, OverflowError) as error:
                return at, str(error)
        return 0, ""


def as_list(values: Values) -> list[Any]:
    """Return the values of an array as Python objects."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        found: list[Any] = values.to_pylist()
        return found
    if isinstance(values, np.ndarray):
        return list(values.tolist())
    return values if isinstance(values, list) else list(values)


def _functions(type_: Any) -> tuple[Callable[[list[Any]], list[bytes]], Callable[[Sequence[bytes]], list[Any]]]:
    if type_ is bytes:
        return _from_bytes, lambda records: [record[1:] for record in _tagged(records, "b")]
    if type_ is str:
        return _from_str, lambda records: [record[1:].decode() for record in _tagged(records, "s")]
    if type_ is int:
        return _from_int, _to_int
    if type_ is float:
        return _from_float, _to_float
    encode = msgspec.msgpack.Encoder(order="deterministic").encode
    decode = msgspec.msgpack.Decoder(type_).decode  # raises TypeError for a type that msgspec does not support
    classes = type_ if isinstance(type_, type) else object

    def encoded(values: list[Any]) -> list[bytes]:
        for kind in set(map(type, values)):
            if not issubclass(kind, classes):
                raise TypeError(f"{kind.__name__} instead of {type_.__name__}")
        return [b"m" + encode(value) for value in values]

    return encoded, lambda records: [decode(memoryview(record)[1:]) for record in _tagged(records, "m")]


def _tagged(records: Sequence[bytes], tag: str) -> list[bytes]:
    """Return the records without deadlines. Raises TypeError unless all have the tag."""
    found = {record[0] for record in records}
    if found - {ord(tag)}:
        records = [plain(record) for record in records]
        other = {record[0] for record in records} - {ord(tag)}
        if other:
            raise TypeError(f"{KINDS.get(chr(min(other)), 'something else')} is stored")
    return list(records)


def _from_bytes(values: list[Any]) -> list[bytes]:
    _only(values, bytes)
    return [b"b" + value for value in values]


def _from_str(values: list[Any]) -> list[bytes]:
    _only(values, str)
    return [b"s" + value.encode() for value in values]


def _only(values: list[Any], kind: type) -> None:
    others = set(map(type, values)) - {kind}
    if others:
        for other in others:
            if not issubclass(other, kind) or other is bool:
                raise TypeError(f"{other.__name__} instead of {kind.__name__}")


def _from_int(values: list[Any]) -> list[bytes]:
    if set(map(type, values)) - {int}:
        for value in values:
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
                raise TypeError(f"{type(value).__name__} instead of int")
        values = [int(value) for value in values]
    table = np.empty(len(values), _INT)
    table["tag"] = ord("i")
    try:
        table["value"] = values
    except OverflowError:
        return [_one_int(value) for value in values]
    made: list[bytes] = table.view("V9").tolist()
    return made


def _one_int(value: int) -> bytes:
    if -(1 << 63) <= value < 1 << 63:
        return b"i" + value.to_bytes(8, "little", signed=True)
    return b"j%d" % value


def _to_int(records: Sequence[bytes]) -> list[Any]:
    joined = b"".join(records)
    count = len(records)
    if len(joined) != 9 * count or joined[::9] != b"i" * count:
        records = [plain(record) for record in records]
        if any(record[0] == ord("j") for record in records):
            return [int(record[1:]) if record[0] == ord("j") else _to_int([record])[0] for record in records]
        joined = b"".join(_tagged(records, "i"))
    found: list[Any] = np.frombuffer(joined, _INT)["value"].tolist()
    return found


def _from_float(values: list[Any]) -> list[bytes]:
    if set(map(type, values)) - {float}:
        for value in values:
            if not isinstance(value, (float, int, np.floating, np.integer)) or isinstance(value, bool):
                raise TypeError(f"{type(value).__name__} instead of float")
    table = np.empty(len(values), _FLOAT)
    table["tag"] = ord("f")
    table["value"] = values
    made: list[bytes] = table.view("V9").tolist()
    return made


def _to_float(records: Sequence[bytes]) -> list[Any]:
    found: list[Any] = np.frombuffer(b"".join(_tagged(records, "f")), _FLOAT)["value"].tolist()
    return found
