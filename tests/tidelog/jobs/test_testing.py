"""JobTest: functions on tables in memory, called as a task calls them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from tidelog.codecs import CodecError
from tidelog.jobs import JobError, MicroBatch, job
from tidelog.jobs.errors import FunctionError
from tidelog.jobs.state import State
from tidelog.jobs.testing import NOW, JobTest
from tidelog.topics import Topic
from tidelog.topics.failureactions import DeadLetter, Halt, Retry, Skip
from tidelog.topics.partition import partition_of


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    count: int


class City(msgspec.Struct):
    name: str


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=4)
totals: Topic[Total] = Topic("totals", Total, partition_by="user", partitions=4)
cities: Topic[City] = Topic("cities", City, partitions=1)
bags: Topic[dict[str, Any]] = Topic("bags", dict, partitions=1)


def counting(**options: Any) -> Any:
    @job(inputs=[clicks], outputs=[totals], state=int, name="count", **options)
    def count(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
        users = batch.table["user"].to_pylist()
        if "poison" in users:
            raise ValueError("a poison user")
        for user in users:
            state.put_many([user], [(state.get_many([user])[0] or 0) + 1])
        names = list(dict.fromkeys(users))
        return {totals: pa.table({"user": names, "count": state.get_many(names)})}

    return count


def seen(**options: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """A job that remembers its calls: partition, topic, rows, IDs."""
    calls: list[tuple[Any, ...]] = []

    @job(name="seen", **{"inputs": [clicks, cities], "state": True, **options})
    def function(batch: MicroBatch, _: State[bytes]) -> None:
        name = batch.topic.name if batch.topic else ""
        calls.append((batch.partition, name, batch.table.to_pylist(), batch.ids.to_pylist(), batch.epoch, batch.now))

    return function, calls


def test_counts_go_on_from_feed_to_feed() -> None:
    test = JobTest(counting())
    assert test.partitions == 4
    first = test.feed({clicks: [Click("ann", 1), Click("bob", 2), Click("ann", 3)]})
    assert {row["user"]: row["count"] for row in first[totals].to_pylist()} == {"ann": 2, "bob": 1}
    second = test.feed({clicks: pa.table({"user": ["bob"], "n": [4]})})
    assert second[totals].to_pylist() == [{"user": "bob", "count": 2}]
    assert second[totals].schema == pa.schema([("user", pa.string()), ("count", pa.int64())])
    assert test.outputs[totals].num_rows == 3
    assert test.state.get_many(["ann", "bob", "cid"]) == [2, 2, None]
    assert list(test.state.scan()) == [(b"ann", 2), (b"bob", 2)]
    assert test.state.of(partition_of("ann", 4)).get_many(["ann"]) == [2]
    assert test.epoch == 2


def test_records_go_to_the_partitions_of_their_keys_or_where_they_are_told() -> None:
    function, calls = seen(inputs=[clicks])
    test = JobTest(function)
    test.feed({clicks: [{"user": "ann", "n": 1}, {"user": "bob", "n": 2}]})
    found = {(call[0], call[2][0]["user"]) for call in calls}
    assert found == {(partition_of(user, 4), user) for user in ("ann", "bob")}
    calls.clear()
    test.feed({clicks: [Click("ann", 1), Click("bob", 2)]}, partition=3)
    assert [(call[0], len(call[2])) for call in calls] == [(3, 2)]
    with pytest.raises(JobError, match="no partition 4"):
        test.feed({clicks: [Click("ann", 1)]}, partition=4)


def test_inputs_one_after_the_other_and_a_broadcast_one_in_every_partition() -> None:
    function, calls = seen()
    JobTest(function).feed({cities: [City("Oslo")], clicks: [Click("ann", 1)]})
    at = partition_of("ann", 4)
    assert sorted(call[0] for call in calls if call[1] == "cities") == [0, 1, 2, 3]
    assert [call[1] for call in calls if call[0] == at] == ["clicks", "cities"]  # as declared


def test_merged_by_time() -> None:
    function, calls = seen(merge="time")
    test = JobTest(function, partitions=1)
    ids: dict[Topic[Any], list[str]] = {clicks: ["2000000000000.0", "2000000000002.0"]}
    ids[cities] = ["2000000000001.0"]
    test.feed({clicks: [Click("ann", 1), Click("ann", 2)], cities: [City("Oslo")]}, ids=ids)
    assert [call[3][0] for call in calls] == ["2000000000000.0", "2000000000001.0", "2000000000002.0"]
    test.feed({cities: [City("Rome")]})
    assert calls[-1][3] == ["2000000000003.0"]
    with pytest.raises(JobError, match="IDs must ascend"):
        test.feed({cities: [City("Rome")]}, ids={cities: ["5.0"]})


def test_no_more_rows_in_an_epoch_than_declared() -> None:
    function, calls = seen(inputs=[clicks], max_rows=2)
    test = JobTest(function, partitions=1)
    test.feed({clicks: [Click("ann", n) for n in range(5)]})
    assert [[row["n"] for row in call[2]] for call in calls] == [[0, 1], [2, 3], [4]]
    assert [call[4] for call in calls] == [1, 2, 3]
    assert test.epoch == 3


@pytest.mark.parametrize(("size", "most", "sizes"), [(100, 250, [3, 3, 1]), (1000, 250, [1] * 7), (10, 64 << 20, [7])])
def test_an_epoch_is_bounded_by_bytes_too(size: int, most: int, sizes: list[int]) -> None:
    function, calls = seen(inputs=[cities], max_bytes=most)
    test = JobTest(function)
    test.feed({cities: [City("x" * size)] * 7})
    assert [len(rows) for _, _, rows, *_ in calls] == sizes
    assert test.epoch == len(sizes)


def test_the_bytes_are_shared_by_the_inputs_that_have_entries() -> None:
    function, calls = seen(inputs=[cities, bags], max_bytes=200)
    test = JobTest(function, partitions=1)
    test.feed({cities: [City("x" * 100)] * 2, bags: [{"a": "y" * 100}] * 2})
    assert [(topic, len(rows)) for _, topic, rows, *_ in calls] == [("cities", 1), ("bags", 1)] * 2
    calls.clear()
    test.feed({cities: [City("x" * 100)] * 2})
    assert [(topic, len(rows)) for _, topic, rows, *_ in calls] == [("cities", 2)]


def test_time_is_that_of_the_ids() -> None:
    function, calls = seen(inputs=[clicks])
    test = JobTest(function, partitions=1)
    test.feed({clicks: [Click("ann", 1)]})
    assert calls[-1][5] == test.now == NOW + timedelta(milliseconds=1)
    later = datetime(2027, 1, 1, tzinfo=UTC)
    test.feed({clicks: [Click("ann", 2)]}, at=later)
    assert calls[-1][5] == later
    test.advance(60)
    test.feed({clicks: [Click("ann", 3)]}, at=test.now)
    assert calls[-1][5] == later + timedelta(seconds=60)
    with pytest.raises(JobError, match="cannot go back"):
        test.feed({clicks: [Click("ann", 4)]}, at=NOW)


def test_values_end_by_the_time_of_the_batch() -> None:
    @job(inputs=[clicks], state=int, name="short")
    def short(batch: MicroBatch, state: State[int]) -> None:
        state.put_many(batch.table["user"], batch.table["n"], ttl=10)

    test = JobTest(short)
    test.feed({clicks: [Click("ann", 7)]})
    test.advance(9)
    assert test.state.get("ann") == 7
    test.advance(1)
    assert test.state.get("ann") is None


def test_a_function_that_fails_has_not_happened_in_any_partition() -> None:
    test = JobTest(counting())
    with pytest.raises(FunctionError, match="a poison user") as raised:
        test.feed({clicks: [Click("ann", 1), Click("poison", 2), Click("bob", 3)]})
    assert "in count" in str(raised.value)  # the user's frame
    assert (test.epoch, test.outputs[totals].num_rows, list(test.state.scan())) == (0, 0, [])
    with pytest.raises(FunctionError, match="a poison user"):  # it is still there to be read
        test.feed({clicks: [Click("ann", 4)]})


def test_the_entry_that_fails_is_left_out() -> None:
    test = JobTest(counting(on_error=[DeadLetter()]), partitions=1)
    rows = [Click("ann", n) for n in range(5)] + [Click("poison", 5)] + [Click("ann", n) for n in range(6, 9)]
    test.feed({clicks: rows})
    assert test.state.get("ann") == 8  # what a failing call did to the state is dropped with it
    (dead,) = test.dead_letters
    assert (dead.topic, dead.partition, dead.row) == (clicks, 0, {"user": "poison", "n": 5})
    assert isinstance(dead.error, ValueError)
    assert max(test.outputs[totals]["count"].to_pylist()) == 8


def test_a_source_is_called_once_a_feed_in_each_partition() -> None:
    @job(outputs=[totals], state=int, partitions=2, every=30, name="source")
    def source(batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
        count = (state.get_many(["n"])[0] or 0) + 1
        state.put_many(["n"], [count])
        return {totals: pa.table({"user": [f"p{batch.partition}"], "count": [count]})}

    test = JobTest(source)
    test.feed()
    out = test.feed()
    assert out[totals].to_pylist() == [{"user": "p0", "count": 2}, {"user": "p1", "count": 2}]
    assert test.now == NOW + timedelta(seconds=60)
    with pytest.raises(JobError, match="2 partitions have a value"):
        test.state.get("n")


def test_what_could_not_be_written_or_sent_is_an_error() -> None:
    @job(inputs=[clicks], outputs=[totals], name="wrong")
    def wrong(batch: MicroBatch) -> dict[Topic[Any], pa.Table]:
        return {totals: batch.table}

    with pytest.raises(FunctionError, match="column 'n'"):
        JobTest(wrong).feed({clicks: [Click("ann", 1)]})
    with pytest.raises(CodecError):
        JobTest(wrong).feed({clicks: [City("Oslo")]}, partition=0)
    with pytest.raises(JobError, match="does not read"):
        JobTest(wrong).feed({totals: [Total("ann", 1)]})
    with pytest.raises(JobError, match="has no state"):
        _ = JobTest(wrong).state


def test_a_topic_of_dicts_has_a_column_of_fields() -> None:
    function, calls = seen(inputs=[bags])
    JobTest(function).feed({bags: [{"a": "1", "b": "2"}]})
    assert calls[0][2] == [{"fields": [("a", b"1"), ("b", b"2")]}]


def test_frame_jobs_are_for_spark() -> None:
    @job(inputs=[clicks], outputs=[totals], name="frame")
    def frame(clicks: DataFrame) -> DataFrame:  # type: ignore[name-defined]  # noqa: F821 - it is never looked up
        return clicks

    with pytest.raises(JobError, match="frame job"):
        JobTest(frame)


def test_neither_spark_nor_a_server_is_needed() -> None:
    program = "import sys, tidelog.jobs.testing; sys.exit(any(name.split('.')[0] == 'pyspark' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "steps", [[], [Skip()], [Retry(3), DeadLetter()], [Halt(), Halt()], ["stop"], "stop", DeadLetter(), None]
)
def test_unsupported_failure_actions_are_rejected(steps: Any) -> None:
    with pytest.raises(JobError, match=r"job 'count': on_error must be \[Halt\(\)\] or \[DeadLetter\(\)\]"):
        counting(on_error=steps)
