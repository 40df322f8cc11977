"""Starts the process that creates a snapshot, from a task that must continue.

A snapshot is created by a separate process. LMDB's read transaction shows it one version while epochs continue, without
a lock. In the task, a snapshot would delay the epoch, and in a thread, so would the GIL. Drivers of object stores may
hang; a process that hangs can be abandoned.

Rule 1: There is at most one such process per partition and machine. The lock is acquired before the process is started,
        which inherits it as its only file besides standard input, output and error. The lock is released when the
        process ends in any way.
Rule 2: The process has its own session, so that signals for its parent's process group do not reach it. A thread of the
        parent waits for it, so that no zombie remains. If the parent ends first, init does.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from tidelog.jobs.snapshots.creation import SnapshotRequest
from tidelog.serverprogram import server_environment

LOCK = "snapshot.lock"  # next to the store's directory
LOG = "snapshot.log"  # next to it: the log of the last process


def start(request: SnapshotRequest) -> bool:
    """Start a process that creates a snapshot. Returns immediately; False if one is running already.

    Raises OSError if no process can be started.
    """
    folder = Path(request.path).parent
    lock = take_lock(folder)
    if lock is None:
        return False
    try:
        output = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidelog.jobs.snapshots", str(lock)], stdin=subprocess.PIPE, stdout=output,
                stderr=output, pass_fds=(lock,), start_new_session=True, cwd="/", env=server_environment(),
            )  # fmt: skip
        finally:
            os.close(output)
    finally:
        os.close(lock)
    assert process.stdin is not None  # noqa: S101
    try:
        with process.stdin as stdin:  # less than the size of a pipe: does not wait for the process
            stdin.write(msgspec.json.encode(request))
    except BrokenPipeError:
        pass  # it has ended; its log contains the reason
    threading.Thread(target=process.wait, name="snapshot", daemon=True).start()
    return True


def take_lock(folder: Path) -> int | None:
    """Lock a partition for a snapshot process; return the descriptor that holds the lock, or None if it is locked."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
