"""What must be true of a server group at any time, seen from the outside: looks into the members and the coordinator.

Rule 1: every member of the in-sync set has every acknowledged entry, and receives no copy.
Rule 2: a member that may release replies is the only one: when a leader is named, no other one has a valid lease. No
member considers a lease valid that has ended at the coordinator. A leader that hands over is silent, and its successor
has its whole log.
Rule 3: a candidate does not lead if it could know that another one has a longer log.
Rule 4: a member that deletes the end of its log deletes nothing that was acknowledged.
Rule 5: a replica whose log is as long as its leader's has the same contents.
Rule 6: only the leader adds members to the in-sync set, or appoints its successor. Anyone else can only make itself the
leader: of a new epoch, as a member of the set, and without the old leader in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from respserver.group.document import ServerGroupState, decode
from respserver.roles.link import LeaderLink
from storage.model.ids import parse_id
from tests.simulation.network import NetworkLoop
from tests.simulation.world import Patch, contents_differ

if TYPE_CHECKING:
    from tests.simulation.groupmembers import GroupMember

Fact = tuple[bytes, bytes]  # the ID and the number of an entry
TOP: Final = "tidelog/groups/tide"  # of the keys
STATE: Final = f"{TOP}/state"
LEADER: Final = f"{TOP}/leader"
PATIENCE: Final = 0.09  # seconds for which a candidate waits at least for a better one


class GroupRecord:
    """What clients were told of the stream of the writers."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}  # number -> entry ID
        self.facts: set[Fact] = set()  # entries that were acknowledged, or that a client has seen
        self.newest = 0  # the highest ID that was acknowledged
        self.numbers: dict[int, int] = {}  # entry ID -> number
        self._entries: dict[int, int] = {}  # the reverse

    def tell(self, number: int, entry: bytes) -> None:
        """An entry is acknowledged. Raises AssertionError."""
        self.show({(entry, b"%d" % number)})
        self.acknowledged[number] = self._entries[number]
        self.newest = max(self.newest, self._entries[number])

    def show(self, facts: set[Fact]) -> None:
        """A client sees entries. Raises AssertionError if an ID has another number than before, or the reverse."""
        for entry, value in facts - self.facts:
            found, number = parse_id(entry), int(value)
            known = self.numbers.setdefault(found, number)
            assert known == number, f"the entries {known} and {number} have the same ID"
            assert self._entries.setdefault(number, found) == found, f"the ID of entry {number} changes"
        self.facts |= facts


