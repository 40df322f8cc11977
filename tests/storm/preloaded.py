"""Starts servers as forks of a process that has imported the server: 0.02 s of computation instead of 0.5 s.

Each server is a process of its own, as if it had been started with ``tidelog-server``. The harness reads and writes
lines of JSON: ``[number, log, boot, argv]`` starts a server; the replies are ``["started", number, pid]`` and
``["ended", pid, status]``. A status below 0 is a signal's number. ``boot``: a file with the boot ID of the
server's machine, by which the server learns that the machine has started again; empty: that of this machine.

    python -m tests.storm.preloaded
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tidelog.serverprogram import server_environment

PR_SET_PDEATHSIG: Final = 1


class Preloaded:
    """The process that starts servers."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]
        self._started: list[asyncio.Future[tuple[int, asyncio.Future[int]]]] = []
        self._ended: dict[int, asyncio.Future[int]] = {}  # by process, while it runs

    async def open(self) -> None:
        pipe = subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.storm.preloaded", stdin=pipe, stdout=pipe, env=server_environment()
        )
        self._reader = asyncio.create_task(self._read())

    async def start(self, argv: list[str], log: Path, boot: Path | None) -> tuple[int, asyncio.Future[int]]:
        """Start a server; return its process, and the status with which it will end."""
        started: asyncio.Future[tuple[int, asyncio.Future[int]]] = asyncio.get_running_loop().create_future()
        self._started.append(started)
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps([len(self._started) - 1, str(log), str(boot or ""), argv]).encode() + b"\n"
        )
        return await started

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            what, key, value = json.loads(line)
            if what == "started":
                ended = self._ended[value] = asyncio.get_running_loop().create_future()
                self._started[key].set_result((value, ended))  # the next line can be that it has ended
            else:
                self._ended.pop(key).set_result(value)

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


def serve() -> None:
    """Start servers until the standard input ends."""
    import coordinator.etcd  # noqa: F401 - what a server imports when it starts
    import respserver.server  # noqa: F401
    from persistence import history
    from respserver.program import main

    gc.collect()
    gc.freeze()  # otherwise, the first collection in each server copies these pages
    prctl = ctypes.CDLL(None).prctl
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                number, log, boot, argv = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the server does not outlast this process
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _redirect(log)
                    os.close(woken)
                    os.close(wake)
                    if boot:
                        history.BOOT_ID = Path(boot)
                    sys.argv = ["tidelog-server", *argv]
                    os._exit(main() or 0)
                print(json.dumps(["started", number, pid]), flush=True)


def _redirect(log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print(json.dumps(["ended", pid, os.waitstatus_to_exitcode(status)]), flush=True)


if __name__ == "__main__":
    serve()
