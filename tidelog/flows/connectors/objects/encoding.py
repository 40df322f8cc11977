"""Encodes events as the content of an object: lines of a codec, or Parquet, compressed.

Rule 1: A value that does not fit is rejected, and the others are written.
Rule 2: A column of Parquet without a declared type has the type that fits the first values, extended by later ones:
        integers and floats are floats, and objects have the fields of all.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import zstandard

from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.codecs.json import write_json
from tidelog.flows.connectors.objects.columntypes import column_types
from tidelog.flows.connectors.objects.options import PARQUET, ObjectKind, ObjectStoreOptions
from tidelog.flows.connectors.payload import PayloadWriter


class EncodedObject(NamedTuple):
    """The content of an object."""

    data: bytes  # empty: all values were rejected
    rejected: dict[int, str]  # the reasons, by the number of the value


class ObjectEncoder(Protocol):
    """Encodes one object. ``size``: bytes of its values, uncompressed."""

    size: int

    def add(self, value: Any, meta: Mapping[str, Any]) -> None:
        """Add a value. Raises RejectError."""

    def end(self) -> EncodedObject:
        """Return the content. Blocks."""


def encoder(options: ObjectStoreOptions, kind: ObjectKind) -> ObjectEncoder:
    return ParquetEncoder(options, kind) if kind.format == PARQUET else LineEncoder(options, kind)


class LineEncoder:
    """Lines of a codec."""

    def __init__(self, options: ObjectStoreOptions, kind: ObjectKind) -> None:
        self.size = 0
        self._writer = PayloadWriter(options.payload(kind))
        self._most = options.max_bytes
        self._compression = kind.compression
        self._lines: list[bytes] = []

    def add(self, value: Any, meta: Mapping[str, Any]) -> None:
        lines = self._writer.encode(Event(value, dict(meta)))
        size = sum(map(len, lines))
        if size > self._most:
            raise RejectError(f"a line of {size} bytes: max_bytes is {self._most}")
        self._lines += lines
        self.size += size

    def end(self) -> EncodedObject:
        data = b"".join(self._lines)
        if self._compression == "gzip":
            data = gzip.compress(data, mtime=0)
        elif self._compression == "zstd":
            data = zstandard.ZstdCompressor().compress(data)
        return EncodedObject(data, {})


class ParquetEncoder:
    """Rows of a Parquet file. ``compression`` is that of its pages."""

    def __init__(self, options: ObjectStoreOptions, kind: ObjectKind) -> None:
        self.size = 0
        self._columns = options.columns
        self._compression = "snappy" if options.compression is None else kind.compression
        self._most = options.max_bytes
        self._rows: list[Mapping[str, Any]] = []

    def add(self, value: Any, meta: Mapping[str, Any]) -> None:  # noqa: ARG002 - the signature of all encoders
        if not isinstance(value, Mapping) or not value or not all(isinstance(each, str) for each in value):
            raise RejectError(f"a row of Parquet is an object with fields, not {value!r:.100}")
        if self._columns and (unknown := [each for each in value if each not in self._columns]):
            raise RejectError(f"there is no column {', '.join(unknown)}: the columns are {', '.join(self._columns)}")
        size = len(write_json(value))  # also rejects what no codec can encode
        if size > self._most:
            raise RejectError(f"a row of {size} bytes: max_bytes is {self._most}")
        self._rows.append(value)
        self.size += size

    def end(self) -> EncodedObject:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = column_types(self._columns)
        rejected: dict[int, str] = {}
        left = list(range(len(self._rows)))
        while left:
            rows = [self._rows[at] for at in left]
            names = types or dict.fromkeys(name for row in rows for name in row)
            bad: dict[int, str] = {}
            arrays = {}
            for name in names:
                arrays[name] = _column(name, [row.get(name) for row in rows], types.get(name), bad)
            if not bad:
                out = io.BytesIO()
                pq.write_table(pa.table(arrays), out, compression=self._compression)
                return EncodedObject(out.getvalue(), rejected)
            rejected |= {left[at]: reason for at, reason in bad.items()}
            left = [each for at, each in enumerate(left) if at not in bad]
        return EncodedObject(b"", rejected)


def _column(name: str, values: Sequence[Any], kind: Any, bad: dict[int, str]) -> Any:
    """Return the array of a column, or add the numbers of the values that do not fit."""
    import pyarrow as pa

    errors = (pa.ArrowException, TypeError, ValueError, OverflowError)
    try:
        return _array(values, kind)
    except errors:
        pass
    common = pa.schema([(name, pa.null())])
    mine: dict[int, str] = {}
    converted = []
    for at, value in enumerate(values):
        try:
            found = _array([value], kind)
            if kind is None and value is not None:
                common = pa.unify_schemas([common, pa.schema([(name, found.type)])], promote_options="permissive")
            converted.append(found)
        except errors as error:
            expected = kind or common.field(0).type
            mine[at] = f"column {name}: {value!r:.100} can't be stored as {expected}: {error!s:.200}"
    if not mine and kind is not None:
        return pa.concat_arrays(converted)
    if not mine:  # each value fits by itself, but not with others
        present = [(at, value) for at, value in enumerate(values) if value is not None]
        mine = {at: f"column {name}: {value!r:.100} can't be stored" for at, value in present}
    bad |= mine
    return None


def _array(values: Sequence[Any], kind: Any) -> Any:
    """Convert values, also text to a declared type. Raises one of the errors of pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind is not None:
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError):
            return pa.array(values).cast(kind)
    found = pa.array(values)
    if pa.types.is_nested(found.type):  # Parquet has no objects without fields
        pq.write_table(pa.table({"column": found}), io.BytesIO())
    return found
