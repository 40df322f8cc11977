"""``codec_for``: the codec of a record type, by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from tidelog.client.entries import Entry
from tidelog.codecs.packed import Packed
from tidelog.codecs.pickling import make_portable
from tidelog.codecs.plain import Plain
from tidelog.codecs.recordtypes import CodecError, RecordSchema, schema_of
from tidelog.transport.call import Value

R = TypeVar("R")
NAMES: Final = ("plain", "json", "msgpack", "json+zstd", "msgpack+zstd")


class Codec(Protocol[R]):
    """From a record to an entry and back."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> RecordSchema: ...
    def encode(self, record: R) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Names and values of the entry. CodecError for a record that is not of the codec's type."""

    def encode_alike(self, records: Sequence[R]) -> tuple[tuple[str, ...], Sequence[tuple[Value, ...]]] | None:
        """Names and values of many entries with the same names, cheaper than one by one. None: ``encode`` each.

        It is also None where a record can't be encoded: ``encode`` says why.
        """

    def decode(self, entry: Entry, key: bytes) -> R:
        """The record. UndecodableError if the entry is not one; ``key`` is its stream, for the message."""


def codec_for(record_type: Any, name: str | None = None) -> Codec[Any]:
    """The codec of that name; without one: ``plain`` if the type is flat, else ``json``.

    A type is flat if each of its fields is one scalar, or None. CodecError for a type that is no record type, an
    unknown name, or ``plain`` for a type that is not flat.
    """
    shape = schema_of(record_type)
    if name is None:
        name = "json" if shape.why_not_flat else "plain"
    if name not in NAMES:
        raise CodecError(f"unknown codec {name!r}: one of {', '.join(NAMES)}")
    form, _, compressed = name.partition("+")
    made: Codec[Any] = Plain(shape) if name == "plain" else Packed(shape, form, bool(compressed))
    make_portable(record_type)
    return made
