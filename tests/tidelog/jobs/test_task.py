"""Invariant: a task reads what comes next, in order; what its function returns is staged where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.taskkit import Bench, entries, texts  # noqa: E402 - needs pyarrow
from tidelog import Client, StreamId  # noqa: E402
from tidelog.client.publish import Copies  # noqa: E402
from tidelog.jobs import Batch, job  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.task import run  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic, partition_of  # noqa: E402


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    count: int


Seen = list[tuple[str, list[int]]]


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        yield client


def clicks(name: str = "clicks", partitions: int = 1, **options: Any) -> Topic[Click]:
    return Topic(name, Click, partition_by="user", partitions=partitions, **options)


def totals(partitions: int = 1, **options: Any) -> Topic[Total]:
    return Topic("totals", Total, partition_by="user", partitions=partitions, **options)


def noted(seen: Seen, batch: Batch) -> None:
    assert batch.topic is not None
    seen.append((batch.topic.name, batch.table["n"].to_pylist()))


# -- reading -------------------------------------------------------------------------------------------------
def test_entries_are_read_in_order_and_once(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()], max_rows=4)
    def order(batch: Batch) -> None:
        noted(seen, batch)
        assert len(batch) == len(batch.ids)
        assert batch.table.schema == pa.schema([("user", pa.string()), ("n", pa.int64())])

    bench = Bench(tidelog_server, tmp_path, order, 1)
    source.sync.send_many([Click("a", n) for n in range(10)])
    results = bench.drain()
    assert seen == [("clicks", [0, 1, 2, 3]), ("clicks", [4, 5, 6, 7]), ("clicks", [8, 9])]
    assert [result.more for result in results] == [True, True, False, False]
    ids = [entry.id for entry in bench.client.trange("clicks:0")]
    spans = [marker.inputs["clicks"] for marker in bench.markers()]
    assert [(span.after, span.end, span.rows) for span in spans] == [
        (StreamId(0), ids[3], 4), (ids[3], ids[7], 4), (ids[7], ids[9], 2), (ids[9], ids[9], 0),
    ]  # fmt: skip
    assert [marker.now_ms for marker in bench.markers()] == [ids[3].ms, ids[7].ms, ids[9].ms, ids[9].ms]
    assert results[0].seconds.keys() == {"look", "read", "call", "stage"}


def test_each_partition_reads_its_own_and_of_a_topic_with_one_all(tidelog_server: Server, tmp_path: Path) -> None:
    left, right, rates = clicks("left", 3), clicks("right", 3), clicks("rates", 1)
    seen: list[tuple[int, str, list[str]]] = []

    @job(inputs=[left, right, rates], outputs=[totals()])
    def joined(batch: Batch) -> None:
        assert batch.topic is not None
        seen.append((batch.partition, batch.topic.name, batch.table["user"].to_pylist()))

    bench = Bench(tidelog_server, tmp_path, joined, 3)
    users = [f"u{n}" for n in range(12)]
    for topic in (right, left):
        topic.sync.send_many([Click(user, 1) for user in users])
    rates.sync.send_many([Click("x", 1), Click("y", 1)])
    bench.drain()
    for at in range(3):
        mine = [user for user in users if partition_of(user, 3) == at]
        assert mine
        assert [(topic, names) for part, topic, names in seen if part == at] == [
            ("left", mine), ("right", mine), ("rates", ["x", "y"]),
        ]  # fmt: skip


def test_inputs_share_a_batch_fairly(tidelog_server: Server, tmp_path: Path) -> None:
    many, few = clicks("many"), clicks("few")
    seen: Seen = []

    @job(inputs=[many, few], outputs=[totals()], max_rows=10)
    def fair(batch: Batch) -> None:
        noted(seen, batch)

    bench = Bench(tidelog_server, tmp_path, fair, 1)
    many.sync.send_many([Click("a", n) for n in range(20)])
    few.sync.send_many([Click("a", n) for n in range(3)])
    bench.drain()
    assert seen[:2] == [("many", list(range(7))), ("few", [0, 1, 2])]
    assert [n for name, some in seen if name == "many" for n in some] == list(range(20))


def test_a_batch_has_about_max_bytes(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: list[int] = []

    @job(inputs=[source], outputs=[totals()], max_bytes=100_000)
    def sized(batch: Batch) -> None:
        seen.append(len(batch))

    bench = Bench(tidelog_server, tmp_path, sized, 1)
    source.sync.send_many([Click("u" * 1000, n) for n in range(5000)])
    bench.drain()
    assert sum(seen) == 5000
    assert seen[0] <= 1000  # while nobody knows how large they are
    assert all(50 <= number <= 200 for number in seen[1:-1]), seen


def test_entries_that_are_much_larger_than_those_before(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: list[int] = []

    @job(inputs=[source], outputs=[totals()], max_bytes=1 << 20)
    def sized(batch: Batch) -> None:
        seen.append(len(batch))

    bench = Bench(tidelog_server, tmp_path, sized, 1)
    source.sync.send_many([Click("u", n) for n in range(2000)])
    bench.epoch()
    source.sync.send_many([Click("u" * (2 << 20), n) for n in range(20)])
    results = bench.drain()
    assert sum(seen) == 2020
    assert all(number < 20 for number in seen[1:]), seen  # about a page of 16 MB, not all that their number allows
    assert results[0].more


def test_merged_by_time(tidelog_server: Server, tmp_path: Path) -> None:
    left, right = clicks("left"), clicks("right")
    seen: Seen = []

    @job(inputs=[left, right], outputs=[totals()], merge="time", max_rows=7)
    def merged(batch: Batch) -> None:
        noted(seen, batch)
        assert batch.topic is not None
        order.extend((StreamId.parse(text), batch.topic.name) for text in batch.ids.to_pylist())

    order: list[tuple[StreamId, str]] = []
    bench = Bench(tidelog_server, tmp_path, merged, 1)
    for n in range(40):
        (left if n % 3 else right).sync.send(Click("a", n))
        if n % 10 == 9:
            bench.epoch()
    bench.drain()
    assert order == sorted(order)
    assert len(order) == 40
    assert all(len(some) <= 7 for _, some in seen)
    consecutive = [name for name, _ in seen]
    assert len(consecutive) < 40  # rows of one topic that follow on each other are one call
    for name in ("left", "right"):
        ids = [entry.id for entry in bench.client.trange(f"{name}:0")]
        assert [at for at, topic in order if topic == name] == ids


def test_merged_by_time_with_fewer_rows_than_inputs(tidelog_server: Server, tmp_path: Path) -> None:
    left, right = clicks("left"), clicks("right")
    order: list[StreamId] = []

    @job(inputs=[left, right], outputs=[totals()], merge="time", max_rows=1)
    def merged(batch: Batch) -> None:
        order.extend(map(StreamId.parse, batch.ids.to_pylist()))

    bench = Bench(tidelog_server, tmp_path, merged, 1)
    for n in range(6):
        right.sync.send(Click("a", n))
    left.sync.send(Click("a", 6))
    bench.drain()
    assert order == sorted(order)
    assert len(order) == 7


def test_too_few_replicas_are_a_failure(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def nothing(batch: Batch) -> None:
        pass

    bench = Bench(tidelog_server, tmp_path, nothing, 1)
    source.sync.send(Click("a", 1))
    plan = bench.plan(0)
    result = run(replace(plan, where=replace(plan.where, copies=Copies(1, 20))))
    assert result.failure is not None
    assert result.failure.kind == ""
    assert "0 of 1 replicas" in result.failure.text


def test_values_that_are_not_of_their_type_stop_the_job(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def strict(batch: Batch) -> None:
        raise AssertionError("it is not called")

    bench = Bench(tidelog_server, tmp_path, strict, 1)
    bench.client.tappend("clicks:0", {"user": "a", "n": "many"})
    text = bench.failed("FunctionError")
    assert "job 'strict', partition 0, epoch 1" in text
    assert "'n' is b'many', which is no int" in text
    assert "on_error='deadletter'" in text


def test_a_missing_field_is_null(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()])
    def lacking(batch: Batch) -> None:
        noted(seen, batch)

    bench = Bench(tidelog_server, tmp_path, lacking, 1)
    bench.client.tappend("clicks:0", {"user": "a", "new": "field"})
    bench.epoch()
    assert [rows for _, rows in seen] == [[None]]


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
    def copied(batch: Batch) -> Any:
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
    def copied(batch: Batch) -> Any:
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
    def copied(batch: Batch) -> Any:
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
    def loose(batch: Batch) -> None:
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
    def copied(batch: Batch) -> Any:
        assert batch.table.schema == pa.schema([("user", pa.string()), ("n", pa.int64())])
        return batch.table

    bench = Bench(tidelog_server, tmp_path, copied, 2)
    bench.epoch()
    for at, part in enumerate(entries(bench.client, target)):
        mine = [click for click in sent if partition_of(click.user, 2) == at]
        assert [typed[1].decode(entry, at) for entry in part] == mine


# -- outputs -------------------------------------------------------------------------------------------------
def test_rows_go_to_the_partition_of_their_key(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(partitions=2), totals(3)
    spread: Topic[dict[str, str]] = Topic("spread", dict, partitions=2)
    by_function: Topic[Click] = Topic("made", Click, partition_by=lambda click: click.n % 7, partitions=3)

    @job(inputs=[source], outputs=[target, spread, by_function])
    def routed(batch: Batch) -> Any:
        rows = pa.table({"user": batch.table["user"], "count": batch.table["n"]})
        return {target: rows, spread: pa.table({"any": batch.table["n"]}), by_function: batch.table}

    bench = Bench(tidelog_server, tmp_path, routed, 2)
    sent = [Click(f"u{n}", n) for n in range(30)]
    source.sync.send_many(sent)
    results = bench.epoch()
    assert sum(result.marker.rows for result in results if result.marker) == 90
    for at, part in enumerate(texts(bench.client, target)):
        assert part
        assert all(partition_of(row["user"], 3) == at for row in part)
        for origin in range(2):  # in the order in which one partition of the job returned them
            mine = [int(row["count"]) for row in part if partition_of(row["user"], 2) == origin]
            assert mine == sorted(mine)
    assert sorted(int(row["any"]) for part in texts(bench.client, spread) for row in part) == list(range(30))
    for at, part in enumerate(texts(bench.client, by_function)):
        assert all(partition_of(int(row["n"]) % 7, 3) == at for row in part)
    assert sum(map(len, texts(bench.client, by_function))) == 30


def test_large_outputs_are_staged_first_and_the_marker_last(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals(2)

    @job(inputs=[source], outputs=[target])
    def large(batch: Batch) -> Any:
        numbers = range(3000)
        return {target: pa.table({"user": [f"{n}:{'x' * 1000}" for n in numbers], "count": list(numbers)})}

    bench = Bench(tidelog_server, tmp_path, large, 1)
    source.sync.send(Click("a", 1))
    (result,) = bench.tasks()
    assert len(result.stages) >= 2
    assert bench.client.tlen("job:large:log:0") == 0
    bench.publish([result])
    for part in texts(bench.client, target):
        assert [int(row["count"]) for row in part] == sorted(int(row["count"]) for row in part)
    assert sum(map(len, texts(bench.client, target))) == 3000
    assert [marker.rows for marker in bench.markers()] == [3000]


def test_what_fails_stages_nothing(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target], max_rows=2)
    def fails_late(batch: Batch) -> Any:
        if 5 in batch.table["n"].to_pylist():
            raise ValueError
        return {target: pa.table({"user": batch.table["user"], "count": batch.table["n"]})}

    bench = Bench(tidelog_server, tmp_path, fails_late, 1)
    source.sync.send_many([Click("a", n) for n in range(6)])
    bench.epoch()
    bench.epoch()
    bench.failed("FunctionError")
    assert bench.client.redis.info("everything")["stages"] == 0


def test_tasks_share_a_connection(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks(partitions=4)

    @job(inputs=[source], outputs=[totals()], state=int)
    def shared(batch: Batch, state: State[int]) -> None: ...

    bench = Bench(tidelog_server, tmp_path, shared, 4)
    bench.epoch()

    def connections() -> list[str]:
        return [each["addr"] for each in bench.client.redis.client_list() if each["name"] == "tidelog-jobs-task"]

    before = connections()
    bench.epoch()
    assert len(before) == 1
    assert connections() == before


def test_nothing_is_returned(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()
    answers: list[Any] = [None, {}, {target: pa.table({"user": pa.array([], pa.string())})}]

    @job(inputs=[source], outputs=[target])
    def quiet(batch: Batch) -> Any:
        return answers.pop()

    bench = Bench(tidelog_server, tmp_path, quiet, 1)
    for n in range(3):
        source.sync.send(Click("a", n))
        bench.epoch()
    assert not answers
    assert bench.client.tlen("totals:0") == 0
    assert [marker.rows for marker in bench.markers()] == [0, 0, 0]


GOOD = {"user": ["a"], "count": [1]}
elsewhere: Topic[Total] = Topic("elsewhere", Total, partition_by="user")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda target: [1], "returned list [1]"),
        (lambda target: {target: [1]}, "returned list [1] for topic 'totals': a pa.Table is needed"),
        (lambda target: {"totals": pa.table(GOOD)}, "'totals', which is no topic"),
        (lambda target: {elsewhere: pa.table(GOOD)}, "topic 'elsewhere'; outputs of the job are 'totals'"),
        (lambda target: {target: pa.table({"user": ["a"]})}, "no column 'count', which every entry needs"),
        (lambda target: {target: pa.table({"count": [1]})}, "no column 'user', which every entry needs"),
        (lambda target: {target: pa.table({**GOOD, "tpyo": [1]})}, "a column 'tpyo', and the topic no such field"),
        (lambda target: {target: pa.table({**GOOD, "count": ["1"]})}, "'count' is string, and the field is int"),
        (lambda target: {target: pa.table({**GOOD, "count": [[1]]})}, "'count' is list"),
        (lambda target: {target: pa.table({**GOOD, "count": pa.nulls(1)})}, "count is null in a row"),
        (lambda target: {target: pa.table({**GOOD, "user": pa.nulls(1)})}, "user is null in a row"),
        (lambda target: {target: pa.table({**GOOD, "count": pa.array([None], pa.int64())})}, "count is null in a row"),
        (lambda target: {target: pa.table([["a"], [1], [2]], ["user", "count", "count"])}, "two columns of one name"),
        (lambda target: {target: pa.table({**GOOD, "count": pa.array([1], pa.duration("s"))})}, "duration[s]"),
    ],
)
def test_what_can_not_be_written_is_refused(
    tidelog_server: Server, tmp_path: Path, returned: Any, says: str
) -> None:  # fmt: skip
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target])
    def wrong(batch: Batch) -> Any:
        return returned(target)

    bench = Bench(tidelog_server, tmp_path, wrong, 1)
    source.sync.send(Click("a", 1))
    text = bench.failed("FunctionError")
    assert says in text
    assert "job 'wrong', partition 0, epoch 1" in text


def test_a_table_alone_needs_one_output(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target, clicks("more")])
    def two(batch: Batch) -> Any:
        return pa.table(GOOD)

    bench = Bench(tidelog_server, tmp_path, two, 1)
    source.sync.send(Click("a", 1))
    assert "2 outputs ('totals', 'more'): return {topic: table}" in bench.failed("FunctionError")


def test_columns_of_other_types_that_hold_the_same(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target])
    def various(batch: Batch) -> Any:
        user = batch.table["user"]
        count = batch.table["n"].cast(pa.int8())
        names = [user.dictionary_encode(), user.cast(pa.large_string()), user.cast(pa.string_view())]
        return {target: pa.table({"user": names[batch.table["n"][0].as_py()], "count": count})}

    bench = Bench(tidelog_server, tmp_path, various, 1)
    for n in range(3):
        source.sync.send(Click("ü", n))
        bench.epoch()
    assert texts(bench.client, target) == [[{"user": "ü", "count": str(n)} for n in range(3)]]


# -- the function --------------------------------------------------------------------------------------------
def test_an_error_of_the_function_shows_where(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks(partitions=2)

    def helper(batch: Batch) -> None:
        raise ValueError("no such thing")

    @job(inputs=[source], outputs=[totals()])
    def broken(batch: Batch) -> None:
        helper(batch)

    bench = Bench(tidelog_server, tmp_path, broken, 2)
    source.sync.send_many([Click("b", 1), Click("b", 2)])
    text = bench.failed("FunctionError")
    at = partition_of("b", 2)
    first, second = (entry.id for entry in bench.client.trange(f"clicks:{at}"))
    assert f"job 'broken', partition {at}, epoch 1: the function failed with 2 entries of topic 'clicks'" in text
    assert f"read: clicks:{at} after 0.0 up to {second} (2 entries)" in text
    assert str(first) in text
    assert "helper(batch)" in text
    assert text.endswith("ValueError: no such thing")
    assert "calling.py" not in text


def test_exiting_is_an_error_too(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def leaves(batch: Batch) -> None:
        raise SystemExit(3)

    bench = Bench(tidelog_server, tmp_path, leaves, 1)
    source.sync.send(Click("a", 1))
    assert "SystemExit: 3" in bench.failed("FunctionError")


def test_a_source_has_its_position_in_its_state(tidelog_server: Server, tmp_path: Path) -> None:
    target, times = totals(2), []

    @job(outputs=[target], state=int, partitions=2, every=1.0)
    def counter(batch: Batch, state: State[int]) -> Any:
        assert batch.topic is None
        assert len(batch) == 0
        times.append((batch.partition, batch.now_ms))
        (count,) = state.get_many(["count"])
        state.put_many(["count"], [(count or 0) + 1])
        return {target: pa.table({"user": [f"p{batch.partition}"], "count": [(count or 0) + 1]})}

    bench = Bench(tidelog_server, tmp_path, counter, 2)
    for now_ms in (1_700_000_000_000, 1_700_000_001_000, 1_600_000_000_000):
        bench.now_ms = now_ms
        bench.epoch()
    counts = [int(row["count"]) for part in texts(bench.client, target) for row in part]
    assert sorted(counts) == [1, 1, 2, 2, 3, 3]
    assert [now for at, now in times if at == 0] == [1_700_000_000_000, 1_700_000_001_000, 1_700_000_001_000]
    before = list(times)
    bench.lose_state()
    bench.now_ms = 1_800_000_000_000
    results = bench.tasks()
    assert times[len(before) :] == [
        (at, now) for at in range(2) for now in [now for part, now in before if part == at] + [1_800_000_000_000]
    ]
    assert [result.recovered for result in results] == [3, 3]


def test_a_source_without_a_time_from_the_driver_takes_the_servers(tidelog_server: Server, tmp_path: Path) -> None:
    times = []

    @job(outputs=[totals()], partitions=1, every=1.0)
    def clock(batch: Batch) -> None:
        times.append(batch.now_ms)

    bench = Bench(tidelog_server, tmp_path, clock, 1)
    bench.epoch()
    seconds, _ = bench.client.redis.time()
    assert times[0] / 1000 == pytest.approx(seconds, abs=5)
    assert bench.markers()[0].now_ms == times[0]


# -- what is not there ---------------------------------------------------------------------------------------
def test_a_topic_that_was_made_anew_is_another_one(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target])
    def known(batch: Batch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, known, 1)
    bench.topics = {topic.name: topic.facts.id for topic in (source, target)}
    bench.epoch()
    bench.client.redis.delete("topic:totals")
    assert "there is no topic 'totals' any more" in bench.failed("JobError")
    totals().use(sync=bench.client)
    again = totals()
    again.use(sync=bench.client)
    again.sync.ready()
    assert "topic 'totals' was deleted and made anew: its ID was" in bench.failed("JobError")


def test_a_topic_that_is_declared_otherwise(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def otherwise(batch: Batch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, otherwise, 1)
    mine: Topic[Click] = Topic("clicks", Click, partition_by="n", partitions=1)
    from tests.tidelog.jobs import declared

    declared.otherwise = job(name="otherwise", inputs=[mine], outputs=[totals()])(lambda batch: None)  # type: ignore[attr-defined]
    assert "partition_by is 'user' on the server, 'n' here" in bench.failed("JobError")


def test_inputs_that_were_evicted_are_lost(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()], max_rows=2)
    def late(batch: Batch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, late, 1)
    source.sync.send_many([Click("a", n) for n in range(6)])
    bench.epoch()
    bench.client.ttrim("clicks:0", count=4)  # what was read
    bench.tasks()
    bench.client.ttrim("clicks:0", count=1)
    text = bench.failed("InputsLostError")
    assert "entries of 'clicks:0' after" in text
    assert "overflow='protect'" in text


def test_a_stream_that_is_not_the_one_that_was_read(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def replaced(batch: Batch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, replaced, 1)
    source.sync.send(Click("a", 1))
    bench.epoch()
    bench.client.redis.delete("clicks:0")
    assert "'clicks:0' is not the stream that was read before" in bench.failed("InputsLostError")
    source.sync.send(Click("a", 1))
    assert "'clicks:0' is not the stream that was read before" in bench.failed("InputsLostError")


def test_a_server_that_is_gone_may_come_back(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()])
    def patient(batch: Batch) -> None:
        noted(seen, batch)

    bench = Bench(tidelog_server, tmp_path, patient, 1)
    source.sync.send(Click("a", 1))
    plan = bench.plan(0)
    from tidelog.jobs.task import run

    tidelog_server.kill()
    failure = run(plan).failure
    assert failure is not None
    assert failure.kind == ""
    assert "no answer from" in failure.text
    tidelog_server.start()
    assert run(plan).failure is None
    assert seen == [("clicks", [1])]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere.at_all:job", "there is no module 'nowhere'"),
        ("tests.tidelog.jobs.declared:nobody", "has no 'nobody'"),
        ("tests.tidelog.jobs.taskkit:Bench", "that is type, not a job"),
        ("tests.tidelog.jobs.declared", "write module:attribute"),
        ("faulty_jobs:any", "ZeroDivisionError"),
        ("needy_jobs:any", "No module named 'not_installed_here'"),
    ],
)
def test_what_is_no_job(tidelog_server: Server, tmp_path: Path, target: str, says: str) -> None:
    from dataclasses import replace

    from tidelog.jobs.loading import load
    from tidelog.jobs.task import run

    @job(outputs=[totals()], partitions=1, every=1.0)
    def any_job(batch: Batch) -> None: ...

    (tmp_path / "faulty_jobs.py").write_text("x = 1 / 0\n")
    (tmp_path / "needy_jobs.py").write_text("import not_installed_here\n")
    plan = Bench(tidelog_server, tmp_path, any_job, 1).plan(0)
    failure = run(replace(plan, where=replace(plan.where, target=target, path=(str(tmp_path),)))).failure
    assert failure is not None
    assert failure.kind == "JobError"
    assert says in failure.text
    assert load("tests.tidelog.jobs.declared:any_job") is any_job
