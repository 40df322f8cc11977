"""The decisions of a member, one step after another, with a simulated coordinator."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.interface import CoordinatorError
from coordinator.simulated import SimulatedStore
from respserver.group import document
from respserver.group.states import GroupStore
from tests.respserver.group.fakes import Member, group


def test_a_leader_whose_lease_was_invalid_for_a_moment_leads() -> None:
    async def story() -> None:
        member = Member("T", SimulatedStore())
        await member.create(document.hand_over(group("L", "T"), "T", 4, "a test"))
        member.group._epoch = 1
        take_lead = member.group.store.take_lead

        async def cut_off(*which: object) -> int | None:
            version: int | None = await take_lead(*which)
            member.coordinator.cut()
            member.lease_valid = False  # but it is renewed before it ends
            return version

        member.group.store.take_lead = cut_off
        with pytest.raises(CoordinatorError):
            await member.step()
        member.group.store.take_lead = take_lead
        member.coordinator.heal()
        member.lease_valid = True
        await member.step()
        assert member.calls[-1] == "lead"
        assert (member.group.phase, member.group._led) == ("leading", 2)

    asyncio.run(story())
