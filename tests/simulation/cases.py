"""Cases: what one seed simulates. ``run(case)`` raises SimulationError if something that must be true is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.simulation.checker import Ledger
from tests.simulation.clients import Client, Directory, LostError, SimConnection, Word, answer, asked
from tests.simulation.delays import Delays, checked, settled
from tests.simulation.faults import HARMLESS, KILLS, Faults
from tests.simulation.members import OFFSET, Member
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process
from tests.simulation.workloads import KEYS, READ_GROUP, RETRY, Groups, Transactions, Work
from tests.simulation.workloads import WORKS as OTHER_WORKS
from tests.simulation.world import SimulationError, SimWorld, contents_differ, differences_of, play

SETTLED: Final = 120.0  # seconds in which the members become equal once no more faults happen
KINDS: Final = ("one leader", "promotions", "redelivery")
WORKS: Final[dict[str, type[Work]]] = {**OTHER_WORKS, "delays": Delays}
IDLE_ROUNDS: Final = 40  # times RETRY; the clock of a new leader may be that much behind the old one's


@dataclass(frozen=True)
class Case:
    seed: int
    kind: str = "one leader"  # or promotions, or redelivery, which has promotions too
    faults: tuple[str, ...] = ()
    works: tuple[str, ...] = ("appends", "groups", "transactions")  # one client each
    seconds: float = 8.0
    appendfsync: str = "always"
    drift: float = 0.0  # deviation of the members' clocks
    node_entries: int = 50  # entries of a macro node
    backlog: int = 10**7  # repl-backlog-size: with 1, replicas that were away often need a full copy
    members: int = 3


@dataclass(frozen=True)
class Result:
    """``trace``: digest of everything that happened. ``confirmed``: number of confirmed entries that were checked.
    ``compared``: number of comparisons of a replica's data with its leader's. ``delayed``, ``repeated``, ``cancelled``:
    of entries with TDELAY, how many were seen in their streams, and how many tokens were sent again or cancelled."""

    trace: str
    confirmed: int
    delivered: int
    reads: int
    compared: int
    delayed: int
    repeated: int
    cancelled: int
    happened: tuple[str, ...]


def case(seed: int, kind: str | None = None) -> Case:
    """Return the case of a seed."""
    chance = random.Random(seed)
    kind = kind or chance.choice(KINDS)
    appendfsync = chance.choice(("always", "always", "everysec"))
    faults = [*HARMLESS, *KILLS, "power", "blackout", "clock"]
    faults = chance.sample(faults, chance.randint(1, len(faults)))
    if kind != "one leader":
        faults += ["promote"] * chance.randint(1, 3) + ["diverge"] * chance.randint(0, 2)
    works = ["appends", *chance.choices(list(WORKS), k=chance.randint(1, 4))]
    if kind == "redelivery":
        works = ["redelivery", "redelivery", "claims", "groups", "expiry", "delays"]
    return Case(
        seed, kind, tuple(faults), tuple(works), chance.choice((2.0, 4.0, 8.0)), appendfsync,
        chance.choice((0.0, 0.0, 0.001)), chance.choice((4, 50, 200)), chance.choice((1, 10_000, 10**7)),
    )  # fmt: skip


class World(SimWorld):
    """One run of a case."""

    members: list[Member]

    def __init__(self, case: Case, loop: NetworkLoop, top: Path) -> None:
        super().__init__(loop, top)
        self.case = case
        self.ledger = Ledger(case.kind == "one leader")
        self.ledger.skew = case.drift * 1000 * (OFFSET + 2 * SETTLED)
        self.ledger.served_skew = 0.0 if self.ledger.lossless else 2 * self.ledger.skew
        chance = random.Random(loop.random.random())
        self.members = [
            Member(loop, top, number, self._settings(chance), case.drift * chance.uniform(-1, 1))
            for number in range(1, case.members + 1)
        ]
        for member in self.members[1:]:
            member.follow(self.members[0])
        self.directory = Directory(self.members[0])
        hosts = [member.host for member in self.members] + [f"10.0.1.{at}" for at in range(len(case.works))]
        # what WAITAOF has confirmed is on the disks of all members, the leader's too
        survivable = case.appendfsync == "always" or not self.ledger.lossless
        self.faults = Faults(loop, self.members, hosts, self.directory, survivable, self.ledger)
        self.happened = self.faults.happened
        self.compared = 0
        loop.on_muted = self._stopped_at_step

    def _settings(self, chance: random.Random) -> dict[str, str]:
        return {
            "protected-mode": "no", "enable-debug-command": "yes", "wal-size": "1mb", "checkpoint-size": "1mb",
            "appendfsync": self.case.appendfsync, "repl-ping-replica-period": "1", "repl-timeout": "5",
            "shutdown-timeout": "1", "save": chance.choice(("", "1 1", "5 10")),
            "repl-backlog-size": str(self.case.backlog), "stream-node-max-entries": str(self.case.node_entries),
        }  # fmt: skip

    def _stopped_at_step(self, process: Process) -> None:
        for member in self.members:
            if member.process is process:
                member.kill(member.disk.power)

    # -- the run -----------------------------------------------------------------------------------------------
    async def run(self) -> None:
        for member in self.members:
            member.start()
        case, replicas = self.case, self.case.members - 1
        guard: tuple[Word, ...] = ("WAIT", replicas, 1000)
        counts = [replicas]
        if case.appendfsync != "always":
            guard, counts = ("WAITAOF", 1, replicas, 2000), [1, replicas]
        clients = [
            Client(
                self.loop, number, self.directory,
                WORKS[name](self.ledger, number, random.Random(self.loop.random.random()), guard, counts),
            )
            for number, name in enumerate(case.works)
        ]  # fmt: skip
        watching = [asyncio.create_task(self._watch()), asyncio.create_task(self._compare())]
        await self.faults.run(case.faults, case.seconds)
        self.check_trouble()
        self.faults.heal()
        await asyncio.sleep(1.0)
        for client in clients:
            client.stopping = True
        await asyncio.wait([client.done for client in clients], timeout=30)
        assert all(client.done.done() for client in clients), "a client hangs"
        for task in watching:
            task.cancel()
        self.check_trouble()
        await self.faults.assign(self.directory.leader)
        works = [client.work for client in clients]
        await settled(self.loop, self.members, works, self.ledger, self.check_trouble)
        await self._settle()
        await self._check()
        await checked(self.loop, self.members, self.directory.leader, works)

    async def _watch(self) -> None:
        """Look at any member at any time: a transaction is never seen in part."""
        while True:
            await asyncio.sleep(self.loop.random.uniform(0.1, 1.0))
            try:
                connection = await SimConnection.open(self.loop, self.loop.random.choice(self.members))
            except LostError:
                continue
            try:
                Transactions.check(await connection.ask(*Transactions.QUESTION))
            except LostError:
                pass
            except AssertionError as error:
                self.loop.trouble.append(str(error))
            finally:
                connection.close()

    async def _compare(self) -> None:
        """Look into the members at any time: a replica whose link is up and whose log is as long has the same data."""
        while True:
            await asyncio.sleep(self.loop.random.uniform(0.02, 0.3))
            count, wrong = contents_differ(self.members)
            self.compared += count
            if wrong:
                self.loop.trouble.append(wrong)

    async def _settle(self) -> None:
        """Wait until all members have the leader's log."""
        leader = self.directory.leader
        end = self.loop.virtual + SETTLED
        while True:
            offsets = [await self._offset(member) for member in self.members]
            if None not in offsets and len(set(offsets)) == 1:
                digests = [await asked(self.loop, member, "DEBUG", "DIGEST") for member in self.members]
                if offsets == [await self._offset(member) for member in self.members]:
                    break
            self.check_trouble()
            assert self.loop.virtual < end, f"the members' logs do not become equal: they end at {offsets}"
            await asyncio.sleep(0.2)
        if len(set(digests)) != 1:
            found = [await differences_of(self.loop, leader, member) for member in self.members if member is not leader]
            raise AssertionError(f"at log offset {offsets[0]} the contents differ: {digests}: {found}")

    async def _offset(self, member: Member) -> int | None:
        """Return where the member's log ends; None while it has no link, or can't be asked."""
        if not member.running:
            return None
        raw = await asked(self.loop, member, "INFO", "replication")
        facts = dict(line.split(":", 1) for line in (raw or b"").decode().splitlines() if ":" in line)
        if member is self.directory.leader:
            return int(facts["master_repl_offset"]) if facts.get("role") == "master" else None
        if facts.get("role") != "slave" or facts.get("master_link_status") != "up":
            return None
        return int(facts["slave_repl_offset"])

    async def _check(self) -> None:
        for member in self.members:
            rows = {key: await answer(self.loop, member, "TRANGE", key, "-", "+") for key in KEYS}
            self.ledger.check_end(rows)
        await self._drain()
        self.check_trouble()

    async def _drain(self) -> None:
        await drained(self.ledger, await SimConnection.open(self.loop, self.directory.leader), self.loop.random)


