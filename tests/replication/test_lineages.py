"""Histories of logs in random runs: leaders change, and members follow them when they are reachable. No processes."""

from __future__ import annotations

import random
from itertools import takewhile

import pytest

from persistence.history import MOST_PREVIOUS, History
from replication.handshake import Lineage

pytestmark = pytest.mark.quick
SEEDS = 2000


class Model:
    """A server: its log as a list of records that are all different, and its history."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.history = History("a" * 40)

    @property
    def lineage(self) -> Lineage:
        return Lineage(len(self.log), self.history.points(len(self.log)))

    def common(self, other: Model) -> int:
        """The length of the longest common beginning of both logs."""
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.log, other.log, strict=False)))

    def follow(self, leader: Model, chance: random.Random) -> None:
        own, offered = self.lineage, leader.lineage
        point = own.diverged(offered)
        end = len(self.log) if point is None else point[1]
        if point is None and not leader.history.covers(self.history.ask(end), end, len(leader.log)):
            self.log = list(leader.log)  # a full copy
            previous = [each for each in offered.points.items() if each[0] != leader.history.id][:MOST_PREVIOUS]
            self.history = History(leader.history.id, previous)
            return
        common = self.common(leader)
        assert end <= common, "it would continue after records that the leader does not have"
        assert end == common or end == len(self.log), "it would delete records that the leader has"
        del self.log[end:]
        self.history.follow(leader.history.id, end, offered.points)
        self.log += leader.log[end : end + chance.randint(0, 8)]  # the link can end at any time


def test_a_member_keeps_what_it_has_in_common_with_its_leader() -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        models = [Model() for _ in range(3)]
        leader, record = models[0], 0
        for _ in range(chance.randint(3, 25)):
            what = chance.randrange(3)
            if what == 0:
                for _ in range(chance.randint(1, 5)):
                    record += 1
                    leader.log.append(record)
            elif what == 1:
                chance.choice([each for each in models if each is not leader]).follow(leader, chance)
            else:
                leader = chance.choice(models)
                leader.history.shift(len(leader.log))
