"""The lease of a member: a long one while it follows, and one with which it can lead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.interface import CoordinatorError, Lease
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from respserver.group.presence import FOLLOWING, MemberPresence, NameTakenError
from respserver.group.services import GroupServices
from respserver.group.states import GroupStore, Presence

MS = 60_000
KEY = "tidelog/groups/g/members/a"


class Keeper:
    """Renews nothing."""

    valid_until = 0.0
    lost = False
    stopped = False
    waited = False

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    def valid(self) -> bool:
        return not self.lost

    def beat(self) -> None: ...

    def stop(self, *, wait: bool = True) -> None:
        self.stopped, self.waited = True, wait


class Process:
    """One start of the member ``a``, with its presence."""

    def __init__(self, store: SimulatedStore, directory: str = "d", address: str = "a:1") -> None:
        self.coordinator = SimulatedCoordinator(store, timeout=1.0)
        self.keepers: list[Keeper] = []
        self.time = 0.0
        services = GroupServices(self.coordinator, self._keep, lambda: self.time)
        self.states = GroupStore(self.coordinator, "g")
        self.presence = MemberPresence(services, self.states, "a", Presence(directory, address, ""), MS, lambda: None)

    def _keep(self, lease: Lease, granted: float, changed: Callable[[], None]) -> Keeper:
        self.keepers.append(Keeper(lease))
        return self.keepers[-1]

    async def follow(self) -> None:
        """Follow for long."""
        await self.presence.follow()
        self.time += MS / 1000
        assert await self.presence.follow() == 0

    @property
    def running(self) -> list[Lease]:
        """The leases that are renewed."""
        return [keeper.lease for keeper in self.keepers if not keeper.stopped]


def test_a_member_that_follows_has_a_long_lease_and_one_that_may_lead_a_short_one() -> None:
    async def story() -> None:
        store = SimulatedStore()
        member = Process(store)
        presence = member.presence
        await presence.acquire()
        for change, ms in (
            (member.follow, FOLLOWING * MS), (presence.may_lead, MS), (member.follow, FOLLOWING * MS),
            (lambda: presence.candidate(3, 500, False), MS), (lambda: presence.candidate(4, 600, True), MS),
        ):  # fmt: skip
            for _ in range(2):  # the second call changes nothing
                await change()
            await presence.revoked()
            assert [lease.ms for lease in member.running] == [ms]
            assert list(store.leases) == [member.running[0].id] == [store.keys[KEY].lease]
            assert presence.lease_to_lead == (member.running[0] if ms == MS else None)
        found = await member.states.presence("a")
        assert found is not None
        assert (found[0].vacant, found[0].end, found[0].damaged, found[0].lease) == (4, 600, True, "")
        assert not any(keeper.waited for keeper in member.keepers)  # the event loop would stall
        await presence.release()
        assert not store.keys

    asyncio.run(story())


def test_a_member_that_follows_has_its_short_lease_for_as_long_as_it_lasts() -> None:
    """The requests of a failover do not compete with the exchange, and a leader of a short time needs none."""

    async def story() -> None:
        member = Process(SimulatedStore())
        presence = member.presence
        await presence.acquire()
        for _ in range(2):
            assert await presence.follow() == MS / 1000
            member.time += 0.9 * MS / 1000
            assert await presence.follow() == pytest.approx(0.1 * MS / 1000)
            await presence.may_lead()
        assert [lease.ms for lease in member.running] == [MS]
        assert len(member.keepers) == 1

    asyncio.run(story())


@pytest.mark.parametrize("change", ["follow", "candidate"])
def test_an_exchange_whose_outcome_is_unknown(change: str) -> None:
    """The lease that the member renews afterwards is the one that its name is bound to."""

    async def story() -> None:
        store = SimulatedStore()
        member = Process(store)
        presence = member.presence
        await presence.acquire()
        if change == "candidate":
            await member.follow()
        member.coordinator._timeout = 0.01
        swap = member.coordinator.swap

        async def lost(*args: Any) -> int | None:
            member.coordinator.lost_replies = 1
            return await swap(*args)

        member.coordinator.swap = lost  # type: ignore[method-assign, assignment]
        with pytest.raises(CoordinatorError):
            await (member.follow() if change == "follow" else presence.candidate(3, 500, False))
        assert not presence.held
        member.coordinator.swap = swap  # type: ignore[method-assign]
        await presence.acquire()
        assert presence.held
        assert [lease.id for lease in member.running] == [store.keys[KEY].lease]
        assert (presence.lease_to_lead is None) == (change == "candidate")

    asyncio.run(story())


def test_a_start_does_not_wait_for_the_long_lease_of_its_predecessor() -> None:
    async def story() -> None:
        store = SimulatedStore()
        old, new = Process(store), Process(store)
        await old.presence.acquire()
        await old.follow()
        await new.presence.acquire()
        assert list(store.leases) == [store.keys[KEY].lease] == [new.running[0].id]
        with pytest.raises(NameTakenError):
            await old.presence.candidate(3, 500, False)
        with pytest.raises(NameTakenError):
            await old.presence.acquire()
        await new.follow()
        with pytest.raises(NameTakenError):  # only a start takes over, so the two do not take turns
            await old.presence.acquire()

    asyncio.run(story())


@pytest.mark.parametrize("what", ["may lead", "another directory", "another address"])
def test_a_start_waits_for_a_process_that_may_lead_or_is_another_one(what: str) -> None:
    async def story() -> None:
        store = SimulatedStore()
        old = Process(store)
        new = Process(
            store, "e" if what == "another directory" else "d", "b:1" if what == "another address" else "a:1"
        )
        await old.presence.acquire()
        if what != "may lead":
            await old.follow()
        with pytest.raises(NameTakenError, match="a:1: set another group-member"):
            await new.presence.acquire()
        assert not new.presence.held
        assert store.keys[KEY].lease == old.running[0].id

    asyncio.run(story())
