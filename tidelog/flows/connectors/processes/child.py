"""A child process: its start, the log of its standard error, and its end.

Rule 1: A program is started from a list of arguments, and never by a shell.
Rule 2: It is the leader of a process group, which is ended as a whole: its standard input is closed, so that it can
        process what it has received, and after a time it gets SIGTERM and then SIGKILL.
Rule 3: If this process is killed, the kernel sends SIGTERM to the program (Linux, with ``setpriv`` of util-linux), and
        its standard input and output are closed.
Rule 4: At most LINES lines of standard error per second are logged, each with at most LONGEST characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from tidelog.flows.api.cancellation import cancel
from tidelog.operating.redaction import redacted

CHUNK: Final = 64 << 10  # bytes read at a time
LINES: Final = 10
LONGEST: Final = 500
POLL: Final = 0.05  # s between two checks whether a process has ended
LAST: Final = 1.0  # s between SIGTERM and SIGKILL, for a process that did not end at the end of its input

log = logging.getLogger("tidelog.flows")


class ChildProcess:
    """A running program. Create it with ``start``."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self._name = name  # for the log
        self._errors = asyncio.get_running_loop().create_task(self._log()) if process.stderr is not None else None

    @classmethod
    async def start(
        cls, args: Sequence[str], name: str, *, directory: str | None = None,
        environment: Mapping[str, str] | None = None, reads: bool = True, writes: bool = True,
        stderr: Literal["log", "discard"] = "log",
    ) -> ChildProcess:  # fmt: skip
        """Start a program. reads: its standard output is a pipe. writes: its standard input is.

        Raises FileNotFoundError if there is no such program, and OSError if it can't be started.
        """
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        variables = {**os.environ, **(environment or {})}
        process = await asyncio.create_subprocess_exec(
            *_tied(), find_program(args[0], directory, variables.get("PATH")), *args[1:], cwd=directory, env=variables,
            stdin=pipe if writes else null, stdout=pipe if reads else null, stderr=pipe if stderr == "log" else null,
            start_new_session=True, limit=CHUNK,
        )  # fmt: skip
        if process.stdin is not None:  # ``drain`` waits until the pipe has accepted everything
            process.stdin.transport.set_write_buffer_limits(0)
        return cls(process, name)

    async def _log(self) -> None:
        """Log the lines of standard error until it is closed."""
        reader = self.process.stderr
        assert reader is not None  # noqa: S101 - the caller has checked it
        loop = asyncio.get_running_loop()
        rest, second, logged, omitted = b"", 0.0, 0, 0
        while data := await reader.read(CHUNK):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[: 4 * LONGEST]
            for line in lines:
                if loop.time() - second >= 1:
                    if omitted:
                        log.warning("%s: %s further lines of standard error", self._name, omitted)
                    second, logged, omitted = loop.time(), 0, 0
                logged += 1
                if logged <= LINES:
                    log.warning("%s: %s", self._name, _text(line))
                else:
                    omitted += 1
        if rest:
            log.warning("%s: %s", self._name, _text(rest))
        if omitted:
            log.warning("%s: %s further lines of standard error", self._name, omitted)

    async def exited(self) -> int:
        """Wait for the end, and return the status. ``Process.wait`` also waits for children that use the pipes."""
        while (status := self.process.returncode) is None:  # noqa: ASYNC110 - asyncio reports it in no other way
            await asyncio.sleep(POLL)
        return status

    async def ended(self) -> str:
        """Wait for the end, and return how the process has ended."""
        status = await self.exited()
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    async def stop(self, seconds: float) -> None:
        """End the process and its children. Its output is discarded meanwhile."""
        discarding = asyncio.get_running_loop().create_task(self._discard())
        try:
            if self.process.stdin is not None:
                self.process.stdin.close()
                await self._wait(seconds)  # it can process what it has received
            self._signal(signal.SIGTERM)
            await self._wait(seconds if self.process.stdin is None else LAST)
        finally:
            self.kill()  # also its children, which may not have ended
        await self.exited()
        await cancel(self._errors, discarding)
        transport: asyncio.SubprocessTransport = self.process._transport  # type: ignore[attr-defined] # not public
        transport.close()  # the pipes, which a process outside of the group can keep open

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited()

    async def _discard(self) -> None:
        output = self.process.stdout
        while output is not None and await output.read(CHUNK):
            pass

    def kill(self) -> None:
        """End the process group immediately."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def find_program(name: str, directory: str | None, path: str | None) -> str:
    """Return the path of a program. Raises FileNotFoundError if there is none."""
    if "/" in name and not name.startswith("/"):
        name = str(Path(directory or ".").resolve() / name)
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"there is no program {name!r}, or it is not executable")
    return found


def _tied() -> list[str]:
    """Return the arguments of a program that starts another one which ends together with this process."""
    found = shutil.which("setpriv") if sys.platform == "linux" else None
    return [] if found is None else [found, "--pdeathsig", "TERM", "--"]


def _text(line: bytes) -> str:
    text = line[: 4 * LONGEST].decode("utf-8", "replace").rstrip()
    shown = text[:LONGEST]
    return redacted("".join(each if each.isprintable() or each == "\t" else "?" for each in shown))


