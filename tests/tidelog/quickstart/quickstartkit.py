"""A running ``tidelog quickstart``, and the processes that belong to it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import eventually
from tidelog.serverprogram import server_environment
from tidelog.testing import free_port

PROGRAM = (sys.executable, "-m", "tidelog.cli", "quickstart")
READY = re.compile(r"Server +(?P<server>\S+)\nConsole +(?P<console>\S+) .*\nPress Ctrl-C to stop\.\n")


class RunningQuickstart:
    """A process of ``tidelog quickstart`` whose programs are ready."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        found = eventually(lambda: self._ended() or READY.search(self.output))
        assert isinstance(found, re.Match), self.output
        self.url, self.console = found["server"], found["console"]
        self.children = children(process.pid)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self, number: int) -> int:
        """Send a signal; return the exit status once no process is left."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        eventually(self.is_gone, "programs outlive quickstart")
        return status

    def is_gone(self) -> bool:
        return not any(map(is_running, self.children))


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def quickstarted(
    directory: Path, *options: str, program: Sequence[str] = PROGRAM, environment: dict[str, str] | None = None
) -> Iterator[RunningQuickstart]:
    """Run a quickstart in ``directory`` on free ports unless options name others; it is killed at the end."""
    ports = [] if "--port" in options else ["--port", str(free_port()), "--console-port", str(free_port())]
    log = directory / "output"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*program, *ports, *options], cwd=directory, stdout=output, stderr=subprocess.STDOUT, text=True,
            env=(environment or server_environment()) | {"PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    started: RunningQuickstart | None = None
    try:
        started = RunningQuickstart(process, log)
        yield started
    finally:
        process.kill()
        process.wait()
        if started is not None:
            eventually(started.is_gone, "programs outlive quickstart")
