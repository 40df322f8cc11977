"""Entries to columns: what stands in an Arrow batch, for the default row and for a schema of the user's own.

    row off the wire:   [id, field, value, field, value, ...]             all bytes
    default row:        _key string, _id string, _ts timestamp, fields map<string, binary>
    with .schema(...):  a column of one of these names and its type is that; every other column is the field of its
                        name; _corrupt string is the entry as JSON where one of its values did not fit

Rule 1: a batch has exactly the Arrow schema that Spark derives from the schema asked for; Spark compares.
Rule 2: a field that an entry lacks is null. A field that occurs twice counts with its last value. An empty value is
        empty as string and binary, and null as any other type, as in Spark's CSV source.
Rule 3: the common batch, where all entries have the same fields in the same order, is cut into columns by slices of one
        flat list; nothing is done for each row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType, TimestampType

from tidelog.spark import values
from tidelog.spark.options import OptionError

DEFAULT_SCHEMA: Final = "_key string, _id string, _ts timestamp, fields map<string, binary>"
CORRUPT: Final = "_corrupt"
BATCH_ROWS: Final = 10_000  # Spark's own spark.sql.execution.arrow.maxRecordsPerBatch

Rows = Sequence[list[bytes]]


class MalformedError(ValueError):
    """A value that is not of its column's type, in mode failfast."""


class Block:
    """Some entries, and their fields as columns of bytes."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.flat: list[bytes] = list(chain.from_iterable(rows))
        self.width = self._common_width()  # words a row if all have the same fields in the same order, else 0
        self._dicts: list[dict[bytes, bytes]] = []

    def _common_width(self) -> int:
        width, number = len(self.rows[0]), len(self.rows)
        if len(self.flat) != width * number or set(map(len, self.rows)) != {width}:
            return 0
        names = self.rows[0][1::2]
        if len(set(names)) < len(names):
            return 0
        at = range(1, width, 2)
        same = all(self.flat[i::width].count(name) == number for i, name in zip(at, names, strict=True))
        return width if same else 0

    @property
    def dicts(self) -> list[dict[bytes, bytes]]:
        """Each entry's fields, for entries that differ."""
        if not self._dicts:
            self._dicts = [dict(zip(row[1::2], row[2::2], strict=True)) for row in self.rows]
        return self._dicts

    def ids(self) -> list[bytes]:
        return self.flat[:: self.width] if self.width else [row[0] for row in self.rows]

    def field(self, name: bytes) -> list[bytes | None]:
        """The values of one field, None where an entry lacks it."""
        if not self.width:
            return [fields.get(name) for fields in self.dicts]
        names = self.rows[0][1::2]
        if name not in names:
            return [None] * len(self.rows)
        return self.flat[2 + 2 * names.index(name) :: self.width]  # type: ignore[return-value]  # all bytes

    def maps(self) -> pa.Array:
        """map<string, binary> of all fields."""
        number = len(self.rows)
        if self.width:
            names = self.rows[0][1::2]
            fields = len(names)
            offsets = pa.array(range(0, fields * number + 1, fields), pa.int32())
            items: list[bytes] = [b""] * (fields * number)
            for i in range(fields):
                items[i::fields] = self.flat[2 + 2 * i :: self.width]
            keys: list[bytes] = names * number
        else:
            lengths = [0, *map(len, self.dicts)]
            offsets = pc.cumulative_sum(pa.array(lengths, pa.int32()))
            keys = list(chain.from_iterable(self.dicts))
            items = list(chain.from_iterable(fields.values() for fields in self.dicts))
        return pa.MapArray.from_arrays(offsets, values.text_or_replaced(keys), pa.array(items, pa.binary()))


def times(ids: pa.Array) -> pa.Array:
    """The time in each ID, as timestamp in UTC; null beyond what a timestamp holds."""
    ms = pc.list_element(pc.split_pattern(ids, "."), 0) if len(ids) else ids
    try:
        return pc.multiply_checked(ms.cast(pa.int64()), 1000).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:  # IDs may hold 64 bits of ms, a timestamp 63 bits of us
        micros = [int(text) * 1000 for text in ms.to_pylist()]
        fitting = [number if number < 1 << 63 else None for number in micros]
        return pa.array(fitting, pa.int64()).cast(pa.timestamp("us", "UTC"))