async def drained(ledger: Ledger, connection: SimConnection, chance: random.Random) -> None:
    """Read the group until nothing comes any more: all messages that nobody acknowledged must come."""
    before = set(ledger.done)
    must = {value for key, value in ledger.kept if key == "g"} - ledger.acking
    group, idle = Groups(ledger, 0, chance, (), []), 0
    if not must and not await connection("EXISTS", "g"):
        return
    while idle < IDLE_ROUNDS + 2 * ledger.skew / RETRY:
        rows = await connection(*READ_GROUP) or []
        group.check(rows, before)
        must -= {row[2] for row in rows}
        if rows:
            await group.acknowledge(connection, rows)
        idle = 0 if rows else idle + 1
        await asyncio.sleep(RETRY / 1000)
    connection.close()
    assert not must, f"{len(must)} messages were not acknowledged, and do not come again, such as {min(must)!r}"


def run(case: Case) -> Result:
    """Run a case. Raises SimulationError."""
    again = f"{case}\nRun it again: .venv/bin/python -m tests.simulation {case.seed} '{case.kind}'"
    world = play(case.seed, lambda loop, top: World(case, loop, top), again)
    ledger = world.ledger
    return Result(
        world.loop.trace(), len(ledger.kept), ledger.delivered, ledger.reads, world.compared, ledger.delayed,
        ledger.repeated, ledger.cancelled, tuple(world.happened),
    )  # fmt: skip


def fails(case: Case) -> str | None:
    """Return the message of a case that fails, otherwise None."""
    try:
        run(case)
    except SimulationError as error:
        return str(error)
    return None


def shrunk(case: Case, attempts: int = 40) -> Case:
    """Return a smaller case that fails as well."""
    for _ in range(attempts):
        smaller = next((each for each in _smaller(case) if fails(each) is not None), None)
        if smaller is None:
            return case
        case = smaller
    return case


def _smaller(case: Case) -> Iterator[Case]:
    if case.seconds > 1:
        yield replace(case, seconds=case.seconds / 2)
    for at in range(len(case.faults)):
        yield replace(case, faults=case.faults[:at] + case.faults[at + 1 :])
    for at in range(len(case.works)):
        if len(case.works) > 1:
            yield replace(case, works=case.works[:at] + case.works[at + 1 :])
    if case.drift:
        yield replace(case, drift=0.0)
    if case.members > 2:
        yield replace(case, members=case.members - 1)


def seeds_from(seed: int) -> Iterator[tuple[Case, str | None]]:
    """Run seeds one after another, from this one on; yield each case and its message if it fails."""
    while True:
        tried = case(seed, KINDS[seed % len(KINDS)])
        yield tried, fails(tried)
        seed += 1
