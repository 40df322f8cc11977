"""Distributes the partitions of a topic evenly over the groups of a cluster, by assigning empty slots.

    balance(name, range(16))              a new topic: all slots are empty
    balance(name, range(16), fixed=8)     a topic that grows from 8 partitions: these stay where they are

Rule 1: only empty slots are assigned, which copies nothing. The server decides whether a slot is empty. A slot with
        keys stays where it is (``tidelog topics balance --move`` moves it with its keys).
Rule 2: groups that own no slots get none: they have just joined, or are to be removed.
Rule 3: a topic works wherever its partitions are. Errors are therefore reported in the log, and raised by nothing here.
Rule 4: the owner's leader assigns slots. A call with a key of the slot precedes each request, so that it is sent there.
Rule 5: most topics need no change. CLUSTER SLOTS, which every user of a cluster may call, shows that first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import redis

from tidelog.client.steps import LOST, Steps
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import ReplyError
from tidelog.transport.slots import MemberAddress, SlotOwners, slot_of

ROUNDS: Final = 4  # the slots that were refused in one round are replaced by others in the next one
NOT_EMPTY: Final = "only empty slots can be assigned"  # a part of the server's error
OTHER_OWNER: Final = "only its leader can assign"  # another one: the request was sent to the wrong member
_log: Final = logging.getLogger("tidelog.topics")


@dataclass(frozen=True)
class PartitionPlace:
    """Where a cluster has a partition, as its map says."""

    slot: int
    group: str  # "-" if the slot is unassigned
    leader: str  # its address; "-" if it is unknown
    busy: bool = False  # whether a move of the slot is in progress


@dataclass(frozen=True)
class SlotTransfer:
    """Slots of partitions that one group gives to another one. ``source``: "-" if they are unassigned."""

    slots: tuple[int, ...]
    source: str
    target: str


def places(name: str, partitions: int) -> Steps[list[PartitionPlace]]:
    """Return the place of each partition; none if the servers are not a cluster with a coordinator.

    Raises ReplyError if the user lacks the permission for TCLUSTER MAP.
    """
    found = yield from _map()
    return located(found, [f"{name}:{at}" for at in range(partitions)]) if found is not None else []


def transfers(name: str, partitions: int) -> Steps[list[SlotTransfer]]:
    """Return the transfers after which the partitions are distributed evenly, whether their slots are empty or not.

    Raises ReplyError as ``places`` does.
    """
    found = yield from _map()
    if found is None:
        return []
    return planned(located(found, [f"{name}:{at}" for at in range(partitions)]), groups_with_slots(found))


def _map() -> Steps[dict[str, Any] | None]:
    (mode,) = yield [Call(("HELLO",), _mode)]
    if mode != "cluster":
        return None
    (found,) = yield [Call(("TCLUSTER", "MAP"), _decoded)]
    if isinstance(found, Exception):
        if "no coordinator" in str(found):
            return None
        raise found
    known: dict[str, Any] | None = found
    return known


def _even(slots: Sequence[int]) -> Steps[bool]:
    """Return whether the slots are distributed evenly, or there is no cluster (Rule 5)."""
    (mode,) = yield [Call(("HELLO",), _mode)]
    if mode != "cluster":
        return True
    (owners,) = yield [Call(("CLUSTER", "SLOTS"), lambda reply: SlotOwners(reply, MemberAddress("", 0)))]
    if isinstance(owners, Exception):
        return False
    counts = Counter(owners.owner(slot) for slot in slots)
    numbers = [counts[leader] for leader in owners.leaders]
    return None not in counts and max(numbers, default=0) - min(numbers, default=0) <= 1


def _mode(reply: Any) -> str:
    pairs = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    texts = {_text(name): value for name, value in pairs.items()}
    return _text(texts.get("mode", ""))


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _decoded(reply: Any) -> Any:
    return None if reply is None else msgspec.json.decode(reply)


def located(found: Mapping[str, Any], keys: Iterable[str]) -> list[PartitionPlace]:
    """Return the place of each key, as the map has it."""
    leaders = {}
    for group, record in found["groups"].items():
        member = record["members"].get(record["leader"])
        leaders[group] = str(MemberAddress(member["host"], member["port"])) if member is not None else "-"
    busy = {slot for move in found.get("moves", ()) for first, last in move["slots"] for slot in range(first, last + 1)}
    places = []
    for slot in map(slot_of, keys):
        group = next((group for first, last, group in found["slots"] if first <= slot <= last), "-")
        places.append(PartitionPlace(slot, group, leaders.get(group, "-"), slot in busy))
    return places


def groups_with_slots(found: Mapping[str, Any]) -> list[str]:
    """Return the groups of a map that own slots and have a leader, in the order of their names."""
    owning = {group for _, _, group in found["slots"]}
    return [
        name
        for name, record in sorted(found["groups"].items(), key=lambda item: (len(item[0]), item[0]))
        if name in owning and record["leader"] in record["members"]
    ]


def planned(places: Sequence[PartitionPlace], groups: Sequence[str], fixed: Iterable[int] = ()) -> list[SlotTransfer]:
    """Return the transfers after which the groups have equally many partitions, as far as possible.

    fixed: slots that stay. As few partitions as possible change their group. Partitions with the same slot stay
    together.
    """
    if not groups:
        return []
    units = _units(places)
    counts = Counter(place.group for place in places)
    share, more = divmod(len(places), len(groups))
    largest = sorted(groups, key=lambda group: -counts[group])[:more]
    free = {group: share + (group in largest) for group in groups}  # partitions that the group can still get
    staying = set(fixed) | {place.slot for place in places if place.busy}
    taken: dict[tuple[str, str], list[int]] = {}
    left: list[int] = []

    def leave(slot: int) -> None:
        current = places[units[slot][0]].group
        target = max(free, key=lambda group: (free[group], group == current))
        free[target] -= len(units[slot])
        if target != current:
            taken.setdefault((current, target), []).append(slot)

    # the slots that stay first, and then those with several partitions
    for slot in sorted(units, key=lambda slot: (slot not in staying, -len(units[slot]), units[slot][0])):
        current, weight = places[units[slot][0]].group, len(units[slot])
        if slot in staying or free.get(current, 0) >= weight:
            if current in free:
                free[current] -= weight
        elif weight > 1:
            leave(slot)
        else:
            left.append(slot)
    for slot in left:
        leave(slot)
    return [SlotTransfer(tuple(sorted(slots)), source, target) for (source, target), slots in taken.items()]


def _units(places: Sequence[PartitionPlace]) -> dict[int, list[int]]:
    """Return the partitions of each slot."""
    found: dict[int, list[int]] = {}
    for at, place in enumerate(places):
        found.setdefault(place.slot, []).append(at)
    return found


def balance(name: str, partitions: int, fixed: int = 0) -> Steps[None]:
    """Distribute the partitions of a topic over the groups of a cluster, as far as their slots are empty.

    fixed: this many partitions, from the first one, stay. Errors are logged (Rule 3).
    """
    keys = [f"{name}:{at}" for at in range(partitions)]
    key_of_slot = {slot_of(key): key for key in keys}
    staying = {slot_of(key) for key in keys[:fixed]}
    singly = False  # whether each slot is assigned by a request of its own
    try:
        if (yield from _even([slot_of(key) for key in keys])):
            return
        for _ in range(ROUNDS):
            known = yield from _map()
            if known is None:
                return
            wanted = planned(located(known, keys), groups_with_slots(known), staying)
            if not wanted:
                return
            if singly:
                wanted = [SlotTransfer((slot,), each.source, each.target) for each in wanted for slot in each.slots]
            for each in wanted:
                problem = yield from _assign(each, key_of_slot[each.slots[0]])
                if problem and NOT_EMPTY not in problem:
                    _log.warning("topic %r: its partitions are not distributed evenly: %s", name, problem)
                    return
                if problem and len(each.slots) == 1:
                    staying.add(each.slots[0])
                singly |= bool(problem)
    except (ReplyError, redis.RedisError, ValueError, *LOST) as error:
        _log.warning("topic %r: its partitions are not distributed over the groups of the cluster: %s", name, error)


def _assign(transfer: SlotTransfer, key: str) -> Steps[str]:
    """Assign slots. Returns the error of the server; "" if there is none."""
    request = plain("TCLUSTER", "ASSIGN", *map(str, transfer.slots), "TO", transfer.target)
    for _ in range(3):
        _, reply = yield [plain("EXISTS", key), request]
        if not (isinstance(reply, Exception) and OTHER_OWNER in str(reply)):
            break
    return str(reply) if isinstance(reply, Exception) else ""


def summary(places: Sequence[PartitionPlace]) -> str:
    """Describe the distribution: "4 on group 1, 4 on group 2"."""
    counts = Counter(place.group for place in places)
    return ", ".join(
        f"{number} on {f'group {group}' if group != '-' else 'no group'}"
        for group, number in sorted(counts.items(), key=lambda item: (len(item[0]), item[0]))
    )
