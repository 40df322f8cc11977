"""The list of a job's snapshots on the server: the string ``job:NAME:snapshots``, for ``status`` and for retention.

    {"generation": 1, "partitions": {"0": {
        "kept": [{"name": "000000000120-...", "epoch": 120, "time": 1795368600000, "size": 209715200, "stored": 900}],
        "needs": {"clicks": "1700000000100.2"},      the oldest retained snapshot needs the entries after these
        "error": "", "since": 0}}}                   why none can be created, and since when, ms since 1970

Retained snapshots are newest first. The snapshot processes of all partitions change this string, each its own
partition, by compare-and-set.

Rule 1: A process whose generation is older than that in the string changes nothing, here or elsewhere on the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tidelog.client.steps import drive_over
from tidelog.coordination import documents
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError, SupersededError
from tidelog.transport.leader import LeaderConnection


class SnapshotInfo(msgspec.Struct, frozen=True):
    """A retained snapshot."""

    name: str
    epoch: int
    time: int  # ms since 1970
    size: int  # bytes of the LMDB file
    stored: int  # bytes of the object


class PartitionSnapshots(msgspec.Struct, frozen=True):
    """The snapshots of one partition."""

    kept: tuple[SnapshotInfo, ...] = ()  # newest first
    needs: Mapping[str, str] = {}  # by topic
    error: str = ""
    since: int = 0


class JobSnapshots(msgspec.Struct, frozen=True):
    """The snapshots of a job."""

    generation: int = 0
    partitions: Mapping[str, PartitionSnapshots] = {}

    def of(self, partition: int) -> PartitionSnapshots:
        return self.partitions.get(str(partition), PartitionSnapshots())


def decode(job: str, text: bytes | None) -> JobSnapshots:
    """Return the snapshots from the string; empty if it does not exist. Raises JobError if it is something else."""
    if text is None:
        return JobSnapshots()
    try:
        return msgspec.json.decode(text, type=JobSnapshots)
    except msgspec.MsgspecError as error:
        raise JobError(f"job {job!r}: the key {keys.snapshots(job)!r} is not a list of snapshots: {error}") from None


def change(
    servers: LeaderConnection, job: str, generation: int, partition: int,
    changed: Callable[[PartitionSnapshots], PartitionSnapshots],
) -> JobSnapshots:  # fmt: skip
    """Replace the snapshots of a partition; return those of the job after the change.

    Raises SupersededError if the string is of a later generation (Rule 1), and the errors of ``LeaderConnection.ask``.
    """

    def edit(text: bytes | None) -> tuple[bytes, JobSnapshots]:
        records = decode(job, text)
        if records.generation > generation:
            raise SupersededError(f"job {job!r} is at generation {records.generation}, not {generation}")
        if records.generation < generation:
            records = JobSnapshots(generation)
        mine = changed(records.of(partition))
        records = JobSnapshots(generation, {**records.partitions, str(partition): mine})
        return msgspec.json.encode(records), records

    return drive_over(servers.ask, documents.change(keys.snapshots(job), edit))
