"""The end of a move of slots at the leader of the old owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.slotmap import MapGroup, MapMember, SlotMap, SlotRange
from respserver.slotmaps import moving
from respserver.slotmaps.moving import SlotMover

pytestmark = pytest.mark.interpreted


def test_a_move_whose_reply_is_lost_and_whose_keys_are_deleted_meanwhile() -> None:
    """The change of the map took effect. Before it is repeated, the keys are deleted, and the map has no move."""
    member = MapMember("1" * 40, "10.0.0.1", 7000)
    known = slotmap.create("c" * 40, "1", MapGroup("1" * 40, 1, "1a", 0, {"1a": member}), 1)
    known = slotmap.put_group(known, "2", MapGroup("2" * 40, 1, "2a", 0, {"2a": member}), 1)
    outcomes: list[str] = []

    class Keeper:
        group = "1"
        map: SlotMap | None = known

        async def change(self, decide: Callable[[SlotMap], SlotMap]) -> SlotMap:
            if not outcomes:
                outcomes.append("lost")
                begun = slotmap.begin_move(known, "m" * 32, [SlotRange(0, 9)], "1", 1, "2", 1)
                self.map = decide(begun)
                mover._map_used()
                raise CoordinatorError("lost")
            return decide(known)

    async def run() -> None:
        assert await mover._finish("m" * 32) == 0

    mover: Any = object.__new__(SlotMover)
    mover._keeper, mover._led, mover._left_by = Keeper(), 1, ""
    mover._standing, mover._clock = SimpleNamespace(led=1), SimpleNamespace(now=lambda: 1)
    mover._inert = SimpleNamespace(left=b"", own=b"", apply=lambda: None)
    mover._peer, mover._peer_led = None, ("", 0)
    mover._deleting, mover._slots, mover._state = None, SimpleNamespace(leads=False), {}
    asyncio.run(run())


def test_a_bug_while_keys_are_deleted_does_not_end_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next move of these slots waits for it, and nothing else starts it until the map changes."""
    monkeypatch.setattr(moving, "AFTER_BUG", 0.0)
    left, errors, traced = ["m"], [KeyError("x"), KeyError("y")], []

    async def once(led: int) -> None:
        if errors:
            raise errors.pop()
        left.clear()

    mover: Any = object.__new__(SlotMover)
    mover._standing, mover._slots = SimpleNamespace(led=1), SimpleNamespace(leads=True)
    mover._left, mover._forgotten, mover._tidy_once = left.copy, list, once
    mover._logger = SimpleNamespace(trace=lambda text, error: traced.append(text))
    asyncio.run(mover._tidy())
    assert (left, len(traced), mover._deleting) == ([], 2, None)


def test_a_bug_in_the_selection_of_records_ends_the_move() -> None:
    """The records are those of a tick, which must be logged anyway."""

    def fails(batch: bytes) -> None:
        raise KeyError("x")

    traced: list[str] = []
    mover: Any = object.__new__(SlotMover)
    mover._export, mover._ended = SimpleNamespace(on_batch=fails), None
    mover._logger = SimpleNamespace(trace=lambda text, error: traced.append(text))
    mover._records(b"x")
    mover._records(b"y")
    assert (str(mover._ended), len(traced)) == ("a bug: KeyError('x') (see the log)", 1)
