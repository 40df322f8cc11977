"""One storm: rounds of faults under load. After each round, the group recovers, and everything is checked."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.simulation.clients import LostError, RefusedError
from tests.storm.clients import Client, Connection
from tests.storm.faults import ETCD, POWER, WEIGHTS, Faults
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

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        return (
            f"{self.counts.total()} faults ({faults}), {self.overlapping} during another one, in {self.seconds:.0f} s "
            f"and {self.rounds} rounds; {self.acknowledged} entries acknowledged, {self.seen} seen by readers, "
            f"{self.reads} reads, {self.delivered} messages delivered; epoch {self.epochs}. {self.lossy}"
        )


class Storm:
    """A group with its clients, and the faults."""

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
        watch = None
        try:
            await self._start(lossy=bool(kinds & set(POWER)))
            watch = asyncio.create_task(self._watch())
            await self._recovered()
            end = time.monotonic() + plan.seconds
            while (left := end - time.monotonic()) > 0 and self.faults.counts.total() < plan.faults:
                await self._round(tuple(kind for kind in WEIGHTS if kind in kinds), left)
                self.result.rounds += 1
            self._passed = True
        except LostError as error:
            raise StormError(f"a member does not answer although no fault happens any more: {error}") from error
        finally:
            if watch is not None:
                watch.cancel()
            await self._close()
            self.result.seconds = time.monotonic() - self._began

    async def _start(self, lossy: bool) -> None:
        clients = [f"c{at}" for at in range(len(WORKS))]
        await self._preloaded.open()
        names = ("m1", "m2", "m3")
        disks: list[LossyDirectory] | list[None] = [None] * len(names)
        if lossy:
            try:
                disks = await asyncio.gather(*[asyncio.to_thread(LossyDirectory, self.top / name) for name in names])
            except OSError as error:
                self.result.lossy = f"no file system that loses unsynced data: {error}"
        for name, disk in zip(names, disks, strict=True):
            member = Member(name, self.top, disk, self._preloaded, self.add_trouble)
            self.members.append(member)
            member.settings["replica-announce-port"] = await self.network.listen(member.name, member.port)
            member.settings["coordinator"] = await self.coordinator.url(member.name, self.network)
            member.settings["group-lease"] = self.coordinator.lease
            member.settings |= self.plan.settings
            for client in clients:
                port = await self.network.listen(member.name, member.port, client)
                self._ports.setdefault(client, {})[member.name] = port
        self.faults = Faults(
            self.members, clients, self.network, self.coordinator, random.Random(self.random.random()), self.note
        )
        self.result.counts = self.faults.counts
        for member in self.members:
            await member.start()

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
        record = Record(f"r{number}", lambda name: sum(each.replaced for each in self.members if each.name == name))
        await self._prepared(record)
        works = [work(at, record, random.Random(self.random.random())) for at, work in enumerate(WORKS)]
        clients = [
            Client(self._ports[f"c{at}"], work, random.Random(self.random.random()), self.add_trouble, self._damaged)
            for at, work in enumerate(works)
        ]
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
        leader = await self._recovered()
        if self._damaged():
            await self._repaired()
            leader = await self._recovered()
        try:
            await self._check(leader, record, works)
        except AssertionError as error:
            raise StormError(str(error)) from error
        self.check_trouble()
        self.result.acknowledged += len(record.said)
        self.result.seen += sum(map(len, record.seen.values()))
        self.result.reads += record.reads
        self.result.delivered += record.delivered
        self.note(
            f"round {number} is fine: {len(record.said)} acknowledged; {self.faults.counts.total()} faults so far"
        )

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
                leader = self._leader()
                if leader is not None:
                    await self._ask(leader, ("XGROUP", "CREATE", key, "readers", "0", "MKSTREAM"))
                    return True
            return False

        await self._until(made, "a leader that accepts writes")

    async def _check(self, leader: Member, record: Record, works: list[Work]) -> None:
        """Check all replies that clients received. The group is at rest."""
        connection = await Connection.to(leader.port, PATIENT)
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
                self._earlier[key] = _digest(rows)
            for key in list(self._earlier)[: -KEPT * len(record.keys)]:
                await connection("DEL", key)
                del self._earlier[key]
            for key, before in self._earlier.items():
                now = _digest(await connection("TRANGE", key, "-", "+"))
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
        """Wait until all members have the same data at the same offset."""
        found: list[Any] = []

        async def equal() -> bool:
            found.clear()
            for member in self.members:
                fields = await self._info(member, "replication")
                (digest,) = await self._ask(member, ("DEBUG", "DIGEST"))
                follows = fields["role"] == "slave"
                found.append((fields["slave_repl_offset" if follows else "master_repl_offset"], digest))
            return len(set(found)) == 1

        try:
            await self._until(equal, "equal digests", 60.0)
        except StormError as error:
            raise StormError(f"the members differ: {found}") from error

    async def _recovered(self) -> Member:
        """Wait until all members are in sync; return the leader."""
        names = sorted(member.name for member in self.members)

        def ready() -> Member | None:
            leader = self._leader()
            if leader is None or sorted(leader.status["in_sync"]) != names or leader.status["withheld_clients"]:
                return None
            return leader if all(member.status.get("in_sync") for member in self.members) else None

        found: Member = await self._until(ready, "all members are in sync")
        return found

    def _leader(self) -> Member | None:
        return next((member for member in self.members if member.leads and member.status.get("lease_left_ms")), None)

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


def _digest(rows: list[Any]) -> tuple[int, str]:
    return len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()


def run(plan: Plan, top: Path) -> Result:
    """Run a storm in a directory. Raises StormError, which names the seed, the timeline and the logs."""
    storm = Storm(plan, top)
    try:
        asyncio.run(storm.run())
    except StormError as error:
        lines = (top / "timeline").read_text().splitlines()[-SHOWN:]
        raise StormError(
            f"{error}\n{plan}\nafter {storm.result}\nthe end of the timeline:\n" + "\n".join(lines)
            + f"\nlogs, the timeline and data: {top}"
        ) from error  # fmt: skip
    return storm.result
