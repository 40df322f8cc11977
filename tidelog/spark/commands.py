"""Converts Arrow batches to TSTAGE commands (tidelog.client.publish), without a Python object for each row or value.

    *argc $6 TSTAGE $.. stage $.. ttl $.. key $6 FIELDS $.. n field ... $6 VALUES    $2 20  $4 35.6 ...
    `------------------------- Python, once per command -------------------------'    `- a slice of one join -'

Rule 1: a null is a missing field. Consecutive rows that lack the same fields become one command, so the rows of a
        stream keep their order. All rows of a batch that lack the same fields are packed together.
Rule 2: names of columns, and string keys of maps, are converted to names of fields as in names.py.
Rule 3: values are written in the form that the source reads: numbers as in JSON, ``true`` and ``false``, ISO 8601 in
        UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.arrow.names import as_bytes
from tidelog.arrow.values import fits
from tidelog.client.publish import StagedRows
from tidelog.spark.optionvalues import OptionError

MOST_WORDS: Final = 2_000  # values per command: the server decodes a command fastest if it arrives in one piece
MOST_BYTES: Final = 8 << 20  # approximate size of the values of a command in bytes
KEY: Final = "_key"
FIELDS: Final = "fields"

Column = tuple[bytes, pa.Array]  # name of a field, values as bytes
Ints = npt.NDArray[np.integer[Any]]


class RowError(ValueError):
    """A row cannot become an entry."""


class EntryBuilder:
    """Builds StagedRows from rows of one schema. ``key`` is the stream; None: the column _key names it for each row.

    Raises OptionError if there is no key, or if a column cannot be a field.
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
            if not fits(kind) and not is_fields(column, kind):
                shown = schema[column].dataType.simpleString()
                raise OptionError(f"column {column} is {shown}, which can't be a field: cast it, or use to_json")

    def parts(self, batch: pa.RecordBatch) -> Iterator[StagedRows]:
        """Yield the rows of a batch by stream, in order. Raises RowError for a row without a key or without values."""
        if self.key is not None:
            yield from cut(self.fields(batch), [(self.key, batch.num_rows)])
            return
        keys = batch.column(self.names.index(KEY))
        if keys.null_count:
            raise RowError("a row's _key is null")
        distinct = pc.unique(keys)
        for key in distinct:
            rows = batch if len(distinct) == 1 else batch.filter(pc.equal(keys, key))
            yield from cut(self.fields(rows), [(_bytes(key.as_py()), rows.num_rows)])

    def fields(self, batch: pa.RecordBatch) -> list[Column]:
        """Return the fields of all rows."""
        return fields_of(batch, self.columns)


def fields_of(batch: pa.RecordBatch, names: list[str]) -> list[Column]:
    """Convert columns of any types to fields: names, and values as bytes; null if a row lacks the field."""
    fields: list[Column] = []
    for name in names:
        column = batch.column(name)
        if is_fields(name, column.type):
            fields += [(field, values.cast(pa.binary())) for field, values in _spread(column)]
        else:
            fields.append((as_bytes(name), as_text(column)))
    return fields


