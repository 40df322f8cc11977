"""Invariant: a record is for the function what it was for its sender, whatever the codec."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.taskdecl import Click, totals  # noqa: E402 - needs pyarrow
from tests.tidelog.jobs.taskkit import Bench, entries  # noqa: E402 - needs pyarrow
from tidelog.jobs import MicroBatch, job  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic, partition_of  # noqa: E402


class Inner(msgspec.Struct):
    a: int
    tags: list[str] = []


class Rich(msgspec.Struct, rename={"ident": "id"}):
    ident: str
    number: int
    ratio: float
    flag: bool
    raw: bytes
    at: datetime
    uid: UUID
    inner: Inner | None
    counts: dict[str, int]
    mixed: int | list[int]
    several: list[int | str]


@dataclass
class Flat:
    id: str
    number: int
    ratio: float
    flag: bool
    raw: bytes
    at: datetime
    uid: UUID
    maybe: int | None = None


UID = UUID("12345678-1234-5678-1234-567812345678")
AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)
RICH = [
    Rich("a", 1, 0.5, True, b"\xff\x00", AT, UID, Inner(1, ["x", "y"]), {"k": 1}, [1, 2], [1, "x"]),
    Rich("b", -2, 1e300, False, b"", AT, UID, None, {}, 7, []),
]


@pytest.mark.parametrize("codec", ["json", "msgpack", "json+zstd", "msgpack+zstd"])
def test_packed_records_come_and_go(tidelog_server: Server, tmp_path: Path, codec: str) -> None:
    source: Topic[Rich] = Topic("rich", Rich, partition_by="ident", partitions=2, codec=codec)
    target: Topic[Rich] = Topic("copy", Rich, partition_by="ident", partitions=3, codec=codec)
    seen: list[Any] = []

    @job(inputs=[source], outputs=[target])
    def copied(batch: MicroBatch) -> Any:
        seen.append(batch.table)
        return {target: batch.table}

    bench = Bench(tidelog_server, tmp_path, copied, 2)
    source.sync.send_many(RICH)
    bench.drain()
    rows = sorted((row for table in seen for row in table.to_pylist()), key=lambda row: str(row["id"]))
    assert rows[0] == {
        "id": "a", "number": 1, "ratio": 0.5, "flag": True, "raw": b"\xff\x00", "at": AT, "uid": str(UID),
        "inner": {"a": 1, "tags": ["x", "y"]}, "counts": [("k", 1)], "mixed": "[1,2]", "several": '[1,"x"]',
    }  # fmt: skip
    assert rows[1]["inner"] is None
    for at, part in enumerate(entries(bench.client, target)):
        records = [target.decode(entry, at) for entry in part]
        assert records == [record for record in RICH if partition_of(record.ident, 3) == at]


class Part(pydantic.BaseModel):
    at: datetime
    names: list[str] = []


class Whole(pydantic.BaseModel):
    id: str
    parts: list[Part]
    count: int = 7


def test_models_of_pydantic_come_and_go(tidelog_server: Server, tmp_path: Path) -> None:
    source: Topic[Whole] = Topic("models", Whole, partition_by="id", partitions=1)
    target: Topic[Whole] = Topic("copy", Whole, partition_by="id", partitions=1)
    seen: list[Any] = []

    @job(inputs=[source], outputs=[target])
    def copied(batch: MicroBatch) -> Any:
        seen.extend(batch.table.to_pylist())
        return batch.table.drop_columns(["count"]) if batch.table["id"][0].as_py() == "b" else batch.table

    bench = Bench(tidelog_server, tmp_path, copied, 1)
    records = [Whole(id="a", parts=[Part(at=AT, names=["x"])], count=1), Whole(id="b", parts=[])]
    for record in records:
        source.sync.send(record)
        bench.epoch()
    assert [(row["id"], row["count"]) for row in seen] == [("a", 1), ("b", 7)]
    assert '"names":["x"]' in seen[0]["parts"]  # a list of models is JSON
    assert [target.decode(entry, 0) for entry in entries(bench.client, target)[0]] == records


def test_plain_records_come_and_go(tidelog_server: Server, tmp_path: Path) -> None:
    source: Topic[Flat] = Topic("flat", Flat, partition_by="uid", partitions=1)
    target: Topic[Flat] = Topic("copy", Flat, partition_by="uid", partitions=3)

    @job(inputs=[source], outputs=[target])
    def copied(batch: MicroBatch) -> Any:
        return batch.table  # one output: its table alone will do

    bench = Bench(tidelog_server, tmp_path, copied, 1)
    records = [Flat("a", 1, 0.5, True, b"\xff", AT, UID), Flat("b", 2, 2.5, False, b"", AT, UUID(int=7), 9)]
    source.sync.send_many(records)
    bench.drain()
    for at, part in enumerate(entries(bench.client, target)):
        assert [target.decode(entry, at) for entry in part] == [
            record for record in records if partition_of(record.uid, 3) == at
        ]


def test_dicts_without_declared_fields(tidelog_server: Server, tmp_path: Path) -> None:
    source: Topic[dict[str, str]] = Topic("loose", dict, partition_by="id", partitions=1)
    packed: Topic[dict[str, Any]] = Topic("packed", dict[str, Any], codec="json", partitions=1)
    seen: list[Any] = []

    @job(inputs=[source, packed], outputs=[totals()])
    def loose(batch: MicroBatch) -> None:
        seen.append(batch.table.to_pylist())

    bench = Bench(tidelog_server, tmp_path, loose, 1)
    source.sync.send({"id": "a", "x": "1"})
    packed.sync.send({"id": [1, None]})
    bench.drain()
    assert seen == [[{"fields": [("id", b"a"), ("x", b"1")]}], [{"data": '{"id":[1,null]}'}]]


@pytest.mark.parametrize("codec", ["plain", "json"])
def test_dicts_of_a_topic_whose_facts_name_fields(tidelog_server: Server, tmp_path: Path, codec: str) -> None:
    typed: list[Topic[Click]] = [
        Topic(name, Click, partition_by="user", partitions=2, codec=codec) for name in ("clicks", "copy")
    ]
    source: Topic[Any] = Topic("clicks", dict[str, Any], partition_by="user", partitions=2, codec="json")
    target: Topic[Any] = Topic("copy", dict[str, Any], partition_by="user", partitions=2, codec="json")
    if codec == "plain":
        source = Topic("clicks", dict, partition_by="user", partitions=2)
        target = Topic("copy", dict, partition_by="user", partitions=2)
    sent = [Click(f"u{n}", n) for n in range(10)]
    with tidelog_server.client() as client:
        for topic in typed:
            topic.use(sync=client)
            topic.sync.ready()
        typed[0].sync.send_many(sent)

    @job(inputs=[source], outputs=[target])
    def copied(batch: MicroBatch) -> Any:
        assert batch.table.schema == pa.schema([("user", pa.string()), ("n", pa.int64())])
        return batch.table

    bench = Bench(tidelog_server, tmp_path, copied, 2)
    bench.epoch()
    for at, part in enumerate(entries(bench.client, target)):
        mine = [click for click in sent if partition_of(click.user, 2) == at]
        assert [typed[1].decode(entry, at) for entry in part] == mine
