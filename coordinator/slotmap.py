"""The map of a cluster: which group of servers owns which hash slots. Pure functions, no I/O.

    tidelog/clusters/NAME/map    a JSON document; changed only by compare-and-set

    {"format": 1, "cluster_id": 40 hex digits, "version": 7,
     "groups": {"1": {"id": 40 hex digits, "epoch": 2, "leader": "1a", "seen": 6,
                      "members": {"1a": {"id": 40 hex digits, "host": "10.0.0.1", "port": 7001, "tls_port": 0,
                                         "hostname": ""}}}},
     "slots": [[0, 8191, "1"], [8192, 16383, "2"]],
     "moves": [{"id": 32 hex digits, "source": "1", "target": "2", "slots": [[0, 99]], "moved": 0}],
     "events": [{"time": ms since epoch, "version": 7, "what": "...", "why": "..."}]}

Rule 1: Each slot has one owner or none. The ranges are sorted and do not overlap. A gap is unassigned.
Rule 2: The version increases by one with each change.
Rule 3: Only the leader of a group changes the group's record and gives its slots away. A change of slots names the
        epoch of the leader that makes it, and is refused if the record has another one. A new leader writes its epoch
        before it serves any slot. A change that an earlier leader has sent then has no effect, even if it arrives
        later.
Rule 4: Slots with keys move in steps, each of which is a change of the map by the leader of the source. begin_move()
        adds the move, finish_move() gives the slots to the target, and end_move() removes the move. If it was not
        finished, it has no effect, and the target drops what it has received. Otherwise, the source has deleted the
        keys. A new leader of the source removes moves that are not finished, with its epoch. Nothing else changes
        these slots meanwhile.
Rule 5: The leaders and addresses are hints for redirections. They can be out of date, and the owners can't.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, NamedTuple

FORMAT: Final = 1
SLOTS: Final = 16384
MOST_EVENTS: Final = 100
MOST_GROUPS: Final = 1000  # in one cluster: the document then has about 0.5 MB, and etcd accepts 1.5 MB
REMEDY: Final = (
    "restore the key from a backup of the coordinator, or send TCLUSTER RESTORE to the member whose file 'map' has the"
    " highest version"
)
_ID: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)


class SlotMapError(Exception):
    """The map does not allow the change, or it or a range of slots is invalid. The text names the remedy."""


class DamagedMapError(SlotMapError):
    """The document is no map."""


class SlotRange(NamedTuple):
    """Consecutive slots."""

    first: int
    last: int  # included

    def __str__(self) -> str:
        """Return the range as in CLUSTER NODES."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class OwnedRange(NamedTuple):
    """Consecutive slots of one group."""

    first: int
    last: int  # included
    group: str


class MapMember(NamedTuple):
    """A server of a group as cluster clients reach it."""

    id: str  # its node ID, 40 hex digits
    host: str
    port: int  # 0: only with TLS
    tls_port: int = 0  # 0: only without TLS
    hostname: str = ""  # "": none


@dataclass(frozen=True, slots=True)
class MapGroup:
    """The record of a group, which its leader writes."""

    id: str  # of the shard, 40 hex digits
    epoch: int
    leader: str  # a name in ``members``
    seen: int  # the last version that gave slots to the group and that its leader uses; 0: none
    members: dict[str, MapMember]


class MapMove(NamedTuple):
    """Slots with keys that move from one group to another (Rule 4)."""

    id: str  # 32 hex digits
    source: str
    target: str
    slots: tuple[SlotRange, ...]
    moved: int  # the version that gave the slots to the target; 0: none yet


