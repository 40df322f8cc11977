"""SIGKILL at random moments under load, for each appendfsync.

After each restart, every acknowledged entry is there, in order and once; no ID is used twice; no group's offset points
beyond the data; every message delivered with RETRY and not acknowledged is still pending; an acknowledged TACK is kept.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tidelog.testing import Server, running_server


def connection(server: Server) -> redis.Redis:
    return redis.Redis(port=server.port, socket_timeout=20, retry=Retry(NoBackoff(), 0))  # a crash is what we wait for


def facts(server: Server) -> dict[str, Any]:
    with connection(server) as client:
        found = client.info("persistence")
    assert isinstance(found, dict)
    return found


class Load:
    """Clients that append, read in a group and acknowledge, and note what the server confirmed and what is in doubt."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.appended: dict[bytes, bytes] = {}  # ID -> value, confirmed
        self.delivered: set[bytes] = set()  # confirmed deliveries with RETRY
        self.acked: set[bytes] = set()
        self.acking: set[bytes] = set()  # sent, not confirmed: either is right
        self.counter = 0
        self._lock = threading.Lock()

    def run(self, seconds: float) -> None:
        """Work for that time, until the server is killed."""
        threads = [threading.Thread(target=self._append) for _ in range(3)] + [threading.Thread(target=self._consume)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)  # the crash must come at a random moment
        self.server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def _append(self) -> None:
        with contextlib.suppress(redis.ConnectionError, OSError), connection(self.server) as client:
            while True:
                with self._lock:
                    self.counter += 1
                    body = b"%d" % self.counter
                count = self.random.choice((1, 1, 1, 5, 50))
                pipe = client.pipeline(transaction=self.random.random() < 0.3)
                for _ in range(count):
                    pad = b"x" * self.random.choice((0, 10, 3000, 9000))
                    pipe.execute_command("TAPPEND", "s", "n", body, "pad", pad)
                ids = pipe.execute()
                with self._lock:
                    for entry_id in ids:
                        assert entry_id not in self.appended, "an ID was given twice"
                        self.appended[entry_id] = body

    def _consume(self) -> None:
        with contextlib.suppress(redis.ConnectionError, OSError), connection(self.server) as client:
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
def test_nothing_acknowledged_is_lost(fsync: str) -> None:
    with running_server(
        appendfsync=fsync, checkpoint_size="1mb", wal_size="1mb", stream_node_max_entries=100
    ) as server:
        load = Load(server, seed=len(fsync))
        with connection(server) as client:
            client.execute_command("TREAD", "s", "0", 0, "GROUP", "g", 0)
        for _ in range(5):
            load.run(load.random.uniform(0.05, 0.9))
            server.start()
            with connection(server) as client:
                load.check(client)
        assert len(load.appended) > 100
        assert facts(server)["log_store_offset"] > 0, "no checkpoint happened: the test shows too little"


def test_a_transaction_is_never_torn() -> None:
    rng = random.Random(5)
    with running_server(wal_size="1mb") as server:
        for _ in range(4):
            killer = threading.Timer(rng.uniform(0.1, 0.4), server.kill)
            killer.start()
            with contextlib.suppress(redis.ConnectionError, OSError), connection(server) as client:
                while True:
                    pipe = client.pipeline(transaction=True)
                    pipe.execute_command("TAPPEND", "a", "f", "v")
                    pipe.execute_command("INCR", "n")
                    pipe.execute_command("TMAPPEND", "b", "FIELDS", 1, "f", "VALUES", 1, 2)
                    pipe.execute()
            killer.join()
            server.start()
            with connection(server) as client:
                length = client.execute_command("TLEN", "a")
                assert int(client.get("n") or 0) == length
                assert client.execute_command("TLEN", "b") == 2 * length


def test_sigterm_checkpoints_and_starts_clean() -> None:
    with running_server(enable_debug_command="yes") as server, connection(server) as client:
        client.execute_command("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(2000))
        digest = client.execute_command("DEBUG", "DIGEST")
        server.restart()
        found = facts(server)
        assert found["log_store_offset"] == found["log_offset"] > 0
        assert client.execute_command("DEBUG", "DIGEST") == digest


def test_another_wal_size_takes_effect_at_the_next_start() -> None:
    with running_server(wal_size="1mb") as server, connection(server) as client:
        client.execute_command("TAPPEND", "s", "f", "v")
        server.config["wal-size"] = "2mb"
        server.kill()
        server.start()
        assert facts(server)["log_tail_bytes"] == 2 << 20
        assert client.execute_command("TLEN", "s") == 1
        client.execute_command("TAPPEND", "s", "f", "v")
        server.kill()
        server.start()
        assert client.execute_command("TLEN", "s") == 2


def test_two_servers_on_one_directory(tmp_path: Path) -> None:
    with running_server(tmp_path):
        other = subprocess.run(
            [sys.executable, "-m", "_tidelog_server", "--port", "0", "--unixsocket", str(tmp_path / "x.sock"),
             "--dir", str(tmp_path)],
            cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert other.returncode == 1
        assert "in use" in other.stdout
        assert "Traceback" not in other.stdout + other.stderr


def test_a_server_that_can_not_start_leaves_the_others_socket_alone(tmp_path: Path) -> None:
    path = tmp_path / "tidelog.sock"
    with running_server(unixsocket=str(path)) as server:
        other = subprocess.run(
            [sys.executable, "-m", "_tidelog_server", "--bind", server.host, "--port", str(server.port),
             "--unixsocket", str(path), "--dir", str(tmp_path / "data")],
            cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=20,
        )  # fmt: skip
        assert other.returncode == 1, other.stdout
        assert redis.Redis(unix_socket_path=str(path)).ping()