def cut(fields: list[Column], streams: Sequence[tuple[bytes, int]]) -> Iterator[StagedRows]:
    """Build StagedRows from the fields of rows. ``streams``: key and number of rows, in the order of the rows.

    Raises RowError for a row without any value.
    """
    rows = sum(number for _, number in streams)
    size = sum(column.nbytes for _, column in fields)
    step = max(1, rows * MOST_BYTES // max(size, 1))
    keys = [key for key, _ in streams]
    ends = np.cumsum([number for _, number in streams])
    for start in range(0, rows, step):
        end = min(rows, start + step)
        block = [(name, column.slice(start, end - start)) for name, column in fields]
        first, last = np.searchsorted(ends, [start, end - 1], side="right")
        borders = np.minimum(ends[first : last + 1], end) - start
        yield from _cut_block(block, keys[first : last + 1], borders)


def _cut_block(fields: list[Column], keys: list[bytes], ends: Ints) -> Iterator[StagedRows]:
    """Build StagedRows, as ``cut`` does. ``ends``: the end of each stream's rows.

    Rows that lack the same fields are packed together, and consecutive rows of them then form a StagedRows.
    """
    shapes, shape_of_row = _shapes([column for _, column in fields], int(ends[-1]))
    packed = []
    for number, present in enumerate(shapes):
        there = [field for field, is_there in zip(fields, present, strict=True) if is_there]
        if not there:
            at = int(np.searchsorted(ends, np.flatnonzero(shape_of_row == number)[0], side="right"))
            raise RowError(f"a row for stream {keys[at]!r} has nothing but nulls: an entry has at least one field")
        columns = [column for _, column in there]
        if len(shapes) > 1:
            rows = pa.array(np.flatnonzero(shape_of_row == number))
            columns = [column.take(rows) for column in columns]
        packed.append((tuple(name for name, _ in there), *_packed(columns)))
    begun = [0] * len(shapes)  # rows of each shape that are in StagedRows
    borders = np.unique(np.concatenate([np.flatnonzero(np.diff(shape_of_row)) + 1, ends])).tolist()
    streams = np.searchsorted(ends, borders, side="left").tolist()
    start = 0
    for end, stream in zip(borders, streams, strict=True):
        shape = int(shape_of_row[start])
        names, offsets, data = packed[shape]
        most = max(1, MOST_WORDS // len(names))
        for at in range(start, end, most):
            number = min(most, end - at)
            first, last = begun[shape], begun[shape] + number
            begun[shape] = last
            low = int(offsets[first])
            values: bytes = data.slice(low, int(offsets[last]) - low).to_pybytes()
            yield StagedRows(keys[stream], names, number, values)
        start = end


def _shapes(columns: list[pa.Array], rows: int) -> tuple[list[list[bool]], Ints]:
    """Return the distinct combinations of present columns, as a list of flags each, and the combination of each row."""
    partly = [number for number, column in enumerate(columns) if column.null_count]
    if not partly:
        return [[True] * len(columns)], np.zeros(rows, np.int64)
    valid = np.stack([columns[number].is_valid().to_numpy(zero_copy_only=False) for number in partly], axis=1)
    words = np.packbits(valid, axis=1)  # the flags of a row as bytes
    whole = np.ascontiguousarray(words).view(np.dtype((np.void, words.shape[1]))).reshape(rows)
    _, firsts, number_of = np.unique(whole, return_index=True, return_inverse=True)
    shapes = []
    for row in firsts:
        flags = [True] * len(columns)
        for at, number in enumerate(partly):
            flags[number] = bool(valid[row, at])
        shapes.append(flags)
    return shapes, number_of


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def is_fields(name: str, kind: pa.DataType) -> bool:
    """Return whether a column is a map of fields, as in the default schema of the source."""
    return name == FIELDS and pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def as_text(column: pa.Array) -> pa.Array:
    """Convert a column of any type to bytes in the form of Rule 3."""
    if pa.types.is_timestamp(column.type):
        zone = ""
        if column.type.tz:
            # strftime uses the zone's local time
            zone, column = "Z", column.cast(pa.timestamp(column.type.unit, "UTC"))
        column = pc.strftime(column, f"%Y-%m-%dT%H:%M:%S{zone}")
    return column.cast(pa.string()).cast(pa.binary()) if not pa.types.is_binary(column.type) else column


def _spread(maps: pa.MapArray) -> list[tuple[bytes, pa.Array]]:
    """Convert maps to columns, one for each name; null if a row lacks it."""
    rows = [dict(row) if row is not None else {} for row in maps.to_pylist()]
    names = dict.fromkeys(name for row in rows for name in row)
    kind = maps.type.item_type
    return [
        (name if isinstance(name, bytes) else as_bytes(name), pa.array([row.get(name) for row in rows], kind))
        for name in names
    ]


def _packed(columns: list[pa.Array]) -> tuple[Ints, pa.Buffer]:
    """Pack columns of bytes without nulls as RESP bulk strings, row by row. Return the row boundaries and the data."""
    words: list[pa.Array | pa.Scalar] = []
    for column in columns:
        lengths = pc.binary_length(column).cast(pa.string()).cast(pa.binary())
        words += [_DOLLAR, lengths, _END, column, _END]
    joined = pc.binary_join_element_wise(*words, _NOTHING)
    _, offsets, data = joined.buffers()
    return np.frombuffer(offsets, np.int32)[joined.offset : joined.offset + len(joined) + 1], data


_DOLLAR: Final = pa.scalar(b"$", pa.binary())
_END: Final = pa.scalar(b"\r\n", pa.binary())
_NOTHING: Final = pa.scalar(b"", pa.binary())
