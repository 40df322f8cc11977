"""Members whose store is damaged: they leave the in-sync set, and lead only if no other member of the set can."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from coordinator.simulated import SimulatedStore
from respserver.group.document import GroupStateError
from respserver.group.handover import STAY_SECONDS
from tests.respserver.group.fakes import Member, Server, group


def leader(*in_sync: str) -> Server:
    """Return the leader L of the group L, A, X, with a log of 1000 bytes."""
    server = Server("L")
    server.written(1000)
    server.in_sync.begin(group("L", "A", "X", in_sync=in_sync), "L", 7)
    return server


def test_a_damaged_member_leaves_the_set() -> None:
    server = leader("L", "A", "X")
    a, x = server.feed("A", 1000), server.feed("X", 1000)
    for feed in (a, x):
        server.in_sync.heard(feed)
    assert not server.in_sync.must_change("L")
    a.damaged = True
    assert server.in_sync.wanted("L") == ({"L", "X"}, "A has a damaged store")
    assert server.in_sync.successors() == {"X": x}


def test_a_damaged_member_joins_once_it_is_repaired() -> None:
    server = leader("L", "X")
    a = server.feed("A", 1000)
    a.damaged = True
    server.in_sync.heard(a)
    assert server.in_sync.wanted("L")[0] == {"L", "X"}
    server.written(2000)
    server.in_sync.recount()  # replies do not wait for it
    server.in_sync.heard(server.feed("X", 2000))
    assert server.in_sync.confirmed() == 2000
    a.damaged, a.on_disk = False, 2000
    server.in_sync.heard(a)
    assert server.in_sync.wanted("L")[0] == {"L", "X", "A"}


def test_a_member_that_is_damaged_while_it_joins_does_not_join() -> None:
    server = leader("L")
    a = server.feed("A", 1000)
    server.in_sync.heard(a)
    assert server.in_sync.wanted("L")[0] == {"L", "A"}
    a.damaged = True
    assert server.in_sync.wanted("L")[0] == {"L"}
    server.in_sync.heard(a)
    assert server.in_sync.wanted("L")[0] == {"L"}
    server.written(2000)
    server.in_sync.recount()
    assert server.in_sync.confirmed() == 2000  # replies do not wait for it any more


def test_damage_of_another_directory_does_not_count() -> None:
    server = leader("L", "A")
    server.in_sync.heard(server.feed("A", 1000))
    server.feed("A", 1000, directory=5).damaged = True
    assert server.in_sync.wanted("L")[0] == {"L", "A"}


async def candidate(damaged: int, *in_sync: str) -> Member:
    """Return the member T of a group whose leader L is gone. ``damaged``: entries of its store."""
    member = Member("T", SimulatedStore())
    member.disk.scrub.damaged = damaged
    await member.create(group("L", "T", "X", in_sync=("L", *in_sync)))
    await member.store.change(lambda state: replace(state, in_sync=in_sync))
    return member


def test_a_damaged_member_waits_for_the_others_of_the_set() -> None:
    async def story() -> None:
        member = await candidate(1, "T", "X")
        with pytest.raises(GroupStateError, match=r"its store is damaged \(see the log\), so it waits for X$"):
            await member.step()
        assert "lead" not in member.calls
        member.disk.scrub.damaged = 0
        await member.step(2)
        assert member.calls[-1] == "lead"

    asyncio.run(story())


def test_the_only_member_of_the_set_leads_though_it_is_damaged() -> None:
    async def story() -> None:
        member = await candidate(1, "T")
        await member.step(2)
        assert member.calls[-1] == "lead"
        assert (member.standing.phase, member.standing.target) == ("leading", "")

    asyncio.run(story())


def test_a_damaged_leader_hands_over_to_an_undamaged_member() -> None:
    async def story() -> None:
        member = Member("L", SimulatedStore())
        member.written(1000)
        await member.create(group("L", "A", "X"))
        await member.step(2)
        a, x = member.feed("A", 1000), member.feed("X", 1000)
        for feed in (a, x):
            member.in_sync.heard(feed)
        a.damaged, member.disk.scrub.damaged = True, 3
        assert member.handover.due()
        await member.step()
        state = member.store.state
        assert (state.leader, state.epoch, state.in_sync) == ("X", 2, ("X",))
        assert state.events[-1].why == "L handed over, because its store is damaged"
        assert not member.handover.due()

    asyncio.run(story())


def test_a_damaged_leader_without_an_undamaged_member_continues() -> None:
    async def story() -> None:
        member = Member("L", SimulatedStore())
        member.written(1000)
        await member.create(group("L", "A", "X"))
        await member.step(2)
        feeds = [member.feed(name, 1000) for name in "AX"]
        for feed in feeds:
            feed.damaged = True
            member.in_sync.heard(feed)
        member.disk.scrub.damaged = 1
        assert not member.handover.due()
        await member.step()
        assert (member.store.state.leader, member.store.state.in_sync) == ("L", ("L",))
        assert member.standing.phase == "leading"

    asyncio.run(story())


def test_an_attempt_that_failed_is_not_repeated_at_once() -> None:
    async def story() -> None:
        member = Member("L", SimulatedStore())
        member.written(1000)
        await member.create(group("L", "A"))
        await member.step(2)
        a = member.feed("A", 500)  # it never gets the rest
        member.in_sync.heard(a)
        member.disk.scrub.damaged = 1
        await member.step()
        assert member.standing.target == "A"
        member.handover.abort("a test")
        assert not member.handover.due()
        member.handover._stays_until -= STAY_SECONDS
        assert member.handover.due()

    asyncio.run(story())
