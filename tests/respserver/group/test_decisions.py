"""The decisions of a member, one step after another, with a simulated coordinator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.interface import CoordinatorError
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from replication.members import GroupAnnouncement
from resp.errors import CommandError
from respserver.group import document
from respserver.group.document import GroupStateError
from respserver.group.presence import NameTakenError
from respserver.group.states import GroupStore
from tests.respserver.group.fakes import Member, group, record


def test_a_leader_whose_lease_was_invalid_for_a_moment_leads() -> None:
    async def story() -> None:
        member = Member("T", SimulatedStore())
        await member.create(document.hand_over(group("L", "T"), "T", 4, "a test"))
        member.standing.epoch = 1
        take_lead = member.store.take_lead

        async def cut_off(*which: object) -> int | None:
            version: int | None = await take_lead(*which)
            member.coordinator.cut()
            member.lease_valid = False  # but it is renewed before it ends
            return version

        member.store.take_lead = cut_off
        with pytest.raises(CoordinatorError):
            await member.step()
        member.store.take_lead = take_lead
        member.coordinator.heal()
        member.lease_valid = True
        await member.step()
        assert member.calls[-1] == "lead"
        assert (member.standing.phase, member.standing.led) == ("leading", 2)

    asyncio.run(story())


async def leading(*in_sync: str, members: tuple[str, ...] = ("L", "A", "N")) -> tuple[Member, GroupStore]:
    """Return the member L, which leads with a log of 1000 bytes, and the group as another member changes it."""
    store = SimulatedStore()
    member = Member("L", store)
    member.written(1000)
    await member.create(group(*members, in_sync=in_sync))
    await member.step(2)
    assert member.standing.phase == "leading"
    return member, GroupStore(SimulatedCoordinator(store), "g")


def test_a_change_whose_request_was_lost_does_not_count_for_ever() -> None:
    async def story() -> None:
        member, _ = await leading("L", "A")
        a = member.feed("A", 1000)
        member.in_sync.heard(a)
        x = member.feed("N", 1000)
        member.in_sync.heard(x)
        swap = member.coordinator.swap

        async def lost(*args: object) -> int | None:
            raise CoordinatorError("the request is lost")

        member.coordinator.swap = lost  # type: ignore[method-assign, assignment]
        with pytest.raises(CoordinatorError):
            await member.step()
        member.coordinator.swap = swap  # type: ignore[method-assign]
        member.disconnect(x)
        member.written(2000)
        a.on_disk = 2000
        member.in_sync.heard(a)
        await member.step(2)
        assert member.in_sync.confirmed() == 2000
        assert member.store.state.in_sync == ("A", "L")
        assert not member.in_sync.must_change("L")

    asyncio.run(story())


@pytest.mark.parametrize("how", ["a new directory", "its own request"])
def test_a_member_that_has_left_is_not_written_back(how: str) -> None:
    async def story() -> None:
        member, other = await leading("L", "A", "N")
        a = member.feed("A", 1000)
        for feed in (a, member.feed("N", 1000)):  # the connection of N is half open
            member.in_sync.heard(feed)
        read = member.store.read

        async def late() -> object:  # the change happens after the leader has read the state
            found = await read()
            member.store.read = read
            member.disconnect(a)
            if how == "a new directory":
                await other.change(lambda state: document.join(state, "N", record("N", 1), 5))
            else:
                await other.change(lambda state: document.withdraw(state, "N", 5, "a test"))
            return found

        member.store.read = late
        await member.step()
        assert member.store.state.in_sync == ("L",)

    asyncio.run(story())


def test_a_leader_whose_name_was_taken_stops_leading_and_joins_again() -> None:
    async def story() -> None:
        member, other = await leading("L")
        presence = member.presence
        presence.held, taken = False, True

        async def acquire() -> None:
            if taken:
                raise NameTakenError("another member with this name is running")
            presence.held = True
            presence.lease = await member.coordinator.grant(60_000)

        presence.acquire = acquire
        for _ in range(2):
            with pytest.raises(NameTakenError):
                await member.step()
        assert member.calls == ["lead", "unfollow"]
        assert (member.standing.led, member.standing.phase) == (0, "joining")
        await other.change(lambda state: document.set_in_sync(state, ("L", "A"), 5, "a test"))
        await other.change(lambda state: document.join(state, "L", record("L", 1), 5))  # by the other process
        key = await other.leader()
        assert key is not None
        await other.give_up_lead(key.version)
        taken = False
        with pytest.raises(GroupStateError, match="waits for one of A"):
            await member.step()
        assert member.store.state.members["L"] == record("L")

    asyncio.run(story())


def test_a_member_whose_name_was_used_with_another_directory_joins_again() -> None:
    async def story() -> None:
        member, other = await leading("L", "A")
        await other.change(lambda state: document.elect(state, "A", 5, "a test"))
        await other.change(lambda state: document.join(state, "L", record("L", 1), 5))
        await other.change(lambda state: document.set_in_sync(state, ("A", "L"), 5, "a test"))
        await member.step()  # it has a lease and its name
        assert member.store.state.members["L"] == record("L")
        assert member.store.state.in_sync == ("A",)

    asyncio.run(story())


def test_a_member_announces_its_directory() -> None:
    who = GroupAnnouncement("a" * 40, "m1", "b" * 40, 7)
    assert GroupAnnouncement.announced(who.capability()) == who
    assert GroupAnnouncement.announced(who.capability().replace(b"b" * 40, b"b" * 39)) is None


def test_a_state_of_an_earlier_epoch_is_refused() -> None:
    async def story() -> None:
        member, other = await leading("L", "A")
        old = other.coordinator.store.get(other.key)  # type: ignore[attr-defined]
        await other.change(lambda state: document.elect(state, "A", 5, "a test"))
        await member.step()
        found = await other.coordinator.get(other.key)
        assert found is not None
        await other.coordinator.swap(other.key, old.value, found.version)
        with pytest.raises(GroupStateError, match="has the state of epoch 1, but this member has seen epoch 2"):
            await member.step()

    asyncio.run(story())


@pytest.mark.parametrize("known", [True, False])
def test_a_start_knows_the_epoch_of_its_log(known: bool) -> None:
    async def story() -> None:
        member = Member("L", SimulatedStore())
        await member.create(group("L", "A"))
        member.standing.phase = "joining"
        member.disk.history.id = "f" * 24 + f"{7:016x}"
        if not known:  # the directory has never been in this group
            member.identity.group_id = ""
            await member.step()
            return
        with pytest.raises(GroupStateError, match="has the state of epoch 1, but this member has seen epoch 7"):
            await member.step()

    asyncio.run(story())


def test_a_group_that_is_created_again_continues_with_a_higher_epoch() -> None:
    async def story() -> None:
        member = Member("L", SimulatedStore())
        member.standing.phase, member.identity.group_id = "joining", ""
        member.disk.history.id = "f" * 24 + f"{7:016x}"
        member.presence.lease_to_lead = await member.coordinator.grant(60_000)
        await member.step(2)
        assert member.store.state.epoch == member.standing.led == 8
        assert document.epoch_of("f" * 40) == 0

    asyncio.run(story())


def test_a_handover_is_not_aborted_while_its_change_is_sent() -> None:
    async def story() -> None:
        member, _ = await leading("L", "A")
        member.in_sync.heard(member.feed("A", 1000))
        swap = member.coordinator.swap
        refused: list[bool] = []

        async def late(*args: Any) -> int | None:
            if not refused:  # later, the key is given up
                assert member.paused[-1] == "all"  # a reply to a read could not be released later
                with pytest.raises(CommandError, match="can't be aborted any more"):
                    member.handover.abort("FAILOVER ABORT")
                refused.append(True)
            return await swap(*args)

        member.handover.fail_over("A", 0)
        member.coordinator.swap = late  # type: ignore[method-assign, assignment]
        await member.step()
        assert refused
        assert member.paused[-1] == "writes False"
        assert member.store.state.leader == "A"
        assert member.calls[-1] == "follow A"

    asyncio.run(story())


def test_a_member_publishes_its_settings() -> None:
    async def story() -> None:
        member, other = await leading("L", "A")
        before = member.store.version
        await member.step()
        assert member.store.version == before
        member.config.min_in_sync = 3
        await member.step()
        state = await other.read()
        assert state is not None
        assert (state.members["L"], state.least, state.in_sync) == (record("L", least=3), 3, ("A", "L"))
        assert state.events[-1].what == "L has replica-acks insync, min-in-sync 3"

    asyncio.run(story())
