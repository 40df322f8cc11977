"""What happens to the members of a server group. Each fault is a coroutine; a case names those that it uses.

Rule: a fault heals itself, so that only those that run are in effect.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Final

from respserver.group.document import decode
from tests.simulation.checker import Ledger
from tests.simulation.clients import LostError, SimConnection, asked
from tests.simulation.faults import step_clock
from tests.simulation.groupchecks import LEADER, STATE, GroupRecord
from tests.simulation.groupmembers import GroupMember
from tests.simulation.network import NetworkLoop

# lines of the trace at which a second failure is the most dangerous
MOMENTS: Final = (
    "state:", "This member leads", "leads the group", "Continuing from", "is being deleted", "The copy is in use",
    "requests synchronization", "Failover:",
)  # fmt: skip
CONTINUED: Final = 6.0  # seconds after which a group has replaced a member: lease, in-sync-timeout, waits to connect
LOOKS: Final = 16  # seconds in which a writer finds the new leader, even if it tries the lost member ten times before
RIVAL: Final = "rival"  # the stream of the fault with this name
RIVALS: Final = 20  # its entries in each round
EXPIRED: Final = 3.6  # seconds after which a lease that is not renewed has expired, whatever is on the way


class GroupFaults:
    """The faults."""

    def __init__(
        self, loop: NetworkLoop, members: list[GroupMember], clients: list[str], readers: list[str],
        chance: random.Random, record: GroupRecord, ledger: Ledger,
    ) -> None:  # fmt: skip
        """``clients``: their hosts. ``readers``: those of clients that only read."""
        self.loop, self.members, self.random = loop, members, chance
        self.clients, self.readers = clients, readers
        self.record = record
        self._ledger = ledger
        self.running = self.begun = 0  # faults
        self._rivals = 0

    async def run(self, name: str) -> None:
        """Let a fault happen."""
        self.running += 1
        self.begun += 1
        try:
            await getattr(self, name)()
        finally:
            self.running -= 1

    # -- helpers -------------------------------------------------------------------------------------------------
    async def _moment(self, longest: float = 3.0) -> None:
        await asyncio.sleep(self.random.choice((0.01, 0.3, longest)) * self.random.random())

    def _leading(self) -> list[GroupMember]:
        return [each for each in self.members if each.server is not None and not each.server.data.follower]

    def _any(self) -> GroupMember:
        leading = self._leading()
        return self.random.choice(leading if leading and self.random.random() < 0.5 else self.members)

    def heal(self) -> None:
        network = self.loop.network
        network.blocked.clear()
        network.latency.clear()
        network.windows.clear()
        for member in self.members:
            member.lost_replies, member.lost_swap, member.slow_requests = 0, 0, False
            member.pause(False)
            member.stick(False)
            if not member.running or member.ended:
                member.cut_off = False
                member.kill()
                member.start()
            else:
                self._reconnect(member)

    def _reconnect(self, member: GroupMember) -> None:
        """Connect a member to the coordinator again."""
        member.cut_off = False
        if member.coordinator is not None and member.running:
            member.coordinator.healed()

    # -- members -------------------------------------------------------------------------------------------------
    async def kill(self) -> None:
        await self._kill(self._any(), power=False)

    async def power(self) -> None:
        await self._kill(self._any(), power=True)

    async def _kill(self, member: GroupMember, power: bool) -> None:
        if member.running:
            member.kill(power)
            await self._moment()
            if not member.running:
                member.start()

    async def gone(self) -> None:
        """A member is gone for long. If nothing else happens, the others soon continue."""
        if len(self.members) < 3 or self.running > 1:
            return
        begun, member = self.begun, self._any()
        await asyncio.sleep(2.0)  # a member may still be on its way back
        member.kill(power=self.random.random() < 0.5)
        await asyncio.sleep(CONTINUED)
        before = len(self.record.acknowledged)
        for _ in range(LOOKS):
            await asyncio.sleep(1.0)
            if begun != self.begun or len(self.record.acknowledged) > before:
                break
        else:
            self.loop.trouble.append(f"only {member.name} is gone, and nothing is acknowledged")
        if not member.running:
            member.start()

    async def distrust(self) -> None:
        """A member finds that its log is not that of its leader, and needs a copy."""
        member = self.random.choice(self.members)
        if member.loaded and member.server is not None and member.server.data.follower:
            member.server.link._distrust = True
            self._break({member.host})

    async def blackout(self) -> None:
        """All members lose power together."""
        for member in self.members:
            member.kill(power=True)
        await self._moment()
        for member in self.random.sample(self.members, len(self.members)):
            if not member.running:
                member.start()
            await self._moment(0.5)

    async def restart(self) -> None:
        member = self._any()
        process = member.process
        member.stop()
        for _ in range(400):
            await asyncio.sleep(0.05)
            if member.process is not process or member.ended:
                break
        if member.process is process and member.ended:
            member.kill()
            await self._moment()
            if not member.running:
                member.start()

    async def clock(self) -> None:
        """The wall clock of a member is set."""
        step_clock(self.loop, self.random, self._any(), self._ledger)

    async def pause(self) -> None:
        """SIGSTOP."""
        member = self._any()
        member.pause(True)
        await self._moment(8.0)
        member.pause(False)

    async def stuck(self) -> None:
        """The event loop of a member runs one command for seconds. Its other threads run."""
        member = self._any()
        member.stick(True)
        await self._moment(8.0)
        if member.stuck and self.loop.virtual - member.stuck_since > EXPIRED:
            leader = self.members[0].store.keys.get(LEADER)
            if leader is not None and json.loads(leader.value)["name"] == member.name:
                self.loop.trouble.append(f"{member.name} still leads, though its event loop is stuck for seconds")
        member.stick(False)

    async def ambush(self) -> None:
        """A member fails at a bad moment: when the set or the leader changes, or when a member rejoins."""
        moment, reached = self.random.choice(MOMENTS), asyncio.Event()

        def look(line: str) -> None:
            if moment in line:
                reached.set()

        self.loop.listeners.append(look)
        try:
            async with asyncio.timeout(3.0):
                await reached.wait()
        except TimeoutError:
            return
        finally:
            self.loop.listeners.remove(look)
        await asyncio.sleep(self.random.choice((0.0, 0.002, 0.02)) * self.random.random())
        what = self.random.choice((self.kill, self.power, self.pause, self.isolate, self.blackout))
        await what()

    # -- connections ---------------------------------------------------------------------------------------------
    async def partition(self) -> None:
        one, other = self.random.sample([each.host for each in self.members], 2)
        await self._block({(one, other), (other, one)})

    async def one_way(self) -> None:
        one, other = self.random.sample([each.host for each in self.members], 2)
        await self._block({(one, other)})

    async def _block(self, ways: set[tuple[str, str]]) -> None:
        self.loop.network.blocked |= ways
        await self._moment(8.0)
        self.loop.network.blocked -= ways

    async def isolate(self) -> None:
        """The network splits: one or more members, and some of the clients, reach neither the others nor the
        coordinator."""
        first = self._any()
        others = [each for each in self.members if each is not first]
        members = [first, *others[: self.random.randrange(len(others))]]
        one = [self.random.choice(self.clients)]
        some = self.random.choice(([], one, self.readers, self.readers, self.clients))
        inside = {*(each.host for each in members), *some}
        outside = {*self.clients, *(each.host for each in self.members)} - inside
        for member in members:
            member.cut_off = True
        await self._block({pair for one in inside for other in outside for pair in ((one, other), (other, one))})
        for member in members:
            self._reconnect(member)

    async def deserted(self) -> None:
        """Only clients that read reach the leader, for longer than its lease. The writers went first, so that all that
        they wrote is confirmed."""
        member = self.random.choice(self._leading() or self.members)
        writers = [host for host in self.clients if host not in self.readers]
        others = [each.host for each in self.members if each is not member]
        away = {pair for host in writers for pair in ((member.host, host), (host, member.host))}
        self.loop.network.blocked |= away
        await asyncio.sleep(0.2)
        member.cut_off = True
        away |= {pair for host in others for pair in ((member.host, host), (host, member.host))}
        self.loop.network.blocked |= away
        await asyncio.sleep(self.random.uniform(2.5, 5.0))
        self.loop.network.blocked -= away
        self._reconnect(member)

    async def diverge(self) -> None:
        """All clients reach only the leader, which reaches neither the others nor the coordinator, for longer than its
        lease: it has records then that no later leader has."""
        member = self.random.choice(self._leading() or self.members)
        others = [each.host for each in self.members if each is not member]
        away = {
            pair for one in others for other in (member.host, *self.clients) for pair in ((one, other), (other, one))
        }
        member.cut_off = True
        self.loop.network.blocked |= away
        await asyncio.sleep(self.random.uniform(2.2, 4.0))
        self.loop.network.blocked -= away
        self._reconnect(member)

    async def rival(self) -> None:
        """Two leaders write entries with the same IDs and other values, and store them: the old one, which nobody else
        reaches, and the next one. The old one then rejoins with nodes that have the keys of the leader's nodes. Clients
        reach nobody meanwhile, so all other nodes are equal."""
        old = await self._leader_of_all()
        if old is None:
            return
        others = [each for each in self.members if each is not old]
        network = self.loop.network
        away = {pair for one in self.clients for each in self.members for pair in ((each.host, one), (one, each.host))}
        network.blocked |= away
        await asyncio.sleep(0.2)
        self._rivals += 1
        await asked(self.loop, old, "XADD", RIVAL, f"{self._rivals}-0", "n", "of both")
        cut = {pair for each in others for pair in ((each.host, old.host), (old.host, each.host))}
        old.cut_off = True
        network.blocked |= cut
        await self._write_rivals(old)
        for _ in range(100):
            await asyncio.sleep(0.05)
            following = [each for each in others if each in self._leading() and each.may_release()]
            if following:
                await self._write_rivals(following[0])
                break
        network.blocked -= away | cut
        self._reconnect(old)
        await self._leader_of_all()

    async def _leader_of_all(self) -> GroupMember | None:
        """Return the leader when all members are in sync; None if that takes long."""
        for _ in range(100):
            await asyncio.sleep(0.05)
            for each in self._leading():
                if each.may_release() and len(decode(each.store.keys[STATE].value).in_sync) == len(self.members):
                    return each
        return None

    async def _write_rivals(self, member: GroupMember) -> None:
        """Write entries, and store them. A leader without a lease does not reply."""
        entries = [("XADD", RIVAL, f"{self._rivals}-{at}", "n", f"of {member.name}") for at in range(1, RIVALS)]
        with suppress(LostError):
            connection = await SimConnection.open(self.loop, member)
            await connection.ask(*entries, ("SAVE",), patience=0.5)
            connection.close()

    async def slow(self) -> None:
        network = self.loop.network
        one, other = self.random.sample([each.host for each in self.members], 2)
        for way in ((one, other), (other, one)):
            network.windows[way] = self.random.choice((500, 5000))
            network.latency[way] = (0.001, self.random.choice((0.01, 0.2)))
        await self._moment()
        for way in ((one, other), (other, one)):
            network.windows.pop(way, None)
            network.latency.pop(way, None)

    async def reset(self) -> None:
        """A connection between two members breaks."""
        self._break({each.host for each in self.members})

    def _break(self, one: set[str]) -> None:
        """Break a connection of these hosts to a member."""
        network, hosts = self.loop.network, {each.host for each in self.members}
        found = [
            each for each in network.transports
            if not each.gone and {each.host, each.other} <= hosts and {each.host, each.other} & one
        ]  # fmt: skip
        if found:
            network.reset(self.random.choice(found))

    # -- the coordinator -----------------------------------------------------------------------------------------
    async def cut_off(self) -> None:
        member = self._any()
        member.cut_off = True
        await self._moment(8.0)
        self._reconnect(member)

    async def lost_replies(self) -> None:
        member = self._any()
        member.slow_requests = self.random.random() < 0.5
        for _ in range(self.random.randint(1, 10)):
            member.lost_replies += self.random.randint(0, 2)
            await self._moment(0.5)
        member.slow_requests = False

    async def lost_swap(self) -> None:
        """The leader changes the in-sync set, but does not get the reply, and is then cut off from the coordinator, or
        also from the other members."""
        member = self.random.choice(self._leading() or self.members)
        member.lost_swap = self.random.choice((1, 2, 2))  # a member leaves, or returns
        others = [each.host for each in self.members if each is not member]
        await self.reset()
        for _ in range(20):
            await asyncio.sleep(0.05)
            if member.cut_off:
                break
        member.lost_swap = 0
        if self.random.random() < 0.5:
            await self._moment(6.0)
        else:
            ways = {pair for host in others for pair in ((member.host, host), (host, member.host))}
            self.loop.network.blocked |= ways
            await asyncio.sleep(self.random.uniform(2.0, 5.0))
            self.loop.network.blocked -= ways
        self._reconnect(member)

    # -- commands ------------------------------------------------------------------------------------------------
    async def failover(self) -> None:
        await asked(self.loop, self._any(), "FAILOVER")

    async def checkpoint(self) -> None:
        await asked(self.loop, self._any(), "BGSAVE")
