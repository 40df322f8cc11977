"""The packed form: the record is one field, ``data``, in JSON or MessagePack, optionally compressed with zstd.

Unlike the plain form, it supports nested records, lists and unions. msgspec decodes the records, or pydantic if the
type is a pydantic model.

Rule 1: each encoded record is decoded immediately and compared with the original: JSON has no NaN, a value may not have
        the type of its field, a serializer may hide or lose data. This costs about as much as encoding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import zstandard

from tidelog.client.entries import Entry
from tidelog.codecs.recordtypes import CodecError, RecordSchema, UndecodableError
from tidelog.codecs.roundtrip import NO_NUMBER, difference
from tidelog.transport.call import Value

R = TypeVar("R")
FIELD: Final = "data"
LARGEST: Final = 512 << 20  # bytes of a record after decompression: the limit of a bulk string
_FIELDS: Final = (FIELD,)
#: Computed fields are excluded, since models that forbid extra fields reject them. Warnings are redundant (Rule 1).
_WHOLE: Final[dict[str, Any]] = {"by_alias": False, "round_trip": True, "warnings": False}
_REMEDY: Final = "Declare a type that has this value, or send a value of the declared type"


class _Zstd(threading.local):
    """A compressor and a decompressor for each thread, since they are not thread-safe."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor()
        self.decompressor = zstandard.ZstdDecompressor()


class Packed(Generic[R]):
    """The packed codec of a record type. ``form`` is ``json`` or ``msgpack``."""

    def __init__(self, shape: RecordSchema, form: str, compressed: bool) -> None:
        self.shape = shape
        self.name = f"{form}+zstd" if compressed else form
        try:
            self._write, self._parse = _pydantic(shape.type, form) if shape.pydantic else _msgspec(shape.type, form)
        except TypeError as error:
            raise CodecError(f"{shape.title} can't be read as {form}: {error}") from None
        self._zstd = _Zstd() if compressed else None

    def encode(self, record: R) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Return the name and value of the entry. Raises CodecError if decoding would not return the same record."""
        self.shape.check(record)
        data = self._written(record)
        try:
            back = self._parse(data)
            same = back == record
        except Exception as error:  # noqa: BLE001 - user-defined types may raise anything
            self._compare_parts(record, data, error)
        else:
            if not same and (found := difference(record, back)):
                raise CodecError(f"{self.shape.title}: decoding would not return the same record: {found}. {_REMEDY}")
        return _FIELDS, (self._compressed(data),)

    def written(self, record: R) -> bytes:
        """Return the value of the field, without the comparison. Raises CodecError if the record can't be encoded."""
        return self._compressed(self._written(record))

    def _written(self, record: R) -> bytes:
        try:
            return self._write(record)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise CodecError(f"{self.shape.title}: a record can't be written as {self.name}: {error}") from None

    def _compressed(self, data: bytes) -> bytes:
        return data if self._zstd is None else self._zstd.compressor.compress(data)

    def _compare_parts(self, record: R, data: bytes, error: Exception) -> None:
        """Raise CodecError if decoding fails or changes the record; pass if only comparing the records failed."""
        try:
            back = self._parse(data)
        except Exception:  # noqa: BLE001 - as above
            text = str(error)
            hint = f" ({NO_NUMBER})" if ("null" in text and "float" in text) or "valid number" in text else ""
            raise CodecError(f"{self.shape.title}: a record could not be read again: {text}{hint}") from None
        if found := difference(record, back):
            raise CodecError(f"{self.shape.title}: decoding would not return the same record: {found}. {_REMEDY}")

    def encode_alike(self, records: Sequence[R]) -> tuple[tuple[str, ...], list[tuple[Value, ...]]]:
        """Return the name and the values of the entries. Raises CodecError as ``encode`` does."""
        return _FIELDS, [self.encode(record)[1] for record in records]

    def decode(self, entry: Entry, key: bytes) -> R:
        """Return the record. Raises UndecodableError if the entry is invalid. ``key``: its stream, for the message."""
        data = entry.get(FIELD)
        if data is None:
            raise UndecodableError(key, entry, f"no field {FIELD!r}, so it was not written with the codec {self.name}")
        try:
            return self.record(data)
        except zstandard.ZstdError as error:
            raise UndecodableError(key, entry, f"not compressed with zstd: {error}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise UndecodableError(key, entry, f"not a {self.shape.title} in {self.name}: {error}") from None

    def record(self, data: bytes) -> R:
        """Decode the value of the field. Raises ZstdError, ValueError, TypeError or RecursionError."""
        if self._zstd is not None:
            data = self._zstd.decompressor.decompress(data, max_output_size=min(LARGEST, _size(data)))
        made: R = self._parse(data)
        return made


def _size(data: bytes) -> int:
    """Return the content size in a zstd frame. Raises ZstdError if it is missing or more than LARGEST."""
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= LARGEST:
        raise zstandard.ZstdError(f"the frame has {size} bytes, at most {LARGEST} are accepted")
    return size


def _msgspec(record_type: Any, form: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if form == "json":
        return msgspec.json.Encoder().encode, msgspec.json.Decoder(record_type).decode
    return msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(record_type).decode


def _pydantic(model: Any, form: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if form == "json":
        return (
            lambda record: record.model_dump_json(**_WHOLE).encode(),
            lambda data: model.model_validate_json(data, strict=False, by_name=True, by_alias=False),
        )
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    return (
        lambda record: encode(record.model_dump(mode="json", **_WHOLE)),
        lambda data: model.model_validate(decode(data), strict=False, by_name=True, by_alias=False),
    )
