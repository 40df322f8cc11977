"""A simulated server group: members with a coordinator, clients that find the leader themselves, and faults of both.

Rule 1: a client that was told that an entry was appended finds it in each later read of a leader, and so it finds what
any reader has seen before. The reads of one connection are monotonic, also at a replica.
Rule 2: an entry that was acknowledged is on min-in-sync members.
Rule 3: of a consumer group, no message comes again whose acknowledgement was confirmed. All others come again.
Rule 4: at the end, all members are in sync and equal. Each entry that was acknowledged or seen is there once, in the
order of IDs, and none that was refused.
Rule 5: the state of the group changes only as ``groupmembers`` allows.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import types
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from respserver.group import identity, membership, presence
from respserver.group.document import decode
from storage.model.ids import parse_id
from tests.simulation.cases import RETRY, SimulationError, drained
from tests.simulation.checker import Ledger, check_rows
from tests.simulation.clients import LostError, RefusedError, SimConnection, asked
from tests.simulation.disk import Disk, simulated
from tests.simulation.groupfaults import GroupFaults
from tests.simulation.groupmembers import KEY, TOP, GroupMember, SimStore
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process
from tests.simulation.workloads import Groups

SETTLED: Final = 60.0  # seconds in which all members are in sync once no more faults happen
FAULTS: Final = (
    "kill", "power", "pause", "stuck", "partition", "one_way", "isolate", "deserted", "slow", "reset", "cut_off",
    "lost_replies", "lost_swap", "failover", "restart", "blackout", "checkpoint", "ambush",
)  # fmt: skip
CLIENTS: Final = tuple(f"10.0.1.{at}" for at in range(5))  # their hosts
SHOWN: Final = 80  # lines of the trace in a report


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


@dataclass(frozen=True)
class GroupResult:
    """``longest``: virtual seconds between two acknowledged appends."""

    trace: str
    acknowledged: int
    seen: int
    epochs: int
    longest: float


def case(seed: int) -> GroupCase:
    chance = random.Random(seed)
    faults = tuple(chance.sample(FAULTS, chance.randint(1, len(FAULTS))))
    return GroupCase(
        seed, faults, drift=chance.choice((0.0, 0.0, 0.02)), min_in_sync=chance.choice((1, 2, 2)),
        members=chance.choice((2, 3, 3, 3)), backlog=chance.choice((1, 10**7)), at_once=chance.choice((1, 2, 2, 3)),
    )  # fmt: skip


# -- the run ---------------------------------------------------------------------------------------------------------
class GroupWorld:
    """One run of a case."""

    def __init__(self, case: GroupCase, loop: NetworkLoop, top: Path) -> None:
        self.case, self.loop = case, loop
        loop.hidden = str(top)
        self.random = random.Random(loop.random.random())
        self.store = SimStore(loop)
        self.members = self.store.members
        for number in range(1, case.members + 1):
            member = GroupMember(loop, top, number, self._settings(number), case.drift * self.random.uniform(-1, 1))
            member.store = self.store
            self.members.append(member)
        self.faults = GroupFaults(loop, self.members, list(CLIENTS), list(CLIENTS[2:4]), self.random)
        self.ledger = Ledger(lossless=True)  # of the consumer group
        self.acknowledged: dict[int, None] = {}
        self.unknown: set[int] = set()
        self.seen: set[int] = set()
        self.longest = 0.0
        self._last = 0.0
        self._number = 0
        self.happened: list[str] = []
        self.stopping = False

    def _settings(self, number: int) -> dict[str, str]:
        return {
            "protected-mode": "no", "enable-debug-command": "yes", "wal-size": "1mb", "checkpoint-size": "1mb",
            "repl-ping-replica-period": "1", "repl-timeout": "5", "shutdown-timeout": "1", "save": "",
            "group": "tide", "coordinator": "file:///simulated", "group-member": f"m{number}", "group-lease": "2000",
            "in-sync-timeout": "1000", "min-in-sync": str(self.case.min_in_sync),
            "repl-backlog-size": str(self.case.backlog),
        }  # fmt: skip

    def disk_of(self, process: Process) -> Disk | None:
        return next((member.disk for member in self.members if member.process is process), None)

    async def main(self) -> None:
        try:
            await self._run()
        finally:
            for member in self.members:
                member.end()
            for process in self.loop.processes:
                if process is not self.loop.world:
                    process.die()

    async def _run(self) -> None:
        for member in self.members:
            member.start()
        processes = [self.loop.process(f"c{at}", host) for at, host in enumerate(CLIENTS)]
        works = (self._write, self._write, self._read, self._read, self._consume)
        clients = [process.start(work()) for process, work in zip(processes, works, strict=True)]
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
                running.add(asyncio.create_task(getattr(self.faults, name)()))
            self._check_trouble()
        for task in sorted(running, key=lambda each: each.get_name()):
            await task
        self.faults.heal()
        before = len(self.acknowledged)
        until = self.loop.virtual + SETTLED
        while len(self.acknowledged) < before + 5:
            assert self.loop.virtual < until, "nothing is acknowledged although no fault happens any more"
            self._check_trouble()
            await asyncio.sleep(0.1)
        self.stopping = True
        await asyncio.wait(clients, timeout=30)
        assert all(client.done() for client in clients), "a client hangs"
        self._check_trouble()
        await self._settle(until)

    def _check_trouble(self) -> None:
        assert not self.loop.trouble, "; ".join(self.loop.trouble)

    async def _settle(self, until: float) -> None:
        while True:
            servers = [member.server for member in self.members if member.running and member.server is not None]
            states = [each.membership.store.state for each in servers if each.membership is not None]
            if len(states) == len(self.members) and all(
                state is not None and len(state.in_sync) == len(self.members) for state in states
            ):
                digests = {(each.data.disk.offset, each.data.ks.digest()) for each in servers}
                if len(digests) == 1:
                    break
            self._check_trouble()
            assert self.loop.virtual < until, f"the members do not get in sync: {states}"
            await asyncio.sleep(0.2)
        for member in self.members:
            found = await asked(self.loop, member, "TRANGE", KEY, "-", "+") or []
            rows = [int(value) for value in check_rows(KEY, found)]
            lost = set(self.acknowledged) - set(rows)
            assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
            lost = self.seen - set(rows)
            assert not lost, f"seen and lost: {sorted(lost)[:5]}"
            assert set(rows) <= self.unknown | set(self.acknowledged), "an entry that was refused is there"
            self.ledger.check_end({"g": await asked(self.loop, member, "TRANGE", "g", "-", "+") or []})
        await self._drain()
        self._check_trouble()

    async def _drain(self) -> None:
        """Read the consumer group until nothing comes any more."""
        if self.case.drift:
            return  # messages fall due by the clock of an earlier leader, which may be minutes ahead
        state = decode(self.store.keys[f"{TOP}/state"].value)
        leader = next(member for member in self.members if member.name == state.leader)
        await asyncio.sleep(RETRY / 1000)
        await drained(self.ledger, await SimConnection.open(self.loop, leader), self.random)

    # -- clients -------------------------------------------------------------------------------------------------
    async def _connected(self, step: Callable[[SimConnection], Any]) -> None:
        """Run steps at any member until the run ends."""
        while not self.stopping:
            try:
                connection = await SimConnection.open(self.loop, self.loop.random.choice(self.members))
            except LostError:
                await asyncio.sleep(0.02)
                continue
            try:
                while not self.stopping:
                    await step(connection)
                    await asyncio.sleep(self.loop.random.choice((0.001, 0.02, 0.05)))
            except (LostError, RefusedError):
                await asyncio.sleep(self.loop.random.uniform(0.001, 0.05))
            except AssertionError as error:
                self.loop.trouble.append(str(error))
                return
            finally:
                connection.close()

    async def _write(self) -> None:
        async def step(connection: SimConnection) -> None:
            self._number += 1
            number = self._number
            self.unknown.add(number)
            try:
                entry = await connection("TAPPEND", KEY, "n", number)
            except RefusedError:
                self.unknown.discard(number)
                raise
            newest = [member.newest_entry(KEY) for member in self.members]
            holders = sum(each >= parse_id(entry) for each in newest)
            assert holders >= self.case.min_in_sync, f"entry {number} is acknowledged, and on {holders} members"
            now = self.loop.virtual
            self.longest = max(self.longest, now - self._last) if self._last else 0.0
            self._last = now
            self.acknowledged[number] = None

        await self._connected(step)

    async def _read(self) -> None:
        last: tuple[SimConnection | None, set[int]] = None, set()
        leaves = self.random.choice((0.1, 0.005))  # the probability, after each read

        async def step(connection: SimConnection) -> None:
            nonlocal last
            before = set(self.acknowledged) | self.seen
            answers = await connection.ask(("MULTI",), ("ROLE",), ("TRANGE", KEY, "-", "+"), ("EXEC",))
            if not isinstance(answers[3], list):
                raise RefusedError(str(answers[3]))
            role, rows = answers[3]
            numbers = {int(value) for value in check_rows(KEY, rows)}
            self.seen |= numbers
            if role[0] == b"master":
                missing = before - numbers
                assert not missing, (
                    f"a leader does not show {sorted(missing)[:5]}, which were acknowledged or seen before"
                )
            missing = last[1] - numbers if connection is last[0] else set()
            assert not missing, f"a client does not see {sorted(missing)[:5]} any more, on the same connection"
            last = connection, numbers
            if self.loop.random.random() < leaves:
                raise LostError("it turns to another member")

        await self._connected(step)

    async def _consume(self) -> None:
        await self._connected(Groups(self.ledger, 9, self.random, (), []).work)


def run(case: GroupCase) -> GroupResult:
    """Run a case. Raises SimulationError."""
    loop = NetworkLoop(case.seed)
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tidelog-sim-", dir=place, ignore_cleanup_errors=True) as top:
        world = GroupWorld(case, loop, Path(top))
        secrets = types.SimpleNamespace(token_hex=lambda count: loop.random.randbytes(count).hex())
        with ExitStack() as stack:
            stack.enter_context(simulated(loop, world.disk_of))
            for module in (identity, joining, presence, standing):
                stack.enter_context(patch.object(module, "secrets", secrets))
            try:
                loop.run_until_complete(world.main())
            except AssertionError as error:
                lines = "\n".join([line for line in loop.lines if " reads " not in line][-SHOWN:])
                raise SimulationError(f"{error}\n{case}\nfaults: {' '.join(world.happened)}\n{lines}") from error
            finally:
                loop.world.die()
                loop.close()
    state = world.store.keys[f"{TOP}/state"]
    epochs = decode(state.value).epoch
    return GroupResult(loop.trace(), len(world.acknowledged), len(world.seen), epochs, world.longest)
