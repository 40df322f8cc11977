"""SIGKILL of the leader and of its replica at random times while clients delay entries and cancel them; promotions and
full copies.

After each turn: each confirmed entry has joined once, and not before it was due, unless it was cancelled; a repeated
token has made no other entry; a stream with a retention policy has as many entries as that retains.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest
import redis

from tests.crash.storms import ROLES, SETTINGS, CrashStorm, Work, new_seed
from tests.replication.cluster import Node, cluster, connect
from tests.replication.workloads import Delays


class DelayStorm(CrashStorm):
    """One client. WAIT confirms what must survive a promotion."""

    def __init__(self, leader: Node, replica: Node, seed: int) -> None:
        super().__init__(leader, replica, seed, ROLES)
        self.delays = Delays()
        self.delays.random = random.Random(seed)

    def works(self) -> Sequence[Work]:
        return [self.work]

    def work(self, port: int, over: threading.Event) -> None:
        delays = self.delays
        with connect(port, socket_timeout=5) as client:
            while not over.is_set():
                delays.step(client)
                if delays.random.random() < 0.2:
                    said = set(delays.said)
                    if client.execute_command("WAIT", 1, 20):
                        delays.promised |= said
                if delays.random.random() < 0.02:
                    with suppress(redis.ResponseError):  # a checkpoint is in progress
                        client.bgsave()

    def check(self, event: str) -> None:
        if event == "promotion":
            self.delays.said = set(self.delays.promised)
        with connect(self.leader.port) as client:
            self.delays.check(client, self.delays.said)


def storm(kills: int, seed: int) -> DelayStorm:
    with cluster() as made:
        running = DelayStorm(*made.pair(**SETTINGS), seed)
        while running.kills < kills:
            running.turn()
    print(f"seed {seed}: {running.kills} kills of {running.delays.sent} entries: {' '.join(running.happened)}")
    return running


def test_a_few_kills() -> None:
    running = storm(8, 4)
    assert {"leader", "promotion", "copy"} <= set(running.happened)
    assert len(running.delays.promised) > 100


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills() -> None:
    storm(200, new_seed())
