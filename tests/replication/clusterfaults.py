"""Faults of a cluster of two groups, for storms of programs that use it: slots move, and leaders fail, at random."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from tests.replication.cluster import wait_until
from tests.replication.clusters import Groups
from tidelog.transport.slots import slot_of


class ClusterFaults:
    """Each method causes one fault. ``keys``: those whose slots move; each group needs two members."""

    def __init__(self, groups: Groups, chance: random.Random, keys: Sequence[str]) -> None:
        self.groups, self._chance, self._keys = groups, chance, keys

    def move(self) -> None:
        """Move the slots of some keys. A leader may be too busy for it: then they stay."""
        to = self._chance.choice("12")
        at = "1" if to == "2" else "2"
        some = self._chance.sample(self._keys, min(12, len(self._keys)))
        if slots := [str(slot_of(key)) for key in some if self.groups.owner(key) == at]:
            self.groups.leader(at).say("TCLUSTER", "MOVE", *slots, "TO", to)

    def kill(self) -> None:
        """Kill a leader, and start it again."""
        leader = self.groups.leader(self._chance.choice("12"))
        leader.kill()
        time.sleep(self._chance.random())
        leader.start()

    def freeze(self) -> None:
        """Suspend a leader, for longer or shorter than its lease."""
        leader = self.groups.leader(self._chance.choice("12"))
        leader.freeze()
        time.sleep(5 * self._chance.random())
        leader.thaw()

    def ended(self) -> None:
        """Wait until each group has a leader."""
        wait_until(lambda: all(group.wait() for group in self.groups.groups), "leaders")
