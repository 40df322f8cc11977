"""The state of a server group at the coordinator, and its changes: pure functions, no I/O.

    tidelog/groups/NAME/state            a JSON document, see ``ServerGroupState``; changed only by compare-and-set
    tidelog/groups/NAME/leader           the leader and its epoch; deleted when the leader's lease expires
    tidelog/groups/NAME/members/MEMBER   the process that uses this name; deleted when the member's lease expires

Rule 1: All members of the in-sync set have all data that any reply has acknowledged or shown. The set is never empty.
Rule 2: Only a member of the in-sync set becomes the leader, and each new leader has a higher epoch. A member that lost
        its lease is no longer in the set when another one leads.
Rule 3: Each directory has an ID. A member that returns with a different directory has lost its data. It leaves the
        in-sync set before it does anything else.
Rule 4: The strictest setting of all members counts. A failover therefore never weakens the guarantee of the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Final, TypeVar

FORMAT: Final = 1
MOST_EVENTS: Final = 100
REMEDY: Final = (
    "stop all members, delete the keys of the group at the coordinator and the file 'group' in each directory, and"
    " start the member with the most data first"
)
DIFFERENT: Final = (
    "the settings of the members differ ({}): the strictest one counts, also after a failover. Use the same"
    " replica-acks and min-in-sync for all members"
)
_ID: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)


class GroupStateError(Exception):
    """The state does not allow the change, or can't be read. The text names the remedy."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member as the group knows it."""

    address: str  # host:port at which the other members reach it
    id: str  # the ID of its data directory, 40 hex digits
    version: str  # of tidelog
    min_in_sync: int = 0  # its setting; 0: replica-acks is 0

    def settings(self) -> str:
        """Return the settings that determine the guarantee of the group."""
        return f"replica-acks insync, min-in-sync {self.min_in_sync}" if self.min_in_sync else "replica-acks 0"


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """A change of the group."""

    time: int  # ms since epoch, by the clock of the member that made the change
    epoch: int
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ServerGroupState:
    """The state of a group. Each change returns a new object."""

    group_id: str  # 40 hex digits
    epoch: int  # from 1; increases with each new leader
    leader: str
    in_sync: tuple[str, ...]  # names, sorted
    members: dict[str, MemberRecord]
    events: tuple[GroupEvent, ...] = ()  # the last ones, oldest first

    @property
    def least(self) -> int:
        """The members that must be in sync for writes: the largest min-in-sync of all members (Rule 4); 0: replies do
        not wait, because replica-acks is 0 at all members."""
        return max((each.min_in_sync for each in self.members.values()), default=0)

    def differences(self, setting: Callable[[MemberRecord], str]) -> str:
        """Return the values of a setting with the members that have them; "" if all members have the same."""
        found: dict[str, list[str]] = {}
        for name in sorted(self.members):
            found.setdefault(setting(self.members[name]), []).append(name)
        if len(found) == 1:
            return ""
        return "; ".join(f"{value}: {', '.join(names)}" for value, names in sorted(found.items()))

    def encode(self) -> bytes:
        """Return the JSON document."""
        return json.dumps({
            "format": FORMAT, "group_id": self.group_id, "epoch": self.epoch, "leader": self.leader,
            "in_sync": list(self.in_sync),
            "members": {
                name: {
                    "address": each.address, "id": each.id, "version": each.version, "min_in_sync": each.min_in_sync,
                }
                for name, each in self.members.items()
            },
            "events": [
                {"time": each.time, "epoch": each.epoch, "what": each.what, "why": each.why} for each in self.events
            ],
        }).encode()  # fmt: skip


_Part = TypeVar("_Part", MemberRecord, GroupEvent)


def _part(kind: type[_Part], found: dict[str, Any]) -> _Part:
    """Return a member or an event. Ignores unknown fields: they are of another version, whose members may run at the
    same time during an upgrade. Raises AttributeError, KeyError, TypeError."""
    values: dict[str, Any] = {}
    for field in fields(kind):
        value = found.get(field.name, field.default)
        if value is MISSING:
            raise KeyError(field.name)
        if type(value).__name__ != field.type:  # exactly: JSON's true is no number
            raise TypeError(f"{field.name} is {value!r}")
        values[field.name] = value
    return kind(**values)


def decode(document: bytes) -> ServerGroupState:
    """Parse the JSON document. Fields of another version are ignored. Raises GroupStateError."""
    try:
        found: Any = json.loads(document)
        if found["format"] != FORMAT:
            raise GroupStateError(
                f"the state of the group at the coordinator has format {found['format']}, but this version of tidelog"
                f" supports only format {FORMAT}: upgrade this member"
            )
        state = ServerGroupState(
            found["group_id"], found["epoch"], found["leader"], tuple(found["in_sync"]),
            {name: _part(MemberRecord, each) for name, each in found["members"].items()},
            tuple(_part(GroupEvent, each) for each in found["events"]),
        )  # fmt: skip
        if not (_ID.fullmatch(state.group_id) and isinstance(state.epoch, int) and state.in_sync):
            raise ValueError(state.group_id)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GroupStateError(
            f"the state of the group at the coordinator is damaged ({error!r}). A copy of it may be out of date and"
            f" lose acknowledged writes: {REMEDY}"
        ) from error
    return state


def epoch_of(replid: str) -> int:
    """Return the epoch at the end of a replication ID; 0 if it is a random ID, whose end is larger."""
    return int(replid[-16:], 16) if replid[-16:-8] == "0" * 8 else 0


