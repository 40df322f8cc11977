"""The input topics of a frame job as streaming DataFrames: a column for each field of the records.

    _id string, _ts timestamp, _partition int, and the fields of the topic's record type, in their order

    str, UUID, time, timedelta   string            bool                     boolean
    int                          bigint            bytes                    binary
    float                        double            date                     date
    Decimal                      decimal(38, 18)   datetime                 timestamp
    list, set, tuple[X, ...]     array             dict[str, X]             map<string, X>
    a record                     struct            a union, Any and so on   string with JSON
    an Enum or a Literal         bigint if all of its values are integers, otherwise string

Rule 1: A value that does not fit its column ends the query (``mode`` is failfast), as does an entry that is not a
        record.
Rule 2: Plain topics are read by column. Records of other codecs are decoded in the tasks by the topic's own codec, with
        its checks; the error names the entry.
Rule 3: A topic of dicts has the fields that the server stores for it. Without stored fields, it has the column
        ``fields``, or ``data`` if its codec is not plain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec import inspect
from pyspark import cloudpickle
from pyspark.sql.pandas.types import from_arrow_schema

from tidelog.arrow.inference import KINDS
from tidelog.client.entries import Entry, StreamId
from tidelog.codecs import Codec, codec_for
from tidelog.codecs.packed import FIELD
from tidelog.codecs.recordtypes import RecordField
from tidelog.jobs.errors import JobError
from tidelog.jobs.task.fieldtypes import SCALARS, infos_of
from tidelog.topics import Topic, TopicSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamReader

OWN: Final = pa.schema([("_id", pa.string()), ("_ts", pa.timestamp("us", "UTC")), ("_partition", pa.int32())])
DEEPEST: Final = 20  # levels of nesting; a deeper type is recursive, and is JSON
_DECIMAL: Final = pa.decimal128(38, 18)
#: Kinds of fields (tidelog.codecs.recordtypes) whose values all have the same type.
_KINDS: Final = KINDS | {"decimal": _DECIMAL} | dict.fromkeys(("str", "time", "timedelta", "uuid"), pa.string())
_SCALARS: Final = SCALARS | {inspect.DecimalType: _DECIMAL}
_NATIVE: Final = (bytes, datetime, date, Decimal)  # accepted by Arrow without conversion


def open_input(reader: DataStreamReader, topic: Topic[Any], facts: TopicSettings, path: Sequence[str]) -> DataFrame:
    """Return the frame of a topic. ``reader`` has the format and all options; ``path`` is for importing its record
    type.

    facts: the topic's settings on the server. Raises JobError if a field would hide a column of every input.
    """
    schema = schema_of(topic, facts)
    for name in OWN.names:
        if name in schema.names:
            raise JobError(f"topic {topic.name!r} has a field {name}, which is also a column of every input: rename it")
    fields = pa.schema([*OWN, *schema])
    if facts.codec == "plain" or not topic.codec.shape.fields:
        return reader.schema(from_arrow_schema(fields)).load()
    raw = reader.schema(from_arrow_schema(OWN.append(pa.field(FIELD, pa.binary())))).load()
    return raw.mapInArrow(RecordDecoder(topic, schema, tuple(path)), from_arrow_schema(fields))


def schema_of(topic: Topic[Any], facts: TopicSettings) -> pa.Schema:
    """Return the columns of a topic's fields."""
    shape = topic.codec.shape
    if shape.fields:
        hints = infos_of(shape.type)
        return pa.schema([(field.name, _type_of(field, hints.get(field.name))) for field in shape.fields])
    if facts.codec != "plain":
        return pa.schema([(FIELD, pa.binary())])
    if facts.fields:
        return pa.schema([(name, _KINDS.get(kind, pa.string())) for name, kind in facts.fields.items()])
    return pa.schema([("fields", pa.map_(pa.string(), pa.binary()))])


# -- types ---------------------------------------------------------------------------------------------------
def _type_of(field: RecordField, hint: inspect.Type | None) -> pa.DataType:
    if field.kind in _KINDS:
        return _KINDS[field.kind]
    return (hint and _arrow(hint)) or pa.string()


