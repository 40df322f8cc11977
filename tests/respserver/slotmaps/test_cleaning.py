"""The search for stages with some slots: other clients are served meanwhile."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from commands.slots import slot_of
from coordinator.slotmap import SlotRange
from respserver.runtime.ownership import table
from respserver.slotmaps import cleaning
from storage.keyspace import stagemutators
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.commands.fakeserver import EmptyStore

COUNT = 1000


def stage(ks: Keyspace, name: bytes, key: bytes) -> None:
    stagemutators.stage(ks, name, key, 0, 0, array("I", [4]), b"bare")


@pytest.fixture
def ks() -> Keyspace:
    made = Keyspace(NodePool(EmptyStore(), NodeCache(1 << 20)))
    for number in range(COUNT):
        stage(made, b"{other}%d" % number, b"{other}key")
    stage(made, b"{wanted}first", b"{wanted}key")
    stage(made, b"{other}last", b"{wanted}key")
    return made


@pytest.fixture
def wanted() -> bytes:
    slot = slot_of(b"wanted")
    assert slot != slot_of(b"other")
    return table([SlotRange(slot, slot)])


def test_others_are_served_during_the_search(ks: Keyspace, wanted: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "SLICE", 0.0)  # each stage ends a slice
    turns = 0

    async def search() -> list[bytes]:
        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1
                if turns == COUNT // 2:
                    stagemutators.unstage(ks, [b"{other}0", b"{wanted}first"])

        counting = asyncio.create_task(count())
        found = await cleaning.staged_in(ks, wanted)
        counting.cancel()
        return found

    assert asyncio.run(search()) == [b"{other}last"]  # not the one that was dropped
    assert turns >= COUNT - 1


def test_stages_that_receive_entries_are_noted(ks: Keyspace, wanted: bytes) -> None:
    noted: set[bytes] = set()
    ks.stages.watched = noted
    stage(ks, b"new", b"{wanted}key")
    stage(ks, b"{other}1", b"{wanted}key")
    assert noted == {b"new", b"{other}1"}
    assert all(cleaning.is_staged(ks, name, wanted) for name in noted)
    stagemutators.unstage(ks, [b"new"])
    assert not cleaning.is_staged(ks, b"new", wanted)
