"""What the fields of records are in ``batch.table``, as docs/jobs.md says."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from tidelog.jobs import MicroBatch, job
from tidelog.jobs.testing import JobTest
from tidelog.topics import Topic


class Size(Enum):
    LARGE = 1


class Part(msgspec.Struct):
    price: Decimal
    at: datetime


#: By field: type, value, type of the column, value in it.
FIELDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "text": (str, "tea", pa.string(), "tea"),
    "whole": (int, 7, pa.int64(), 7),
    "real": (float, 2.5, pa.float64(), 2.5),
    "flag": (bool, True, pa.bool_(), True),
    "raw": (bytes, b"\xff", pa.binary(), b"\xff"),
    "price": (Decimal, Decimal("1.10"), pa.string(), "1.10"),
    "name": (UUID, UUID(int=10), pa.string(), "00000000-0000-0000-0000-00000000000a"),
    "at": (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, UTC), pa.timestamp("us", "UTC"),
           datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    "local": (datetime, datetime(2026, 1, 2), pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC)),  # noqa: DTZ001
    "day": (date, date(2026, 1, 2), pa.date32(), date(2026, 1, 2)),
    "hour": (time, time(10, 30), pa.string(), "10:30:00"),
    "span": (timedelta, timedelta(seconds=90), pa.string(), "PT90S"),
    "size": (Size, Size.LARGE, pa.string(), "1"),
    "kind": (Literal["a", "b"], "a", pa.string(), "a"),
    "maybe": (Decimal | None, None, pa.string(), None),
}  # fmt: skip
NESTED: dict[str, tuple[Any, Any, Any, Any]] = {
    "prices": (list[Decimal], [Decimal("1.10")], pa.list_(pa.string()), ["1.10"]),
    "names": (set[UUID], {UUID(int=10)}, pa.list_(pa.string()), ["00000000-0000-0000-0000-00000000000a"]),
    "times": (dict[str, date], {"a": date(2026, 1, 2)}, pa.map_(pa.string(), pa.date32()), [("a", date(2026, 1, 2))]),
    "part": (Part, Part(Decimal("1.1"), datetime(2026, 1, 2, tzinfo=UTC)),
             pa.struct([("price", pa.string()), ("at", pa.timestamp("us", "UTC"))]),
             {"price": "1.1", "at": datetime(2026, 1, 2, tzinfo=UTC)}),
    "either": (int | str, 5, pa.string(), "5"),
}  # fmt: skip


@pytest.mark.parametrize("codec", ["plain", "json", "msgpack"])
def test_columns_and_back(codec: str) -> None:
    fields = FIELDS if codec == "plain" else FIELDS | NESTED
    record = msgspec.defstruct("Record", [("id", int), *((name, kind) for name, (kind, *_) in fields.items())])
    given: Topic[Any] = Topic("given", record, partition_by="id", partitions=1, codec=codec)
    made: Topic[Any] = Topic("made", record, partition_by="id", partitions=1, codec=codec)
    seen: list[pa.Table] = []

    @job(inputs=[given], outputs=[made])
    def copy(batch: MicroBatch) -> pa.Table:
        seen.append(batch.table)
        return batch.table

    out = JobTest(copy).feed({given: [record(1, *(value for _, value, *_ in fields.values()))]})
    (table,) = seen
    for name, (_, _, kind, value) in fields.items():
        assert table.schema.field(name).type.equals(kind), name
        assert table[name].to_pylist() == [value], name
    assert out[made].to_pylist() == table.to_pylist()


def test_the_documentation_names_them() -> None:
    text = (Path(__file__).parents[3] / "docs/jobs.md").read_text()
    for kind, column in (
        ("`Decimal`", "`string`"), ("`UUID`", "`string`"), ("`datetime`", "`timestamp[us, UTC]`"),
        ("`date`", "`date32`"), ("`time`, `timedelta`", "`string`"), ("an `Enum`, a `Literal`", "`string`"),
    ):  # fmt: skip
        assert re.search(rf"^\| {re.escape(kind)} \| {re.escape(column)} \|", text, re.MULTILINE), kind
