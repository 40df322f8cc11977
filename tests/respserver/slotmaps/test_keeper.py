"""The map at one member: which version it uses after a change whose outcome it did not know."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands.slots import SLOTS
from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from coordinator.slotmap import MapGroup, MapMember, SlotMap, SlotMapError, SlotRange
from respserver.runtime.ownership import SlotOwnership
from respserver.slotmaps.keeper import MapKeeper
from respserver.slotmaps.restoring import MapRestoration

KEY = "tidelog/clusters/tide/map"
LEFT = [SlotRange(0, 9)]


def _group(name: str) -> MapGroup:
    return MapGroup(name * 40, 1, f"{name}a", 0, {f"{name}a": MapMember(name * 40, "10.0.0.1", 7000 + int(name))})


def _three_groups() -> SlotMap:
    found = slotmap.create("c" * 40, "1", _group("1"), 1)
    for name in ("2", "3"):
        found = slotmap.put_group(found, name, _group(name), 1)
    return found


class Member:
    """The keeper of the leader of group 1, and the map at the coordinator."""

    def __init__(self, directory: Path) -> None:
        self.store = SimulatedStore()
        self.coordinator = SimulatedCoordinator(self.store)
        self.slots = SlotOwnership()
        parts: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), config=SimpleNamespace(group="1", dir=str(directory), cluster_name="tide"),
            clock=SimpleNamespace(now=lambda: 1), logger=None, counters=None, timings=None, data=None, gates=None,
            ticks=None, slots=self.slots,
        )  # fmt: skip
        state = SimpleNamespace(group_id="1" * 40)
        membership: Any = SimpleNamespace(
            standing=SimpleNamespace(led=1, on_led=None),
            store=SimpleNamespace(coordinator=self.coordinator, state=state),
        )
        part: Any = SimpleNamespace(left=self._left)
        self.keeper = MapKeeper(parts, membership, part, part, part, part)
        self.restoration = MapRestoration(parts, self.keeper, membership)
        self.put(_three_groups().encode())

    async def _left(self, gone: bytes) -> None:
        """Called when slots have left the group."""

    def put(self, document: bytes) -> None:
        known = self.store.get(KEY)
        self.store.swap(KEY, document, known.version if known is not None else 0, None)

    def read(self) -> SlotMap:
        found = self.store.get(KEY)
        assert found is not None
        return slotmap.decode(found.value)

    async def lead(self) -> None:
        """Serve the slots of the current map."""
        await self.keeper.change(lambda _: None)
        self.slots.lead(True)
        assert self.slots.served.count(1) == SLOTS

    async def give_away(self) -> None:
        await self.keeper.change(lambda slots: slotmap.assign(slots, LEFT, "2", 1, "a test", "1", 1))


def test_slots_that_the_new_owner_has_passed_on_are_not_served_again(tmp_path: Path) -> None:
    """The reply to the change is lost. When it is repeated, the slots belong to a third group."""

    async def run() -> None:
        member = Member(tmp_path)
        await member.lead()
        swap = member.coordinator.swap

        async def lost(*words: Any) -> None:
            await swap(*words)
            raise CoordinatorError("lost")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member.coordinator, "swap", lost)
            with pytest.raises(CoordinatorError):
                await member.give_away()
        assert member.slots.served.count(1) == SLOTS  # the caller lets the calls for the slots wait
        member.put(slotmap.assign(member.read(), LEFT, "3", 2, "a test", "2", 1).encode())
        with pytest.raises(SlotMapError, match="belong to group 3"):
            await member.give_away()
        assert member.slots.map == member.read()
        assert not any(member.slots.served[:10])

    asyncio.run(run())


def test_an_older_version_that_appears_during_a_change_is_not_used(tmp_path: Path) -> None:
    async def run() -> None:
        member = Member(tmp_path)
        older = member.read()
        await member.lead()
        await member.give_away()

        def restored(_: SlotMap) -> None:
            member.keeper.store.value = older  # as after a conflict with a coordinator that was restored

        with pytest.raises(SlotMapError, match="has version 3 of the map, and this member has seen version 4"):
            await member.keeper.change(restored)
        assert member.slots.map == member.read()

    asyncio.run(run())


@pytest.mark.parametrize("document", [b"{", b'{"format": 1}', b"[1]", b"null"])
def test_a_damaged_map_is_restored(document: bytes, tmp_path: Path) -> None:
    async def run() -> None:
        member = Member(tmp_path)
        await member.lead()
        member.put(document)
        with pytest.raises(SlotMapError, match="is damaged"):
            await member.keeper.change(lambda _: None)
        await member.restoration.restore()
        assert (member.read().slots, member.read().version) == (_three_groups().slots, 4)

    asyncio.run(run())


def test_a_map_of_a_later_format_is_not_replaced(tmp_path: Path) -> None:
    async def run() -> None:
        member = Member(tmp_path)
        await member.lead()
        member.put(b'{"format": 2}')
        with pytest.raises(SlotMapError, match="upgrade this member"):
            await member.restoration.restore()

    asyncio.run(run())
