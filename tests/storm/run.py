"""One storm: rounds of faults under load. After each round, the groups recover, and everything is checked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.simulation.clients import LostError, RefusedError
from tests.storm.clients import Client, Connection
from tests.storm.faults import ETCD, HISTORY, POWER, WEIGHTS, Faults
from tests.storm.lossy import LossyDirectory
from tests.storm.members import Coordinator, EtcdCoordinator, FileCoordinator, Member
from tests.storm.network import Network
from tests.storm.preloaded import Preloaded
from tests.storm.works import WORKS, Groups, Record, Tail, Work, XGroups

PATIENT: Final = 60.0  # seconds for a reply to the test itself
SETTLED: Final = 180.0  # seconds in which all members are in sync once no more faults happen
HANDED_OVER: Final = 15.0  # seconds in which a leader that finds damage hands over
KEPT: Final = 5  # earlier rounds whose streams are kept and compared
SHOWN: Final = 60  # lines of the timeline in a report


class StormError(Exception):
    """A guarantee was violated."""


@dataclass(frozen=True)
class Plan:
    """``faults``: how many in all; ``seconds``: of the whole run; the first limit ends it."""

    seed: int
    coordinator: str = "file"
    faults: int = 1_000_000
    seconds: float = 600.0
    kinds: tuple[str, ...] = tuple(WEIGHTS)
    round_seconds: float = 30.0
    rate: float = 3.0
    settings: tuple[tuple[str, str], ...] = ()  # of the members, besides members.SETTINGS
    groups: tuple[int, ...] = ()  # the members of each group of a cluster; none: one group of three, without slots
    history: str = ""  # where the groups of a cluster keep their history, see histories.KINDS; "": nowhere


@dataclass
class Result:
    """What a run has seen. ``longest``: seconds between two acknowledged appends."""

    counts: Counter[str] = field(default_factory=Counter)
    overlapping: int = 0
    rounds: int = 0
    acknowledged: int = 0
    seen: int = 0
    reads: int = 0
    delivered: int = 0
    epochs: int = 0
    seconds: float = 0.0
    lossy: str = ""  # why power losses lose nothing; empty if they do
    moves: Counter[str] = field(default_factory=Counter)  # calls of TCLUSTER, by command and outcome
    history: Counter[str] = field(default_factory=Counter)  # see Histories.counts()

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        moves = ", ".join(f"{count} {what}" for what, count in sorted((self.moves + self.history).items()))
        return (
            f"{self.counts.total()} faults ({faults}), {self.overlapping} during another one, in {self.seconds:.0f} s "
            f"and {self.rounds} rounds; {self.acknowledged} entries acknowledged, {self.seen} seen by readers, "
            f"{self.reads} reads, {self.delivered} messages delivered; epoch {self.epochs}. "
            f"{moves}{'. ' if moves else ''}{self.lossy}"
        )


class Storm:
    """A group with its clients, and the faults. ``clusters.ClusterStorm`` has several groups."""

    works: Sequence[type[Work]] = WORKS

    def __init__(self, plan: Plan, top: Path) -> None:
        self.plan, self.top = plan, top
        self.random = random.Random(plan.seed)
        self.result = Result()
        self.trouble: list[str] = []
        self._passed = False
        self._leads_damaged: dict[str, float] = {}  # since when a member knows of its damage and leads
        self._preloaded = Preloaded()
        self.members: list[Member] = []
        self.network = Network(lambda name: next(member.pid for member in self.members if member.name == name))
        self._began = time.monotonic()
        self._timeline = (top / "timeline").open("a", buffering=1)
        self.coordinator: Coordinator
        self.faults: Faults
        self._ports: dict[str, dict[str, int]] = {}  # of the proxies, by client and member
        self._earlier: dict[str, tuple[int, str]] = {}  # length and hash of streams of earlier rounds

    def note(self, text: str) -> None:
        self._timeline.write(f"{time.monotonic() - self._began:8.2f}  {text}\n")

    def add_trouble(self, text: str) -> None:
        self.note(f"VIOLATION: {text}")
        self.trouble.append(text)

    def check_trouble(self) -> None:
        if self.trouble:
            raise StormError("; ".join(self.trouble))

    async def run(self) -> None:
        plan = self.plan
        kinds = set(plan.kinds)
        self.coordinator = EtcdCoordinator(self.top) if plan.coordinator == "etcd" else FileCoordinator(self.top)
        if plan.coordinator != "etcd":
            kinds -= set(ETCD)
        if not plan.history:
            kinds -= set(HISTORY)
        watch = None
        try:
            await self._start(lossy=bool(kinds & set(POWER)))
            watch = asyncio.create_task(self._watch())
            await self._recovered()
            end = time.monotonic() + plan.seconds
            while (left := end - time.monotonic()) > 0 and self.faults.counts.total() < plan.faults:
                await self._round(tuple(kind for kind in WEIGHTS if kind in kinds), left)
                self.result.rounds += 1
            await self._ended()
            self._passed = True
        except LostError as error:
            raise StormError(f"a member does not answer although no fault happens any more: {error}") from error
        finally:
            if watch is not None:
                watch.cancel()
            await self._close()
            self.result.seconds = time.monotonic() - self._began

    def _names(self) -> dict[str, str]:
        """Return the group of each member."""
        return dict.fromkeys(("m1", "m2", "m3"), "tide")

    def _settings(self, member: Member) -> dict[str, str | int]:
        """Return more settings of a member."""
        return {}

    @property
    def groups(self) -> list[list[Member]]:
        """The members of each group."""
        return [
            [member for member in self.members if member.group == group]
            for group in dict.fromkeys(self._names().values())
        ]

    async def _start(self, lossy: bool) -> None:
        clients = [f"c{at}" for at in range(len(self.works))]
        await self._preloaded.open()
        names = self._names()
        disks: list[LossyDirectory] | list[None] = [None] * len(names)
        if lossy:
            try:
                disks = await asyncio.gather(*[asyncio.to_thread(LossyDirectory, self.top / name) for name in names])
            except OSError as error:
                self.result.lossy = f"no file system that loses unsynced data: {error}"
        for (name, group), disk in zip(names.items(), disks, strict=True):
            member = Member(name, self.top, disk, self._preloaded, self.add_trouble, group)
            self.members.append(member)
            member.settings["replica-announce-port"] = await self.network.listen(member.name, member.port)
            member.settings["coordinator"] = await self.coordinator.url(member.name, self.network)
            member.settings["group-lease"] = self.coordinator.lease
            member.settings |= self._settings(member) | dict(self.plan.settings)
            for client in clients:
                port = await self.network.listen(member.name, member.port, client)
                self._ports.setdefault(client, {})[member.name] = port
        self.faults = Faults(
            self.members, clients, self.network, self.coordinator, random.Random(self.random.random()), self.note
        )
        self.result.counts = self.faults.counts
        for member in self.members:
            await member.start()

    async def _ended(self) -> None:
        """Check what is left after the last round."""

    async def _close(self) -> None:
        for member in self.members:
            await member.kill()
        await self._preloaded.close()
        await self.network.close()
        self.coordinator.close()
        for member in self.members:
            if not self._passed:
                member.keep()
            member.close()
        self._timeline.close()

    async def _watch(self) -> None:
        """Look at the members, past the proxies."""
        await asyncio.gather(*[self._watch_one(member) for member in self.members])

    async def _watch_one(self, member: Member) -> None:
        while True:
            with contextlib.suppress(LostError, RefusedError):
                connection = await Connection.to(member.port)
                try:
                    while True:
                        found = json.loads(await connection("TMEMBER", "STATUS"))
                        self._seen(member, found)
                        await asyncio.sleep(0.2)
                finally:
                    connection.close()
            member.status = {}
            await asyncio.sleep(0.2)

    def _seen(self, member: Member, status: dict[str, Any]) -> None:
        old = member.status
        member.status = status
        now = status.get("phase"), status.get("epoch"), status.get("in_sync"), status.get("problem")
        if now != (old.get("phase"), old.get("epoch"), old.get("in_sync"), old.get("problem")):
            self.note(f"    {member.name}: {' '.join(map(str, now))}")
        warned = any("the store of this member is damaged" in each for each in status.get("warnings") or ())
        alone = len(status.get("in_sync") or ()) == 1
        if not (warned and status.get("phase") == "leading" and not alone):
            self._leads_damaged.pop(member.name, None)
        elif time.monotonic() - self._leads_damaged.setdefault(member.name, time.monotonic()) > HANDED_OVER:
            self.add_trouble(f"{member.name} leads although its store is damaged: {status}")
        self.result.epochs = max(self.result.epochs, status.get("epoch") or 0)

    # -- a round ---------------------------------------------------------------------------------------------------
    async def _round(self, kinds: tuple[str, ...], left: float) -> None:
        plan, number = self.plan, self.result.rounds
        self.note(f"round {number}")
        record = self._record(f"r{number}")
        await self._prepared(record)
        works = [work(at, record, random.Random(self.random.random())) for at, work in enumerate(self.works)]
        clients = [self._client(self._ports[f"c{at}"], work) for at, work in enumerate(works)]
        try:
            most = plan.faults - self.faults.counts.total()
            inject = asyncio.create_task(self.faults.inject(kinds, min(plan.round_seconds, left), plan.rate, most))
            while not inject.done():
                await asyncio.wait([inject], timeout=0.2)
                if self.trouble:
                    inject.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                inject.result()
            self.check_trouble()
            self.result.overlapping = self.faults.overlapping
            await self.faults.heal()
            before = len(record.said)
            await self._until(lambda: len(record.said) >= before + 5, "an append is acknowledged again")
            await self._moved_again(record)
        finally:
            for client in clients:
                client.stopping = True
            await asyncio.wait([client.task for client in clients], timeout=30)
            hanging = [client for client in clients if not client.task.done()]
            for client in hanging:
                client.task.cancel()
        for client in clients:
            if client not in hanging:
                client.task.result()
        self.check_trouble()
        if hanging:
            raise StormError(f"clients hang: {[type(client.work).__name__ for client in hanging]}")
        await self._recovered()
        if self._damaged():
            await self._repaired()
            await self._recovered()
        try:
            await self._check(record, works)
        except (AssertionError, RefusedError) as error:
            raise StormError(str(error)) from error
        self.check_trouble()
        self.result.acknowledged += len(record.said)
        self.result.seen += sum(map(len, record.seen.values()))
        self.result.reads += record.reads
        self.result.delivered += record.delivered
        self.note(
            f"round {number} is fine: {len(record.said)} acknowledged; {self.faults.counts.total()} faults so far"
        )

    def _client(self, ports: dict[str, int], work: Work) -> Client:
        return Client(ports, work, random.Random(self.random.random()), self.add_trouble, self._damaged)

    def _record(self, prefix: str) -> Record:
        return Record(prefix, lambda name: sum(each.replaced for each in self.members if each.name == name))

    async def _moved_again(self, record: Record) -> None:
        """Wait until slots move without faults."""

    def _damaged(self) -> bool:
        return any(member.damaged for member in self.members)

    async def _repaired(self) -> None:
        """Wait until the scrub has read everything, and has repaired what was damaged."""
        for member in self.members:
            if not member.damaged:
                continue

            async def repaired(member: Member = member) -> bool:
                with contextlib.suppress(LostError, RefusedError):
                    fields = await self._info(member, "persistence")
                    if fields["scrub_irreparable"] != "0":
                        self.note(f"{member.name} can't be repaired: its data is replaced")
                        await member.replace_data()
                        return False
                    return fields["scrub_passes"] != "0" and fields["scrub_running"] == fields["scrub_damaged"] == "0"
                return False

            await self._until(repaired, f"the store of {member.name} is repaired")
            member.damaged = False

    async def _info(self, member: Member, section: str) -> dict[str, str]:
        (info,) = await self._ask(member, ("INFO", section))
        return dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)

    async def _prepared(self, record: Record) -> None:
        """Wait for a leader and create what the clients need."""
        key = record.key(XGroups.name)

        async def made() -> bool:
            with contextlib.suppress(LostError, RefusedError):
                connection = await self._connected()
                try:
                    await connection("XGROUP", "CREATE", key, "readers", "0", "MKSTREAM")
                    return True
                finally:
                    connection.close()
            return False

        await self._until(made, "a leader that accepts writes")

    async def _connected(self) -> Connection:
        """Connect to the leader, past the proxies. Raises LostError."""
        leader = self._leader(self.members)
        if leader is None:
            raise LostError("there is no leader")
        return await Connection.to(leader.port, PATIENT)

    async def _check(self, record: Record, works: list[Work]) -> None:
        """Check all replies that clients received. The group is at rest."""
        connection = await self._connected()
        try:
            for work in works:
                if isinstance(work, Groups):
                    await self._drained(work, connection)
            found = {}
            for key in record.keys:
                found[key] = await connection("TRANGE", key, "-", "+")
                record.check_ids(key, found[key])
            record.check_end(found)
            for key, rows in found.items():
                expected = record.expected(key)
                record.check_read(key, rows, expected)
                for work in works:
                    if isinstance(work, Tail) and work.key == key:
                        work.check(rows)
                self._earlier[key] = digest_of(rows)
            for key in list(self._earlier)[: -KEPT * len(record.keys)]:
                await connection("DEL", key)
                del self._earlier[key]
            for key, before in self._earlier.items():
                now = digest_of(await connection("TRANGE", key, "-", "+"))
                assert now == before, f"{key}, of an earlier round, has changed: {before[0]} entries, now {now[0]}"
        finally:
            connection.close()
        await self._same()

    async def _drained(self, work: Groups, connection: Connection) -> None:
        try:
            async with asyncio.timeout(60):
                await work.drain(connection)
        except TimeoutError:
            raise AssertionError(f"{work.name}: messages do not come again") from None

    async def _same(self) -> None:
        """Wait until all members of each group have the same data at the same offset."""
        for members in self.groups:
            await self._same_group(members)

    async def _same_group(self, members: list[Member]) -> None:
        found: list[Any] = []

        async def equal() -> bool:
            found.clear()
            for member in members:
                fields = await self._info(member, "replication")
                (digest,) = await self._ask(member, ("DEBUG", "DIGEST"))
                follows = fields["role"] == "slave"
                found.append((fields["slave_repl_offset" if follows else "master_repl_offset"], digest))
            return len(set(found)) == 1

        try:
            await self._until(equal, "equal digests", 60.0)
        except StormError as error:
            raise StormError(f"the members differ: {found}") from error

    async def _recovered(self) -> None:
        """Wait until all members are in sync."""
        for members in self.groups:
            await self._until(partial(self._in_sync, members), "all members are in sync")

    def _in_sync(self, members: list[Member]) -> bool:
        names = sorted(member.name for member in members)
        leader = self._leader(members)
        if leader is None or sorted(leader.status["in_sync"]) != names or leader.status["withheld_clients"]:
            return False
        return all(member.status.get("in_sync") for member in members)

    @staticmethod
    def _leader(members: list[Member]) -> Member | None:
        return next((member for member in members if member.leads and member.status.get("lease_left_ms")), None)

    async def _ask(self, member: Member, *commands: tuple[str, ...]) -> list[Any]:
        connection = await Connection.to(member.port, PATIENT)
        try:
            replies = await connection.ask(*commands)
        finally:
            connection.close()
        for reply in replies:
            if isinstance(reply, Exception):
                raise RefusedError(str(reply))
        return replies

    async def _until(self, met: Callable[[], Any | Awaitable[Any]], what: str, seconds: float = SETTLED) -> Any:
        end = time.monotonic() + seconds
        while True:
            value = met()
            if isinstance(value, Awaitable):
                value = await value
            if value:
                return value
            self.check_trouble()
            if time.monotonic() > end:
                states = {member.name: member.status for member in self.members}
                raise StormError(f"not in {seconds:.0f} s without faults: {what}; the members: {states}")
            await asyncio.sleep(0.1)


def digest_of(rows: list[Any]) -> tuple[int, str]:
    return len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()


def run(plan: Plan, top: Path) -> Result:
    """Run a storm in a directory. Raises StormError, which names the seed, the timeline and the logs."""
    return run_storm(Storm(plan, top))


def run_storm(storm: Storm) -> Result:
    """Run a storm. Raises StormError as run()."""
    plan, top = storm.plan, storm.top
    try:
        asyncio.run(storm.run())
    except StormError as error:
        lines = (top / "timeline").read_text().splitlines()[-SHOWN:]
        raise StormError(
            f"{error}\n{plan}\nafter {storm.result}\nthe end of the timeline:\n" + "\n".join(lines)
            + f"\nlogs, the timeline and data: {top}"
        ) from error  # fmt: skip
    return storm.result
