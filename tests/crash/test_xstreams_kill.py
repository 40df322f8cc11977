"""SIGKILL of the leader and of its replica at random moments under the load of X commands.

After each restart: streams, groups, consumers and pending messages are what was confirmed, up to a command that was not
answered; what was deleted stays deleted; what was acknowledged is not pending; both servers hold the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.crash.storms import MINUTES, SETTINGS, CrashStorm, Work, new_seed
from tests.crash.xledger import CONSUMERS, Crowd, Ledger
from tests.replication.cluster import Node, cluster
from tests.wire.rawclient import Raw


class XStorm(CrashStorm):
    """The clients."""

    longest = 1.2

    def __init__(self, leader: Node, replica: Node, seed: int) -> None:
        super().__init__(leader, replica, seed)
        self.ledgers = [Ledger(f"own{at}", random.Random(seed + at)) for at in range(3)]
        self.crowd = Crowd(random.Random(seed))
        with Raw(leader.port) as client:
            assert client("XGROUP", "CREATE", Crowd.KEY, "g", 0, "MKSTREAM") == b"OK"

    def works(self) -> Sequence[Work]:
        consumers = [partial(self.crowd.consume, name=name) for name in CONSUMERS[:2]]
        return [*(ledger.work for ledger in self.ledgers), self.crowd.produce, self.crowd.produce, *consumers]

    def check(self, event: str) -> None:
        with Raw(self.leader.port) as client:
            for ledger in self.ledgers:
                ledger.check(client)
            self.crowd.check(client)


@pytest.fixture
def storm() -> Iterator[XStorm]:
    with cluster() as made:
        yield XStorm(*made.pair(**SETTINGS), new_seed())


def test_a_short_storm(storm: XStorm) -> None:
    for _ in range(6):
        storm.turn()
    assert min(ledger.steps for ledger in storm.ledgers) > 100, "hardly any work: the test shows too little"
    assert len(storm.crowd.acked) > 20


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_a_storm(storm: XStorm) -> None:
    began = time.monotonic()
    while time.monotonic() - began < MINUTES * 60:
        storm.turn()
    steps = sum(ledger.steps for ledger in storm.ledgers)
    print(f"{storm.kills} kills, {steps} commands with their replies, {len(storm.crowd.added)} entries of the crowd")
