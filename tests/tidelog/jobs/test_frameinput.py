"""Columns of a topic's records, and records of packed codecs taken apart."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark import cloudpickle  # noqa: E402

from tidelog.codecs import UndecodableError  # noqa: E402
from tidelog.jobs.errors import JobError  # noqa: E402
from tidelog.jobs.frames.input import RecordDecoder, schema_of  # noqa: E402
from tidelog.topics import Topic, TopicSettings  # noqa: E402

AT = datetime(2026, 1, 31, 10, 0, 0, 250_000, tzinfo=UTC)
TIMESTAMP = pa.timestamp("us", "UTC")


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass
class Line:
    item: str
    price: Decimal | None = None


class Extra(TypedDict):
    note: str


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


class Order(msgspec.Struct, rename={"number": "no"}):
    number: int
    key: UUID
    lines: list[Line]
    tags: dict[str, float]
    extra: Extra
    at: datetime
    local: datetime
    day: date
    hour: time
    span: timedelta
    raw: bytes
    size: Size
    kind: Literal["a", "b"]
    tree: Node
    either: int | str | None
    ratio: float | None = None


ORDER = Order(
    7, UUID(int=9), [Line("tea", Decimal("3.10")), Line("jam")], {"x": 1.5}, {"note": "n"}, AT, AT.replace(tzinfo=None),
    AT.date(), time(10, 30), timedelta(seconds=90), b"\x00\xff", Size.LARGE, "b", Node("n", [Node("m")]), 5,
)  # fmt: skip


class Model(pydantic.BaseModel):
    id: int
    key: UUID
    at: datetime | None = None
    names: list[str] = []


def decoded(topic: Topic[Any], *records: Any) -> list[dict[str, Any]]:
    """What the tasks make of records; the decoder goes to them pickled."""
    schema = schema_of(topic, topic.declared)
    decoder = cloudpickle.loads(cloudpickle.dumps(RecordDecoder(topic, schema, ())))
    data = pa.array([topic.codec.encode(record)[1][0] for record in records], pa.binary())
    ids = pa.array([f"5.{n}" for n in range(len(records))])
    times = pa.array([AT] * len(records), TIMESTAMP)
    partitions = pa.array([1] * len(records), pa.int32())
    batch = pa.RecordBatch.from_arrays([ids, times, partitions, data], names=["_id", "_ts", "_partition", "data"])
    (made,) = decoder([batch])
    assert made.schema.names == ["_id", "_ts", "_partition", *schema.names]
    assert [made.schema.field(name).type for name in schema.names] == schema.types
    rows: list[dict[str, Any]] = made.to_pylist(maps_as_pydicts="strict")
    return rows


@pytest.mark.parametrize("codec", ["json", "msgpack", "json+zstd", "msgpack+zstd"])
def test_a_record_of_every_type(codec: str) -> None:
    topic: Topic[Order] = Topic("orders", Order, codec=codec)
    types = dict(zip(*(lambda schema: (schema.names, schema.types))(schema_of(topic, topic.declared)), strict=True))
    assert types["lines"] == pa.list_(pa.struct([("item", pa.string()), ("price", pa.decimal128(38, 18))]))
    assert types["tags"] == pa.map_(pa.string(), pa.float64())
    assert (types["size"], types["tree"], types["either"]) == (pa.int64(), pa.string(), pa.string())
    (row,) = decoded(topic, ORDER)
    assert row == {
        "_id": "5.0", "_ts": AT, "_partition": 1, "no": 7, "key": str(UUID(int=9)),
        "lines": [{"item": "tea", "price": Decimal("3.1")}, {"item": "jam", "price": None}], "tags": {"x": 1.5},
        "extra": {"note": "n"}, "at": AT, "local": AT, "day": AT.date(), "hour": "10:30:00", "span": "PT90S",
        "raw": b"\x00\xff", "size": 2, "kind": "b", "tree": '{"name":"n","below":[{"name":"m","below":[]}]}',
        "either": "5", "ratio": None,
    }  # fmt: skip


def test_a_model_of_pydantic() -> None:
    topic: Topic[Model] = Topic("models", Model, codec="msgpack")
    rows = decoded(topic, Model(id=1, key=UUID(int=2), at=AT, names=["a"]), Model(id=2, key=UUID(int=3)))
    assert [(row["id"], row["key"], row["at"], row["names"]) for row in rows] == [
        (1, str(UUID(int=2)), AT, ["a"]), (2, str(UUID(int=3)), None, []),
    ]  # fmt: skip


def test_plain_topics_and_dicts() -> None:
    flat: Topic[Line] = Topic("lines", Line)
    assert schema_of(flat, flat.declared) == pa.schema([("item", pa.string()), ("price", pa.decimal128(38, 18))])
    loose: Topic[Any] = Topic("loose", dict[str, str])
    assert schema_of(loose, loose.declared).names == ["fields"]
    known = TopicSettings(2, None, "plain", {"id": "int", "at": "datetime"})
    assert schema_of(loose, known) == pa.schema([("id", pa.int64()), ("at", TIMESTAMP)])
    packed: Topic[Any] = Topic("packed", dict[str, str], codec="json")
    assert schema_of(packed, packed.declared) == pa.schema([("data", pa.binary())])


def test_what_does_not_fit() -> None:
    topic: Topic[Order] = Topic("orders", Order, codec="json")
    with pytest.raises(JobError, match=r"topic 'orders', field no: an entry from 5.0 to 5.0 does not fit int64"):
        decoded(topic, msgspec.structs.replace(ORDER, number=1 << 70))
    other: Topic[Line] = Topic("orders", Line, codec="json")
    data = pa.array([b'{"item": 5}'])
    with pytest.raises(UndecodableError, match=r"entry 5\.0 of orders:1: not a Line in json"):
        RecordDecoder(other, schema_of(other, other.declared), ()).columns(pa.array(["5.0"]), pa.array([1]), data)
