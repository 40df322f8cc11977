"""Rules of the slots of a cluster that are broken on purpose, which the simulation of a cluster must detect.

A mutation is a function that returns the patches of one broken rule, a line in SLOT_MUTATIONS, and a row in
docs/simulation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from commands.slots import NO_SLOTS
from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.slotmap import SlotMapError
from respserver.runtime.ownership import SlotOwnership, table
from respserver.slotmaps.assigning import SlotAssignment
from respserver.slotmaps.cleaning import SlotCleaning
from respserver.slotmaps.keeper import MapKeeper
from respserver.slotmaps.moving import HoldEndedError, SlotMover
from tests.simulation.slots import SlotCase
from tests.simulation.world import Patch


def slots_do_not_wait() -> list[Patch]:
    """A leader serves a slot until the map is changed: calls for it do not wait."""
    hold = SlotOwnership.hold

    def held(slots: Any, table: bytes, waiting: bool = True) -> None:
        hold(slots, NO_SLOTS)

    return [(SlotOwnership, "hold", held)]


def old_owner_serves_on() -> list[Patch]:
    """A leader serves the slots that it has given away until it reads the map again."""
    use = SlotOwnership.use

    def late(slots: Any, found: Any) -> None:
        if slots.held == NO_SLOTS:
            use(slots, found)
        else:
            asyncio.get_running_loop().call_later(0.5, use, slots, found)

    return [(SlotOwnership, "use", late), *slots_do_not_wait()]


def new_owner_serves_early() -> list[Patch]:
    """The new owner serves a slot when the old one has sent the change, before the map has it."""
    certain, keepers = SlotAssignment._certain, dict[str, Any]()
    begin = MapKeeper.start

    def started(keeper: Any) -> None:
        keepers[keeper.group] = keeper  # the last member that has started; its leader, if there is one member
        begin(keeper)

    async def announced(assignment: Any, ranges: Any, to: str, own: Any, led: int) -> int:
        known = assignment._keeper.map
        if to in keepers:
            keepers[to]._slots.use(assignment._changed(known, ranges, to, own, led))
            assignment._slots.hold(NO_SLOTS)
            assignment._pauses.retry()
        return await certain(assignment, ranges, to, own, led)

    return [(MapKeeper, "start", started), (SlotAssignment, "_certain", announced)]


def leader_serves_at_once() -> list[Patch]:
    """A new leader serves by the map that it knows, before it has read the current one and written its epoch.

    Replicas do not watch the map here. Their maps are out of date more often, and 25 of 30 seeds detect this mutation
    (2 of 30 if they watch it)."""
    changed = MapKeeper._led_changed

    def serves(keeper: Any) -> None:
        changed(keeper)
        keeper._slots.lead(bool(keeper._standing.led))

    async def follow(keeper: Any, watch: Any) -> None:
        async for _ in watch:
            if keeper._standing.led:
                keeper.read_again()

    return [(MapKeeper, "_led_changed", serves), (MapKeeper, "_follow", follow)]


def epoch_is_not_written() -> list[Patch]:
    """A new leader reads the map, and serves without writing its epoch, so requests of the old one take effect."""

    def written(keeper: Any, slots: Any, led: int) -> Any:
        if keeper.group in slots.groups:
            return slots
        return slotmap.put_group(slots, keeper.group, keeper._record.current(led, None, 0), keeper._clock.now())

    def assigned(assignment: Any, slots: Any, ranges: Any, to: str, own: Any, led: int) -> Any:
        group = assignment._keeper.group
        epoch = slots.groups[group].epoch if led else 0
        return slotmap.assign(slots, ranges, to, assignment._clock.now(), "a test", group, epoch)

    return [
        (MapKeeper, "_written", written),
        (MapKeeper, "_outdated", lambda keeper: False),
        (SlotAssignment, "_changed", assigned),
    ]


def lost_reply_is_a_failure() -> list[Patch]:
    """A change of the map whose reply is lost counts as one that did not happen."""

    async def once(assignment: Any, ranges: Any, to: str, own: Any, led: int) -> int:
        try:
            await assignment._keeper.change(lambda slots: assignment._changed(slots, ranges, to, own, led))
        except CoordinatorError as error:
            raise SlotMapError(str(error)) from error
        return 0

    return [(SlotAssignment, "_certain", once)]


def emptiness_is_not_confirmed() -> list[Patch]:
    """Slots leave before the in-sync set knows that they are empty."""

    async def nothing(assignment: Any, until: float) -> None:
        pass

    return [(SlotAssignment, "_confirm", nothing)]


def writes_are_not_noted() -> list[Patch]:
    """A search for keys misses those that clients write meanwhile."""
    return [(SlotOwnership, "note", lambda slots, noting: None)]


def old_plan_is_carried_out() -> list[Patch]:
    """A call that was planned by an older version of the map gives away what the group has received since."""

    def assigned(assignment: Any, slots: Any, ranges: Any, to: str, own: Any, led: int) -> Any:
        now, group = assignment._clock.now(), assignment._keeper.group
        return slotmap.assign(slots, ranges, to, now, "a test", group, led)

    return [(SlotAssignment, "_changed", assigned)]


def keys_are_ignored() -> list[Patch]:
    """A slot is given away although it has keys."""

    async def empty(assignment: Any, own: Any) -> None:
        assignment._slots.hold(table(list(own)))

    return [(SlotAssignment, "_empty", empty)]


# -- moves with keys -------------------------------------------------------------------------------------------------
def records_are_not_sent() -> list[Patch]:
    """The new owner gets the copies of keys, and not what clients write after the copies."""
    return [(SlotMover, "_records", lambda mover, batch: None)]


def rest_is_not_acknowledged() -> list[Patch]:
    """The map is changed when the last records are sent, before the new owner has acknowledged them."""

    async def sent(mover: Any, peer: Any, export: Any, name: str, until: float) -> None:
        await mover._settled()
        mover._send(peer, export, name)
        peer.ask("TCLUSTER", "IMPORT", name, "END")

    return [(SlotMover, "_acknowledged", sent)]


def lost_reply_ends_a_move() -> list[Patch]:
    """A change of the map at the end of a move whose reply is lost counts as one that did not happen."""

    async def once(mover: Any, name: str) -> int:
        try:
            await mover._keeper.change(lambda slots: slotmap.finish_move(slots, name, mover._led, mover._clock.now()))
        except CoordinatorError as error:
            mover._release_slots()
            raise HoldEndedError(str(error)) from error
        return 0

    return [(SlotMover, "_finish", once)]


def moved_keys_stay() -> list[Patch]:
    """The old owner does not delete the keys of slots that have left."""

    async def nothing(cleaning: Any, slots: bytes, leads: Any) -> int:
        return 0

    return [(SlotCleaning, "clean", nothing)]


def deletion_is_not_confirmed() -> list[Patch]:
    """A move is complete before the in-sync set of the old owner has deleted the keys."""

    async def at_once(mover: Any, led: int) -> bool:
        return True

    return [(SlotMover, "_deletion_confirmed", at_once)]


@dataclass(frozen=True)
class SlotMutation:
    """As ``groupmutations.GroupMutation``."""

    patches: Callable[[], list[Patch]]
    case: SlotCase
    report: str
    seeds: int = 100

    def tried(self) -> Iterator[SlotCase]:
        for seed in (self.case.seed, *range(self.seeds)):
            yield replace(self.case, seed=seed)


def _case(seed: int, *faults: str, **options: Any) -> SlotCase:
    return SlotCase(seed, faults, **{"seconds": 4.0, **options})


_ALONE: dict[str, Any] = {"members": 1, "movers": 3}
_KEYS: dict[str, Any] = {**_ALONE, "with_keys": True}
SLOT_MUTATIONS: dict[str, SlotMutation] = {
    "slots do not wait": SlotMutation(slots_do_not_wait, _case(2, **_ALONE), "leaves group"),
    "old owner serves on": SlotMutation(old_owner_serves_on, _case(2, **_ALONE), "has two owners"),
    "new owner serves early": SlotMutation(new_owner_serves_early, _case(0, **_ALONE), "has two owners"),
    "leader serves at once": SlotMutation(
        leader_serves_at_once, _case(0, "failover", movers=6, keys=6, at_once=3, pauses=0.5), "has two owners"
    ),
    "old plan is carried out": SlotMutation(
        old_plan_is_carried_out,
        _case(1, "pause", "cut_off", members=1, groups=3, movers=6, pauses=0.5),
        "leaves group",
    ),
    "epoch is not written": SlotMutation(epoch_is_not_written, _case(1, "failover", "lost_replies"), "leaves group"),
    "lost reply is a failure": SlotMutation(
        lost_reply_is_a_failure, _case(1, "lost_replies", "lost_swap", **_ALONE), "has two owners"
    ),
    "emptiness is not confirmed": SlotMutation(
        emptiness_is_not_confirmed, _case(33, "slow", "one_way", "kill", pauses=0.01), "leaves group"
    ),
    "writes are not noted": SlotMutation(
        writes_are_not_noted, _case(1, keys=8, pauses=0.02, **_ALONE), "leaves group"
    ),
    "keys are ignored": SlotMutation(keys_are_ignored, _case(0, **_ALONE), "leaves group"),
    "records are not sent": SlotMutation(records_are_not_sent, _case(3, **_KEYS), "has another content"),
    "rest is not acknowledged": SlotMutation(
        rest_is_not_acknowledged, _case(0, "slow", **_KEYS), "has another content"
    ),
    "lost reply ends a move": SlotMutation(
        lost_reply_ends_a_move, _case(1, "lost_replies", "lost_swap", **_KEYS), "has two owners"
    ),
    "moved keys stay": SlotMutation(moved_keys_stay, _case(3, **_KEYS), "are there, and were deleted"),
    "deletion is not confirmed": SlotMutation(
        deletion_is_not_confirmed, _case(2, "slow", "one_way", "kill", movers=3, with_keys=True), "leaves group"
    ),
}
