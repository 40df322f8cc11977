"""A simulated cluster: several server groups with one coordinator share the slots, which change their owners meanwhile.

Rule 1: what ``slotclients`` says about clients, and ``slotchecks`` about the members and the map, holds.
Rule 2: at the end, all members have the same map, each slot is served by its owner, and no member has a key of another
group.
"""

from __future__ import annotations

import asyncio
import json
import random
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from coordinator import slotmap
from persistence import nodeid
from respserver.group import identity, joining, presence, standing
from respserver.slotmaps import assigning, importing, keeper, moving
from tests.simulation.checker import Ledger
from tests.simulation.clients import LostError, RefusedError, SimConnection
from tests.simulation.groupfaults import GroupFaults
from tests.simulation.groupmembers import SimStore
from tests.simulation.network import NetworkLoop
from tests.simulation.slotchecks import MAP, SlotChecks
from tests.simulation.slotclients import Key, SlotClients
from tests.simulation.slotmembers import SlotMember
from tests.simulation.world import Patch, SimWorld, play

SETTLED: Final = 60.0  # seconds in which everything is served once no more faults happen
FAULTS: Final = (
    "kill", "power", "pause", "stuck", "partition", "one_way", "isolate", "slow", "reset", "cut_off", "lost_replies",
    "lost_swap", "failover", "restart", "blackout", "diverge", "checkpoint",
)  # fmt: skip
LEASE: Final = 2.0  # seconds


@dataclass(frozen=True)
class SlotCase:
    """``members``: of each group. ``keys``: each with a writer and a slot of its own. ``pauses``: see SlotClients.
    ``with_keys``: slots also move with their keys."""

    seed: int
    faults: tuple[str, ...] = FAULTS
    seconds: float = 10.0
    groups: int = 2
    members: int = 2
    keys: int = 4
    readers: int = 2
    movers: int = 2
    drift: float = 0.0
    at_once: int = 2  # faults
    pauses: float = 0.2
    move_pause: int = 200
    with_keys: bool = False


@dataclass(frozen=True)
class SlotResult:
    """``moves``: changes of the owner of a key's slot; ``with_keys``: of these, those with keys. ``assigned``:
    successful calls of TCLUSTER."""

    trace: str
    acknowledged: int
    assigned: int
    moves: int
    with_keys: int
    version: int


def case(seed: int) -> SlotCase:
    chance = random.Random(seed)
    faults = tuple(chance.sample(FAULTS, chance.randint(1, len(FAULTS))))
    return SlotCase(
        seed, faults, chance.choice((4.0, 8.0)), groups=chance.choice((2, 2, 3)), members=chance.choice((1, 2, 2, 3)),
        keys=chance.choice((2, 4)), drift=chance.choice((0.0, 0.0, 0.02)), at_once=chance.choice((1, 2, 3)),
        pauses=chance.choice((0.05, 0.3)), move_pause=chance.choice((20, 200, 2000)),
    )  # fmt: skip


