"""What of a frame job needs no Spark session: its options, its checkpoint's place, the errors of its query."""

from __future__ import annotations

import importlib
import time
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs import framekit as kit
from tidelog import StreamId
from tidelog.jobs.errors import FunctionError, InputsLostError, JobError, SupersededError
from tidelog.jobs.frames.errors import LOST, SUPERSEDED, WRONG, QueryError, explained, last_traceback
from tidelog.jobs.frames.options import checkpoint_of, options_of, starting
from tidelog.jobs.frames.query import ends_of

PLACE = kit.where("redis://localhost", "/data/state")


def test_options_go_where_they_belong() -> None:
    given = {
        "maxBytesPerTrigger": "5", "stageTtlMs": "9000", "readTimeoutMs": "7", "outputMode": "Update",
        "trigger": "1 second", "spark.sql.shuffle.partitions": "3",
    }  # fmt: skip
    made = options_of(replace(kit.split, options=given))
    assert made.source == {"maxBytesPerTrigger": "5", "readTimeoutMs": "7"}
    assert made.sink == {"stageTtlMs": "9000", "readTimeoutMs": "7"}
    assert (made.settings, made.mode, made.trigger) == ({"spark.sql.shuffle.partitions": "3"}, "update", "1 second")


def test_where_a_job_begins() -> None:
    assert starting(replace(kit.split, start="latest"), []) == {"startingOffsets": "latest"}
    for text in ("2026-01-31T10:00:00Z", "2026-01-31T11:00:00+01:00"):
        assert starting(replace(kit.split, start=text), [])["startingTimestamp"] == "1769853600000"
    assert starting(replace(kit.split, start="7.3"), ["a:0", "a:1"]) == {"startingOffsets": '{"a:0":"7.4","a:1":"7.4"}'}


@pytest.mark.parametrize(
    ("store", "spark", "url"),
    [
        ("", "/data/state/split/1/checkpoint", ""),
        ("/mnt/shared/", "/mnt/shared/split/1/checkpoint", ""),
        ("file:///mnt/x", "file:///mnt/x/split/1/checkpoint", ""),
        ("s3://bucket/jobs", "s3a://bucket/jobs/split/1/checkpoint", "s3://bucket/jobs/split/1/checkpoint"),
        ("gs://bucket", "gs://bucket/split/1/checkpoint", "gs://bucket/split/1/checkpoint"),
    ],
)
def test_where_the_checkpoint_is(store: str, spark: str, url: str) -> None:
    assert checkpoint_of(kit.split, replace(PLACE, store=store)) == (spark, url)


def test_a_checkpoint_can_not_be_in_memory() -> None:
    with pytest.raises(JobError, match="job 'split': a frame job's checkpoint cannot be in memory://"):
        checkpoint_of(kit.split, replace(PLACE, store="memory://x"))


def test_what_was_read_is_the_least_of_all_sources_of_an_input() -> None:
    offsets = [
        '{"clicks:0": "5.1", "clicks:1": "0.0", "topic:clicks": "id:x"}', '{"clicks:0": "4.9", "other:0": "9.9"}', None,
    ]  # fmt: skip
    assert ends_of(offsets, kit.split) == {"clicks:0": StreamId(4, 9)}


TRACEBACK = 'Traceback (most recent call last):\n  File "job.py", line 3, in f\n    return 1 / n\n'


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("x\ntidelog.spark.sink.StaleError: batch 3 comes\ny", SupersededError, "job 'a': batch 3 comes"),
        ("tidelog.spark.sink.OtherBatchError: batch 3 of", SupersededError, "job 'a': batch 3 of"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent\nx", SupersededError, "job 'a': CONCURRENT_STREAM"),
        ("tidelog.spark.offsets.DataLossError: gone", InputsLostError, "job 'a': gone"),
        ("tidelog.spark.offsets.TopicChangedError: anew", InputsLostError, "job 'a': anew"),
        ("tidelog.codecs.recordtypes.UndecodableError: entry", JobError, "job 'a': entry"),
        (f"x\n{TRACEBACK}ZeroDivisionError: division\n at org", FunctionError, "return 1 / n\nZeroDivisionError: div"),
        (f"x\n{TRACEBACK}tidelog.transport.leader.UnreachableError: no answer", QueryError, "no answer"),
        ("Job aborted: executor lost\n\nJVM stacktrace:\norg", QueryError, "job 'a': Job aborted: executor lost"),
    ],
)
def test_the_error_of_a_query(text: str, kind: type[Exception], said: str) -> None:
    error = explained("a", text)
    assert type(error) is kind
    assert said in str(error)
    assert "stacktrace" not in str(error)


def test_the_last_traceback_is_found_in_linear_time() -> None:
    header = "Traceback (most recent call last):\n"
    text = f"JVM: {header}  File a\nKeyError: 1\nlater {header}  File b\n\n  File c\nValueError: 2\n\tat java"
    assert last_traceback(text) == f"{header}  File b\n\n  File c\nValueError: 2"
    assert last_traceback(f"{header}ValueError: without a file") == ""
    began = time.process_time()
    assert last_traceback(f"  {header}" * 60_000) == ""
    assert time.process_time() - began < 2  # a quadratic one takes minutes


def test_the_errors_of_queries_exist() -> None:
    """Spark passes errors of Python on as text, so they are recognized by their full names."""
    for name in (*SUPERSEDED, *LOST, *WRONG):
        module, _, kind = name.rpartition(".")
        if module:
            assert issubclass(getattr(importlib.import_module(module), kind), Exception)
