"""What tests of leases share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis

from tidelog.client.client import Client
from tidelog.client.steps import Steps, drive
from tidelog.coordination import Lease
from tidelog.transport.call import Call

ROOT = Path(__file__).parents[3]
T = TypeVar("T")


def lease_of(owner: str, ttl: float = 30, **options: Any) -> Lease:
    return Lease(f"lease:{owner}", owner, ttl, "epoch", **options)


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def losing(client: Client, steps: Steps[T], at: int) -> T:
    """Drive an operation; the server carries out its round trip number ``at``, and the reply to it is lost."""
    trips = iter(range(1000))

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        replies = client.together(*calls, raise_on_error=False)
        if next(trips) == at:
            raise redis.ConnectionError("lost")
        return replies

    return drive(send, steps)


class Holder:
    """A process of ``holder.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def write(self, word: str) -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def asked(self, word: str = "?") -> tuple[bool, int, int]:
        """What it believes: whether its claim is held, the lease's epoch, the claim's."""
        self.write(word)
        held, lease, claim = self.line().split()
        return held == "True", int(lease), int(claim)


@contextmanager
def holder(url: str, owner: str, ttl: float) -> Iterator[Holder]:
    command = [sys.executable, "-m", "tests.tidelog.coordination.holder", url, owner, str(ttl)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            it = Holder(process)
            assert it.line() == "held"
            yield it
        finally:
            process.kill()
