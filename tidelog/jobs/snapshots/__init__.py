"""Snapshots of a job's state in an object store, and the eviction that they permit.

    objects    the object store: folders on fsspec file systems, with time limits
    owners     records the topics to which a generation's folder belongs
    manifests  the names and manifests of snapshots
    creation   creates a snapshot; runs in a separate process
    process    starts that process from a task
    restoring  restores the newest valid snapshot into a directory
    catalog    the list of a job's snapshots on the server
    cleanup    removes the snapshots of former generations
    schedule   determines when snapshots are due
    retention  what the oldest snapshot still needs: input entries and markers of the replay log
"""

from tidelog.jobs.snapshots.creation import SnapshotRequest, make
from tidelog.jobs.snapshots.objects import SnapshotError, check
from tidelog.jobs.snapshots.process import start
from tidelog.jobs.snapshots.restoring import restore

__all__ = ["SnapshotError", "SnapshotRequest", "check", "make", "restore", "start"]