def _arrow(info: inspect.Type, level: int = 0) -> pa.DataType | None:
    """Return the type of a value; None if it is JSON."""
    known = _SCALARS.get(type(info))
    if known is not None or level > DEEPEST:
        return known
    if isinstance(info, inspect.UnionType):
        rest = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        return _arrow(rest[0], level + 1) if len(rest) == 1 else None
    if isinstance(info, inspect.EnumType | inspect.LiteralType):
        values = [each.value for each in info.cls] if isinstance(info, inspect.EnumType) else info.values
        return pa.int64() if all(isinstance(value, int) for value in values if value is not None) else pa.string()
    if isinstance(info, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType):
        item = _arrow(info.item_type, level + 1)
        return None if item is None else pa.list_(item)
    if isinstance(info, inspect.DictType) and isinstance(info.key_type, inspect.StrType):
        item = _arrow(info.value_type, level + 1)
        return None if item is None else pa.map_(pa.string(), item)
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType) and info.fields:
        if isinstance(info, inspect.StructType) and (info.array_like or info.tag is not None):
            return None
        made = [(field.encode_name, _arrow(field.type, level + 1)) for field in info.fields]
        return None if any(kind is None for _, kind in made) else pa.struct(made)
    return None


# -- records -------------------------------------------------------------------------------------------------
class RecordDecoder:
    """Decodes records in a task.

    Raises UndecodableError if an entry is not a record, and JobError if a record does not fit Spark's types.
    """

    def __init__(self, topic: Topic[Any], schema: pa.Schema, path: tuple[str, ...]) -> None:
        self.name = topic.name
        self.codec_name = topic.codec.name
        self.schema = schema
        self.path = path
        self.pickled: bytes = cloudpickle.dumps(topic.codec.shape.type)  # type: ignore[no-untyped-call]  # unpickled in the task
        hints = infos_of(topic.codec.shape.type)
        self.json = {
            field.name
            for field in topic.codec.shape.fields
            if field.kind == "json" and _arrow(hints.get(field.name, inspect.AnyType())) is None
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "codec"}

    @cached_property
    def codec(self) -> Codec[Any]:
        """The topic's codec, created on the executor because it can't be pickled."""
        sys.path[:0] = [each for each in self.path if each not in sys.path]
        return codec_for(cloudpickle.loads(self.pickled), self.codec_name)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode batches; called by mapInArrow."""
        for batch in batches:
            own = [batch.column(name) for name in OWN.names]
            columns = self.columns(batch.column("_id"), batch.column("_partition"), batch.column(FIELD))
            yield pa.RecordBatch.from_arrays([*own, *columns], names=[*OWN.names, *self.schema.names])

    def columns(self, ids: pa.Array, partitions: pa.Array, data: pa.Array) -> list[pa.Array]:
        """Return the fields of records."""
        decode = self.codec.decode
        name, pydantic = FIELD.encode(), self.codec.shape.pydantic
        rows = []
        for id_, at, value in zip(ids.to_pylist(), partitions.to_pylist(), data.to_pylist(), strict=True):
            entry = Entry(StreamId.parse(id_), () if value is None else (name, value))
            record = decode(entry, f"{self.name}:{at}".encode())
            rows.append(msgspec.to_builtins(record.model_dump() if pydantic else record, builtin_types=_NATIVE))
        return [self._column(field, [row.get(field.name) for row in rows], ids) for field in self.schema]

    def _column(self, field: pa.Field, values: list[Any], ids: pa.Array) -> pa.Array:
        if field.name in self.json:
            values = [None if value is None else msgspec.json.encode(value).decode() for value in values]
        elif pa.types.is_string(field.type):
            values = [value if value is None else str(value) for value in values]
        make: Callable[[list[Any]], pa.Array] = lambda some: pa.array(some, field.type)  # noqa: E731
        try:
            return make([_aware(value) for value in values] if pa.types.is_timestamp(field.type) else values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            at = f"an entry from {ids[0]} to {ids[len(ids) - 1]}"
            what = f"topic {self.name!r}, field {field.name}"
            raise JobError(f"{what}: {at} does not fit {field.type}: {error}") from None


def _aware(value: datetime | None) -> datetime | None:
    """Return a time with a zone: without one it is UTC, as for the source."""
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value
