"""What happens to members and connections. Each fault is a coroutine of ``Faults``; a case names those that it uses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.simulation.checker import Ledger
from tests.simulation.clients import Directory, asked
from tests.simulation.members import PORT, Member
from tests.simulation.network import NetworkLoop

HARMLESS = ("pause", "partition", "one_way", "slow", "reset", "checkpoint", "backlog")
KILLS = ("kill", "kill_at_step", "kill_in_copy", "restart")
STEPS = (-2.0, -0.3, 0.3, 2.0)  # seconds by which a clock is set


def step_clock(loop: NetworkLoop, chance: random.Random, member: Member, ledger: Ledger) -> None:
    """Set the wall clock of a member. A leader that ends before it has logged this loses the difference."""
    step = chance.choice(STEPS)
    member.offset += step
    ledger.skew += abs(step) * 1000
    ledger.served_skew += abs(step) * 1000
    loop.note(f"the clock of {member.name} is set by {step} s")


class Faults:
    """``survivable``: whether the leader may lose power. Another member may lead unless the ledger is lossless."""

    def __init__(
        self, loop: NetworkLoop, members: Sequence[Member], hosts: Sequence[str], directory: Directory,
        survivable: bool, ledger: Ledger,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.random = random.Random(loop.random.random())
        self.members = members
        self.directory = directory
        self._hosts = hosts  # of clients too
        self._survivable = survivable
        self._ledger = ledger
        self._promotes = not ledger.lossless
        self.happened: list[str] = []

    async def run(self, names: Sequence[str], seconds: float) -> None:
        """Let faults happen, up to three at a time, for so many seconds."""
        end = self.loop.virtual + seconds
        running: set[asyncio.Task[None]] = set()
        while self.loop.virtual < end:
            await asyncio.sleep(self.random.expovariate(1.5))
            running = {task for task in running if not task.done()}
            if len(running) < 3 and names:
                name = self.random.choice(names)
                self.happened.append(name)
                self.loop.note(f"fault: {name}")
                running.add(asyncio.create_task(getattr(self, name)()))
        for task in sorted(running, key=lambda each: each.get_name()):
            await task

    async def moment(self, longest: float = 3.0) -> None:
        await asyncio.sleep(self.random.choice((0.01, 0.3, longest)) * self.random.random())

    def any(self) -> Member:
        return self.random.choice(self.members)

    def heal(self) -> None:
        network = self.loop.network
        network.blocked.clear()
        network.latency.clear()
        network.windows.clear()
        for member in self.members:
            member.disk.countdown = 0
            member.pause(False)
            if not member.running or member.ended:
                member.kill()
                member.start()

    # -- members -----------------------------------------------------------------------------------------------
    async def kill(self) -> None:
        await self._kill(self.any(), power=False)

    async def power(self) -> None:
        member = self.any()
        await self._kill(member, power=self._survivable or member is not self.directory.leader)

    async def _kill(self, member: Member, power: bool) -> None:
        if member.running:
            member.kill(power)
            await self.moment()
            self._start(member)

    async def kill_at_step(self) -> None:
        member = self.any()
        power = self._survivable and self.random.random() < 0.5
        member.kill_at_step(int(self.random.expovariate(0.05)) + 1, power)
        await self.moment()
        await asyncio.sleep(1.0)
        self._start(member)

    async def kill_in_copy(self) -> None:
        """Kill a replica at a step of its files while it gets a full copy. It was away, so that it needs one if the
        journal was truncated."""
        leader = self.directory.leader
        member = self.random.choice([each for each in self.members if each is not leader])
        member.kill()
        await asyncio.sleep(self.random.uniform(0.1, 0.5))
        await asked(self.loop, leader, "BGSAVE")
        await asyncio.sleep(self.random.uniform(0.1, 0.5))
        member.kill_at_step(self.random.randint(1, 40), self.random.random() < 0.5, copying=True)
        self._start(member)
        await asyncio.sleep(self.random.uniform(0.2, 2.0))
        self._start(member)

    async def blackout(self) -> None:
        """All members lose power together."""
        if not self._survivable:
            return
        for member in self.members:
            member.kill(power=True)
        await self.moment()
        for member in self.random.sample(self.members, len(self.members)):
            self._start(member)
        if self._promotes and self.random.random() < 0.7:
            await self.promote()

    def _start(self, member: Member) -> None:
        if not member.running:
            member.start()

    async def restart(self) -> None:
        member = self.any()
        process = member.process
        member.stop()
        for _ in range(400):
            await asyncio.sleep(0.05)
            if member.process is not process or member.ended:
                break
        if member.process is process and member.ended:
            member.kill()
            await self.moment()
            self._start(member)

    async def pause(self) -> None:
        member = self.any()
        member.pause(True)
        await self.moment(8.0)
        member.pause(False)

    async def checkpoint(self) -> None:
        await asked(self.loop, self.any(), "BGSAVE")

    async def backlog(self) -> None:
        await asked(self.loop, self.any(), "CONFIG", "SET", "repl-backlog-size", self.random.choice((1, 10_000, 10**7)))

    async def clock(self) -> None:
        """The wall clock of a member is set."""
        step_clock(self.loop, self.random, self.any(), self._ledger)

    # -- connections -------------------------------------------------------------------------------------------
    def _pair(self) -> tuple[str, str]:
        one = self.any().host
        return one, self.random.choice([host for host in self._hosts if host != one])

    async def partition(self) -> None:
        one, other = self._pair()
        await self._block({(one, other), (other, one)})

    async def one_way(self) -> None:
        one, other = self._pair()
        await self._block({self.random.choice([(one, other), (other, one)])})

    async def _block(self, ways: set[tuple[str, str]]) -> None:
        self.loop.network.blocked |= ways
        await self.moment(9.0)
        self.loop.network.blocked -= ways

    async def slow(self) -> None:
        network, (one, other) = self.loop.network, self._pair()
        for way in ((one, other), (other, one)):
            network.windows[way] = self.random.choice((500, 5000))
            network.latency[way] = (0.001, self.random.choice((0.01, 0.2)))
        await self.moment()
        for way in ((one, other), (other, one)):
            network.windows.pop(way, None)
            network.latency.pop(way, None)

    async def reset(self) -> None:
        network = self.loop.network
        open_ones = [each for each in network.transports if not each.gone]
        if open_ones:
            network.reset(self.random.choice(open_ones))

    # -- roles -------------------------------------------------------------------------------------------------
    async def promote(self) -> None:
        """Let a replica lead, as an operator does; the old leader may be dead, paused, or unreachable."""
        directory = self.directory
        old, term = directory.leader, directory.term
        before = self.random.choice(("nothing", "kill", "isolate", "isolate"))
        isolated: set[tuple[str, str]] = set()
        if before == "kill":
            old.kill(power=self._survivable and self.random.random() < 0.5)
        elif before == "isolate":  # clients still write to it, and the replicas get nothing of that
            isolated = self._isolate(old)
            await self.moment(2.0)
        await self._promote(old, term)
        if isolated:
            await self.moment()
            self.loop.network.blocked -= isolated
            await self.assign(self.directory.leader)

    async def diverge(self) -> None:
        """Let clients write to an old leader that is isolated. It rejoins with other data in its store than the new
        one, so that it gets a copy of the differences."""
        directory = self.directory
        old, term = directory.leader, directory.term
        for member in self.members:
            await asked(self.loop, member, "BGSAVE")
        isolated = self._isolate(old)
        await self.moment(2.0)
        await asked(self.loop, old, "BGSAVE")
        await self._promote(old, term)
        await self.moment(2.0)
        await asked(self.loop, directory.leader, "BGSAVE")
        self.loop.network.blocked -= isolated
        await self.assign(directory.leader)

    def _isolate(self, member: Member) -> set[tuple[str, str]]:
        """Cut a member's connections to the other members. Return the directions that are now blocked."""
        hosts = [other.host for other in self.members if other is not member]
        isolated = {(member.host, host) for host in hosts} | {(host, member.host) for host in hosts}
        self.loop.network.blocked |= isolated
        return isolated

    async def _promote(self, old: Member, term: int) -> None:
        directory = self.directory
        if directory.term != term:
            return
        new = self.random.choice([member for member in self.members if member is not old])
        for _ in range(50):
            if directory.term != term:
                return  # another promotion overtook this one
            reply = await asked(self.loop, new, "REPLICAOF", "NO", "ONE") if new.running else None
            if reply is not None:
                break
            await asyncio.sleep(0.1)
        else:
            self._start(old)
            return
        if directory.term != term:
            return
        directory.switch(new)
        new.follow(None)
        self.loop.note(f"{new.name} leads")
        for member in self.members:
            if member is not new:
                member.follow(new)
                self._start(member)
        await self.assign(new)

    async def assign(self, leader: Member, patience: float = 20.0) -> None:
        """Tell all members their roles, as long as this one leads. If members were promoted, the operator has chosen
        this one's data, even if another member has more."""
        end = self.loop.virtual + patience
        left = list(self.members)
        while left and self.directory.leader is leader and self.loop.virtual < end:
            for member in list(left):
                force = ("FORCE",) if self._promotes else ()
                words = ("NO", "ONE") if member is leader else (leader.host, PORT, *force)
                if member.running and await asked(self.loop, member, "REPLICAOF", *words) is not None:
                    left.remove(member)
            await asyncio.sleep(0.1)
