"""In a simulated cluster, each slot has one owner at every moment, whatever fails while slots are assigned."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from coordinator import slotmap
from coordinator.slotmap import MapGroup, MapMember, SlotMap, SlotRange
from respserver.slotmaps import moving
from respserver.slotmaps.moving import SlotMover
from tests.simulation.mutations import broken
from tests.simulation.slotchecks import forbidden
from tests.simulation.slotclients import Key
from tests.simulation.slotmutations import SLOT_MUTATIONS
from tests.simulation.slots import SlotCase, case, run
from tests.simulation.test_seeds import MINUTES
from tests.simulation.world import SimulationError

pytestmark = pytest.mark.interpreted


def test_slots_move_during_failovers() -> None:
    result = run(SlotCase(1, faults=("failover",), seconds=3.0))
    assert result.acknowledged > 50
    assert result.moves > 3


@pytest.mark.parametrize("seed", [13, 24, 107, 189, 284])
def test_seeds(seed: int) -> None:
    """13 and 24 have many moves; in 189 and 284, a member that was paused has an old map when it is asked to assign."""
    assert run(case(seed)).moves > 0


@pytest.mark.parametrize("seed", [42, 58, 74, 50105, 50368])
def test_seeds_with_keys(seed: int) -> None:
    """In 42, a new owner fails before it has written that it uses the map; in 58 and 74, a move is added to the map
    after it was aborted; in 50105, the machine of a new owner fails before it has replied to the first command; in
    50368, the leader of the old owner fails before its last change of the map arrives."""
    assert run(replace(case(seed), with_keys=True)).with_keys > 0


def test_writers_wait_if_the_new_owner_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle, waited = SlotMover._throttle, 0

    async def counted(mover: Any, behind: int) -> None:
        nonlocal waited
        waited += behind > moving.BEHIND
        await throttle(mover, behind)

    monkeypatch.setattr(SlotMover, "_throttle", counted)
    monkeypatch.setattr(moving, "BEHIND", 100)
    slow = SlotCase(3, ("slow",), seconds=3.0, members=1, movers=3, pauses=0.01, with_keys=True)
    assert run(slow).with_keys > 0
    assert waited > 0


def test_the_same_seed_is_the_same_run() -> None:
    short = replace(case(3), seconds=2.0, with_keys=True)
    assert run(short) == run(short)


@pytest.mark.parametrize("name", SLOT_MUTATIONS)
def test_a_broken_rule_is_detected(name: str) -> None:
    mutation = SLOT_MUTATIONS[name]
    with broken(mutation):
        for tried in mutation.tried():
            try:
                run(tried)
            except SimulationError as error:
                if mutation.report in str(error).partition("\n")[0]:
                    break
        else:
            pytest.fail(f"no seed detects this mutation: {mutation.patches.__doc__}")
    run(tried)


@pytest.mark.long(short=True)
def test_many_seeds() -> None:
    end, seed, failed = time.monotonic() + MINUTES * 60, int(time.time()) * 1000 if MINUTES else 0, []
    while True:
        try:
            run(replace(case(seed), with_keys=seed % 3 > 0))
        except SimulationError as error:
            print(error)
            failed.append(seed)
        seed += 1
        if time.monotonic() >= end:
            break
    assert not failed


# -- the checks ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([3, 4], ""), ([3, 4, 5], ""), ([3], "were acknowledged or seen, and lost"), ([3, 4, 4], "is there twice"),
        ([1, 3, 4], "are there, and were deleted"), ([3, 4, 9], "are there, and were refused"),
    ],
)  # fmt: skip
def test_reads(numbers: list[int], message: str) -> None:
    key = Key("k")
    key.present, key.gone, key.refused = {3, 4}, {1, 2}, {9}
    if not message:
        key.check(numbers, {3, 4}, {1, 2}, 0)
        assert key.present == set(numbers)
        return
    with pytest.raises(AssertionError, match=message):
        key.check(numbers, {3, 4}, {1, 2}, 0)


def _map() -> SlotMap:
    def group(number: str) -> MapGroup:
        return MapGroup(number * 40, 2, f"m{number}", 0, {f"m{number}": MapMember("0" * 40, "h", 1)})

    return slotmap.put_group(slotmap.create("c" * 40, "1", group("1"), 1), "2", group("2"), 1)


def test_changes_of_the_map() -> None:
    old = _map()
    moved = slotmap.assign(old, [SlotRange(0, 9)], "2", 1, "a test", "1", 2)
    assert forbidden("1", "m1", old, moved) == ""
    assert forbidden("1", "m3", old, moved) == "slot 0 leaves group 1, which m1 leads"
    assert forbidden("2", "m2", old, moved) == "slot 0 leaves group 1, which m1 leads"
    assert forbidden("1", "m1", old, replace(moved, version=9)) == "version 9 follows version 2"
    record = replace(old.groups["2"], epoch=3)
    assert forbidden("2", "m2", old, slotmap.put_group(old, "2", record, 1)) == ""
    assert forbidden("1", "m1", old, slotmap.put_group(old, "2", record, 1)) == "it writes the record of group 2"
    earlier = replace(old, version=3, groups={**old.groups, "2": replace(record, epoch=1)})
    assert forbidden("2", "m2", old, earlier) == "the record of epoch 1 follows that of epoch 2"
