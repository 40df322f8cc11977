"""Unmodified Sentinels of this machine's package, as processes that watch a leader."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.sentinel import Sentinel

from tests.replication.cluster import Node, cluster, connect, in_sync, new_port, wait_until

SERVICE = "tide"

# Quick judgement: a second of silence is death.
SETTINGS = """\
port {port}
bind 127.0.0.1
dir {directory}
logfile {directory}/log
sentinel monitor {service} 127.0.0.1 {leader} {quorum}
sentinel down-after-milliseconds {service} 1000
sentinel failover-timeout {service} 5000
sentinel parallel-syncs {service} 2
"""


def program() -> list[str]:
    """The command that starts a Sentinel; the test is skipped where there is none."""
    if found := shutil.which("redis-sentinel"):
        return [found]
    if found := shutil.which("redis-server"):
        return [found]  # the same program, told by --sentinel what to be
    pytest.skip("no redis-sentinel here (Debian: apt-get install redis-sentinel)")


# By default Sentinels poll and publish every one to ten seconds, and correct a role after eight. These settings change
# how often they do it, not what they do.
PERIODS = ("info-period", 500, "publish-period", 300, "ask-period", 300, "ping-period", 200)


class Watch:
    """Some Sentinels that watch one leader."""

    def __init__(self, directory: Path, leader_port: int, count: int, more: str = "") -> None:
        self.ports: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._directories: list[Path] = []
        command = program()
        for number in range(count):
            port, where = new_port(), directory / f"sentinel{number}"
            where.mkdir()
            file = where / "sentinel.conf"
            file.write_text(
                SETTINGS.format(
                    port=port, directory=where, service=SERVICE, leader=leader_port, quorum=count // 2 + 1
                )
                + more
            )  # fmt: skip
            arguments = [*command, str(file), "--sentinel"]
            self._processes.append(subprocess.Popen(arguments, stdout=subprocess.DEVNULL, cwd=where))
            self.ports.append(port)
            self._directories.append(where)
        for port in self.ports:
            with connect(port) as client:
                wait_until(client.ping, "a Sentinel answers")
                client.execute_command("SENTINEL", "DEBUG", *PERIODS)

    def client(self) -> Sentinel:
        """redis-py's client that asks the Sentinels for the current leader."""
        return Sentinel([("127.0.0.1", port) for port in self.ports], sentinel_kwargs={"socket_timeout": 2})

    def facts(self) -> list[dict[str, Any]]:
        """What each Sentinel knows of the leader."""
        found = []
        for port in self.ports:
            with connect(port) as client:
                found.append(client.sentinel_master(SERVICE))
        return found

    def wait_until_they_know(self, replicas: int) -> None:
        """Wait until each Sentinel has found the others and the replicas, and sees no problem."""
        others = len(self.ports) - 1
        wait_until(
            lambda: all(
                (found["num-slaves"], found["num-other-sentinels"], found["flags"]) == (replicas, others, "master")
                for found in self.facts()
            ),
            "the Sentinels know everyone",
        )

    def leader_port(self) -> int:
        """Where they say the leader is; 0 while they don't agree."""
        seen = {found["port"] for found in self.facts()}
        return int(seen.pop()) if len(seen) == 1 else 0

    def log(self) -> str:
        return "".join((where / "log").read_text() for where in self._directories)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []


@contextlib.contextmanager
def sentinels(directory: Path, leader_port: int, count: int, more: str = "") -> Iterator[Watch]:
    """``more``: lines of their configuration."""
    watch = Watch(directory, leader_port, count, more)
    try:
        yield watch
    finally:
        watch.close()


@contextlib.contextmanager
def watched_pair(directory: Path) -> Iterator[tuple[Watch, Node, Node]]:
    """A Sentinel, and the leader and the replica that it watches, in sync."""
    with cluster() as servers:
        leader = servers.node(file=True)
        replica = servers.node(of=leader.port, file=True)
        wait_until(lambda: in_sync(leader, replica), "a first sync")
        with sentinels(directory, leader.port, 1) as watch:
            watch.wait_until_they_know(replicas=1)
            yield watch, leader, replica
