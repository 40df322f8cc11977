"""Starting the process that makes a snapshot, from a task that must go on.

Rule 1: there is one maker a partition and machine. The lock is taken before the process is started, which inherits it
        as its only file besides standard input, output and error; it ends with the process, however that ends.
Rule 2: the process is in a session of its own, so that what is sent to the group of its parent does not reach it. A
        thread of the parent waits for it, so that it leaves no zombie. Where the parent ends first, init does.
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

LOCK = "snapshot.lock"  # in the directory of the request's path
LOG = "snapshot.log"  # beside it: what the last maker said


def start(request: SnapshotRequest) -> bool:
    """Start a process that makes a snapshot. Returns at once; False, and nothing is done, while one is being made.

    OSError where no process can be started.
    """
    folder = Path(request.path).parent
    lock = take_lock(folder)
    if lock is None:
        return False
    try:
        said = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tidelog.jobs.snapshots", str(lock)], stdin=subprocess.PIPE, stdout=said,
                stderr=said, pass_fds=(lock,), start_new_session=True, cwd="/", env=server_environment(),
            )  # fmt: skip
        finally:
            os.close(said)
    finally:
        os.close(lock)
    assert process.stdin is not None  # noqa: S101
    try:
        with process.stdin as given:  # less than a pipe holds: this does not wait for the process
            given.write(msgspec.json.encode(request))
    except BrokenPipeError:
        pass  # it has ended; its log says why
    threading.Thread(target=process.wait, name="snapshot", daemon=True).start()
    return True


def take_lock(folder: Path) -> int | None:
    """Lock a partition for a maker: the descriptor, which holds the lock until it is closed. None if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
