"""A running ``tidelog cluster up`` in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from tests.waiting import eventually
from tidelog.serverprogram import server_environment
from tidelog.testing import free_port

PROGRAM = (sys.executable, "-m", "tidelog.cli", "cluster")
READY = "Press Ctrl-C to stop."


class RunningCluster:
    """A supervisor and its members. The directory is ``top / name``."""

    def __init__(self, top: Path, name: str = "c") -> None:
        self.directory = top / name
        self.port = free_ports(8)
        self._top = top
        self._log = top / f"{name}.output"
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *options: str, ready: bool = True) -> None:
        """Start a supervisor, and wait until the cluster is ready."""
        given = [] if (self.directory / "cluster.json").exists() else ["--port", str(self.port)]
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [*PROGRAM, "up", "--dir", str(self.directory), *given, *options], stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, env=server_environment(),
            )  # fmt: skip
        if ready:
            eventually(lambda: READY in self.output or self.ended, "the cluster is ready")
            assert not self.ended, self.output

    def run(self, *words: str, code: int = 0) -> str:
        """Run another command of ``tidelog cluster`` with this directory; return its output."""
        done = subprocess.run(
            [*PROGRAM, words[0], "--dir", str(self.directory), *words[1:]], capture_output=True, text=True, timeout=60,
            env=server_environment(), stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def send(self, number: signal.Signals) -> int:
        """Send a signal to the supervisor; return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def pid(self, member: str) -> int:
        """The process ID of a member; 0 if it has not written one yet."""
        return int(((self.directory / member / "process").read_text().split() or ["0"])[0])

    @property
    def members(self) -> dict[str, int]:
        """The ports of all members, as the plan has them."""
        found = json.loads((self.directory / "cluster.json").read_text())
        return {name: found["port"] + at for members in found["groups"].values() for name, at in members.items()}

    def client(self, member: str) -> redis.Redis:
        return redis.Redis(port=self.members[member], socket_timeout=10, decode_responses=True)

    def ask(self, member: str, *words: str) -> Any:
        """The reply of a member; None if there is none, or an error."""
        with suppress(redis.RedisError, OSError), self.client(member) as client:
            return client.execute_command(*words)
        return None

    def answers(self, member: str) -> bool:
        return bool(self.ask(member, "PING"))

    def running(self) -> list[str]:
        """The members whose processes run."""
        return [name for name in self.members if is_running(self.pid(name))]

    def kill(self) -> None:
        """Kill the supervisor and all members."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for path in self.directory.glob("*/process"):
            pid = self.pid(path.parent.name)
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
                eventually(functools.partial(_has_ended, pid))


def _has_ended(pid: int) -> bool:
    return not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether a process of a member exists, and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z" and b"memberprogram" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_ports(count: int) -> int:
    """The first of several consecutive ports that are free."""
    while True:
        first = free_port()
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


@contextmanager
def running_cluster(top: Path, *options: str) -> Iterator[RunningCluster]:
    """Run a cluster in a directory below ``top``. All its processes are killed at the end."""
    cluster = RunningCluster(top)
    try:
        cluster.up(*options)
        yield cluster
    finally:
        cluster.kill()


def seconds(text: str) -> list[float]:
    """The delays that a supervisor has printed."""
    return [float(each) for each in re.findall(r"started again in ([\d.]+) s", text)]