class SlotWorld(SimWorld):
    """One run of a case."""

    members: list[SlotMember]

    def __init__(self, case: SlotCase, loop: NetworkLoop, top: Path) -> None:
        super().__init__(loop, top)
        self.case = case
        self.random = random.Random(loop.random.random())
        self.members, self.happened = [], []
        self.keys = [Key(f"key{self.random.randrange(10**6)}") for _ in range(case.keys)]
        self.checks = SlotChecks(loop, self.members, [each.slot for each in self.keys])
        self.store = SimStore(cast(Any, self.members), cast(Any, self.checks))
        for number in range(case.groups * case.members):
            group, drift = str(number // case.members + 1), case.drift * self.random.uniform(-1, 1)
            member = SlotMember(loop, top, number + 1, self._settings(number + 1, group), drift, group)
            member.store = self.store
            self.members.append(member)
        self.clients = SlotClients(loop, self.members, self.keys, self.random, case.pauses)
        self.clients.with_keys = case.with_keys
        self.hosts = [f"10.0.1.{at}" for at in range(case.keys + case.readers + case.movers)]
        readers = self.hosts[case.keys : case.keys + case.readers]
        self.faults = GroupFaults(
            loop, cast(Any, self.members), self.hosts, readers, self.random, cast(Any, self.clients), Ledger(True)
        )

    def _settings(self, number: int, group: str) -> dict[str, str]:
        return {
            "protected-mode": "no", "wal-size": "1mb", "checkpoint-size": "1mb", "repl-ping-replica-period": "1",
            "repl-timeout": "5", "shutdown-timeout": "1", "save": "", "group": group, "group-member": f"m{number}",
            "coordinator": "file:///simulated", "group-lease": str(int(LEASE * 1000)), "in-sync-timeout": "1000",
            "min-in-sync": "1", "cluster-enabled": "yes", "cluster-name": "sim",
            "move-pause": str(self.case.move_pause),
        }  # fmt: skip

    def patches(self) -> Iterable[Patch]:
        secrets = types.SimpleNamespace(token_hex=lambda count: self.loop.random.randbytes(count).hex())
        modules = (identity, joining, presence, standing, keeper, nodeid, moving)
        yield from ((module, "secrets", secrets) for module in modules)
        # A search that takes time, although there are few keys.
        yield from ((assigning, "AT_ONCE", 1), (assigning, "TURN", 0.002))
        yield from ((importing, "AT_ONCE", 1), (importing, "TURN", 0.002))
        # Waiting takes few turns of the event loop.
        yield from ((module, "POLL", 0.004) for module in (importing, moving))
        yield from ((moving, "SLICE", -1.0), (moving, "TURN", 0.002), (moving, "MESSAGE", 100), (moving, "PAUSE", 0.1))

    async def run(self) -> None:
        for member in self.members:
            member.start()
        works = [self.clients.write(key) for key in self.keys]
        works += [self.clients.read() for _ in range(self.case.readers)]
        works += [self.clients.move() for _ in range(self.case.movers)]
        tasks = [
            self.loop.process(f"c{at}", self.hosts[at]).start(work) for at, work in enumerate(works)
        ]
        watching = asyncio.create_task(self.checks.watch())
        await self._let_fail()
        self.faults.heal()
        await self._progress()
        self.clients.stopping = True
        await asyncio.wait(tasks, timeout=30)
        assert all(task.done() for task in tasks), "a client hangs"
        watching.cancel()
        await self._settle()
        self.checks.stale_keys()
        self.check_trouble()

    async def _let_fail(self) -> None:
        """Let faults happen."""
        end = self.loop.virtual + self.case.seconds
        running: set[asyncio.Task[None]] = set()
        await asyncio.sleep(1.0)
        while self.loop.virtual < end:
            await asyncio.sleep(self.random.expovariate(1.5))
            running = {task for task in running if not task.done()}
            if self.case.faults and len(running) < self.case.at_once:
                name = self.random.choice(self.case.faults)
                self.happened.append(name)
                self.loop.note(f"fault: {name}")
                running.add(asyncio.create_task(self.faults.run(name)))
            self.check_trouble()
        for task in sorted(running, key=lambda each: each.get_name()):
            await task

    async def _progress(self) -> None:
        """Wait until each key was appended to, and slots have left again."""
        until, before = self.loop.virtual + SETTLED, [each.appended for each in self.keys]
        while any(each.appended < count + 2 for each, count in zip(self.keys, before, strict=True)):
            slow = [each.tag for each, count in zip(self.keys, before, strict=True) if each.appended < count + 2]
            assert self.loop.virtual < until, f"no append to {slow} is acknowledged although no fault happens any more"
            self.check_trouble()
            await asyncio.sleep(0.1)

    async def _settle(self) -> None:
        """Wait until all members have the same map, and each key is served with the right contents (Rule 2)."""
        until = self.loop.virtual + SETTLED
        left = list(self.keys)
        connections: dict[str, SimConnection] = {}
        while left or not self._agreed():
            assert self.loop.virtual < until, f"the members do not agree, or {[each.tag for each in left]} not served"
            self.check_trouble()
            try:
                if left:
                    await self.clients.look(connections, left[0])
                    left.pop(0)
            except (LostError, RefusedError) as error:
                self.loop.note(f"at the end: {error}")
            await asyncio.sleep(0.05)
        for connection in connections.values():
            connection.close()

    def _agreed(self) -> bool:
        wanted = slotmap.decode(self.store.keys[MAP].value)
        servers = [each.server for each in self.members if each.loaded]
        return len(servers) == len(self.members) and all(
            each is not None and each.slots.map == wanted and not each.slots.outdated() and not _imports(each)
            for each in servers
        ) and not wanted.moves


def _imports(server: Any) -> list[str]:
    """Return the IDs of the imports that are left. The ID "" is of no import (Rule 4 of ``importing``)."""
    return [name for name in json.loads(server.data.ks.imports or b"{}") if name]


def run(case: SlotCase) -> SlotResult:
    """Run a case. Raises SimulationError."""
    world = play(case.seed, lambda loop, top: SlotWorld(case, loop, top), case)
    version = slotmap.decode(world.store.keys[MAP].value).version
    return SlotResult(
        world.loop.trace(), len(world.clients.acknowledged), world.clients.assigned, world.checks.moves,
        world.checks.with_keys, version,
    )
