"""The options of a frame job, by whom they are for; where it begins; where its checkpoint is.

    of format("tidelog")    to the source, the sink, or both, by what the option is for
    outputMode, trigger     to the query: append or update; an interval such as ``1 second``
    spark...                to the job's own session

A store ``s3://bucket/jobs`` is ``s3a://bucket/jobs`` for Spark: the session needs Hadoop's S3 client, such as
``spark.jars.packages=org.apache.hadoop:hadoop-aws:<the Hadoop version of the Spark>`` with ``spark.hadoop.fs.s3a.*``
for endpoint and keys. With ``org.apache.spark:spark-hadoop-cloud_2.13`` the setting
``spark.sql.streaming.checkpointFileManagerClass=org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager``
saves the renames, which S3 does not have. The driver reads the plan of a batch by fsspec, too, so it needs s3fs.
Likewise ``gs://`` and ``abfs://``.
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

#: Options that the runner gives.
OURS: Final = ("topic", "subscribe", "subscribepattern", "assign", "key", "checkpointlocation", "url", "sentinels")
MODES: Final = ("append", "update")


@dataclass(frozen=True)
class FrameOptions:
    """The options of a frame job, by whom they are for."""

    source: dict[str, str]
    sink: dict[str, str]
    settings: dict[str, str]  # of the session
    mode: str
    trigger: str


def options_of(job: Job) -> FrameOptions:
    """The options of a job. JobError for those that are unknown, or given by the runner."""
    source: dict[str, str] = {}
    sink: dict[str, str] = {}
    settings: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in job.options.items():
        known = BY_NAME.get(name.lower())
        if name.lower() in OURS:
            raise JobError(f"job {job.name!r}: the option {name} follows from the job and its engine: leave it out")
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
        raise JobError(f"job {job.name!r}: outputMode is {' or '.join(MODES)}: {mode!r}")
    return FrameOptions(source, sink, settings, mode, rest.get("trigger", ""))


def starting(job: Job) -> dict[str, str]:
    """Where a job without a checkpoint begins, as options of the source. JobError if ``start`` makes no sense."""
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
    """Where the checkpoint is: for Spark, and for fsspec if it is not on a file system of this machine."""
    place = f"{(where.store or expanded(where.state_dir)).rstrip('/')}/{job.name}/{where.generation}/checkpoint"
    scheme, found, rest = place.partition("://")
    if not found or scheme == "file":
        return place, ""
    if scheme == "memory":
        raise JobError(f"job {job.name!r}: a frame job's checkpoint can't be in memory://: give a store that stays")
    return (f"s3a://{rest}" if scheme == "s3" else place), place
