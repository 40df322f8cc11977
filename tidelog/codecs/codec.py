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
    """Converts records to entries and back."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> RecordSchema: ...
    def encode(self, record: R) -> tuple[tuple[str, ...], tuple[Value, ...]]:
        """Return the names and values of the entry. Raises CodecError if the record does not have the codec's type."""

    def encode_alike(self, records: Sequence[R]) -> tuple[tuple[str, ...], Sequence[tuple[Value, ...]]] | None:
        """Return the names and values of many entries with the same names, which costs less than single calls.

        Returns None if the names differ or a record can't be encoded: call ``encode`` for each record then.
        """

    def decode(self, entry: Entry, key: bytes) -> R:
        """Return the record. Raises UndecodableError if the entry is invalid. ``key``: its stream, for the message."""


def codec_for(record_type: Any, name: str | None = None) -> Codec[Any]:
    """Return the codec with that name. Default: ``plain`` if the type is flat, otherwise ``json``.

    A type is flat if each of its fields is one scalar or None. Raises CodecError if the type is not a record type, if
    the name is unknown, or for ``plain`` if the type is not flat.
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