class GroupChecks:
    """The checks. What is wrong becomes trouble of the loop."""

    def __init__(self, loop: NetworkLoop, members: Sequence[GroupMember], record: GroupRecord) -> None:
        self._loop, self._members, self._record = loop, members, record
        self.compared = 0
        self.deleted = 0  # how often a member has deleted the end of its log
        self._published: dict[str, float] = {}  # by member: when it published the end of its log

    def patches(self) -> list[Patch]:
        """Return what lets the checks see how members delete the end of their logs, and begin to receive copies."""
        rewound, incoming, checks = LeaderLink.rewound, LeaderLink.incoming, self

        async def seen(link: Any, offset: int) -> None:
            member = checks._member(link)
            before = checks._held(member)
            await rewound(link, offset)
            checks.deleted += 1
            lost = before - checks._held(member)
            if lost:
                checks._wrong(f"{member.name} deletes entries that were acknowledged: {sorted(lost)[:5]}")

        def copying(link: Any, own: Any) -> Any:
            member = checks._member(link)
            if member.name in decode(member.store.keys[STATE].value).in_sync:
                checks._wrong(f"{member.name} is in the in-sync set, and receives a copy")
            return incoming(link, own)

        return [(LeaderLink, "rewound", seen), (LeaderLink, "incoming", copying)]

    def _member(self, link: Any) -> GroupMember:
        return next(each for each in self._members if each.server is not None and each.server.link is link)

    def _wrong(self, text: str) -> None:
        self._loop.trouble.append(text)

    def _held(self, member: GroupMember) -> set[int]:
        return {number for number, entry in self._record.acknowledged.items() if member.has_entry(number, entry)}

    # -- at any time ---------------------------------------------------------------------------------------------
    async def watch(self) -> None:
        """Look again and again (Rules 1 and 5)."""
        chance = self._loop.random
        while True:
            await asyncio.sleep(chance.choice((0.01, 0.1, 0.3)) * chance.random() + 0.001)
            self.look()
            if chance.random() < 0.15:
                count, differing = contents_differ([each for each in self._members if not each.stopped])
                self.compared += count
                if differing:
                    self._wrong(differing)

    def look(self) -> None:
        """Check Rule 1 now."""
        store = self._members[0].store
        if STATE not in store.keys:
            return
        newest = self._record.newest
        for member in self._members:
            if member.name not in decode(store.keys[STATE].value).in_sync or not member.loaded:
                continue
            if newest and not member.has_entry(self._record.numbers[newest], newest):
                self._wrong(f"{member.name} is in the in-sync set, and lacks the entry {self._record.numbers[newest]}")

    # -- changes at the coordinator ------------------------------------------------------------------------------
    def changed(self, who: str, key: str, before: bytes | None, value: bytes | None) -> None:
        """A member has changed a key."""
        if key == STATE and value is not None:
            state = decode(value)
            self._loop.note(f"state: {who} sets epoch {state.epoch}, leader {state.leader}, {state.in_sync}")
            if before is not None:
                old = decode(before)
                if wrong := forbidden(who, old, state):
                    self._wrong(f"{who} changes the state of the group: {wrong}")
                elif state.epoch > old.epoch and who == old.leader != state.leader:
                    self._handed_over(who, state.leader)
        elif key == LEADER and value is not None:
            self._loop.note(f"leader: {who}")
            self._leads(who, json.loads(value)["epoch"])
        elif key.startswith(f"{TOP}/members/") and value is not None:
            vacant = json.loads(value)["vacant"]
            if vacant and (before is None or json.loads(before)["vacant"] != vacant):
                self._published[who] = self._loop.virtual

    def expired(self, lease: str) -> None:
        """The coordinator ends a lease that was not renewed."""
        for member in self._members:
            if member.trusts(lease):
                self._wrong(f"the lease of {member.name} has ended, and {member.name} relies on it")

    def _handed_over(self, who: str, to: str) -> None:
        by_name = {each.name: each for each in self._members}
        old, new = by_name[who].server, by_name[to].server
        if old is not None and old.membership is not None and old.membership.in_sync.leading:
            self._wrong(f"{who} hands over to {to}, and is not silent")
        if old is not None and new is not None and by_name[to].loaded and new.data.disk.offset < old.data.disk.offset:
            self._wrong(f"{who} hands over to {to}, which lacks a part of its log")

    def _leads(self, who: str, epoch: int) -> None:
        for member in self._members:
            if member.name != who and member.may_release():
                self._wrong(f"{who} takes the lead, and {member.name} may still release replies")
        keys = self._members[0].store.keys
        if epoch != decode(keys[STATE].value).epoch + 1:
            return  # the state has appointed it
        mine = json.loads(keys[f"{TOP}/members/{who}"].value)
        since = self._published.get(who, 0.0)
        for member in self._members:
            found = keys.get(f"{TOP}/members/{member.name}")
            if found is None or member.name not in decode(keys[STATE].value).in_sync:
                continue
            its = json.loads(found.value)
            better = its["vacant"] == mine["vacant"] and (-its["end"], member.name) < (-mine["end"], who)
            if better and self._published[member.name] < since and self._loop.virtual < since + PATIENCE:
                self._wrong(f"{who} takes the lead with a log of {mine['end']}, and {member.name} has {its['end']}")


def forbidden(who: str, old: ServerGroupState, new: ServerGroupState) -> str:
    """Return why a member must not replace a state by another one; "" if it may (Rule 6)."""
    added = set(new.in_sync) - set(old.in_sync)
    if new.epoch == old.epoch:
        if new.leader != old.leader:
            return f"{new.leader} leads in epoch {new.epoch}, in which {old.leader} led"
        return f"it adds {added}, and does not lead" if added and who != old.leader else ""
    if new.epoch != old.epoch + 1:
        return f"epoch {new.epoch} follows epoch {old.epoch}"
    if new.leader not in old.in_sync or added:
        return f"{new.leader} leads with {new.in_sync}, and the set was {old.in_sync}"
    if who != old.leader and (who != new.leader or old.leader in new.in_sync):
        return f"{new.leader} leads with {new.in_sync}, and {old.leader} did not consent"
    return ""
