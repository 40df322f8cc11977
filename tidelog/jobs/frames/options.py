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

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidelog.jobs.declare import Job
from tidelog.jobs.errors import JobError
from tidelog.jobs.store.statedir import expanded
from tidelog.jobs.task.plan import TaskSettings
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


def starting(job: Job) -> dict[str, str]:
    """Return source options for the start of a job without a checkpoint. Raises JobError if ``start`` is invalid."""
    if job.start in ("earliest", "latest"):
        return {"startingOffsets": job.start}
    try:
        at = datetime.fromisoformat(job.start)
    except ValueError:
        raise JobError(
            f"job {job.name!r}: start must be earliest, latest or a time in ISO 8601: {job.start!r}"
        ) from None  # fmt: skip
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    ms = max(0, int(at.timestamp() * 1000))
    return {"startingTimestamp": str(ms), "startingOffsetsByTimestampStrategy": "latest"}


def checkpoint_of(job: Job, where: TaskSettings) -> tuple[str, str]:
    """Return the location of the checkpoint for Spark, and for fsspec unless it is on a local file system."""
    location = f"{(where.store or expanded(where.state_dir)).rstrip('/')}/{job.name}/{where.generation}/checkpoint"
    scheme, found, rest = location.partition("://")
    if not found or scheme == "file":
        return location, ""
    if scheme == "memory":
        raise JobError(f"job {job.name!r}: a frame job's checkpoint cannot be in memory://: use a persistent store")
    return (f"s3a://{rest}" if scheme == "s3" else location), location