def _changed(state: ServerGroupState, now: int, what: str, why: str) -> ServerGroupState:
    """Add an event."""
    events = (*state.events, GroupEvent(now, state.epoch, what, why))[-MOST_EVENTS:]
    return replace(state, events=events)


def create(group_id: str, name: str, member: MemberRecord, now: int, epoch: int = 1) -> ServerGroupState:
    """Return the state of a new group with one member, which leads it. ``epoch``: higher than all that it has seen."""
    state = ServerGroupState(group_id, epoch, name, (name,), {name: member})
    return _changed(state, now, f"{name} leads", "the group was created")


def join(state: ServerGroupState, name: str, member: MemberRecord, now: int) -> ServerGroupState:
    """Add or update a member. Raises GroupStateError if its new directory replaces the only one with all data."""
    known = state.members.get(name)
    if known == member:
        return state
    what, why = f"{name} joined", "it started"
    in_sync = state.in_sync
    if known is not None:
        what, why = f"{name} is at {member.address}, version {member.version}", "it started"
        if known == replace(member, min_in_sync=known.min_in_sync):
            what, why = f"{name} has {member.settings()}", "its setting was changed"
        if known.id != member.id:
            what, why = f"{name} joined again", "it has a new data directory"
            in_sync = tuple(each for each in in_sync if each != name)
            if not in_sync:
                raise GroupStateError(
                    f"member {name} has a new data directory, but only its previous one has all acknowledged data:"
                    f" start it with that directory (ID {known.id}), or start a new group under another name"
                )
    return _changed(replace(state, members={**state.members, name: member}, in_sync=in_sync), now, what, why)


def elect(state: ServerGroupState, name: str, now: int, why: str) -> ServerGroupState:
    """Make a member of the in-sync set the leader of a new epoch; the previous leader leaves the set.

    Raises GroupStateError if it is not in the set.
    """
    if name not in state.in_sync:
        raise GroupStateError(f"{name} is not in the in-sync set")
    in_sync = tuple(each for each in state.in_sync if each == name or each != state.leader)
    elected = replace(state, epoch=state.epoch + 1, leader=name, in_sync=in_sync)
    return _changed(elected, now, f"{name} leads", why)


def hand_over(state: ServerGroupState, to: str, now: int, why: str, stays: bool = True) -> ServerGroupState:
    """Make another member of the in-sync set the leader, with the consent of the current one.

    ``stays``: the current one stays in the set. Raises GroupStateError if ``to`` is not in the set.
    """
    if to not in state.in_sync:
        raise GroupStateError(f"{to} is not in the in-sync set")
    in_sync = tuple(name for name in state.in_sync if stays or name == to or name != state.leader)
    return _changed(replace(state, epoch=state.epoch + 1, leader=to, in_sync=in_sync), now, f"{to} leads", why)


def set_in_sync(state: ServerGroupState, names: Iterable[str], now: int, why: str) -> ServerGroupState:
    """Replace the in-sync set, as the leader requests. Names of non-members are ignored. The leader stays in the set.

    Nothing changes if the leader is not in the set: it has lost its data, and another member will be elected.
    """
    if state.leader not in state.in_sync:
        return state
    wanted = tuple(sorted({state.leader, *(name for name in names if name in state.members)}))
    if wanted == state.in_sync:
        return state
    added = [f"+{name}" for name in wanted if name not in state.in_sync]
    removed = [f"-{name}" for name in state.in_sync if name not in wanted]
    return _changed(replace(state, in_sync=wanted), now, f"in sync: {' '.join(added + removed)}", why)


def confirm_in_sync(state: ServerGroupState, now: int) -> ServerGroupState:
    """Add an event only: a change of the in-sync set that was sent before, and has not happened, can't happen then."""
    return _changed(state, now, f"in sync: {' '.join(state.in_sync)}", "the outcome of a change was unknown")


def withdraw(state: ServerGroupState, name: str, now: int, why: str) -> ServerGroupState:
    """Remove a member from the in-sync set at its own request, unless it is the only one in the set."""
    rest = tuple(each for each in state.in_sync if each != name)
    if not rest or len(rest) == len(state.in_sync):
        return state
    return _changed(replace(state, in_sync=rest), now, f"in sync: -{name}", why)


def remove(state: ServerGroupState, name: str, now: int, vacant: int = 0) -> ServerGroupState:
    """Remove a member from the group. ``vacant``: the epoch whose leader, which can be removed, no longer leads; 0:
    unknown. Raises GroupStateError."""
    if name not in state.members:
        raise GroupStateError(f"the group has no member {name}: it has {', '.join(sorted(state.members))}")
    if name == state.leader and vacant != state.epoch:
        raise GroupStateError(f"{name} is the leader: hand over first (tidelog group failover)")
    leader = state.leader if name != state.leader else ""  # a new member with this name must not seem to be appointed
    members = {each: record for each, record in state.members.items() if each != name}
    in_sync = tuple(each for each in state.in_sync if each != name)
    if not in_sync:
        raise GroupStateError(
            f"{name} is the only member in sync, so only it has all acknowledged data: start it, or start a new group"
            " under another name"
        )
    return _changed(
        replace(state, leader=leader, members=members, in_sync=in_sync), now, f"{name} was removed",
        "tidelog group remove",
    )
