"""A simulated server group: members with a coordinator, clients that find the leader themselves, and faults of both.

Rule 1: what ``groupclients`` says about clients, and ``groupchecks`` about the members and the coordinator, holds.
Rule 2: at the end, all members are in sync and equal, also in what clients see of them: contents, groups, pending
messages, deliveries. Each entry that was acknowledged or seen is there once, in the order of IDs, and none that was
refused.
Rule 3: of a consumer group, each message comes again that was not acknowledged, and no other one.
"""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from respserver.group import identity, joining, presence, standing
from respserver.group.document import decode
from tests.simulation.cases import drained
from tests.simulation.checker import check_rows
from tests.simulation.clients import SimConnection, answer
from tests.simulation.delays import checked, settled
from tests.simulation.groupchecks import STATE, GroupChecks, GroupRecord
from tests.simulation.groupclients import GroupClients, named
from tests.simulation.groupfaults import GroupFaults
from tests.simulation.groupmembers import KEY, GroupMember, SimStore
from tests.simulation.network import NetworkLoop
from tests.simulation.workloads import RETRY
from tests.simulation.world import Patch, SimWorld, differences_of, play

SETTLED: Final = 60.0  # seconds in which all members are in sync once no more faults happen
FAULTS: Final = (
    "kill", "power", "pause", "stuck", "partition", "one_way", "isolate", "deserted", "slow", "reset", "cut_off",
    "lost_replies", "lost_swap", "failover", "restart", "blackout", "checkpoint", "ambush", "distrust", "gone",
    "diverge",
)  # fmt: skip
WORKS: Final = ("write", "write", "read", "read", "block", "listen", "consume", "churn")
LATER: Final = ("clock",)  # faults of some cases: they draw after all others, whose seeds therefore stay the same
READERS: Final = ("read", "block", "listen", "due")  # they change nothing
OFFSET: Final = 100.0  # seconds by which a clock is wrong, by its drift


@dataclass(frozen=True)
class GroupCase:
    """``backlog``: repl-backlog-size; with 1, members that were away often need a copy."""

    seed: int
    faults: tuple[str, ...] = FAULTS
    seconds: float = 12.0
    members: int = 3
    drift: float = 0.0
    min_in_sync: int = 2
    backlog: int = 10**7
    at_once: int = 2  # faults
    appendfsync: str = "everysec"
    node_entries: int = 100  # entries of a macro node
    works: tuple[str, ...] = WORKS  # one client each


@dataclass(frozen=True)
class GroupResult:
    """``longest``: virtual seconds between two acknowledged appends. ``deleted``: how often a member deleted the end of
    its log. ``compared``: number of comparisons of a member with the leader during the run. ``delayed`` and the
    rest are those of ``cases.Result``."""

    trace: str
    acknowledged: int
    seen: int
    epochs: int
    longest: float
    deleted: int
    compared: int
    delayed: int
    repeated: int
    cancelled: int


def case(seed: int) -> GroupCase:
    chance = random.Random(seed)
    faults = tuple(chance.sample(FAULTS, chance.randint(1, len(FAULTS))))
    works = ("write", "read", *chance.sample(WORKS, chance.randint(1, 5)))
    found = GroupCase(
        seed, faults, chance.choice((4.0, 8.0, 12.0)), drift=chance.choice((0.0, 0.0, 0.02)),
        min_in_sync=chance.choice((1, 2, 2)), members=chance.choice((2, 3, 3, 3)), backlog=chance.choice((1, 10**7)),
        at_once=chance.choice((1, 2, 2, 3)), appendfsync=chance.choice(("always", "everysec", "no")),
        node_entries=chance.choice((4, 100)), works=works,
    )  # fmt: skip
    delays = chance.choice(((), ("delay",), ("delay", "delay", "due")))
    return replace(found, works=(*works, *delays), faults=(*faults, *LATER) if chance.random() < 0.3 else faults)


