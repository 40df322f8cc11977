"""Runs a module as the only process of a file, whose lock it holds until it ends.

    python -P memberprogram.py FILE MODULE [ARGUMENT]...

    FILE    "PID START\n": the process ID, and the time at which the process started, in clock ticks since the boot

The process locks FILE before it does anything else, so at most one process runs a member, even if two supervisors start
it at the same time. A process ID alone does not identify a process, since the system uses it again. An ID and a start
time do.

This file imports only modules of Python: the process becomes a server, which needs nothing else of this package.
"""

from __future__ import annotations

import fcntl
import os
import runpy
import sys
import time

TAKEN = 75  # exit status: another process holds the lock
PATIENCE = 1.0  # s; a process that looks whether the lock is held has it for some microseconds


def claim(path: str) -> int:
    """Lock the file for this process, and write the process ID. Return the descriptor, which holds the lock.

    Raises BlockingIOError if another process holds the lock, and OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()} {start_time(os.getpid())}\n".encode())
    except BaseException:
        os.close(file)
        raise
    return file


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


if __name__ == "__main__":
    _file, *sys.argv = sys.argv[1:]
    try:
        claim(_file)  # the descriptor stays open until the process ends
    except BlockingIOError:
        sys.stderr.write(f"{_file} is locked: another process runs this member\n")
        sys.exit(TAKEN)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
