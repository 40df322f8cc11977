"""SIGKILL at random moments under load, for each appendfsync.

What must hold after each restart: every acknowledged entry is there, in order and once; no ID is used twice; no group's offset
points past the data; every message delivered with RETRY and not acknowledged is still pending; an acknowledged TACK stays one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """A tidelog-server process on one directory and port, started again and again."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.options = options
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> redis.Redis:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "respserver.program", "--port", str(self.port), "--dir", str(self.directory),
             "--enable-debug-command", "yes", *self.options],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line.decode())
            if b"Ready to accept connections" in line:
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(lines))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()  # keep the pipe empty
        return self.client()

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=20)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        if self.process.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdout.close()


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Process]:
    made = Process(tmp_path / "data", *getattr(request, "param", ()))
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


class Load:
    """Clients that append, read in a group and acknowledge, noting what the server confirmed; and what is in doubt."""

    def __init__(self, server: Process, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.appended: dict[bytes, bytes] = {}  # ID -> value, confirmed
        self.delivered: set[bytes] = set()  # confirmed deliveries with RETRY
        self.acked: set[bytes] = set()
        self.acking: set[bytes] = set()  # sent, not confirmed: either is right
        self.counter = 0
        self._lock = threading.Lock()

    def run(self, seconds: float) -> None:
        """Work until the server is killed, which happens after that time."""
        threads = [threading.Thread(target=self._append) for _ in range(3)] + [threading.Thread(target=self._consume)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)  # the moment of the crash is the point
        self.server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def _append(self) -> None:
        with contextlib.suppress(redis.ConnectionError, OSError), self.server.client() as client:
            while True:
                with self._lock:
                    self.counter += 1
                    body = b"%d" % self.counter
                count = self.random.choice((1, 1, 1, 5, 50))
                pipe = client.pipeline(transaction=self.random.random() < 0.3)
                for _ in range(count):
                    pipe.execute_command("TAPPEND", "s", "n", body, "pad", b"x" * self.random.choice((0, 10, 3000)))
                ids = pipe.execute()
                with self._lock:
                    for entry_id in ids:
                        assert entry_id not in self.appended, "an ID was given twice"
                        self.appended[entry_id] = body

    def _consume(self) -> None:
        with contextlib.suppress(redis.ConnectionError, OSError), self.server.client() as client:
            while True:
                rows = client.execute_command("TREAD", "s", "0", 20, "GROUP", "g", 0, "RETRY", 10_000_000, 0)
                ids = [row[0] for row in rows]
                self.delivered.update(ids)
                some = [i for i in ids if self.random.random() < 0.5]
                if some:
                    self.acking.update(some)
                    client.execute_command("TACK", "s", "g", *some)
                    self.acked.update(some)
                    self.acking.difference_update(some)

    def check(self, client: redis.Redis) -> None:
        rows = client.execute_command("TRANGE", "s", "-", "+")
        ids = [row[0] for row in rows]
        numbers = [tuple(map(int, i.split(b"."))) for i in ids]
        assert numbers == sorted(set(numbers))
        there = {row[0]: row[2] for row in rows}
        missing = [i for i in self.appended if there.get(i) != self.appended[i]]
        assert not missing, f"{len(missing)} acknowledged entries are gone, first {missing[0]!r}"
        self.appended = there  # what was in doubt is settled now
        last = numbers[-1] if numbers else (0, 0)
        for group in client.execute_command("TGROUP", "LIST", "s"):
            facts = group if isinstance(group, dict) else dict(zip(group[::2], group[1::2], strict=True))
            assert tuple(map(int, facts[b"offset"].split(b"."))) <= last
        pending = {row[0] for row in client.execute_command("TPENDING", "s", "g", "-", "+", 10_000_000)}
        assert self.delivered - self.acked - self.acking <= pending, "a delivered message was lost"
        assert not pending & self.acked, "an acknowledged message is pending again"
        self.delivered = pending
        self.acked.clear()
        self.acking.clear()


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, fsync: str) -> None:
    server = Process(tmp_path / "data", "--appendfsync", fsync, "--checkpoint-size", "1mb", "--stream-node-max-entries", "100")
    load = Load(server, seed=len(fsync))
    try:
        client = server.start()
        client.execute_command("TREAD", "s", "0", 0, "GROUP", "g", 0)
        for _ in range(5):
            load.run(load.random.uniform(0.05, 0.9))
            client = server.start()
            load.check(client)
        assert len(load.appended) > 100
        assert int(client.info("persistence")["log_store_offset"]) > 0, "no checkpoint happened: the test shows too little"
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def test_a_transaction_is_never_torn(tmp_path: Path) -> None:
    server = Process(tmp_path / "data")
    rng = random.Random(5)
    try:
        server.start()
        for _ in range(4):
            killer = threading.Timer(rng.uniform(0.1, 0.4), server.kill)
            killer.start()
            with contextlib.suppress(redis.ConnectionError, OSError), server.client() as client:
                while True:
                    pipe = client.pipeline(transaction=True)
                    pipe.execute_command("TAPPEND", "a", "f", "v")
                    pipe.execute_command("INCR", "n")
                    pipe.execute_command("TMAPPEND", "b", "FIELDS", 1, "f", "VALUES", 1, 2)
                    pipe.execute()
            killer.join()
            client = server.start()
            length = client.execute_command("TLEN", "a")
            assert int(client.get("n") or 0) == length
            assert client.execute_command("TLEN", "b") == 2 * length
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def test_sigterm_checkpoints_and_starts_clean(process: Process) -> None:
    client = process.start()
    client.execute_command("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(2000))
    digest = client.execute_command("DEBUG", "DIGEST")
    client.close()
    assert process.process is not None
    process.process.terminate()
    assert process.process.wait(20) == 0
    client = process.start()
    info = client.info("persistence")
    assert info["log_store_offset"] == info["log_offset"]
    assert client.execute_command("DEBUG", "DIGEST") == digest


def test_two_servers_on_one_directory(process: Process) -> None:
    process.start()
    other = subprocess.run(
        [sys.executable, "-m", "respserver.program", "--port", "0", "--unixsocket", str(process.directory / "x.sock"),
         "--dir", str(process.directory)],
        cwd=ROOT, capture_output=True, text=True, timeout=20, env=os.environ,
    )  # fmt: skip
    assert other.returncode == 1
    assert "in use" in other.stdout
    assert "Traceback" not in other.stdout + other.stderr
