"""Invariant: a task reads what comes next, in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.taskdecl import Click, Seen, clicks, noted, totals  # noqa: E402 - needs pyarrow
from tests.tidelog.jobs.taskkit import Bench  # noqa: E402 - needs pyarrow
from tidelog import StreamId  # noqa: E402
from tidelog.client.publish import ReplicaAcks  # noqa: E402
from tidelog.jobs import MicroBatch, job  # noqa: E402
from tidelog.jobs.task.task import run  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import partition_of  # noqa: E402


# -- reading -------------------------------------------------------------------------------------------------
def test_entries_are_read_in_order_and_once(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()], max_rows=4)
    def order(batch: MicroBatch) -> None:
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
    def joined(batch: MicroBatch) -> None:
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
    def fair(batch: MicroBatch) -> None:
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
    def sized(batch: MicroBatch) -> None:
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
    def sized(batch: MicroBatch) -> None:
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
    def merged(batch: MicroBatch) -> None:
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
    def merged(batch: MicroBatch) -> None:
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
    def nothing(batch: MicroBatch) -> None:
        pass

    bench = Bench(tidelog_server, tmp_path, nothing, 1)
    source.sync.send(Click("a", 1))
    plan = bench.plan(0)
    result = run(replace(plan, where=replace(plan.where, copies=ReplicaAcks(1, 20))))
    assert result.failure is not None
    assert result.failure.kind == ""
    assert "0 of 1 replicas" in result.failure.text


def test_values_that_are_not_of_their_type_stop_the_job(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def strict(batch: MicroBatch) -> None:
        raise AssertionError("it is not called")

    bench = Bench(tidelog_server, tmp_path, strict, 1)
    bench.client.tappend("clicks:0", {"user": "a", "n": "many"})
    text = bench.failed("FunctionError")
    assert "job 'strict', partition 0, epoch 1" in text
    assert "'n' is b'many', which is not of type int" in text
    assert "on_error=[DeadLetter()]" in text


def test_a_missing_field_is_null(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()])
    def lacking(batch: MicroBatch) -> None:
        noted(seen, batch)

    bench = Bench(tidelog_server, tmp_path, lacking, 1)
    bench.client.tappend("clicks:0", {"user": "a", "new": "field"})
    bench.epoch()
    assert [rows for _, rows in seen] == [[None]]
