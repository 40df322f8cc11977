"""SIGKILL of the leader and of its replica at random moments under the load of X commands.

After each restart: streams, groups, consumers and pending messages are what was confirmed, up to a command that was not
answered; what was deleted stays deleted; what was acknowledged is not pending; both servers hold the same.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.crash.xledger import CONSUMERS, Crowd, Ledger
from tests.replication.cluster import Node, assert_same, cluster
from tests.wire.rawclient import Raw

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
SETTINGS = {"checkpoint_size": "1mb", "wal_size": "1mb", "stream_node_max_entries": 50}


class Storm:
    """A leader, a replica, and the clients."""

    def __init__(self, leader: Node, replica: Node, seed: int) -> None:
        self.leader = leader
        self.replica = replica
        self.chance = random.Random(seed)
        self.ledgers = [Ledger(f"own{at}", random.Random(seed + at)) for at in range(3)]
        self.crowd = Crowd(random.Random(seed))
        self.failed: list[BaseException] = []
        with Raw(leader.port) as client:
            assert client("XGROUP", "CREATE", Crowd.KEY, "g", 0, "MKSTREAM") == b"OK"

    def turn(self) -> None:
        """Let all work, kill one or both servers, start them again, and check."""
        what = self.chance.choice(("leader", "leader", "leader", "replica", "both"))
        over = threading.Event()
        works: list[Callable[[int, threading.Event], None]] = [ledger.work for ledger in self.ledgers]
        works += [self.crowd.produce, self.crowd.produce]
        works += [partial(self.crowd.consume, name=name) for name in CONSUMERS[:2]]
        threads = [threading.Thread(target=self.guarded, args=(work, over)) for work in works]
        for thread in threads:
            thread.start()
        time.sleep(self.chance.uniform(0.05, 1.2))  # the crash must come at a random moment
        if what != "leader":
            self.replica.kill()
        if what != "replica":
            self.leader.kill()
        over.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.failed:
            raise self.failed[0]
        self.leader.start()
        self.check()
        self.replica.start()
        assert_same(self.leader, self.replica)

    def guarded(self, work: Callable[[int, threading.Event], None], over: threading.Event) -> None:
        """Work until the server is gone."""
        try:
            work(self.leader.port, over)
        except (EOFError, OSError):
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.failed.append(error)

    def check(self) -> None:
        with Raw(self.leader.port) as client:
            for ledger in self.ledgers:
                ledger.check(client)
            self.crowd.check(client)


@pytest.fixture
def storm() -> Iterator[Storm]:
    fresh = 1 if os.environ.get("CI") else time.time_ns() % 1_000_000
    seed = int(os.environ.get("TIDELOG_SEED") or fresh)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    with cluster() as made:
        yield Storm(*made.pair(**SETTINGS), seed)


def test_a_short_storm(storm: Storm) -> None:
    for _ in range(6):
        storm.turn()
    assert min(ledger.steps for ledger in storm.ledgers) > 100, "hardly any work: the test shows too little"
    assert len(storm.crowd.acked) > 20


@pytest.mark.long
@pytest.mark.skipif(not MINUTES, reason="for as long as TIDELOG_LONG says: scripts/test long")
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_a_storm(storm: Storm) -> None:
    began, turns = time.monotonic(), 0
    while time.monotonic() - began < MINUTES * 60:
        storm.turn()
        turns += 1
    steps = sum(ledger.steps for ledger in storm.ledgers)
    print(f"{turns} kills, {steps} commands with their replies, {len(storm.crowd.added)} entries of the crowd")
