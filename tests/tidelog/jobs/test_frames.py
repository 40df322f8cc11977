"""Frame jobs: all outputs in one publish, exactly once, from Spark's checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs import framekit as kit
from tests.tidelog.spark.conftest import spark  # noqa: F401 - fixtures
from tests.tidelog.spark.sparkkit import ROOT
from tidelog import Client, StreamPolicy
from tidelog.client.publish import ReplicaAcks
from tidelog.jobs import JobError, job, keys
from tidelog.jobs.engine.factory import FrameQuery
from tidelog.jobs.errors import FunctionError, InputsLostError, SupersededError, TryAgainError
from tidelog.jobs.frames.query import STOPPING, FrameRunner
from tidelog.jobs.task.plan import TaskSettings
from tidelog.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def place(tidelog_server: Server, tmp_path: Path) -> TaskSettings:
    return kit.where(tidelog_server.url, tmp_path)


@pytest.fixture(autouse=True)
def unused() -> Iterator[None]:
    """The topics of the kit are for one server after the other."""
    yield
    for topic in (kit.clicks, kit.odd, kit.even, kit.hours, kit.baskets, kit.bought):
        topic.forget_settings()


def test_the_replicas_of_the_engine(spark: SparkSession, place: TaskSettings) -> None:  # noqa: F811
    there = replace(place, copies=ReplicaAcks(2))
    for given, used in (({}, {"waitReplicas": "2"}), ({"waitreplicas": "1"}, {"waitreplicas": "1"})):
        runner = FrameRunner(spark, replace(kit.split, options=given), there)
        assert {name: value for name, value in runner._sink_options().items() if name.lower() == "waitreplicas"} == used


def test_nobody_sees_one_output_without_the_other(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    streams = [f"odd:{at}" for at in range(2)], [f"even:{at}" for at in range(3)]
    done = threading.Event()
    seen: set[tuple[int, int]] = set()

    def watch() -> None:
        while not done.wait(0.002):
            with client.redis.pipeline(transaction=True) as pipe:
                for key in (*streams[0], *streams[1]):
                    pipe.execute_command("TLEN", key)
                lengths = pipe.execute()
            seen.add((sum(lengths[:2]), sum(lengths[2:])))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with kit.running(spark, replace(kit.twice, max_rows=40), place) as runner:
            kit.send(client, kit.clicks, map(kit.click, range(400)))
            kit.until(lambda: sum(runner.poll().rows_out.values()) == 800, runner)
            assert runner.poll().rows_out == {"odd": 400, "even": 400}
    finally:
        done.set()
        watcher.join()
    assert len(seen) > 3, "several batches were seen"
    assert all(odd == even for odd, even in seen)
    assert kit.users(client, kit.odd) == kit.users(client, kit.even) == Counter(range(400))
    assert client.tfence(keys.fence("twice", 1)) == runner.poll().batch
    assert client.redis.info("streams")["stages"] == 0


def test_an_idle_job_asks_next_to_nothing_and_holds_back_what_it_has_not_read(
    spark: SparkSession, client: Client, place: TaskSettings  # noqa: F811
) -> None:
    def offsets() -> dict[str, Any]:
        return {f"clicks:{at}": client.tgroup_list(f"clicks:{at}")[0].offset for at in range(2)}

    kit.send(client, kit.clicks, map(kit.click, range(100)))
    with kit.running(spark, kit.split, place) as runner:
        assert all(client.tgroup_list(f"clicks:{at}")[0].name == b"job:split" for at in range(2))
        kit.until(lambda: runner.poll().rows_out == {"odd": 50, "even": 50}, runner)
        lasts = {f"clicks:{at}": client.tinfo(f"clicks:{at}").last for at in range(2)}
        kit.until(lambda: runner.poll().ends == lasts and offsets() == lasts, runner)
        kit.until(lambda: runner.poll().state == "idle", runner)
        time.sleep(0.5)
        before = client.redis.info("stats")["total_commands_processed"]
        began = time.monotonic()
        time.sleep(6)
        a_second = (client.redis.info("stats")["total_commands_processed"] - before) / (time.monotonic() - began)
        assert a_second < 5
    kit.send(client, kit.clicks, map(kit.click, range(100, 200)))
    for stream in lasts:  # the retention evicts what was read, and nothing behind it
        client.tcfg_retain(stream, StreamPolicy(count=1, groups=True, exact=True))
    kit.until(lambda: {stream: client.tinfo(stream).evicted_to for stream in lasts} == lasts)
    with kit.running(spark, kit.split, place) as runner:
        kit.until(lambda: runner.poll().rows_out == {"odd": 50, "even": 50}, runner)
    assert kit.users(client, kit.odd) + kit.users(client, kit.even) == Counter(range(200))
    assert offsets() == {f"clicks:{at}": client.tinfo(f"clicks:{at}").last for at in range(2)}


def test_state_goes_on_after_a_restart(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    for times in (1, 2):
        with kit.running(spark, kit.counted, place) as runner:
            kit.send(client, kit.clicks, [kit.click(n % 7) for n in range(70)])
            kit.until(lambda: runner.poll().rows_in == 70, runner)
            assert runner.poll().rows_out["even"] >= 7
        assert runner.poll().state == "stopped"
        last = {total.user: total.clicks for total in kit.records(client, kit.even)}
        assert last == dict.fromkeys(range(7), times * 10)


def test_windows_end_with_the_watermark_also_after_a_restart(
    spark: SparkSession, client: Client, place: TaskSettings  # noqa: F811
) -> None:
    def at(hour: int, page: str) -> kit.Click:
        return kit.Click(1, page, datetime(2026, 1, 1, hour, 30, tzinfo=UTC))

    def found() -> list[tuple[int, str, int]]:
        return sorted((hour.start.hour, hour.page, hour.clicks) for hour in kit.records(client, kit.hours))

    with kit.running(spark, kit.per_hour, place) as runner:
        kit.send(client, kit.clicks, [at(0, "a"), at(0, "a"), at(0, "b"), at(1, "a")])
        kit.until(lambda: len(found()) == 2, runner)
        assert found() == [(0, "a", 2), (0, "b", 1)]
        kit.until(lambda: runner.poll().watermark == "2026-01-01T01:20:00.000Z", runner)
    with kit.running(spark, kit.per_hour, place) as runner:
        kit.send(client, kit.clicks, [at(1, "a"), at(3, "c")])
        kit.until(lambda: len(found()) == 3, runner)
    assert found() == [(0, "a", 2), (0, "b", 1), (1, "a", 2)]


def test_a_join_with_packed_records(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    with kit.running(spark, kit.join, place) as runner:
        kit.send(client, kit.clicks, [kit.Click(n, f"page {n}") for n in range(20)])
        kit.send(client, kit.baskets, [kit.Basket(n, [kit.Line("tea", 1.5), kit.Line("jam")]) for n in range(0, 20, 2)])
        kit.until(lambda: len(kit.records(client, kit.bought)) == 20, runner)
    expected = {(n, f"page {n}", item) for n in range(0, 20, 2) for item in ("tea", "jam")}
    assert {(each.user, each.page, each.item) for each in kit.records(client, kit.bought)} == expected


def test_the_driver_is_killed(
    spark: SparkSession, client: Client, tidelog_server: Server, place: TaskSettings  # noqa: F811
) -> None:
    kit.send(client, kit.clicks, map(kit.click, range(900)))
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.tidelog.jobs.framekit", tidelog_server.url, place.state_dir],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        kit.until(lambda: driver.poll() is not None or client.tlen("odd:0") > 50)
        assert driver.poll() is None, "the driver ended"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # with its JVM
        driver.wait()
    assert 0 < kit.users(client, kit.odd).total() < 450
    with kit.running(spark, kit.split, place) as runner:
        kit.until(lambda: kit.users(client, kit.odd).total() + kit.users(client, kit.even).total() >= 900, runner)
    assert kit.users(client, kit.odd) + kit.users(client, kit.even) == Counter(range(900))


@pytest.mark.parametrize("mode", ["append", "update"])
def test_one_that_is_cancelled_ends_soon(
    spark: SparkSession, client: Client, place: TaskSettings, tmp_path: Path, mode: str  # noqa: F811
) -> None:
    """In the middle of a batch: the claim is lost, and another engine has the job."""
    begun, slow = tmp_path / "begun", tmp_path / "slow"
    slow.touch()

    @job(inputs=[kit.clicks], outputs=[kit.odd], options={"outputMode": mode})
    def hanging(clicks: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        def waits(page: str) -> str:
            begun.touch()
            while slow.exists():
                time.sleep(0.1)
            return page

        waiting = f.udf(lambda page: waits(page))
        return clicks.withColumn("page", waiting("page"))

    kit.send(client, kit.clicks, map(kit.click, range(10)))
    query = FrameQuery(FrameRunner(spark, hanging, place), spark)
    try:
        query.prepare()
        kit.until(begun.exists)
        began = time.monotonic()
        query.cancel()
        query.close()
        assert time.monotonic() - began < STOPPING / 2
        assert not kit.records(client, kit.odd)
    finally:
        slow.unlink()
    with kit.running(spark, hanging, place) as runner:
        kit.until(lambda: kit.users(client, kit.odd) == Counter(range(10)), runner)


def test_one_that_is_cancelled_before_it_begins(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    """While its function makes a plan, for one."""
    runners: list[FrameRunner] = []

    @job(inputs=[kit.clicks], outputs=[kit.odd])
    def late(clicks: DataFrame) -> DataFrame:
        runners[0].cancel()
        return clicks

    kit.send(client, kit.clicks, map(kit.click, range(10)))
    runners.append(FrameRunner(spark, late, place))
    with pytest.raises(TryAgainError, match="job 'late': cancelled"):
        runners[0].start()
    assert spark.streams.active == []
    assert runners[0].stop().state == "new"


def test_another_engine_that_is_ahead(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    kit.send(client, kit.clicks, map(kit.click, range(10)))
    with kit.running(spark, kit.split, place) as runner:
        kit.until(lambda: client.tfence(keys.fence("split", 1)) == 0, runner)
        client.tstage("theirs", 60_000, "elsewhere", ["a"], [("b",)])
        client.tpublish(keys.fence("split", 1), 7, "theirs")
        kit.send(client, kit.clicks, map(kit.click, range(10, 20)))
        error = kit.failed(runner).error
        assert isinstance(error, SupersededError)
        assert "job 'split': batch 1 of query" in str(error)
    assert kit.users(client, kit.odd) + kit.users(client, kit.even) == Counter(range(10))
    with pytest.raises(JobError, match=r"batch 7 was published, and the checkpoint ends with batch 1 at .*another en"):
        FrameRunner(spark, kit.split, place).start()
    shutil.rmtree(place.state_dir)
    with pytest.raises(JobError, match=r"batch 7 was published, and there is no checkpoint"):
        FrameRunner(spark, kit.split, place).start()
    with kit.running(spark, kit.split, replace(place, generation=2)) as runner:  # what a reset does
        kit.until(lambda: runner.poll().rows_out == {"odd": 10, "even": 10}, runner)


def test_inputs_that_are_lost(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    kit.send(client, kit.clicks, map(kit.click, range(10)))
    with kit.running(spark, kit.split, place) as runner:
        kit.until(lambda: sum(runner.poll().rows_out.values()) == 10, runner)
    kit.send(client, kit.clicks, map(kit.click, range(10, 40)))
    client.ttrim("clicks:0", count=1)
    with kit.running(spark, kit.split, place) as runner:
        error = kit.failed(runner).error
    assert isinstance(error, InputsLostError)
    assert "job 'split': data loss in stream 'clicks:0': entries up to" in str(error)


def test_a_function_that_fails_in_a_task(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    @job(inputs=[kit.clicks], outputs=[kit.odd])
    def broken(clicks: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return clicks.withColumn("page", f.udf(lambda user: {3: "three"}[user])("user"))

    kit.send(client, kit.clicks, [kit.click(5)])
    with kit.running(spark, broken, place) as runner:
        error = kit.failed(runner).error
    assert isinstance(error, FunctionError)
    assert 'f.udf(lambda user: {3: "three"}[user])' in str(error)
    assert str(error).endswith("KeyError: 5")
    assert runner.stop().state == "failed"


def test_what_a_function_must_not_return(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    def fails(function: Any, kind: type[Exception], text: str, **changes: Any) -> None:
        def wrong(clicks: DataFrame) -> Any:
            return function(clicks)

        options = {"inputs": [kit.clicks], "outputs": [kit.odd], "name": "wrong"} | changes
        with pytest.raises(kind, match=text):
            FrameRunner(spark, job(**options)(wrong), place).start()

    both = {"outputs": [kit.odd, kit.even]}
    fails(lambda f: None, FunctionError, "job 'wrong': its function returned NoneType: return a DataFrame")
    fails(lambda f: f, FunctionError, "returned one DataFrame, and the outputs are odd, even", **both)
    fails(lambda f: {kit.hours: f}, FunctionError, "a frame for topic 'hours', which is not an output")
    fails(lambda f: {kit.odd: 3}, FunctionError, "returned int for topic 'odd'")
    fails(lambda f: spark.range(3), FunctionError, "topic 'odd' a frame that depends on no input")
    fails(lambda f: f.drop("page"), JobError, "topic 'odd': column page, which Click requires, is missing")
    fails(lambda f: f.withColumn("x", f.user), JobError, "topic 'odd': column x is not a field of Click: drop it")
    fails(lambda f: f.withColumn("user", f.page), JobError, "topic 'odd': .*field 'user' is 'int' .*'str' here.*cast")
    fails(lambda f: f.select("nope"), FunctionError, r"(?s)its function failed:.*nope")
    fails(lambda f: 1 / 0, FunctionError, r"(?s)Traceback.*in wrong.*ZeroDivisionError")
    counts = lambda f: f.groupBy("user").count().withColumnRenamed("count", "clicks")  # noqa: E731
    fails(counts, JobError, "(?s)job 'wrong': Spark cannot run its query: .*watermark", outputs=[kit.even])
    fails(lambda f: f, JobError, "the option topic is set by the job", options={"topic": "x"})
    fails(lambda f: f, JobError, "unknown option tpoic", options={"tpoic": "x"})
    least = {"minOffsetsPerTrigger": "900000"}
    fails(lambda f: f, JobError, r"(?s)job 'wrong', topic 'clicks': .*minOffsetsPerTrigger \(900000\)", options=least)
    fails(lambda f: f, JobError, "outputMode must be append or update", options={"outputMode": "complete"})
    fails(lambda f: f, JobError, "start must be earliest, latest, an ID", start="yesterday")
    client.redis.set("topic:clicks", replace(kit.clicks.declared, partitions=5).complete().written())
    fails(lambda f: f, JobError, "job 'wrong': topic 'clicks': partitions is 5 on the server, 2 here")


def test_a_null_where_records_have_none(spark: SparkSession, client: Client, place: TaskSettings) -> None:  # noqa: F811
    @job(inputs=[kit.clicks], outputs=[kit.odd])
    def nulls(clicks: DataFrame) -> DataFrame:
        return clicks.selectExpr("user", "nullif(page, 'ppp') as page")

    kit.send(client, kit.clicks, map(kit.click, range(5)))
    with kit.running(spark, nulls, place) as runner:
        error = kit.failed(runner).error
    assert isinstance(error, JobError)
    assert "job 'nulls': topic 'odd': a row's page is null, and records must have it" in str(error)
