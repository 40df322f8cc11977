"""Snapshots of a job's state in an object store, and what may be given up because of them.

    objects    the object store: folders of fsspec, with limits of time
    owners     whose generation a folder is
    manifests  the names and manifests of snapshots
    copying    a consistent copy of a store while it goes on
    creation   what the process that makes a snapshot does
    process    that process, started from a task
    restoring  the newest good snapshot, back into a directory
    catalog    what the server knows of snapshots
    cleanup    what generations that are over have left
    schedule   when they are due
    retention  what the oldest snapshot still needs: groups of inputs, replay log
"""

from tidelog.jobs.snapshots.creation import SnapshotRequest, make
from tidelog.jobs.snapshots.objects import SnapshotError, check
from tidelog.jobs.snapshots.process import start
from tidelog.jobs.snapshots.restoring import restore

__all__ = ["SnapshotError", "SnapshotRequest", "check", "make", "restore", "start"]
