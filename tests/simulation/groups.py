"""A simulated server group: members with a coordinator, clients that find the leader themselves, and faults of both.

Rule 1: a client that was told that an entry was appended finds it in each later read of a leader.
Rule 2: what any reader has seen, of a leader or of a replica, is there at the end.
Rule 3: at the end, all members are in sync and equal, and each entry is there once.
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
from typing import Any, Final, TypeVar
from unittest.mock import patch

from coordinator.interface import CoordinatorError, Lease, LeaseGoneError, Versioned
from coordinator.keeper import keep_renewing
from coordinator.renewals import Renewals
from coordinator.simulated import SimulatedStore
from respserver.config.config import Config
from respserver.group import identity, joining, presence, standing
from respserver.group.document import decode
from respserver.group.services import GroupServices
from respserver.server import RespServer
from tests.simulation.cases import SimulationError
from tests.simulation.clients import LostError, RefusedError, SimConnection, asked
from tests.simulation.disk import Disk, simulated
from tests.simulation.members import PORT, Member, SimClock, SimLogger
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process

T = TypeVar("T")
KEY: Final = "log"
TIMEOUT: Final = 0.4  # seconds of a call to the coordinator
SETTLED: Final = 60.0  # seconds in which all members are in sync once no more faults happen
FAULTS: Final = (
    "kill", "power", "pause", "partition", "one_way", "cut_off", "lost_replies", "failover", "restart", "blackout",
)  # fmt: skip
SHOWN: Final = 80  # lines of the trace in a report


@dataclass(frozen=True)
class GroupCase:
    seed: int
    faults: tuple[str, ...] = FAULTS
    seconds: float = 12.0
    members: int = 3
    drift: float = 0.0
    min_in_sync: int = 2


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
    return GroupCase(seed, faults, drift=chance.choice((0.0, 0.0, 0.02)), min_in_sync=chance.choice((1, 2, 2)))


class SimStore(SimulatedStore):
    """Notifies the members in their order: that of a set differs from run to run."""

    def __init__(self) -> None:
        super().__init__()
        self.members: list[GroupMember] = []

    def _notify(self, key: str) -> None:
        for member in self.members:
            if member.coordinator is not None:
                member.coordinator.changed(key)


# -- the coordinator -------------------------------------------------------------------------------------------------
class SimCoordinator:
    """The coordinator as one process reaches it. The store lives in the world: it outlasts the process."""

    def __init__(self, loop: NetworkLoop, store: SimStore, process: Process, member: GroupMember) -> None:
        self._loop, self._store, self._process, self._member = loop, store, process, member
        self._watches: list[_SimWatch] = []

    def _delay(self) -> float:
        return self._loop.random.choice((0.0005, 0.002, 0.02)) * self._loop.random.random() + 1e-6

    async def _call(self, act: Callable[[], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        member, process = self._member, self._process

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        def reply(result: T) -> None:
            if not (member.cut_off or future.done()):
                future.set_result(result)

        def request() -> None:  # in the world
            if member.cut_off:
                return
            try:
                result = act()
            except LeaseGoneError as error:
                process.call(fail, error, after=self._delay())
                return
            if member.lost_replies:
                member.lost_replies -= 1
                return
            process.call(reply, result, after=self._delay())

        self._loop.world.call(request, after=self._delay() + (0.3 if member.slow_requests else 0.0))
        try:
            async with asyncio.timeout(TIMEOUT):
                return await future
        except TimeoutError:
            raise CoordinatorError("the coordinator did not answer") from None

    async def get(self, key: str) -> Versioned | None:
        return await self._call(lambda: self._store.get(key))

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        return await self._call(lambda: self._store.swap(key, value, version, lease))

    async def grant(self, ms: int) -> Lease:
        return await self._call(lambda: self._store.grant(ms))

    async def keep(self, lease: Lease) -> bool:
        return await self._call(lambda: self._store.keep(lease))

    async def revoke(self, lease: Lease) -> None:
        await self._call(lambda: self._store.revoke(lease.id))

    def watch(self, key: str) -> _SimWatch:
        watch = _SimWatch(key)
        watch.changed.set()
        self._watches.append(watch)
        return watch

    async def close(self) -> None:
        for watch in self._watches:
            watch.close()

    def changed(self, key: str) -> None:
        """Notify the watches of a key."""
        if not (self._process.dead or self._member.cut_off):
            for watch in self._watches:
                if watch.key == key:
                    self._process.call(watch.changed.set, after=self._delay())

    def healed(self) -> None:
        for watch in self._watches:
            self.changed(watch.key)


class _SimWatch:
    def __init__(self, key: str) -> None:
        self.key = key
        self.changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> _SimWatch:
        return self

    async def __anext__(self) -> None:
        await self.changed.wait()
        if self._closed:
            raise StopAsyncIteration
        self.changed.clear()

    def close(self) -> None:
        self._closed = True
        self.changed.set()


class SimKeeper:
    """A lease that a task renews instead of a thread."""

    def __init__(
        self, coordinator: SimCoordinator, lease: Lease, granted: float, clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._renewals = Renewals(lease.ms, granted)
        self._clock = clock
        self._beats = 0
        self._task = asyncio.get_running_loop().create_task(
            keep_renewing(self._renewals, coordinator, lease, lambda: self._beats, clock, changed)
        )

    @property
    def valid_until(self) -> float:
        return self._renewals.valid_until

    @property
    def lost(self) -> bool:
        return self._renewals.lost

    def valid(self) -> bool:
        return self._renewals.valid(self._clock())

    def beat(self) -> None:
        self._beats += 1

    def stop(self) -> None:
        self._task.cancel()


class GroupMember(Member):
    """A member with its own connection to the coordinator."""

    cut_off = False  # from the coordinator
    slow_requests = False  # requests to it arrive late
    lost_replies = 0  # so many of its next replies are lost
    store: SimStore
    coordinator: SimCoordinator | None = None

    async def _main(self, process: Process) -> None:
        argv = ["--port", str(PORT), "--bind", self.host, "--dir", str(self.disk.path)]
        for name, value in self.settings.items():
            argv += [f"--{name}", *value.split(" ")]
        made = self.coordinator = SimCoordinator(self.loop, self.store, process, self)
        services = GroupServices(
            made, lambda lease, granted, changed: SimKeeper(made, lease, granted, self.loop.time, changed),
            self.loop.time,
        )  # fmt: skip
        try:
            server = RespServer(Config.load(argv), SimLogger(process), SimClock(process, self.offset), services)
            self.server = server
            await server.start()
            await server.run_until_stopped()
        except Exception as error:  # noqa: BLE001 - it is reported
            self.loop.trouble.append(f"{self.name} does not run: {error!r}")
        self.ended = True


# -- the run ---------------------------------------------------------------------------------------------------------
class GroupWorld:
    """One run of a case."""

    def __init__(self, case: GroupCase, loop: NetworkLoop, top: Path) -> None:
        self.case, self.loop = case, loop
        loop.hidden = str(top)
        self.random = random.Random(loop.random.random())
        self.store = SimStore()
        self.members = self.store.members
        for number in range(1, case.members + 1):
            member = GroupMember(loop, top, number, self._settings(number), case.drift * self.random.uniform(-1, 1))
            member.store = self.store
            self.members.append(member)
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
        processes = [self.loop.process(f"c{at}", f"10.0.1.{at}") for at in range(4)]
        clients = [process.start(self._write() if at < 2 else self._read()) for at, process in enumerate(processes)]
        end = self.loop.virtual + self.case.seconds
        running: set[asyncio.Task[None]] = set()
        await asyncio.sleep(1.0)
        while self.loop.virtual < end:
            await asyncio.sleep(self.random.expovariate(1.5))
            running = {task for task in running if not task.done()}
            if len(running) < 2:
                name = self.random.choice(self.case.faults)
                self.happened.append(name)
                self.loop.note(f"fault: {name}")
                running.add(asyncio.create_task(getattr(self, f"_{name}")()))
            self._check_trouble()
        for task in sorted(running, key=lambda each: each.get_name()):
            await task
        self._heal()
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
            rows = [int(row[2]) for row in await asked(self.loop, member, "TRANGE", KEY, "-", "+") or []]
            assert len(rows) == len(set(rows)), "an entry is there twice"
            lost = set(self.acknowledged) - set(rows)
            assert not lost, f"acknowledged and lost: {sorted(lost)[:5]}"
            lost = self.seen - set(rows)
            assert not lost, f"seen and lost: {sorted(lost)[:5]}"
            assert set(rows) <= self.unknown | set(self.acknowledged), "an entry that was refused is there"

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
                await connection("TAPPEND", KEY, "n", number)
            except RefusedError:
                self.unknown.discard(number)
                raise
            now = self.loop.virtual
            self.longest = max(self.longest, now - self._last) if self._last else 0.0
            self._last = now
            self.acknowledged[number] = None

        await self._connected(step)

    async def _read(self) -> None:
        async def step(connection: SimConnection) -> None:
            before = set(self.acknowledged)
            answers = await connection.ask(("MULTI",), ("ROLE",), ("TRANGE", KEY, "-", "+"), ("EXEC",))
            if not isinstance(answers[3], list):
                raise RefusedError(str(answers[3]))
            role, rows = answers[3]
            numbers = {int(row[2]) for row in rows}
            self.seen |= numbers
            if role[0] == b"master":
                missing = before - numbers
                assert not missing, f"a leader does not show {sorted(missing)[:5]}, which were acknowledged before"
            if self.loop.random.random() < 0.1:
                raise LostError("it turns to another member")

        await self._connected(step)

    # -- faults --------------------------------------------------------------------------------------------------
    async def _moment(self, longest: float = 3.0) -> None:
        await asyncio.sleep(self.random.choice((0.01, 0.3, longest)) * self.random.random())

    def _any(self) -> GroupMember:
        leading = [each for each in self.members if each.server is not None and not each.server.data.follower]
        return self.random.choice(leading if leading and self.random.random() < 0.5 else self.members)

    def _heal(self) -> None:
        network = self.loop.network
        network.blocked.clear()
        for member in self.members:
            member.cut_off, member.lost_replies, member.slow_requests = False, 0, False
            member.pause(False)
            if not member.running or member.ended:
                member.kill()
                member.start()
            elif member.coordinator is not None:
                member.coordinator.healed()

    async def _kill(self, power: bool = False) -> None:
        member = self._any()
        if member.running:
            member.kill(power)
            await self._moment()
            if not member.running:
                member.start()

    async def _power(self) -> None:
        await self._kill(power=True)

    async def _blackout(self) -> None:
        for member in self.members:
            member.kill(power=True)
        await self._moment()
        for member in self.random.sample(self.members, len(self.members)):
            if not member.running:
                member.start()
            await self._moment(0.5)

    async def _restart(self) -> None:
        member = self._any()
        process = member.process
        member.stop()
        for _ in range(200):
            await asyncio.sleep(0.05)
            if member.process is not process or member.ended:
                break
        if member.process is process and member.ended:
            member.kill()
            await self._moment()
            if not member.running:
                member.start()

    async def _pause(self) -> None:
        member = self._any()
        member.pause(True)
        await self._moment(8.0)
        member.pause(False)

    async def _partition(self, one_way: bool = False) -> None:
        one, other = self.random.sample([each.host for each in self.members], 2)
        pairs = {(one, other)} if one_way else {(one, other), (other, one)}
        self.loop.network.blocked |= pairs
        await self._moment(8.0)
        self.loop.network.blocked -= pairs

    async def _one_way(self) -> None:
        await self._partition(one_way=True)

    async def _cut_off(self) -> None:
        member = self._any()
        member.cut_off = True
        await self._moment(8.0)
        member.cut_off = False
        if member.coordinator is not None and member.running:
            member.coordinator.healed()

    async def _lost_replies(self) -> None:
        member = self._any()
        member.slow_requests = self.random.random() < 0.5
        for _ in range(self.random.randint(1, 10)):
            member.lost_replies += self.random.randint(0, 2)
            await self._moment(0.5)
        member.slow_requests = False

    async def _failover(self) -> None:
        await asked(self.loop, self._any(), "FAILOVER")


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
    state = world.store.keys["tidelog/groups/tide/state"]
    epochs = decode(state.value).epoch
    return GroupResult(loop.trace(), len(world.acknowledged), len(world.seen), epochs, world.longest)