class MapEvent(NamedTuple):
    """A change of the map."""

    time: int  # ms since epoch, by the clock of the member that made the change
    version: int  # of the map after the change
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class SlotMap:
    """A version of the map. Each change returns a new object."""

    cluster_id: str  # 40 hex digits
    version: int  # from 1
    groups: dict[str, MapGroup]
    slots: tuple[OwnedRange, ...]  # sorted; adjacent ranges have different groups, or a gap between them
    events: tuple[MapEvent, ...] = ()  # the last ones, oldest first
    moves: tuple[MapMove, ...] = ()  # in progress; their slots do not overlap
    _firsts: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the ranges."""
        object.__setattr__(self, "_firsts", [each.first for each in self.slots])

    def owner(self, slot: int) -> str:
        """Return the group that owns a slot; "" if it is unassigned."""
        at = bisect_right(self._firsts, slot) - 1
        return self.slots[at].group if at >= 0 and slot <= self.slots[at].last else ""

    def ranges(self, group: str) -> list[SlotRange]:
        """Return the slots of a group."""
        return [SlotRange(each.first, each.last) for each in self.slots if each.group == group]

    def count(self, group: str) -> int:
        """Return the number of slots of a group."""
        return sum([each.last - each.first + 1 for each in self.slots if each.group == group])

    def unassigned(self) -> list[SlotRange]:
        """Return the slots without an owner."""
        return [SlotRange(each.first, each.last) for each in _runs(_expanded(self), 0) if not each.group]

    def move(self, name: str) -> MapMove | None:
        """Return the move with an ID; None if it has ended."""
        return next((each for each in self.moves if each.id == name), None)

    def document(self) -> dict[str, Any]:
        """Return the JSON document as an object."""
        return {
            "format": FORMAT, "cluster_id": self.cluster_id, "version": self.version,
            "groups": {
                name: {
                    "id": each.id, "epoch": each.epoch, "leader": each.leader, "seen": each.seen,
                    "members": {member: facts._asdict() for member, facts in each.members.items()},
                }
                for name, each in self.groups.items()
            },
            "slots": [list(each) for each in self.slots],
            "moves": [{**each._asdict(), "slots": [list(one) for one in each.slots]} for each in self.moves],
            "events": [each._asdict() for each in self.events],
        }  # fmt: skip

    def encode(self) -> bytes:
        """Return the JSON document."""
        return json.dumps(self.document()).encode()


# -- reading -------------------------------------------------------------------------------------------------------
def decode(document: bytes) -> SlotMap:
    """Parse the JSON document. Unknown fields, which are of another version, are ignored.

    Raises DamagedMapError, and SlotMapError for another format.
    """
    try:
        found: Any = json.loads(document)
        if found["format"] != FORMAT:
            raise SlotMapError(
                f"the map of the cluster has format {found['format']}, but this version of tidelog supports only format"
                f" {FORMAT}: upgrade this member"
            )
        groups = {name: _group(name, each) for name, each in found["groups"].items()}
        slots = tuple(OwnedRange(*each) for each in found["slots"])
        events = tuple(MapEvent(*_fields(each, time=int, version=int, what=str, why=str)) for each in found["events"])
        moves = tuple(_move(each, groups) for each in found.get("moves", ()))
        version, cluster_id = _fields(found, version=int, cluster_id=str)
        if not _ID.fullmatch(cluster_id) or version < 1:
            raise ValueError(f"cluster ID {cluster_id!r}, version {version}")
        _check_slots(slots, groups)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedMapError(f"the map of the cluster is damaged ({error!r}): {REMEDY}") from error
    return SlotMap(cluster_id, version, groups, slots, events, moves)


def _fields(found: dict[str, Any], **types: type) -> list[Any]:
    """Return fields of an object. Raises KeyError, TypeError."""
    for name, wanted in types.items():
        if type(found[name]) is not wanted:  # exactly: JSON's true is no number
            raise TypeError(f"{name} is {found[name]!r}")
    return [found[name] for name in types]


def _group(name: str, found: dict[str, Any]) -> MapGroup:
    """Return the record of a group. Raises AttributeError, KeyError, TypeError, ValueError."""
    identity, epoch, leader, seen = _fields(found, id=str, epoch=int, leader=str, seen=int)
    members = {
        member: MapMember(*_fields(each, id=str, host=str, port=int, tls_port=int, hostname=str))
        for member, each in found["members"].items()
    }
    if leader not in members or not _ID.fullmatch(identity):
        raise ValueError(f"group {name}: ID {identity!r}, leader {leader!r}")
    return MapGroup(identity, epoch, leader, seen, members)


def _move(found: dict[str, Any], groups: dict[str, MapGroup]) -> MapMove:
    """Return a move. Raises KeyError, TypeError, ValueError."""
    identity, source, target, moved = _fields(found, id=str, source=str, target=str, moved=int)
    slots = tuple(SlotRange(*each) for each in found["slots"])
    if not slots or any(not 0 <= each.first <= each.last < SLOTS for each in slots) or target not in groups:
        raise ValueError(f"move {identity!r} to group {target!r}")
    return MapMove(identity, source, target, slots, moved)


def _check_slots(slots: Sequence[OwnedRange], groups: dict[str, MapGroup]) -> None:
    """Raise DamagedMapError if ranges are invalid, unsorted, or overlap, or belong to an unknown group."""
    before = OwnedRange(-1, -1, "")
    for each in slots:
        first, last, group = each
        if type(first) is not int or type(last) is not int or not 0 <= first <= last < SLOTS:
            raise DamagedMapError(f"the map of the cluster has the invalid range {first}-{last}: {REMEDY}")
        if first <= before.last:
            raise DamagedMapError(
                f"in the map of the cluster, {before.first}-{before.last} (group {before.group}) and {first}-{last}"
                f" (group {group}) overlap or are not sorted: {REMEDY}"
            )
        if group not in groups:
            raise DamagedMapError(
                f"the map of the cluster gives {first}-{last} to the unknown group {group!r}: {REMEDY}"
            )
        before = each


def parse_ranges(words: Iterable[str]) -> list[SlotRange]:
    """Return the ranges that a user wrote as "5" or "0-4095", sorted and joined. Raises SlotMapError."""
    found = []
    for word in words:
        match = _RANGE.fullmatch(word)
        if match is None:
            raise SlotMapError(f"{word!r} is not a range of slots: write, for example, 0-4095")
        first = int(match[1])
        last = int(match[2] or match[1])
        if first > last or last >= SLOTS:
            raise SlotMapError(f"{word!r} is not a range of slots: they are numbered from 0 to {SLOTS - 1}")
        found.append(SlotRange(first, last))
    joined: list[SlotRange] = []
    for each in sorted(found):
        if joined and each.first <= joined[-1].last:
            raise SlotMapError(f"the ranges {joined[-1]} and {each} overlap: name each slot once")
        if joined and each.first == joined[-1].last + 1:
            joined[-1] = SlotRange(joined[-1].first, each.last)
        else:
            joined.append(each)
    if not joined:
        raise SlotMapError("no slots are named: write, for example, 0-4095")
    return joined


# -- changes -------------------------------------------------------------------------------------------------------
def _changed(before: SlotMap, now: int, what: str, why: str) -> SlotMap:
    """Count a change, and add its event."""
    version = before.version + 1
    return replace(before, version=version, events=(*before.events, MapEvent(now, version, what, why))[-MOST_EVENTS:])


def create(cluster_id: str, name: str, group: MapGroup, now: int) -> SlotMap:
    """Return the map of a new cluster with one group, which owns all slots."""
    empty = SlotMap(cluster_id, 0, {name: group}, (OwnedRange(0, SLOTS - 1, name),))
    return _changed(empty, now, f"group {name} owns all slots", "the cluster was created")


def put_group(before: SlotMap, name: str, group: MapGroup, now: int) -> SlotMap:
    """Add a group, without slots, or update its record. Returns the same map if it has this record.

    Raises SlotMapError if another group has the name, or the record is of a later leader.
    """
    known = before.groups.get(name)
    if known == group:
        return before
    if known is None:
        if len(before.groups) >= MOST_GROUPS:
            raise SlotMapError(f"the cluster has {MOST_GROUPS} groups, the largest number: use the existing groups")
        what, why = f"group {name} joined", "its leader started"
    elif known.id != group.id:
        raise SlotMapError(
            f"the cluster has another group with the name {name} (ID {known.id}, this one has {group.id}): set group to"
            " another name, or cluster-name to that of another cluster"
        )
    elif known.epoch > group.epoch:
        raise SlotMapError(f"group {name} is led in epoch {known.epoch}, and this member led in epoch {group.epoch}")
    elif known.epoch < group.epoch:
        what, why = f"group {name}: {group.leader} leads in epoch {group.epoch}", "a failover"
    elif known.seen < group.seen:
        what, why = f"group {name} serves its slots of version {group.seen}", "its leader uses this version"
    else:
        what, why = f"group {name}: {', '.join(sorted(group.members))}", "a member or its address changed"
    moves = before.moves
    if known is not None and known.epoch < group.epoch:
        moves = tuple(each for each in moves if each.source != name or each.moved)
    return _changed(replace(before, groups={**before.groups, name: group}, moves=moves), now, what, why)


def assign(
    before: SlotMap, ranges: Sequence[SlotRange], to: str, now: int, why: str, by: str = "", epoch: int = 0
) -> SlotMap:
    """Assign slots to a group; "": to none. They are unassigned, or belong to the group ``by``, which is led in
    ``epoch``, or belong to the target already.

    Raises SlotMapError (Rule 3).
    """
    if to and to not in before.groups:
        raise SlotMapError(f"the cluster has no group {to}: it has {', '.join(sorted(before.groups))}")
    owners = owners_of(before, ranges)
    for owner, owned in owners.items():
        if owner not in ("", by, to):
            raise SlotMapError(f"{said(owned)} {belong(owned)} to group {owner}: only its leader can assign them")
    if by and by in owners and before.groups[by].epoch != epoch:
        raise SlotMapError(f"group {by} is led in epoch {before.groups[by].epoch}, and not in epoch {epoch}")
    if set(owners) <= {to}:
        return before
    _check_moves(before, ranges)
    slots = _given(before, ranges, to)
    what = f"{said(ranges)} {belong(ranges)} to {f'group {to}' if to else 'no group'}"
    return _changed(replace(before, slots=slots), now, what, why)


def _given(before: SlotMap, ranges: Sequence[SlotRange], to: str) -> tuple[OwnedRange, ...]:
    """Return all slots after some were given to a group; "": to none."""
    each_slot = _expanded(before)
    for first, last in ranges:
        each_slot[first : last + 1] = [to] * (last - first + 1)
    return tuple(each for each in _runs(each_slot, 0) if each.group)


# -- moves of slots with keys (Rule 4) --------------------------------------------------------------------------------
def _check_moves(before: SlotMap, ranges: Sequence[SlotRange]) -> None:
    """Raise SlotMapError if some of these slots are moving."""
    for move in before.moves:
        found = [one for one in move.slots if any(one.first <= last and first <= one.last for first, last in ranges)]
        if found:
            state = "are still deleted there" if move.moved else "TCLUSTER ABORT ends the move"
            raise SlotMapError(
                f"{said(found)} {belong(found)} to a move from group {move.source} to group {move.target}: wait for its"
                f" end ({'their keys ' if move.moved else ''}{state})"
            )


def begin_move(
    before: SlotMap, name: str, ranges: Sequence[SlotRange], source: str, epoch: int, to: str, now: int
) -> SlotMap:  # fmt: skip
    """Add a move of slots of the group ``source``, which is led in ``epoch``. Raises SlotMapError."""
    if to not in before.groups:
        raise SlotMapError(f"the cluster has no group {to}: it has {', '.join(sorted(before.groups))}")
    for owner, owned in owners_of(before, ranges).items():
        if owner != source:
            whose = f"group {owner}" if owner else "no group"
            raise SlotMapError(f"{said(owned)} {belong(owned)} to {whose}: only its leader can move them")
    _check_epoch(before, source, epoch)
    _check_moves(before, ranges)
    move = MapMove(name, source, to, tuple(ranges), 0)
    what = f"{said(ranges)} {'moves' if _is_one(ranges) else 'move'} from group {source} to group {to}"
    return _changed(replace(before, moves=(*before.moves, move)), now, what, "TCLUSTER MOVE")


def finish_move(before: SlotMap, name: str, epoch: int, now: int) -> SlotMap:
    """Give the slots of a move to its target. Raises SlotMapError if the move has ended."""
    move = before.move(name)
    if move is None:
        raise SlotMapError("the move has ended: a new leader has begun to lead, or it was aborted")
    if move.moved:
        return before
    _check_epoch(before, move.source, epoch)
    slots = _given(before, move.slots, move.target)
    done = move._replace(moved=before.version + 1)
    moves = tuple(done if each is move else each for each in before.moves)
    what = f"{said(move.slots)} {belong(move.slots)} to group {move.target}"
    return _changed(replace(before, slots=slots, moves=moves), now, what, "its keys were copied")


def end_move(before: SlotMap, name: str, epoch: int, now: int, why: str) -> SlotMap:
    """Remove a move: it is aborted, or the source has deleted the keys. Raises SlotMapError if it is not possible."""
    move = before.move(name)
    if move is None:
        return before
    _check_epoch(before, move.source, epoch)
    if move.moved and before.groups[move.target].seen < move.moved:
        raise SlotMapError(f"group {move.target} does not serve the slots yet")
    moves = tuple(each for each in before.moves if each is not move)
    what = f"the move of {said(move.slots)} to group {move.target} {'is complete' if move.moved else 'was aborted'}"
    return _changed(replace(before, moves=moves), now, what, why)


def _check_epoch(before: SlotMap, group: str, epoch: int) -> None:
    if before.groups[group].epoch != epoch:
        raise SlotMapError(f"group {group} is led in epoch {before.groups[group].epoch}, and not in epoch {epoch}")


def remove_group(before: SlotMap, name: str, now: int) -> SlotMap:
    """Remove a group that owns no slots. Raises SlotMapError."""
    if name not in before.groups:
        raise SlotMapError(f"the cluster has no group {name}: it has {', '.join(sorted(before.groups))}")
    owned = before.ranges(name)
    if owned:
        raise SlotMapError(
            f"group {name} owns {said(owned)}: move them to another group first (TCLUSTER MOVE ... TO group)"
        )
    if any(each.target == name for each in before.moves):
        raise SlotMapError(f"slots move to group {name}: wait for the end of the move, or abort it (TCLUSTER ABORT)")
    groups = {each: record for each, record in before.groups.items() if each != name}
    moves = tuple(each for each in before.moves if each.source != name)
    return _changed(replace(before, groups=groups, moves=moves), now, f"group {name} was removed", "TCLUSTER REMOVE")


def owners_of(before: SlotMap, ranges: Sequence[SlotRange]) -> dict[str, list[SlotRange]]:
    """Return the slots of some ranges by their owners; by "": those that are unassigned."""
    each_slot, found = _expanded(before), dict[str, list[SlotRange]]()
    for first, last in ranges:
        for part in _runs(each_slot[first : last + 1], first):
            found.setdefault(part.group, []).append(SlotRange(part.first, part.last))
    return found


def _expanded(before: SlotMap) -> list[str]:
    """Return the owner of each slot. A loop over pairs of ranges could take seconds if both have thousands."""
    found = [""] * SLOTS
    for first, last, group in before.slots:
        found[first : last + 1] = [group] * (last - first + 1)
    return found


def _runs(owners: Iterable[str], first: int) -> list[OwnedRange]:
    """Return the ranges of consecutive slots with the same owner, the first of which is ``first``."""
    found = []
    for group, some in groupby(owners):
        following = first + len(list(some))
        found.append(OwnedRange(first, following - 1, group))
        first = following
    return found


def said(ranges: Sequence[SlotRange]) -> str:
    """Return slots as an error or an event names them: "slots 0-5 9", "slot 3", and at most ten ranges."""
    word = "slot" if _is_one(ranges) else "slots"
    more = f" and {len(ranges) - 10} more ranges" if len(ranges) > 10 else ""
    return f"{word} {' '.join(map(str, ranges[:10]))}{more}"


def belong(ranges: Sequence[SlotRange]) -> str:
    """Return the verb after said()."""
    return "belongs" if _is_one(ranges) else "belong"


def _is_one(ranges: Sequence[SlotRange]) -> bool:
    return len(ranges) == 1 and ranges[0].first == ranges[0].last
