"""Snapshots of a job's state in an object store, and what may be given up because of them.

    objects    the object store: folders of fsspec, with limits of time
    owners     whose generation a folder is
    manifests  the names and manifests of snapshots
    copying    a consistent copy of a store while it goes on
    making     what the process that makes a snapshot does
    starting   that process, started from a task
    restoring  the newest good snapshot, back into a directory
    records    what the server knows of snapshots
    clearing   what generations that are over have left
    saving     when they are due
    retaining  what the oldest snapshot still needs: groups of inputs, replay log
"""

from tidelog.jobs.snapshots.making import Request, make
from tidelog.jobs.snapshots.objects import SnapshotError, check
from tidelog.jobs.snapshots.restoring import restore
from tidelog.jobs.snapshots.starting import start

__all__ = ["Request", "SnapshotError", "check", "make", "restore", "start"]