class GroupWorld(SimWorld):
    """One run of a case."""

    members: list[GroupMember]

    def __init__(self, case: GroupCase, loop: NetworkLoop, top: Path) -> None:
        super().__init__(loop, top)
        self.case = case
        self.random = random.Random(loop.random.random())
        self.members, self.happened = [], []
        self.record = GroupRecord()
        self.checks = GroupChecks(loop, self.members, self.record)
        self.store = SimStore(self.members, self.checks)
        for number in range(1, case.members + 1):
            drift = case.drift * self.random.uniform(-1, 1)
            member = GroupMember(loop, top, number, self._settings(number), drift)
            member.store, member.offset = self.store, OFFSET * drift
            self.members.append(member)
        self.clients = GroupClients(loop, self.members, self.record, case.min_in_sync, self.random)
        hosts = [f"10.0.1.{at}" for at in range(len(case.works))]
        readers = [host for host, work in zip(hosts, case.works, strict=True) if work in READERS]
        self.ledger = self.clients.ledger
        self.ledger.skew = case.drift * 1000 * (OFFSET + 2 * SETTLED)
        self.ledger.served_skew = 2 * self.ledger.skew
        self.faults = GroupFaults(loop, self.members, hosts, readers, self.random, self.record, self.ledger)

    def _settings(self, number: int) -> dict[str, str]:
        return {
            "protected-mode": "no", "enable-debug-command": "yes", "wal-size": "1mb", "checkpoint-size": "1mb",
            "repl-ping-replica-period": "1", "repl-timeout": "5", "shutdown-timeout": "1", "save": "",
            "group": "tide", "coordinator": "file:///simulated", "group-member": f"m{number}", "group-lease": "2000",
            "in-sync-timeout": "1000", "min-in-sync": str(self.case.min_in_sync),
            "repl-backlog-size": str(self.case.backlog), "appendfsync": self.case.appendfsync,
            "stream-node-max-entries": str(self.case.node_entries),
        }  # fmt: skip

    def patches(self) -> Iterable[Patch]:
        secrets = types.SimpleNamespace(token_hex=lambda count: self.loop.random.randbytes(count).hex())
        yield from ((module, "secrets", secrets) for module in (identity, joining, presence, standing))
        yield from self.checks.patches()

    async def run(self) -> None:
        for member in self.members:
            member.start()
        tasks = [
            self.loop.process(f"c{at}", f"10.0.1.{at}").start(getattr(self.clients, work)())
            for at, work in enumerate(self.case.works)
        ]
        watching = asyncio.create_task(self.checks.watch())
        await self._let_fail()
        self.faults.heal()
        before = len(self.record.acknowledged)
        until = self.loop.virtual + SETTLED
        while len(self.record.acknowledged) < before + 5:
            assert self.loop.virtual < until, "nothing is acknowledged although no fault happens any more"
            self.check_trouble()
            await asyncio.sleep(0.1)
        self.clients.stopping = True
        await asyncio.wait(tasks, timeout=30)
        assert all(task.done() for task in tasks), "a client hangs"
        watching.cancel()
        self.check_trouble()
        await settled(self.loop, self.members, self.clients.delays, self.ledger, self.check_trouble)
        await self._settle(max(until, self.loop.virtual + SETTLED))
        await self._check()

    async def _let_fail(self) -> None:
        """Let faults happen."""
        end = self.loop.virtual + self.case.seconds
        running: set[asyncio.Task[None]] = set()
        await asyncio.sleep(1.0)
        while self.loop.virtual < end:
            await asyncio.sleep(self.random.expovariate(1.5))
            running = {task for task in running if not task.done()}
            if len(running) < self.case.at_once:
                name = self.random.choice(self.case.faults)
                self.happened.append(name)
                self.loop.note(f"fault: {name}")
                running.add(asyncio.create_task(self.faults.run(name)))
            self.check_trouble()
        for task in sorted(running, key=lambda each: each.get_name()):
            await task

    async def _settle(self, until: float) -> None:
        """Wait until all members are in sync and equal."""
        while True:
            servers = [member.server for member in self.members if member.loaded and member.server is not None]
            states = [each.membership.store.state for each in servers if each.membership is not None]
            synced = len(states) == len(self.members) and all(
                state is not None and len(state.in_sync) == len(self.members) for state in states
            )
            self.check_trouble()
            if synced and len({each.data.disk.offset for each in servers}) == 1:
                if len({each.data.ks.digest() for each in servers}) == 1:
                    return
                offset = servers[0].data.disk.offset
                found = [await differences_of(self.loop, self.members[0], each) for each in self.members[1:]]
                if {each.data.disk.offset for each in servers} == {offset}:
                    raise AssertionError(f"at log offset {offset} the contents differ: {found}")
            assert self.loop.virtual < until, f"the members do not get in sync: {states}"
            await asyncio.sleep(0.2)

    async def _check(self) -> None:
        for member in self.members:
            rows = await answer(self.loop, member, "TRANGE", KEY, "-", "+")
            facts = set(zip([row[0] for row in rows], check_rows(KEY, rows), strict=True))
            lost = self.record.facts - facts
            assert not lost, f"acknowledged or seen, and lost: {named(lost)}"
            assert {int(value) for _, value in facts} <= self.clients.unknown, "an entry that was refused is there"
            self.clients.ledger.check_end({"g": await answer(self.loop, member, "TRANGE", "g", "-", "+")})
        one, other = self.random.sample(self.members, 2)
        found, before, after = ["not asked"], 0, 1
        while found and before != after:  # what falls due meanwhile changes the contents
            before = one.log_end + other.log_end
            found = await differences_of(self.loop, one, other)
            after = one.log_end + other.log_end
        assert not found, f"clients see different contents: {found}"
        leader = decode(self.store.keys[STATE].value).leader
        member = next(member for member in self.members if member.name == leader)
        await checked(self.loop, self.members, member, self.clients.delays)
        await self._drain(member)
        self.check_trouble()

    async def _drain(self, leader: GroupMember) -> None:
        """Read the consumer group until nothing comes any more."""
        # messages fall due by the clock of an earlier leader
        await asyncio.sleep(RETRY / 1000 + 2 * OFFSET * self.case.drift)
        await drained(self.ledger, await SimConnection.open(self.loop, leader), self.random)


def run(case: GroupCase) -> GroupResult:
    """Run a case. Raises SimulationError."""
    world = play(case.seed, lambda loop, top: GroupWorld(case, loop, top), case)
    epochs = decode(world.store.keys[STATE].value).epoch
    record, checks = world.record, world.checks
    return GroupResult(
        world.loop.trace(), len(record.acknowledged), len(record.facts), epochs, world.clients.longest, checks.deleted,
        checks.compared, world.ledger.delayed, world.ledger.repeated, world.ledger.cancelled,
    )  # fmt: skip
