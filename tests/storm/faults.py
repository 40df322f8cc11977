"""What happens to the members, the network and the coordinator. Each fault is a method of ``Faults``; it ends healed.

Two faults may overlap, also at the same member. A fault does not wait until the group has recovered.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.simulation.clients import LostError, RefusedError
from tests.storm.clients import Connection
from tests.storm.members import STOPPED, Coordinator, EtcdCoordinator, Member, send
from tests.storm.network import Network

WEIGHTS: Final = {
    "kill": 3, "pause": 3, "power": 3, "blackout": 1, "cut": 2, "reset": 2, "silence": 2, "one_way": 2, "isolate": 2,
    "delay": 1, "clients": 1, "cut_off": 2, "blind": 1, "failover": 2, "restart": 1, "flip": 2,
    "etcd_kill": 2, "etcd_stop": 2, "quorum": 1, "lost_replies": 2,
    "freeze": 2, "helper_kill": 2, "helper_stop": 2, "away": 1,
}  # fmt: skip
ETCD: Final = ("etcd_kill", "etcd_stop", "quorum", "lost_replies")
HISTORY: Final = ("freeze", "helper_kill", "helper_stop", "away")  # with an object store; "away": in a directory
POWER: Final = ("power", "blackout")


class Faults:
    """Injects faults. ``note`` records what happens."""

    def __init__(
        self, members: list[Member], clients: list[str], network: Network, coordinator: Coordinator,
        chance: random.Random, note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.members, self.clients, self.network, self.coordinator = members, clients, network, coordinator
        self.random, self.note = chance, note
        self.counts: Counter[str] = Counter()
        self.history: Path | None = None  # the directory with the objects of all groups
        self.overlapping = 0  # faults that began during another one
        self._running: set[asyncio.Task[None]] = set()

    async def inject(self, kinds: tuple[str, ...], seconds: float, rate: float, most: int) -> None:
        """Inject faults for some seconds, ``rate`` per second at most, ``most`` in all; then wait for their end."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        weights = [WEIGHTS[kind] for kind in kinds]
        try:
            while loop.time() < end and most:
                await asyncio.sleep(self.random.expovariate(rate))
                running = {task for task in self._running if not task.done()}
                for task in self._running - running:
                    task.result()
                self._running = running
                if len(running) < self.random.choice((1, 2, 2, 3)):
                    (kind,) = self.random.choices(kinds, weights)
                    self.counts[kind] += 1
                    self.overlapping += len(running)
                    most -= 1
                    self._running.add(asyncio.create_task(getattr(self, f"_{kind}")()))
        finally:
            await asyncio.gather(*self._running)
            self._running.clear()

    async def heal(self) -> None:
        """End everything that may still be wrong."""
        self.note("heal")
        self.network.heal()
        if isinstance(self.coordinator, EtcdCoordinator):
            for server in self.coordinator.servers:
                self.coordinator.start(server)
                self.coordinator.signal(server, signal.SIGCONT)
        for member in self.members:
            self.coordinator.cut(member.name, False, self.network)
            member.signal(signal.SIGCONT)
            await member.start()

    async def _moment(self, longest: float = 2.5) -> None:
        await asyncio.sleep(self.random.choice((0.1, 0.5, longest)) * self.random.uniform(0.3, 1.0))

    def _any(self) -> Member:
        leading = [member for member in self.members if member.leads]
        return self.random.choice(leading if leading and self.random.random() < 0.5 else self.members)

    def _two(self) -> tuple[str, str]:
        one = self._any()
        return one.name, self.random.choice([each.name for each in self.members if each is not one])

    def _group(self, member: Member) -> list[Member]:
        """Return the other members of its group."""
        return [each for each in self.members if each.group == member.group and each is not member]

    def _others(self, member: Member) -> list[str]:
        return [*[each.name for each in self.members if each is not member], *self.clients]

    # -- processes and disks ---------------------------------------------------------------------------------------
    async def _kill(self) -> None:
        member = self._any()
        self.note(f"kill {member.name}{' (leader)' if member.leads else ''}")
        await member.kill()
        await self._moment()
        self.note(f"start {member.name}")
        await member.start()

    async def _power(self) -> None:
        member = self._any()
        seed = self.random.getrandbits(32)
        self.note(f"power loss of {member.name}{' (leader)' if member.leads else ''}: {seed}")
        await member.lose_power(seed)
        await self._moment()
        self.note(f"start {member.name}")
        await member.start()

    async def _blackout(self) -> None:
        seed = self.random.getrandbits(32)
        self.note(f"power loss of all members: {seed}")
        await asyncio.gather(*[member.lose_power(seed + at) for at, member in enumerate(self.members)])
        await self._moment(1.0)
        for member in self.random.sample(self.members, len(self.members)):
            self.note(f"start {member.name}")
            await member.start()
            await self._moment(0.5)

    async def _flip(self) -> None:
        """Bits of the store of one member change while it does not run. The others have good copies."""
        member = self._any()
        leader = next((each for each in self._group(member) if each.leads), None)
        if leader is None or any(each.damaged for each in self.members):
            self.counts["flip"] -= 1
            self.counts["kill"] += 1
            await self._kill()
            return
        self.note(f"flip bits of {member.name}")
        await self._request(member, "SAVE")  # so that the store has as much as possible
        seconds = self.random.choice((0.0, 0.3, 1.0))
        await member.damage(random.Random(self.random.getrandbits(32)), seconds, partial(self._needed, member))
        self.note(f"start {member.name}")

    async def _needed(self, member: Member) -> bool:
        """Return whether no other member leads now, after ``member`` was killed: then it may have the only copy."""
        for each in self._group(member):
            status = json.loads(await self._request(each, "TMEMBER", "STATUS") or "{}")
            if status.get("phase") == "leading" and status.get("lease_left_ms"):
                return False
        self.note(f"{member.name} is spared: no other member leads")
        return True

    async def _pause(self) -> None:
        member = self._any()
        self.note(f"stop {member.name}{' (leader)' if member.leads else ''}")
        member.signal(signal.SIGSTOP)
        seconds = self.coordinator.lease / 1000
        await asyncio.sleep(seconds * self.random.choice((0.3, 1.2, 1.5, 2.5)) * self.random.uniform(0.9, 1.1))
        self.note(f"continue {member.name}")
        member.signal(signal.SIGCONT)

    async def _restart(self) -> None:
        member = self._any()
        self.note(f"SIGTERM {member.name}{' (leader)' if member.leads else ''}")
        if not await member.stop():
            self.note(f"{member.name} did not end within {STOPPED:g} s after SIGTERM")
        await self._moment(0.5)
        self.note(f"start {member.name}")
        await member.start()

    async def _failover(self) -> None:
        member = self._any()
        self.note(f"FAILOVER at {member.name}")
        await self._request(member, "FAILOVER")

    async def _request(self, member: Member, *command: str) -> Any:
        """Send a command past the proxies, and return its reply; it may fail, and then None."""
        try:
            connection = await Connection.to(member.port)
            try:
                return await connection(*command)
            finally:
                connection.close()
        except (LostError, RefusedError) as error:
            self.note(f"{command[0]} at {member.name}: {error}")
            return None

    # -- the network -----------------------------------------------------------------------------------------------
    async def _cut(self) -> None:
        one, other = self._two()
        self.note(f"cut {one} {other}")
        link = frozenset((one, other))
        self.network.cut.add(link)
        self.network.close_link(one, other)
        await self._moment()
        self.network.cut.discard(link)
        self.note(f"connect {one} {other}")

    async def _reset(self) -> None:
        one, other = self._two()
        self.note(f"reset {one} {other}")
        self.network.close_link(one, other, reset=True)

    async def _silence(self) -> None:
        one, other = self._two()
        await self._silent([(one, other), (other, one)])

    async def _one_way(self) -> None:
        await self._silent([self._two()])

    async def _isolate(self) -> None:
        """A member reaches nobody, and nobody reaches it: the cable of its machine is pulled."""
        member = self._any()
        others = self._others(member)
        self.coordinator.cut(member.name, True, self.network)
        await self._silent([(member.name, each) for each in others] + [(each, member.name) for each in others])
        self.coordinator.cut(member.name, False, self.network)

    async def _clients(self) -> None:
        """Some clients do not reach a member, or do not hear it."""
        member = self._any()
        some = self.random.sample(self.clients, self.random.randint(1, len(self.clients)))
        ways = [(each, member.name) for each in some], [(member.name, each) for each in some]
        what = self.random.randrange(3)
        await self._silent(ways[0] + ways[1] if what == 2 else ways[what])

    async def _silent(self, directions: list[tuple[str, str]]) -> None:
        name = ", ".join(f"{one}>{other}" for one, other in directions)
        self.note(f"silence {name}")
        for source, target in directions:
            self.network.silence(source, target)
        await self._moment(4.0)
        self.note(f"sound {name}")
        for source, target in directions:
            self.network.silence(source, target, False)

    async def _delay(self) -> None:
        one, other = self._two()
        seconds = self.random.choice((0.01, 0.1, 0.5))
        self.note(f"delay {one}>{other} by {seconds} s")
        direction = self.network.direction(one, other)
        direction.delay = seconds
        await self._moment()
        direction.delay = 0.0

    # -- the coordinator -------------------------------------------------------------------------------------------
    async def _cut_off(self) -> None:
        """A member does not reach the coordinator."""
        member = self._any()
        self.note(f"cut off {member.name}{' (leader)' if member.leads else ''} from the coordinator")
        self.coordinator.cut(member.name, True, self.network)
        await self._moment(4.0)
        self.note(f"connect {member.name} to the coordinator")
        self.coordinator.cut(member.name, False, self.network)

    async def _blind(self) -> None:
        """No member reaches the coordinator: it is unavailable."""
        self.note("the coordinator is unavailable")
        for member in self.members:
            self.coordinator.cut(member.name, True, self.network)
        await self._moment(4.0)
        self.note("the coordinator is available")
        for member in self.members:
            self.coordinator.cut(member.name, False, self.network)

    async def _etcd_kill(self) -> None:
        assert isinstance(self.coordinator, EtcdCoordinator)
        server = self.random.choice(self.coordinator.servers)
        self.note(f"kill {server}")
        self.coordinator.kill(server)
        await self._moment()
        self.note(f"start {server}")
        self.coordinator.start(server)

    async def _etcd_stop(self, count: int = 1) -> None:
        assert isinstance(self.coordinator, EtcdCoordinator)
        some = self.random.sample(self.coordinator.servers, count)
        self.note(f"stop {some}")
        for server in some:
            self.coordinator.signal(server, signal.SIGSTOP)
        await self._moment(4.0)
        self.note(f"continue {some}")
        for server in some:
            self.coordinator.signal(server, signal.SIGCONT)

    async def _quorum(self) -> None:
        await self._etcd_stop(2)

    async def _lost_replies(self) -> None:
        """The requests of a member reach etcd, but no reply reaches the member."""
        member = self._any()
        await self._silent([(server, member.name) for server in self.coordinator.servers])

    # -- the history -----------------------------------------------------------------------------------------------
    async def _freeze(self) -> None:
        """A server stops with its helpers, as a virtual machine does. They continue with what they were doing."""
        member = self._any()
        pids = [member.pid, *member.helpers()]
        self.note(f"freeze {member.name}{' (leader)' if member.leads else ''}")
        await self._stopped([pid for pid in pids if pid is not None])
        self.note(f"continue {member.name}")

    async def _helper_kill(self) -> None:
        member = self._any()
        self.note(f"kill the helpers of {member.name}{' (leader)' if member.leads else ''}")
        for pid in member.helpers():
            send(pid, signal.SIGKILL)

    async def _helper_stop(self) -> None:
        member = self._any()
        self.note(f"stop the helpers of {member.name}{' (leader)' if member.leads else ''}")
        await self._stopped(member.helpers())
        self.note(f"continue the helpers of {member.name}")

    async def _stopped(self, pids: list[int]) -> None:
        for pid in pids:
            send(pid, signal.SIGSTOP)
        seconds = self.coordinator.lease / 1000
        await asyncio.sleep(seconds * self.random.choice((0.3, 1.2, 1.5, 2.5)) * self.random.uniform(0.9, 1.1))
        for pid in pids:
            send(pid, signal.SIGCONT)

    async def _away(self) -> None:
        """The object store is not there."""
        if self.history is None or not self.history.exists():
            return
        self.note("the object store is away")
        away = self.history.with_name("away")
        self.history.rename(away)
        await self._moment(4.0)
        away.rename(self.history)
        self.note("the object store is back")
