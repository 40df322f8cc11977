"""Invariant: what a function returns is staged where it belongs; what fails stages nothing and says why."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.taskdecl import Click, Seen, Total, clicks, noted, totals  # noqa: E402 - needs pyarrow
from tests.tidelog.jobs.taskkit import Bench, texts  # noqa: E402 - needs pyarrow
from tidelog.jobs import MicroBatch, job  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.task.task import run  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic, partition_of  # noqa: E402


# -- outputs -------------------------------------------------------------------------------------------------
def test_rows_go_to_the_partition_of_their_key(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(partitions=2), totals(3)
    spread: Topic[dict[str, str]] = Topic("spread", dict, partitions=2)
    by_function: Topic[Click] = Topic("made", Click, partition_by=lambda click: click.n % 7, partitions=3)

    @job(inputs=[source], outputs=[target, spread, by_function])
    def routed(batch: MicroBatch) -> Any:
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
    def large(batch: MicroBatch) -> Any:
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
    def fails_late(batch: MicroBatch) -> Any:
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
    def shared(batch: MicroBatch, state: State[int]) -> None: ...

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
    def quiet(batch: MicroBatch) -> Any:
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
        (lambda target: {"totals": pa.table(GOOD)}, "'totals', which is not a topic"),
        (lambda target: {elsewhere: pa.table(GOOD)}, "topic 'elsewhere'; outputs of the job are 'totals'"),
        (lambda target: {target: pa.table({"user": ["a"]})}, "no column 'count', which every entry requires"),
        (lambda target: {target: pa.table({"count": [1]})}, "no column 'user', which every entry requires"),
        (lambda target: {target: pa.table({**GOOD, "tpyo": [1]})}, "a column 'tpyo', which is not a field"),
        (lambda target: {target: pa.table({**GOOD, "count": ["1"]})}, "'count' is string, but the field is int"),
        (lambda target: {target: pa.table({**GOOD, "count": [[1]]})}, "'count' is list"),
        (lambda target: {target: pa.table({**GOOD, "count": pa.nulls(1)})}, "count is null in a row"),
        (lambda target: {target: pa.table({**GOOD, "user": pa.nulls(1)})}, "user is null in a row"),
        (lambda target: {target: pa.table({**GOOD, "count": pa.array([None], pa.int64())})}, "count is null in a row"),
        (
            lambda target: {target: pa.table([["a"], [1], [2]], ["user", "count", "count"])},
            "columns with the same name",
        ),
        (lambda target: {target: pa.table({**GOOD, "count": pa.array([1], pa.duration("s"))})}, "duration[s]"),
    ],
)
def test_what_can_not_be_written_is_refused(
    tidelog_server: Server, tmp_path: Path, returned: Any, says: str
) -> None:  # fmt: skip
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target])
    def wrong(batch: MicroBatch) -> Any:
        return returned(target)

    bench = Bench(tidelog_server, tmp_path, wrong, 1)
    source.sync.send(Click("a", 1))
    text = bench.failed("FunctionError")
    assert says in text
    assert "job 'wrong', partition 0, epoch 1" in text


def test_a_table_alone_needs_one_output(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target, clicks("more")])
    def two(batch: MicroBatch) -> Any:
        return pa.table(GOOD)

    bench = Bench(tidelog_server, tmp_path, two, 1)
    source.sync.send(Click("a", 1))
    assert "2 outputs ('totals', 'more'): return {topic: table}" in bench.failed("FunctionError")


def test_columns_of_other_types_that_hold_the_same(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals()

    @job(inputs=[source], outputs=[target])
    def various(batch: MicroBatch) -> Any:
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

    def helper(batch: MicroBatch) -> None:
        raise ValueError("no such thing")

    @job(inputs=[source], outputs=[totals()])
    def broken(batch: MicroBatch) -> None:
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
    def leaves(batch: MicroBatch) -> None:
        raise SystemExit(3)

    bench = Bench(tidelog_server, tmp_path, leaves, 1)
    source.sync.send(Click("a", 1))
    assert "SystemExit: 3" in bench.failed("FunctionError")


def test_a_source_has_its_position_in_its_state(tidelog_server: Server, tmp_path: Path) -> None:
    target, times = totals(2), []

    @job(outputs=[target], state=int, partitions=2, every=1.0)
    def counter(batch: MicroBatch, state: State[int]) -> Any:
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
    def clock(batch: MicroBatch) -> None:
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
    def known(batch: MicroBatch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, known, 1)
    bench.topics = {topic.name: topic.settings.id for topic in (source, target)}
    bench.epoch()
    bench.client.redis.delete("topic:totals")
    assert "topic 'totals' was deleted" in bench.failed("JobError")
    totals().use(sync=bench.client)
    again = totals()
    again.use(sync=bench.client)
    again.sync.ready()
    assert "topic 'totals' was deleted and recreated: its ID was" in bench.failed("JobError")


def test_a_topic_that_is_declared_otherwise(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()])
    def otherwise(batch: MicroBatch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, otherwise, 1)
    mine: Topic[Click] = Topic("clicks", Click, partition_by="n", partitions=1)
    from tests.tidelog.jobs import declared

    declared.otherwise = job(name="otherwise", inputs=[mine], outputs=[totals()])(lambda batch: None)  # type: ignore[attr-defined]
    assert "partition_by is 'user' on the server, 'n' here" in bench.failed("JobError")


def test_inputs_that_were_evicted_are_lost(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()

    @job(inputs=[source], outputs=[totals()], max_rows=2)
    def late(batch: MicroBatch) -> None: ...

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
    def replaced(batch: MicroBatch) -> None: ...

    bench = Bench(tidelog_server, tmp_path, replaced, 1)
    source.sync.send(Click("a", 1))
    bench.epoch()
    bench.client.redis.delete("clicks:0")
    assert "'clicks:0' is not the stream that was read" in bench.failed("InputsLostError")
    source.sync.send(Click("a", 1))
    assert "'clicks:0' is not the stream that was read" in bench.failed("InputsLostError")


def test_a_server_that_is_gone_may_come_back(tidelog_server: Server, tmp_path: Path) -> None:
    source = clicks()
    seen: Seen = []

    @job(inputs=[source], outputs=[totals()])
    def patient(batch: MicroBatch) -> None:
        noted(seen, batch)

    bench = Bench(tidelog_server, tmp_path, patient, 1)
    source.sync.send(Click("a", 1))
    plan = bench.plan(0)

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
        ("tests.tidelog.jobs.taskkit:Bench", "it is a type, not a job"),
        ("tests.tidelog.jobs.declared", "use module:attribute"),
        ("faulty_jobs:any", "ZeroDivisionError"),
        ("needy_jobs:any", "No module named 'not_installed_here'"),
    ],
)
def test_what_is_no_job(tidelog_server: Server, tmp_path: Path, target: str, says: str) -> None:

    from tidelog.jobs.loading import load
    from tidelog.jobs.task.task import run

    @job(outputs=[totals()], partitions=1, every=1.0)
    def any_job(batch: MicroBatch) -> None: ...

    (tmp_path / "faulty_jobs.py").write_text("x = 1 / 0\n")
    (tmp_path / "needy_jobs.py").write_text("import not_installed_here\n")
    plan = Bench(tidelog_server, tmp_path, any_job, 1).plan(0)
    failure = run(replace(plan, where=replace(plan.where, target=target, path=(str(tmp_path),)))).failure
    assert failure is not None
    assert failure.kind == "JobError"
    assert says in failure.text
    assert load("tests.tidelog.jobs.declared:any_job") is any_job


# -- what could not be read again ----------------------------------------------------------------------------
class Level(Enum):
    LOW = 1


class Measured(msgspec.Struct):
    id: int
    value: float | None = None
    level: Level = Level.LOW
    name: UUID = UUID(int=1)


@pytest.mark.parametrize("codec", ["plain", "json", "msgpack+zstd"])
def test_what_is_written_can_be_read(tidelog_server: Server, tmp_path: Path, codec: str) -> None:
    given: Topic[Any] = Topic("given", Measured, partition_by="id", partitions=1, url=tidelog_server.url, codec=codec)
    made: Topic[Any] = Topic("made", Measured, partition_by="id", partitions=1, codec=codec)

    @job(inputs=[given], outputs=[made])
    def copy(batch: MicroBatch) -> Any:
        return batch.table

    sent = [Measured(1, 2.5), Measured(2)]
    given.sync.send_many(sent)
    given.sync.close()
    bench = Bench(tidelog_server, tmp_path, copy, 1)
    bench.epoch()
    assert [made.decode(entry, 0) for entry in bench.client.trange("made:0")] == sent


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("value", [1.5, float("nan")], "value of a row is nan: JSON has no NaN"),
        ("level", ["1", "7"], "a row is not a Measured: Invalid enum value"),
        ("name", ["00000000-0000-0000-0000-000000000001", "x"], "name of a row is 'x', which is no uuid|Invalid UUID"),
    ],
)
def test_what_could_not_be_read_is_an_error_of_its_row(
    tidelog_server: Server, tmp_path: Path, column: str, values: list[Any], message: str
) -> None:
    source = clicks()
    made: Topic[Any] = Topic("made", Measured, partition_by="id", partitions=1, codec="json")

    @job(inputs=[source], outputs=[made])
    def measure(batch: MicroBatch) -> Any:
        return pa.table({"id": [1, 2], column: values})

    bench = Bench(tidelog_server, tmp_path, measure, 1)
    source.sync.send(Click("a", 1))
    with pytest.raises(Exception, match=message):
        bench.epoch()
    assert bench.client.tlen("made:0") == 0


def test_rows_have_the_trace_context_of_the_current_span(tidelog_server: Server, tmp_path: Path) -> None:
    source, target = clicks(), totals(1)
    spread: Topic[dict[str, str]] = Topic("spread", dict, partitions=1)
    packed: Topic[Click] = Topic("packed", Click, partitions=1, codec="json")

    @job(inputs=[source], outputs=[target, spread, packed])
    def traced(batch: MicroBatch) -> Any:
        rows = pa.table({"user": ["a", None], "count": [1, 2]})
        own = pa.table({"any": ["1"], "tracestate": ["mine"]})
        return {target: rows.slice(0, 1), spread: own, packed: batch.table}

    bench = Bench(tidelog_server, tmp_path, traced, 1)
    source.sync.send(Click("a", 1))
    context = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        bench.epoch()
    parent = f"00-{1:032x}-{2:016x}-01"
    ((row,),) = texts(bench.client, target)
    assert row == {"user": "a", "count": "1", "traceparent": parent}
    ((row,),) = texts(bench.client, packed)
    assert row.keys() == {"data", "traceparent"}
    for topic, records in ((target, [Total("a", 1)]), (packed, [Click("a", 1)])):
        assert [topic.decode(entry, 0) for entry in bench.client.trange(topic.stream(0))] == records
    (entry,) = bench.client.trange("spread:0")  # a user's field with such a name is neither lost nor a trace context
    assert spread.decode(entry, 0) == {"any": "1", "tracestate": "mine"}
