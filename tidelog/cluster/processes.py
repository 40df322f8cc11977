"""Processes that may have been started by another process, such as a supervisor that was killed.

A process is identified by a file that it has locked (``memberprogram``). A pidfd then refers to this process, even if
the system uses its ID again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from tidelog.cluster import memberprogram
from tidelog.cluster.errors import ClusterError

_PROGRAM: Final = (sys.executable, "-P", memberprogram.__file__)
PATIENCE: Final = 2.0  # s; a process writes its ID within microseconds after it has locked the file


class RunningProcess:
    """A process, until ``close``. It may have ended. ``child``: it was started by this process."""

    def __init__(self, pid: int, fd: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid: Final = pid
        self._fd = fd
        self._child = child

    @property
    def is_child(self) -> bool:
        """Whether this process has started it."""
        return self._child is not None

    @property
    def status(self) -> int | None:
        """The exit status of a child that has ended; a negative number is a signal. None: not known."""
        return self._child.poll() if self._child is not None else None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended. A stopped process continues to receive it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)
            signal.pidfd_send_signal(self._fd, signal.SIGCONT)

    async def ended(self) -> None:
        """Wait until the process has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._fd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._fd)

    def close(self) -> None:
        """Forget the process, which continues to run."""
        os.close(self._fd)
        if self._child is not None and self._child.poll() is None:
            self._child.returncode = 0  # otherwise, Python warns that nobody has waited for it


def start(
    words: Sequence[str], lock: Path, log: Path, environment: dict[str, str], text: str = ""
) -> RunningProcess:  # fmt: skip
    """Start a module as the process of the file ``lock``. Its output is appended to ``log``. Raises OSError.

    ``text``: its standard input.
    It has a session of its own: Ctrl-C reaches the supervisor only, and the process outlives it.
    """
    with TemporaryFile() as settings, log.open("ab") as output:  # a pipe could be full
        settings.write(text.encode("utf-8", "surrogateescape"))
        settings.seek(0)
        child = subprocess.Popen(
            [*_PROGRAM, str(lock), *words], stdin=settings, stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip
    return RunningProcess(child.pid, os.pidfd_open(child.pid), child)


def find(lock: Path) -> RunningProcess | None:
    """Return the process that has locked a file; None if there is none. Raises ClusterError, OSError."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = _identified(os.read(file, 100))
            else:
                return None
        finally:
            os.close(file)
        if found is not None:
            return found
        if time.monotonic() > until:
            raise ClusterError(f"{lock} is locked by a process that it does not name: see fuser {lock}")
        time.sleep(0.01)


def _identified(content: bytes) -> RunningProcess | None:
    """Return the process that has written this; None if it has ended, or the content is incomplete."""
    words = content.split()
    if len(words) != 2 or not content.endswith(b"\n") or not (words[0].isdigit() and words[1].isdigit()):
        return None
    pid = int(words[0])
    try:
        fd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    try:
        if memberprogram.start_time(pid) == int(words[1]):
            return RunningProcess(pid, fd)
    except OSError:
        pass
    os.close(fd)
    return None


def is_suspended(pid: int) -> bool:
    """Return whether a process was stopped by a signal such as SIGSTOP."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in "Tt"
    return False
