"""Converts pages to Arrow batches of one schema.

    _key, _id, _ts, _partition     the stream, the ID, the time in it, and the partition of a topic
    fields map<string, binary>     all fields
    _corrupt                       the entry as JSON if one of its values is invalid
    any other column               the field of its name

A column with one of these names and another type is the field of its name, too.

Rule 1: a batch has exactly the schema of the read. Spark compares them.
Rule 2: a missing field is null. An empty value is empty as string and binary, and null as any other type, as in Spark's
        CSV source.
Rule 3: there is no work per row, except for rows with invalid values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

from tidelog.arrow import values
from tidelog.arrow.names import as_bytes, as_text
from tidelog.arrow.pages import MICROSECONDS, Page, PageContent
from tidelog.client.entries import Entry

CORRUPT: Final = "_corrupt"
MODES: Final = "mode is failfast; permissive makes it null, dropmalformed leaves the entry out"
PARTITION: Final = "_partition"
#: Columns that are not fields.
OWN: Final = {"_key": "string", "_id": "string", "_ts": "timestamp", CORRUPT: "string", "fields": "map<string,binary>"}
BATCH_ROWS: Final = 10_000  # the default of spark.sql.execution.arrow.maxRecordsPerBatch


class ColumnTypeError(ValueError):
    """A column of a schema has a type that a field can't have."""


class MalformedError(ValueError):
    """A value is invalid for the type of its column, with the mode failfast."""


class MistakenColumnError(ValueError):
    """A column would always be null because of the case of its name or its type."""


class Columns:
    """Builds batches of one schema. ``wanted`` is the content that pages must have.

    ``mode``: what happens to an invalid value. permissive: it is null; dropmalformed: the row is omitted; failfast:
    MalformedError. ``topic``: the streams are partitions of a topic. ``types``: the types of columns as error messages
    name them; by default, as Arrow does. ``remedy``: returns what to do about an invalid value of a field. Raises
    ColumnTypeError for a column type that a field cannot have.
    """

    def __init__(
        self, schema: pa.Schema, mode: str, topic: bool = False, types: Mapping[str, str] | None = None,
        remedy: Callable[[str], str] = lambda _: MODES,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.own = OWN | {PARTITION: "int"} if topic else OWN
        self.arrow = schema
        self.mode = mode
        self._remedy = remedy
        self.types = {field.name: str(field.type) for field in schema} if types is None else types
        for field in self.arrow:
            if self.kind(field) == "field" and not values.fits(field.type):
                kind = self.types[field.name]
                raise ColumnTypeError(f"column {field.name} can't be {kind}; {self._possible(field.name)}")
        names = [as_bytes(field.name) for field in self.arrow if self.kind(field) == "field"]
        kinds = {self.kind(field) for field in self.arrow}
        self.wanted = PageContent(
            tuple(dict.fromkeys(names)), ids=not kinds.isdisjoint({"_id", "_ts"}) or mode == "failfast",
            times="_ts" in kinds, fields="fields" in kinds, entries=CORRUPT in kinds,
        )  # fmt: skip

    def kind(self, field: pa.Field) -> str:
        """Return what a column contains: its own name for ``_key``, ``_id``... with their types; otherwise "field"."""
        ours = {"_key": pa.string(), "_id": pa.string(), "_ts": MICROSECONDS, CORRUPT: pa.string()}
        name: str = field.name
        if name in ours and field.type == ours[name]:
            return name
        if self.topic and name == PARTITION and field.type == pa.int32():
            return PARTITION
        if field.name == "fields" and pa.types.is_map(field.type):
            return "fields" if field.type.key_type == pa.string() and field.type.item_type == pa.binary() else "field"
        return "field"

    def batch(self, key: str, page: Page) -> pa.RecordBatch:
        """Convert a page of one stream to a batch. Raises MalformedError for an invalid value, if mode is failfast."""
        columns: dict[str, pa.Array] = {}
        bad: set[int] = set()  # rows with an invalid value
        for field in self.arrow:
            match self.kind(field):
                case "_key":
                    columns[field.name] = pa.repeat(pa.scalar(key, pa.string()), len(page))
                case "_partition":
                    columns[field.name] = pa.repeat(pa.scalar(int(key.rpartition(":")[2]), pa.int32()), len(page))
                case "_id":
                    columns[field.name] = page.ids().cast(pa.string())
                case "_ts":
                    columns[field.name] = page.times()
                case "fields":
                    columns[field.name] = page.maps().cast(field.type)
                case "field":
                    raw = page.field(as_bytes(field.name))
                    columns[field.name], wrong = values.convert(raw, field.type)
                    if wrong and self.mode == "failfast":
                        raise self._malformed(key, page.ids()[wrong[0]].as_py(), field, raw[wrong[0]].as_py())
                    bad.update(wrong)
        if CORRUPT in self.arrow.names and CORRUPT not in columns:
            texts = {number: as_json(page.entry(number)) for number in bad}
            columns[CORRUPT] = pa.array(map(texts.get, range(len(page))), pa.string())
        arrays = [columns[name] for name in self.arrow.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
        if bad and self.mode == "dropmalformed":
            batch = batch.filter(pa.array([number not in bad for number in range(len(page))]))
        return batch

    def check_names(self, key: str, entry: Entry) -> None:
        """Raise MistakenColumnError for a column that would always be null, judging by an entry of the stream.

        The entry has no such field, and it has a field whose name differs in case, or the column has a reserved name
        and another type.
        """
        there = {as_text(name) for name, _ in entry.pairs}
        for field in self.arrow:
            if self.kind(field) != "field" or field.name in there:
                continue
            what = f"column {field.name} is {self.types[field.name]}, and entries of stream {key!r} have no such field"
            if (own := field.name.casefold()) in self.own:
                raise MistakenColumnError(f"{what}: {own} is {self.own[own]}")
            for name in sorted(there):
                if name.casefold() == field.name.casefold() and name not in self.types:
                    raise MistakenColumnError(f"{what}, but {name}: names of fields are told apart by case")

    def _malformed(self, key: str, id: bytes, field: pa.Field, raw: bytes) -> MalformedError:  # noqa: A002
        kind = self.types[field.name]
        return MalformedError(
            f"stream {key!r}, entry {id.decode()}: field {field.name!r} is {raw!r}, which is no {kind} "
            f"({self._remedy(field.name)})"
        )

    def _possible(self, name: str) -> str:
        if name in self.own:
            return f"under this name there is {self.own[name]}"
        return "an entry's field can be " + ", ".join(values.POSSIBLE)


def as_json(entry: list[bytes]) -> str:
    """Return the fields of [id, field, value, ...] as a JSON object. Names are converted as in names.py.

    Values that are not UTF-8 contain replacement characters.
    """
    values = [word.decode("utf-8", "replace") for word in entry[2::2]]
    return json.dumps(dict(zip(map(as_text, entry[1::2]), values, strict=True)), ensure_ascii=False)
