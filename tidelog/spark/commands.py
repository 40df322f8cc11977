"""Arrow batches to TSTAGE commands (tidelog.client.publish.Part), without a Python object for each row or value.

    *argc $6 TSTAGE $.. stage $.. ttl $.. key $6 FIELDS $.. n field ... $6 VALUES    $2 20  $4 35.6 ...
    `------------------------- Python, once per command -------------------------'    `- Arrow, one join -'

Rule 1: a null is a field that the entry lacks. Consecutive rows that lack the same fields are one command, so the rows
        of a stream keep their order.
Rule 2: names of columns, and keys of maps that are strings, are names of fields as in names.py.
Rule 3: values are written in the form that the source reads: numbers as in JSON, ``true`` and ``false``, ISO 8601 in
        UTC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.client.publish import Part
from tidelog.spark.given import OptionError
from tidelog.spark.names import as_bytes

MOST_WORDS: Final = 2_000  # values in a command: the server decodes a command fastest if it arrives in one piece
MOST_BYTES: Final = 8 << 20  # bytes of values in a command, roughly
KEY: Final = "_key"
FIELDS: Final = "fields"


class RowError(ValueError):
    """A row that can't become an entry."""


class Entries:
    """Makes Parts from rows of one schema. ``key`` is the stream; None: each row has it in the column _key.

    OptionError if there is no key, or if a column can't be a field.
    """

    def __init__(self, schema: StructType, key: str | None) -> None:
        self.key = key.encode() if key is not None else None
        self.names = schema.fieldNames()
        arrow = to_arrow_schema(schema, timezone="UTC")
        if key is None and KEY not in self.names:
            raise OptionError("key must say which stream to write to, or a column _key for each row")
        if key is None and not _is_text(arrow.field(KEY).type):
            raise OptionError("the column _key must be a string")
        self.columns = [name for name in self.names if name != KEY]
        if not self.columns:
            raise OptionError("there is no column to write: every column but _key becomes a field")
        if len({*map(as_bytes, self.names)}) < len(self.names):
            raise OptionError("two columns have the same name")
        for column in self.columns:
            kind = arrow.field(column).type
            if not _is_writable(kind) and not _is_fields(column, kind):
                shown = schema[column].dataType.simpleString()
                raise OptionError(f"column {column} is {shown}, which can't be a field: cast it, or use to_json")

    def parts(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """The rows of a batch, by stream, in their order. RowError for a row without a key or without any value."""
        if self.key is not None:
            yield from self._of_stream(self.key, batch)
            return
        keys = batch.column(self.names.index(KEY))
        if keys.null_count:
            raise RowError("a row's _key is null")
        distinct = pc.unique(keys)
        for key in distinct:
            rows = batch if len(distinct) == 1 else batch.filter(pc.equal(keys, key))
            yield from self._of_stream(_bytes(key.as_py()), rows)

    def _of_stream(self, key: bytes, batch: pa.RecordBatch) -> Iterator[Part]:
        fields: list[tuple[bytes, pa.Array]] = []
        for name in self.columns:
            column = batch.column(self.names.index(name))
            if _is_fields(name, column.type):
                fields += [(field, values.cast(pa.binary())) for field, values in _spread(column)]
            else:
                fields.append((as_bytes(name), _text(column)))
        for start, length in _alike([column for _, column in fields], batch.num_rows):
            present = [(name, column) for name, column in fields if column[start].is_valid]
            if not present:
                raise RowError(f"a row for stream {key!r} has nothing but nulls: an entry has at least one field")
            names = tuple(name for name, _ in present)
            columns = [column.slice(start, length) for _, column in present]
            size = sum(column.nbytes for column in columns)
            step = max(1, min(MOST_WORDS // len(names), length * MOST_BYTES // max(size, 1)))
            for at in range(0, length, step):
                pieces = [column.slice(at, step) for column in columns]
                yield Part(key, names, len(pieces[0]), _packed(pieces))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_writable(kind: pa.DataType) -> bool:
    kinds = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_string,
        pa.types.is_binary, pa.types.is_date32, pa.types.is_timestamp,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in kinds)


def _is_fields(name: str, kind: pa.DataType) -> bool:
    """Whether a column is a map of fields, like that in the source's default row."""
    return name == FIELDS and pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _text(column: pa.Array) -> pa.Array:
    """A column of any type as a column of bytes, in the form of Rule 3."""
    if pa.types.is_timestamp(column.type):
        zone = "Z" if column.type.tz else ""
        column = pc.strftime(column, f"%Y-%m-%dT%H:%M:%S{zone}")
    return column.cast(pa.string()).cast(pa.binary()) if not pa.types.is_binary(column.type) else column


def _spread(maps: pa.MapArray) -> list[tuple[bytes, pa.Array]]:
    """The pairs of maps as columns, one for each name, null where a row lacks it."""
    rows = [dict(row) if row is not None else {} for row in maps.to_pylist()]
    names = dict.fromkeys(name for row in rows for name in row)
    kind = maps.type.item_type
    return [
        (name if isinstance(name, bytes) else as_bytes(name), pa.array([row.get(name) for row in rows], kind))
        for name in names
    ]


def _alike(columns: list[pa.Array], rows: int) -> list[tuple[int, int]]:
    """Runs of consecutive rows that are null in the same columns: (first row, number of rows)."""
    if not any(column.null_count for column in columns):
        return [(0, rows)] if rows else []
    changes = pa.array([False] * (rows - 1), pa.bool_())
    for column in columns:
        valid = column.is_valid()
        changes = pc.or_(changes, pc.not_equal(valid.slice(1), valid.slice(0, rows - 1)))
    starts = [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist())]
    return [(start, end - start) for start, end in zip(starts, [*starts[1:], rows], strict=True)]


def _packed(columns: list[pa.Array]) -> bytes:
    """Columns of bytes without nulls, as RESP bulk strings, row by row."""
    words: list[pa.Array | pa.Scalar] = []
    for column in columns:
        lengths = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
        words += [_DOLLAR, lengths, _END, column, _END]
    joined = pc.binary_join_element_wise(*words, _NOTHING)
    _, offsets, data = joined.buffers()
    first, last = _offset(offsets, joined.offset), _offset(offsets, joined.offset + len(joined))
    payload: bytes = data.slice(first, last - first).to_pybytes()
    return payload


def _offset(buffer: pa.Buffer, at: int) -> int:
    return int.from_bytes(buffer.slice(at * 4, 4).to_pybytes(), "little")


_DOLLAR: Final = pa.scalar(b"$", pa.binary())
_END: Final = pa.scalar(b"\r\n", pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
