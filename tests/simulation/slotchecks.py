"""What must be true of the slots of a simulated cluster at any time, seen from the outside.

Rule 1: at most one member serves a slot: it leads the owner, as far as it knows, and may release replies.
Rule 2: each change of the map has the next version. Only the leader of a group in the epoch of its record changes the
record or gives slots away. A record keeps its ID, and its epoch only increases.
Rule 3: when a slot leaves a group, no member of its in-sync set has a key of this slot; or it moves with its keys, and
each member of the in-sync set of the new owner has the same keys, with the same contents, as the old one.
Rule 4: when a move is complete, no member of the in-sync set of the old owner has the keys any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from commands.slots import slot_of
from coordinator import slotmap
from coordinator.slotmap import SlotMap
from respserver.group.document import decode
from tests.simulation.network import NetworkLoop

if TYPE_CHECKING:
    from tests.simulation.slotmembers import SlotMember

MAP: Final = "tidelog/clusters/sim/map"


class SlotChecks:
    """The checks. What is wrong becomes trouble of the loop."""

    def __init__(self, loop: NetworkLoop, members: Sequence[SlotMember], slots: Sequence[int]) -> None:
        """``slots``: those of the keys that clients use."""
        self._loop, self._members, self._slots = loop, members, slots
        self.moves = 0  # changes that gave one of these slots to another group
        self.with_keys = 0  # and of these, those with keys

    def _wrong(self, text: str) -> None:
        self._loop.trouble.append(text)

    async def watch(self) -> None:
        """Look again and again."""
        chance = self._loop.random
        while True:
            await asyncio.sleep(chance.choice((0.001, 0.01, 0.1)) * chance.random() + 0.0001)
            self.look()

    def look(self) -> None:
        """Check Rule 1 now."""
        for slot in self._slots:
            serving = [each for each in self._members if each.serves(slot)]
            if len(serving) > 1:
                self._wrong(f"slot {slot} has two owners: {', '.join(f'{e.name} of group {e.group}' for e in serving)}")

    # -- changes at the coordinator ------------------------------------------------------------------------------
    def changed(self, who: str, key: str, before: bytes | None, value: bytes | None) -> None:
        """A member has changed a key."""
        self.look()
        if key != MAP or value is None:
            return
        new = slotmap.decode(value)
        event = new.events[-1]
        self._loop.note(f"map: {who} sets version {new.version}: {event.what}")
        if before is None:
            return
        member = next(each for each in self._members if each.name == who)
        old = slotmap.decode(before)
        if wrong := forbidden(member.group, who, old, new):
            self._wrong(f"{who} changes the map: {wrong}")
        for slot in self._slots:
            if old.owner(slot) != new.owner(slot):
                self.moves += 1
                move = next((each for each in new.moves if each.moved == new.version), None)
                if move is None:
                    self._left(slot, old.owner(slot))
                else:
                    self.with_keys += bool(member.keys_of(slot))
                    self._moved(slot, [member, *self._in_sync(old.owner(slot))], new.owner(slot))

        for move in old.moves:
            if move.moved and new.move(move.id) is None:
                for slot in self._slots:
                    if any(first <= slot <= last for first, last in move.slots):
                        self._left(slot, move.source)

    def _in_sync(self, group: str) -> list[SlotMember]:
        """Return the members of an in-sync set that are loaded."""
        found = self._members[0].store.keys.get(f"tidelog/groups/{group}/state")
        names = decode(found.value).in_sync if found is not None else ()
        return [member for member in self._members if member.name in names and member.loaded]

    def _left(self, slot: int, group: str) -> None:
        """A slot leaves a group without keys (Rule 3)."""
        for member in self._in_sync(group):
            if keys := member.keys_of(slot):
                self._wrong(f"slot {slot} leaves group {group}, and {member.name} has the key {keys[0]!r}")

    def _moved(self, slot: int, sources: list[SlotMember], group: str) -> None:
        """A slot moves with its keys (Rule 3). ``sources``: the leader, and the in-sync set of the old owner."""
        source = next((each for each in sources if each.loaded), None)
        if source is None:  # the leader, and all others, have failed since the request was sent
            return
        wanted = source.contents(slot)
        for member in self._in_sync(group):
            found = member.contents(slot)
            if found != wanted:
                what = min({*found.items()} ^ {*wanted.items()})[0]
                self._wrong(f"slot {slot} moves to group {group}, and {member.name} has another content of {what!r}")

    def expired(self, lease: str) -> None:
        """The coordinator ends a lease. ``groupchecks`` checks this."""

    def stale_keys(self) -> None:
        """Check that no leader has keys in slots of other groups. Called at the end."""
        owners = slotmap.decode(self._members[0].store.keys[MAP].value)
        for member in self._members:
            for slot in self._slots:
                if member.leads and owners.owner(slot) != member.group and (keys := member.keys_of(slot)):
                    self._wrong(f"{member.name} has the key {keys[0]!r} of group {owners.owner(slot)}")


def forbidden(group: str, who: str, old: SlotMap, new: SlotMap) -> str:
    """Return why a member of a group must not replace a map by another one; "" if it may (Rule 2)."""
    if (new.version, new.cluster_id) != (old.version + 1, old.cluster_id):
        return f"version {new.version} follows version {old.version}"
    for name, record in new.groups.items():
        known = old.groups.get(name)
        if known == record:
            continue
        if name != group or record.leader != who:
            return f"it writes the record of group {name}"
        if known is not None and (known.id != record.id or known.epoch > record.epoch):
            return f"the record of epoch {record.epoch} follows that of epoch {known.epoch}"
    for first, last, owner in old.slots:
        if any(new.owner(slot) != owner for slot in {first, last}) or new.ranges(owner) != old.ranges(owner):
            gone = [s for s in range(first, last + 1) if new.owner(s) != owner]
            if gone and (owner != group or old.groups[owner].leader != who):
                return f"slot {gone[0]} leaves group {owner}, which {old.groups[owner].leader} leads"
    for move in {*old.moves} ^ {*new.moves}:
        leaders = {each.groups[move.source].leader for each in (old, new) if move.source in each.groups}
        if move.source != group or who not in leaders:
            return f"it changes a move of group {move.source}"
    return ""


def keys_by_slot(names: Sequence[bytes], slot: int) -> list[bytes]:
    """Return the names that have a slot."""
    return [name for name in names if slot_of(name) == slot]
