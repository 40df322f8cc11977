"""The two servers under measurement, as processes on free ports with empty directories."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Peer:
    """A running server: ``name`` is ``tidelog`` or ``redis``."""

    def __init__(self, name: str, command: list[str], directory: Path, fsync: str, core: int | None) -> None:
        self.name = name
        self.command = command
        self.directory = directory
        self.fsync = fsync
        self.core = core
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> float:
        """Start and wait for the first reply; returns the seconds that took."""
        options = ["--port", str(self.port), "--dir", str(self.directory), "--appendfsync", self.fsync, "--save", ""]
        if self.name == "redis":
            options += ["--appendonly", "yes"]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [*self.command, *options, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory
        )
        if self.core is not None:
            os.sched_setaffinity(self.process.pid, {self.core})
        while time.perf_counter() - began < 120:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=120) as sock:
                    sock.sendall(b"PING\r\n")
                    if sock.recv(64).startswith(b"+PONG"):
                        return time.perf_counter() - began
            except OSError:
                pass
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start: exit code {self.process.returncode}")
            time.sleep(0.002)
        raise RuntimeError(f"{self.name} did not answer within 120 seconds")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=600)

    def memory(self) -> int:
        """Bytes of memory of its own that the process takes (anonymous pages)."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def disk(self) -> int:
        """Bytes on disk that the directory really takes."""
        return sum(path.stat().st_blocks * 512 for path in self.directory.rglob("*") if path.is_file())


@contextlib.contextmanager
def servers(fsync: str, peer_binary: str | None, names: tuple[str, ...] = ("tidelog", "redis")) -> Iterator[list[Peer]]:
    """Both servers (not started), pinned to the first core where there are several; gone with their data at the end."""
    binary = peer_binary or shutil.which("redis-server")
    commands = {"tidelog": [sys.executable, "-m", "respserver.program"]}
    if binary:
        commands["redis"] = [binary]
    several = len(os.sched_getaffinity(0)) > 1
    core = min(os.sched_getaffinity(0)) if several else None
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as top:
        made = []
        for name in names:
            if name in commands:
                directory = Path(top) / name
                directory.mkdir()
                made.append(Peer(name, commands[name], directory, fsync, core))
        root = str(Path(__file__).resolve().parent.parent)
        os.environ["PYTHONPATH"] = root
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a start compiles nothing anew, as where it is installed
        try:
            yield made
        finally:
            for peer in made:
                peer.stop()


def on_load_core() -> None:
    """Keep this process (the load) off the servers' core."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, {max(cores)})
