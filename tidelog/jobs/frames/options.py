"""The options of a frame job, its starting position, and its checkpoint.

    options of format("tidelog")   for the source, the sink, or both
    outputMode, trigger            for the query: append or update; an interval such as ``1 second``
    spark...                       for the job's own session

The store ``s3://bucket/jobs`` is ``s3a://bucket/jobs`` for Spark: the session needs Hadoop's S3 client, such as
``spark.jars.packages=org.apache.hadoop:hadoop-aws:<the Hadoop version of the Spark>``, with ``spark.hadoop.fs.s3a.*``
for endpoint and keys. With ``org.apache.spark:spark-hadoop-cloud_2.13``, the setting
``spark.sql.streaming.checkpointFileManagerClass=org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager``
avoids renames, which S3 does not support. The driver also reads the plan of a batch through fsspec, so it needs s3fs.
The same applies to ``gs://`` and ``abfs://``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.client.entries import SEQ_MAX
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.store.statedir import expanded
from tidelog.jobs.task.plan import TaskSettings
from tidelog.options.start import StartPosition
from tidelog.spark.optionvalues import BOTH, BY_NAME, SINK, SOURCE

#: Options that the runner sets.
OURS: Final = ("topic", "subscribe", "subscribepattern", "assign", "key", "checkpointlocation", "url", "sentinels")
MODES: Final = ("append", "update")


@dataclass(frozen=True)
class FrameOptions:
    """The options of a frame job, by recipient."""

    source: dict[str, str]
    sink: dict[str, str]
    settings: dict[str, str]  # for the session
    mode: str
    trigger: str


def options_of(job: Job) -> FrameOptions:
    """Return the options of a job. Raises JobError for unknown options, and for options that the runner sets."""
    source: dict[str, str] = {}
    sink: dict[str, str] = {}
    settings: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in job.options.items():
        known = BY_NAME.get(name.lower())
        if name.lower() in OURS:
            raise JobError(f"job {job.name!r}: the option {name} is set by the job and its engine: leave it out")
        if name in ("outputMode", "trigger"):
            rest[name] = value
        elif name.startswith("spark."):
            settings[name] = value
        elif known is None:
            raise JobError(f"job {job.name!r}: unknown option {name}: see the docstring of {__name__}")
        else:
            source.update({name: value} if known.side in (SOURCE, BOTH) else {})
            sink.update({name: value} if known.side in (SINK, BOTH) else {})
    mode = rest.get("outputMode", "append").lower()
    if mode not in MODES:
        raise JobError(f"job {job.name!r}: outputMode must be {' or '.join(MODES)}, not {mode!r}")
    return FrameOptions(source, sink, settings, mode, rest.get("trigger", ""))


def starting(job: Job, streams: Sequence[str]) -> dict[str, str]:
    """Return source options for the start of a job without a checkpoint. ``streams``: of the input."""
    start = StartPosition(job.start)
    if start in ("earliest", "latest") or start.after is None:
        return {"startingOffsets": start}
    if start.after.seq == SEQ_MAX:  # a time
        return {"startingTimestamp": str(start.after.ms + 1), "startingOffsetsByTimestampStrategy": "latest"}
    first = f"{start.after.ms}.{start.after.seq + 1}"
    return {"startingOffsets": msgspec.json.encode(dict.fromkeys(streams, first)).decode()}


def checkpoint_of(job: Job, where: TaskSettings) -> tuple[str, str]:
    """Return the location of the checkpoint for Spark, and for fsspec unless it is on a local file system."""
    location = f"{(where.store or expanded(where.state_dir)).rstrip('/')}/{job.name}/{where.generation}/checkpoint"
    scheme, found, rest = location.partition("://")
    if not found or scheme == "file":
        return location, ""
    if scheme == "memory":
        raise JobError(f"job {job.name!r}: a frame job's checkpoint cannot be in memory://: use a persistent store")
    return (f"s3a://{rest}" if scheme == "s3" else location), location
