"""Ownership between real processes: what happens when one is killed, stopped past its lease, or goes in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.waiting import eventually
from tidelog.testing import Server

ROOT = Path(__file__).parents[3]
PARTITIONS = 16
TTL = 3.0
SLACK = 5.0  # seconds that two busy cores may take for what takes milliseconds


class Member:
    """A process of ``member.py``, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.owned: dict[int, int] = {}  # partitions with the epochs of their claims, as far as it has said
        self.begun: dict[int, float] = {}  # when it began a partition last
        self.said: list[set[int]] = []  # answers to ?
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *words = line.split()
            if kind == "+":
                self.begun[int(words[0])] = float(words[2])
                self.owned[int(words[0])] = int(words[1])
            elif kind == "-":
                del self.owned[int(words[0])]
            else:
                self.said.append(set(map(int, words)))

    def ask(self) -> None:
        assert self.process.stdin is not None
        print("?", file=self.process.stdin, flush=True)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@contextmanager
def member(server: Server, name: str, ttl: float = TTL) -> Iterator[Member]:
    command = [sys.executable, "-m", "tests.tidelog.workers.member", server.url, name, str(ttl)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        it = Member(process)
        try:
            yield it
        finally:
            process.kill()
            it.reader.join()


def shared(members: list[Member]) -> bool:
    owned = [list(each.owned) for each in members]
    sizes = list(map(len, owned))
    return sorted(at for each in owned for at in each) == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1


@pytest.fixture
def three(tidelog_server: Server) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        members = [stack.enter_context(member(tidelog_server, f"w{number}")) for number in range(3)]
        eventually(lambda: shared(members))
        yield members


def test_a_member_that_was_killed(three: list[Member]) -> None:
    killed, *others = three
    had = dict(killed.owned)
    killed.signal(signal.SIGKILL)
    at = time.time()
    eventually(lambda: shared(others))
    last = max(each.begun[partition] for each in others for partition in had if partition in each.owned) - at
    print(f"all went on {last:.3f} s after the kill, lease {TTL} s")
    assert last < TTL + SLACK
    epochs = {partition: epoch for each in others for partition, epoch in each.owned.items()}
    assert all(epochs[partition] > epoch for partition, epoch in had.items())


def test_two_of_three_that_were_killed(three: list[Member]) -> None:
    *killed, left = three
    for each in killed:
        each.signal(signal.SIGKILL)
    eventually(lambda: shared([left]))


def test_a_member_that_goes_in_order(three: list[Member]) -> None:
    going, *others = three
    had = set(going.owned)
    at = time.time()
    going.signal(signal.SIGTERM)
    eventually(lambda: shared(others))
    last = max(each.begun[partition] for each in others for partition in had if partition in each.owned) - at
    print(f"all went on {last:.3f} s after SIGTERM")
    assert going.process.wait(60) == 0


def test_a_member_that_was_stopped_past_its_lease(three: list[Member]) -> None:
    stopped, *others = three
    stopped.signal(signal.SIGSTOP)
    eventually(lambda: shared(others))
    stopped.ask()
    stopped.signal(signal.SIGCONT)
    eventually(lambda: stopped.said)
    assert stopped.said[0] == set()  # answered before anything else: it believes nothing of what it had
    eventually(lambda: shared(three))  # it takes part again


def test_a_storm(tidelog_server: Server) -> None:
    """Processes come, go and are killed; in the end each partition is owned once."""
    chance = random.Random(3)
    with ExitStack() as stack:
        there: list[Member] = []
        for number in range(12):
            there.append(stack.enter_context(member(tidelog_server, f"w{number}")))
            time.sleep(chance.uniform(0.0, 0.5))
            if len(there) > 3:
                there.pop(chance.randrange(len(there))).signal(chance.choice([signal.SIGTERM, signal.SIGKILL]))
        eventually(lambda: shared(there))
