"""Requests to the coordinator of a cluster in which nothing changes, and the size of its map:
``python -m tests.simulation.coordinatorload [--groups 2 4 8] [--members 3]``.

The members are the real server, in the simulated world. When all groups have joined the cluster, the requests of the
following virtual seconds are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, cast

from coordinator import slotmap
from coordinator.etcd import SILENCE
from coordinator.interface import Lease, Versioned
from coordinator.slotmap import MapGroup, MapMember, OwnedRange, SlotMap
from tests.simulation.groupmembers import SimStore
from tests.simulation.network import NetworkLoop
from tests.simulation.slotchecks import MAP
from tests.simulation.slots import SlotCase, SlotWorld
from tests.simulation.world import play
from tidelog.transport.slots import SLOTS, MemberAddress, SlotOwners, slot_of

LEASE_MS: Final = 5000  # the default of group-lease
COUNTED: Final = 120.0  # virtual seconds: whole periods of everything that is repeated
WATCHES: Final = 3  # of a member: its group's state and leader, and the map


class CountingStore(SimStore):
    """Counts the requests of all members."""

    def __init__(self, members: Any, checks: Any) -> None:
        super().__init__(members, checks)
        self.requests: Counter[str] = Counter()

    def get(self, key: str) -> Versioned | None:
        self.requests["get"] += 1
        return super().get(key)

    def swap_for(self, who: str, key: str, value: bytes | None, version: int, lease: Lease | None) -> int | None:
        self.requests["compare-and-set"] += 1
        return super().swap_for(who, key, value, version, lease)

    def keep(self, lease: Lease) -> bool:
        self.requests["keep a lease"] += 1
        return super().keep(lease)


class IdleCluster(SlotWorld):
    """A cluster without clients."""

    def __init__(self, case: SlotCase, loop: NetworkLoop, top: Path) -> None:
        super().__init__(case, loop, top)
        self.store = self.counting = CountingStore(cast(Any, self.members), cast(Any, self.checks))
        for member in self.members:
            member.store = self.store
        self.counted: Counter[str] = Counter()

    def _settings(self, number: int, group: str) -> dict[str, str]:
        return super()._settings(number, group) | {"group-lease": str(LEASE_MS)}

    async def run(self) -> None:
        for member in self.members:
            member.start()
        while not self._formed():
            await asyncio.sleep(0.1)
            self.check_trouble()
        await asyncio.sleep(10.0)  # records of late members are written
        before = Counter(self.counting.requests)
        await asyncio.sleep(COUNTED)
        self.counted = self.counting.requests - before

    def _formed(self) -> bool:
        found = self.store.keys.get(MAP)
        groups = slotmap.decode(found.value).groups if found is not None else {}
        return len(groups) == self.case.groups and all(
            len(each.members) == self.case.members for each in groups.values()
        )


def requests(groups: int, members: int) -> Counter[str]:
    """Return the requests of COUNTED seconds, by kind."""
    case = SlotCase(1, (), groups=groups, members=members, keys=1)
    return play(case.seed, lambda loop, top: IdleCluster(case, loop, top), case).counted


def large_map(groups: int, members: int, partitions: int) -> SlotMap:
    """Return a map in which each slot of a partition has another owner than its neighbors."""
    made = {}
    for group in range(1, groups + 1):
        names = [f"{group}{chr(ord('a') + at)}" for at in range(members)]
        made[str(group)] = MapGroup(f"{group:040x}", 1, names[0], 0, {
            name: MapMember(f"{group:020x}{at:020x}", f"10.0.{group}.{at + 1}", 6379, 0, "")
            for at, name in enumerate(names)
        })  # fmt: skip
    owners = [str(slot * groups // SLOTS + 1) for slot in range(SLOTS)]
    for at in range(partitions):
        owners[slot_of(f"orders:{at}")] = str(at % groups + 1)
    ranges: list[OwnedRange] = []
    for slot, owner in enumerate(owners):
        if ranges and ranges[-1].group == owner:
            ranges[-1] = OwnedRange(ranges[-1].first, slot, owner)
        else:
            ranges.append(OwnedRange(slot, slot, owner))
    return SlotMap(f"{1:040x}", 100, made, tuple(ranges), ())


def reply_of(known: SlotMap) -> list[Any]:
    """Return the reply of CLUSTER SLOTS for a map."""
    found = []
    for first, last, group in known.slots:
        members = known.groups[group].members.values()
        found.append([first, last, *([each.host.encode(), each.port, each.id.encode(), []] for each in members)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--members", type=int, default=3)
    options = parser.parse_args()
    for groups in options.groups:
        counted = requests(groups, options.members)
        kinds = ", ".join(f"{kind} {number / COUNTED:.2f}" for kind, number in sorted(counted.items()))
        # the simulated store keeps watches open; those of etcd are opened again after a silence (coordinator/etcd.py)
        opened = WATCHES * groups * options.members / (SILENCE * LEASE_MS / 5000)
        kinds += f", watches of etcd {opened:.2f}"
        total = counted.total() / COUNTED + opened
        print(f"{groups} groups of {options.members}: {total:.2f} requests/s, {total / groups:.3f} per group ({kinds})")
    for name, made in (("1 range per group", large_map(64, 3, 0)), ("1,024 partitions", large_map(64, 3, 1024))):
        encoded = made.encode()
        began = time.process_time()
        slotmap.decode(encoded)
        decoded = time.process_time() - began
        reply = reply_of(made)
        began = time.process_time()
        SlotOwners(reply, MemberAddress("10.0.1.1", 6379))
        read = time.process_time() - began
        print(f"map of 64 groups of 3, {name}: {len(made.slots):,} ranges, {len(encoded):,} bytes")
        print(f"  CPU, ms: {decoded * 1000:.1f} to decode it, {read * 1000:.1f} for a client to read CLUSTER SLOTS")


if __name__ == "__main__":
    main()
