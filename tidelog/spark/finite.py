"""Finds numbers that JSON does not have: NaN and infinity, which would be written as null."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.codecs.roundtrip import NO_NUMBER
from tidelog.spark.commands import RowError


def check_finite(batch: pa.RecordBatch, names: Sequence[str], codec: str) -> None:
    """Raise RowError if the codec is JSON and these columns, or values nested in them, contain NaN or infinity."""
    if not codec.startswith("json"):
        return
    for name in names:
        for numbers in _floats(batch.column(name)):
            if not pc.all(pc.is_finite(numbers)).as_py() and len(numbers):
                wrong = numbers.filter(pc.invert(pc.is_finite(numbers)))
                raise RowError(f"{name} of a row is {wrong[0].as_py()}: {NO_NUMBER}, or filter such rows, or use nanvl")


def _floats(column: pa.Array) -> Iterator[pa.Array]:
    """Return the floating-point numbers in a column, without nulls."""
    kind = column.type
    if pa.types.is_floating(kind):
        yield column.drop_null()
    elif pa.types.is_map(kind):
        # keys and items contain the values of all rows
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        for part in (column.keys, column.items):
            yield from _floats(part.slice(first, last - first))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _floats(column.flatten())
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _floats(part)
