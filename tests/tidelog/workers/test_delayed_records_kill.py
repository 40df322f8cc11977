"""Delayed records, while movers and the server are killed: each arrives once, and none before its time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import eventually
from tidelog import Client
from tidelog.client import strings
from tidelog.testing import Server
from tidelog.topics import Topic

ROOT = Path(__file__).parents[3]
TTL = 0.6  # seconds
PARTITIONS = 4


class Fleet:
    """Processes of ``mover_process``. The claim says which of them moves."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._started = 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._started += 1
        name = f"w{self._started}"
        command = [sys.executable, "-m", "tests.tidelog.workers.mover_process", self._server.url, name, str(TTL)]
        self.processes[name] = subprocess.Popen(command, cwd=ROOT)

    def moves(self, client: Client) -> str:
        """Who moves: one of those that live. Empty: nobody yet."""
        value = client.run(strings.get("orders:delayed:mover")) or b""
        name = value.partition(b"|")[0].decode().rpartition(":")[2]
        return name if name in self.processes else ""

    def mover(self, client: Client) -> str:
        """Who moves, as soon as somebody does, and has moved a record."""
        before = arrived(client)
        eventually(lambda: arrived(client) > before and self.moves(client))
        return self.moves(client) or self.mover(client)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()


@pytest.fixture
def fleet(tidelog_server: Server) -> Iterator[Fleet]:
    fleet = Fleet(tidelog_server)
    yield fleet
    for name in list(fleet.processes):
        fleet.kill(name)


def topic_of(server: Server) -> Topic[dict[str, str]]:
    topic: Topic[dict[str, str]] = Topic(
        "orders", partition_by="id", partitions=PARTITIONS, url=server.url, codec="json"
    )  # fmt: skip
    topic.sync.ready()
    return topic


def send(topic: Topic[dict[str, str]], number: int, delay: float, dues: dict[str, int]) -> None:
    dues[str(number)] = topic.sync.send({"id": str(number)}, delay=delay).ms + round(delay * 1000)


def arrived(client: Client) -> int:
    return sum(client.tlen(f"orders:{at}") for at in range(PARTITIONS))


def check(client: Client, topic: Topic[dict[str, str]], dues: dict[str, int]) -> None:
    """Exactly what was sent arrives, nothing of it early."""
    eventually(lambda: arrived(client) >= len(dues))
    entries = [
        (topic.decode(entry, at)["id"], entry.id.ms)
        for at in range(PARTITIONS)
        for entry in client.trange(f"orders:{at}")
    ]
    assert Counter(number for number, _ in entries) == Counter(dues.keys())
    assert [number for number, ms in entries if ms < dues[number]] == []
    eventually(lambda: client.tpending("orders:delayed", "mover").count == 0)
    assert arrived(client) == len(dues)


@contextmanager
def in_background(do: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call a function in a thread, with the event that tells it to return."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            do(stop)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_movers_that_are_killed(tidelog_server: Server, fleet: Fleet) -> None:
    topic = topic_of(tidelog_server)
    dues: dict[str, int] = {}
    chance = random.Random(1)

    def sends(stop: threading.Event) -> None:
        while not stop.wait(0.002):
            send(topic, len(dues), chance.uniform(0, 3), dues)

    for _ in range(3):
        fleet.start()
    with tidelog_server.client() as client:
        with in_background(sends):
            for _ in range(22):
                fleet.kill(fleet.mover(client))
                fleet.start()
        check(client, topic, dues)
    topic.sync.close()


def test_movers_that_stand_still(tidelog_server: Server, fleet: Fleet) -> None:
    """What a mover had begun before it lost its claim, it does not finish."""
    topic = topic_of(tidelog_server)
    dues: dict[str, int] = {}
    chance = random.Random(3)

    def sends(stop: threading.Event) -> None:
        while not stop.wait(0.0005):
            send(topic, len(dues), chance.uniform(0, 1), dues)

    for _ in range(2):
        fleet.start()
    with tidelog_server.client() as client:
        with in_background(sends):
            for _ in range(8):
                name = fleet.mover(client)
                fleet.processes[name].send_signal(signal.SIGSTOP)
                while fleet.mover(client) == name:
                    pass
                fleet.processes[name].send_signal(signal.SIGCONT)
        check(client, topic, dues)
    topic.sync.close()


def test_a_server_that_is_killed(tidelog_server: Server, fleet: Fleet) -> None:
    topic = topic_of(tidelog_server)
    dues: dict[str, int] = {}
    chance = random.Random(2)
    for _ in range(2):
        fleet.start()
    for at in range(12):
        for number in range(at * 120, at * 120 + 120):
            send(topic, number, chance.uniform(0, 4), dues)
        with tidelog_server.client() as client:
            fleet.mover(client)
        tidelog_server.kill()
        tidelog_server.start()
    with tidelog_server.client() as client:
        check(client, topic, dues)
    topic.sync.close()
