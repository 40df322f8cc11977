"""The servers that foreign programs run against: a durable redis-server, and tidelog's own test kit."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

import pytest
import redis

from tidelog.testing import free_port

PATIENCE = 30.0  # seconds that anything may take which is waited for


class Target(Protocol):
    """A server process that can be killed and started again, on the same port with the same data."""

    port: int

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class RealRedis:
    """This machine's redis-server with a log that it flushes before it answers: what SIGKILL leaves is comparable."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("no redis-server here to compare with (Debian: apt-get install redis-server)")
        self.port = free_port()
        self._command = [program, "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", "--loglevel", "warning"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it answers. Nothing happens if it is running."""
        if self._process is not None:
            return
        self._process = subprocess.Popen([*self._command, "--port", str(self.port)], stdout=subprocess.DEVNULL)
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                    sock.sendall(b"INFO server\r\n")
                    if b"process_id:%d\r\n" % self._process.pid in sock.recv(65536):
                        return
            except OSError:
                sleep(0.01)
        self.kill()
        pytest.fail("redis-server did not start")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def until(met: Callable[[], Any], what: str = "") -> None:
    """Wait for a condition; the test fails if it takes longer than PATIENCE."""
    deadline = monotonic() + PATIENCE
    while not met():
        assert monotonic() < deadline, what or "it did not happen"
        sleep(0.01)


async def becomes(met: Callable[[], Any], what: str = "") -> None:
    """The same for a coroutine."""
    deadline = monotonic() + PATIENCE
    while not met():
        assert monotonic() < deadline, what or "it did not happen"
        await asyncio.sleep(0.01)


def pending(port: int, key: str, group: str) -> int:
    """How many messages of a group wait for their acknowledgement."""
    with redis.Redis(port=port) as client:
        count: int = client.xpending(key, group)["pending"]
        return count
