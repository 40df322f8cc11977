"""A member with a simulated coordinator, and with fakes of the server's other parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from respserver.config.valuetypes import INSYNC
from respserver.group import document
from respserver.group.decisions import GroupDecisions
from respserver.group.document import MemberRecord, ServerGroupState
from respserver.group.handover import Handover
from respserver.group.insync import InSync
from respserver.group.parts import MemberParts
from respserver.group.standing import MemberStanding
from respserver.group.states import GroupStore

GROUP_ID = "a" * 40


def record(name: str, directory: int = 0, least: int = 2) -> MemberRecord:
    """Return the member ``name`` with its directory of this number. ``least``: its min-in-sync."""
    return MemberRecord(f"{name}:6379", f"{ord(name[-1]):02x}{directory:038d}", "0.1.0", least)


def group(*members: str, in_sync: Sequence[str] = (), least: int = 2) -> ServerGroupState:
    """Return a group that its first member leads. ``in_sync``: default all."""
    state = document.create(GROUP_ID, members[0], record(members[0], least=least), 1)
    for name in members[1:]:
        state = document.join(state, name, record(name, least=least), 2)
    return document.set_in_sync(state, in_sync or members, 3, "a test")


class Ticks:
    """What a member calls of ``Ticks``."""

    def __init__(self) -> None:
        self.confirmation: Any = None
        self.since: int | None = None
        self.waiting = False
        self.stalled = False
        self.writable = True
        self.cut: list[str] = []

    def confirmed_changed(self) -> None: ...

    def settle(self) -> bool:
        return True

    def withheld_since(self) -> int | None:
        return self.since

    def cut_withheld(self, why: str) -> None:
        self.cut.append(why)


class Server:
    """The parts of one server. ``calls``: what the member did to its role."""

    def __init__(self, name: str, min_in_sync: int = 2) -> None:
        self.name = name
        self.mono = 1_000_000  # ms
        self.lease_valid = True
        self.calls: list[str] = []
        self.paused: list[str] = []
        self.asked = 0  # requests for acknowledgements
        self.syncs = False  # each tick, whatever appendfsync says
        self.ticks = Ticks()
        self.disk = SimpleNamespace(
            synced=0, offset=0, rebooted=False, scrub=SimpleNamespace(damaged=0), history=SimpleNamespace(id="f" * 40)
        )
        self.data = SimpleNamespace(disk=self.disk, follower=False, ks=SimpleNamespace(log=[]), sync_all=self.sync_all)
        self.config = SimpleNamespace(
            replica_acks=INSYNC, min_in_sync=min_in_sync, in_sync_timeout=5000, group_lease=5000, group="g",
            coordinator="simulated", appendfsync="always", dir="",
        )  # fmt: skip
        self.replicas = SimpleNamespace(
            feeds=[], too_few_in_sync=False, count=lambda: None, group=None, group_id="", ask=self.ask
        )
        self.link = SimpleNamespace(
            withholds=lambda required: required, confirmed=0, confirmed_up_to=lambda offset: None, syncing=False,
            up=False, cluster=SimpleNamespace(epoch=0, shard=""), leads_to=lambda host, port: False, group=None,
        )  # fmt: skip
        self.parts: Any = SimpleNamespace(
            loop=None, config=self.config, clock=SimpleNamespace(mono=lambda: self.mono, now=lambda: 0),
            logger=SimpleNamespace(notice=print, warning=print, trace=print), counters=None, timings=None,
            data=self.data, gates=SimpleNamespace(loading=False), ticks=self.ticks, slots=None,
        )  # fmt: skip
        replicas: Any = self.replicas
        link: Any = self.link
        parts: Any = self.parts
        self.in_sync = InSync(parts, replicas, link, lambda: self.lease_valid, lambda: None)

    def ask(self) -> None:
        self.asked += 1

    def sync_all(self, required: bool) -> None:
        self.syncs = required

    def written(self, offset: int) -> None:
        """Let the log end at this offset, on this server's disk."""
        self.disk.synced = self.disk.offset = offset

    def feed(self, name: str, on_disk: int, directory: int = 0) -> Any:
        """Connect a member, which has the log on its disk up to an offset."""
        feed = SimpleNamespace(
            group_member=name, member_id=record(name, directory).id, on_disk=on_disk, live=True, state="online",
            position=on_disk, host=name, port=6379, damaged=False, alive=lambda wanted: None,
        )  # fmt: skip
        self.replicas.feeds.append(feed)
        return feed

    def disconnect(self, feed: Any) -> None:
        self.replicas.feeds.remove(feed)
        self.in_sync.lost(feed)


class Member(Server):
    """A server, and the decisions of its member on the running loop."""

    def __init__(self, name: str, store: SimulatedStore, min_in_sync: int = 2) -> None:
        super().__init__(name, min_in_sync)
        self.coordinator = SimulatedCoordinator(store, timeout=1.0)
        self.identity: Any
        self.presence: Any
        self.identity = SimpleNamespace(
            group="g", group_id=GROUP_ID, member=name, id=record(name).id, save=lambda directory: None
        )
        self.presence = SimpleNamespace(
            held=True, valid=lambda: self.lease_valid, lease_to_lead=None, name=name, candidate=self.candidate,
            follow=self.follow, may_lead=self.follow,
        )  # fmt: skip
        self.store: Any = GroupStore(self.coordinator, "g")
        self.parts.loop = asyncio.get_running_loop()
        pauses = SimpleNamespace(hold_writes=self.hold_writes)
        fakes: Any = (self, self.replicas, self.link, pauses, lambda: None)
        member = MemberParts(self.identity, record(name).address, self.store, self.presence, self.in_sync, *fakes)
        self.standing = MemberStanding(self.parts, member)
        self.standing.phase = "waiting"
        self.handover = Handover(self.parts, member, self.standing)
        self.decisions = GroupDecisions(self.parts, member, self.standing, self.handover)

    def hold_writes(self, hold: bool, reads: bool = False) -> None:
        self.paused.append("all" if reads else f"writes {hold}")

    # -- GroupRoles ------------------------------------------------------------------------------------------
    def become_replica(self, host: str, port: int, force: bool = False) -> None:
        self.data.follower = True
        self.calls.append(f"follow {host}")

    def unfollow(self) -> None:
        self.data.follower = True
        self.calls.append("unfollow")

    def lead_epoch(self, replid: str) -> None:
        self.data.follower = False
        self.calls.append("lead")

    async def candidate(self, epoch: int, end: int, damaged: bool) -> None:
        self.calls.append(f"candidate {end}")

    async def follow(self) -> float:
        return 0.0

    async def create(self, state: ServerGroupState) -> None:
        """Create the group, and get a lease."""
        assert await self.store.create(state)
        self.presence.lease_to_lead = await self.coordinator.grant(60_000)

    async def step(self, times: int = 1) -> None:
        for _ in range(times):
            await self.decisions.step()