class Columns:
    """Makes batches of one schema. It has no state beyond it, so tasks may make their own."""

    def __init__(self, schema: StructType, mode: str) -> None:
        """OptionError for a column of a type that entries can't fill."""
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        self.mode = mode
        self.wants_ids = not {self.kind(field) for field in self.arrow}.isdisjoint({"_id", "_ts"})
        for column, field in zip(schema.fields, self.arrow, strict=True):
            if self.kind(field) == "field" and not values.fits(field.type):
                kind = column.dataType.simpleString()
                raise OptionError(f"schema: column {column.name} can't be {kind}; {_possible(column.name)}")

    @staticmethod
    def kind(field: pa.Field) -> str:
        """What a column is filled with: its name where it is one of ours, with its type; "field" otherwise."""
        ours: dict[str, type[Any]] = {"_key": StringType, "_id": StringType, "_ts": TimestampType, CORRUPT: StringType}
        types = {StringType: pa.string(), TimestampType: pa.timestamp("us", "UTC")}
        name: str = field.name
        if name in ours and field.type == types[ours[name]]:
            return name
        if field.name == "fields" and pa.types.is_map(field.type):
            return "fields" if field.type.key_type == pa.string() and field.type.item_type == pa.binary() else "field"
        return "field"

    def batch(self, key: str, rows: Rows) -> pa.RecordBatch:
        """The batch of some entries of one stream, at least one. MalformedError in mode failfast."""
        block = Block(rows)
        ids = pa.array(block.ids(), pa.binary()).cast(pa.string()) if self.wants_ids else None
        columns: dict[str, pa.Array] = {}
        bad: set[int] = set()  # rows with a value that did not fit
        for field in self.arrow:
            match self.kind(field):
                case "_key":
                    columns[field.name] = pa.repeat(pa.scalar(key, pa.string()), len(rows))
                case "_id":
                    columns[field.name] = ids
                case "_ts":
                    columns[field.name] = times(ids)
                case "fields":
                    columns[field.name] = block.maps().cast(field.type)
                case "field":
                    raw = block.field(field.name.encode())
                    columns[field.name], wrong = values.convert(raw, field.type)
                    if wrong and self.mode == "failfast":
                        raise self._malformed(key, rows[wrong[0]][0], field, raw[wrong[0]])
                    bad.update(wrong)
        if CORRUPT in self.arrow.names and CORRUPT not in columns:
            texts = [as_json(row) if number in bad else None for number, row in enumerate(rows)] if bad else None
            columns[CORRUPT] = pa.array(texts, pa.string()) if texts else pa.nulls(len(rows), pa.string())
        arrays = [columns[name] for name in self.arrow.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
        if bad and self.mode == "dropmalformed":
            batch = batch.filter(pa.array([number not in bad for number in range(len(rows))]))
        return batch

    def _malformed(self, key: str, id: bytes, field: pa.Field, raw: bytes | None) -> MalformedError:  # noqa: A002
        return MalformedError(
            f"stream {key!r}, entry {id.decode()}: field {field.name!r} is {raw!r}, which is no {field.type} "
            "(mode is failfast; permissive makes it null, dropmalformed leaves the entry out)"
        )


def as_json(row: list[bytes]) -> str:
    """An entry's fields as a JSON object; what isn't UTF-8 with replacement characters."""
    words = [word.decode("utf-8", "replace") for word in row[1:]]
    return json.dumps(dict(zip(words[::2], words[1::2], strict=True)), ensure_ascii=False)


def _possible(name: str) -> str:
    own = {"_key": "string", "_id": "string", "_ts": "timestamp", CORRUPT: "string", "fields": "map<string,binary>"}
    if name in own:
        return f"under this name there is {own[name]}"
    return "an entry's field can be " + ", ".join(values.POSSIBLE)
