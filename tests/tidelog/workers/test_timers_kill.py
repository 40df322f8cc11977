"""A cron across leaders that are killed, stopped and told to go: no second is missed, none runs twice for nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from tidelog import Client
from tidelog.client import strings
from tidelog.testing import Server

ROOT = Path(__file__).parents[3]
TTL = 0.6  # seconds


class Fleet:
    """Processes of ``timer_process``."""

    def __init__(self, server: Server, client: Client) -> None:
        self._server = server
        self._client = client
        self._started = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._started += 1
        name = f"w{self._started}"
        command = [sys.executable, "-m", "tests.tidelog.workers.timer_process", self._server.url, name, str(TTL)]
        self.processes[name] = subprocess.Popen(command, cwd=ROOT)

    def leader(self) -> str:
        """Who leads, once it has begun a run; one of those that live."""
        found = ""
        seen = self._client.tlen("ran")

        def begun() -> bool:
            nonlocal found
            value = self._client.run(strings.get("app:shop:leader")) or b""
            found = value.partition(b"|")[0].decode().rpartition(":")[2]
            fresh = self._client.trange("ran")[seen:]
            return found in self.processes and any(entry["worker"] == found.encode() for entry in fresh)

        eventually(begun)
        return found

    def signal(self, name: str, number: int) -> None:
        self.processes[name].send_signal(number)

    def gone(self, name: str) -> int:
        """Wait for the end of a process; its status."""
        return self.processes.pop(name).wait(60)


@pytest.fixture
def fleet(tidelog_server: Server, client: Client) -> Iterator[Fleet]:
    fleet = Fleet(tidelog_server, client)
    yield fleet
    for name in list(fleet.processes):
        fleet.signal(name, signal.SIGKILL)
        fleet.gone(name)


def runs(client: Client, what: str) -> Counter[int]:
    """How often each moment began, or ended."""
    return Counter(int(entry["moment"]) for entry in client.trange("ran") if entry["what"] == what.encode())


def check(client: Client, interrupted: int) -> None:
    began, ended = runs(client, "begin"), runs(client, "end")
    moments = sorted(began)
    assert moments == list(range(moments[0], moments[-1] + 1))
    again = began - Counter(moments)
    assert again.total() <= interrupted  # a run that its worker did not end is begun again
    assert set(ended) >= set(moments[:-1])


def test_leaders_that_are_killed(client: Client, fleet: Fleet) -> None:
    for _ in range(3):
        fleet.start()
    for _ in range(8):
        name = fleet.leader()
        fleet.signal(name, signal.SIGKILL)
        fleet.gone(name)
        fleet.start()
    fleet.leader()
    check(client, interrupted=8)


def test_leaders_that_go_in_order(client: Client, fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start()
    for _ in range(5):
        name = fleet.leader()
        fleet.signal(name, signal.SIGTERM)
        assert fleet.gone(name) == 0
        fleet.start()
    fleet.leader()
    check(client, interrupted=0)


def test_leaders_that_stand_still(client: Client, fleet: Fleet) -> None:
    """One that was stopped for longer than its lease ends its run, and begins none."""
    for _ in range(2):
        fleet.start()
    for _ in range(4):
        name = fleet.leader()
        fleet.signal(name, signal.SIGSTOP)
        while fleet.leader() == name:
            pass
        fleet.signal(name, signal.SIGCONT)
    fleet.leader()
    check(client, interrupted=4)


def test_a_server_that_is_killed(tidelog_server: Server, client: Client, fleet: Fleet) -> None:
    for _ in range(2):
        fleet.start()
    for _ in range(4):
        fleet.leader()
        tidelog_server.kill()
        tidelog_server.start()
        client.redis.connection_pool.disconnect()
    fleet.leader()
    check(client, interrupted=8)  # the code fails too, where it appends to a server that is away
