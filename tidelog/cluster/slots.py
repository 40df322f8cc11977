"""Slots in texts, and the distribution of slots over groups. Pure functions, no I/O.

The distribution is even: the numbers of slots of two groups differ by at most one. Only empty and unassigned slots
move, and as few of them as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidelog.cluster.errors import ClusterError

SLOTS: Final = 16384
_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)

Owners = list[str]  # the group of each slot; "" if it is unassigned


@dataclass(frozen=True)
class SlotMove:
    """Slots that one group gives to another one. source: "" if the slots are unassigned."""

    slots: tuple[int, ...]  # ascending
    source: str
    target: str


def parse(words: Iterable[str]) -> list[int]:
    """Return the slots that a user wrote as "5", "0-4095", or "0-4095,9000". Raises ClusterError."""
    found: set[int] = set()
    for word in (part for each in words for part in each.split(",") if part):
        match = _RANGE.fullmatch(word)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if first > last or last >= SLOTS:
            raise ClusterError(f"{word!r} is not a range of slots: write 0-4095, or 7; the last slot is {SLOTS - 1}")
        found.update(range(first, last + 1))
    return sorted(found)


def ranges(slots: Iterable[int]) -> list[str]:
    """Return ascending slots as ranges: ["0-5", "9"]."""
    found: list[list[int]] = []
    for slot in slots:
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def shown(slots: Sequence[int], most: int = 4) -> str:
    """Return slots for a message: at most this many ranges."""
    all_of_them = ranges(slots)
    more = f" and {len(all_of_them) - most} more ranges" if len(all_of_them) > most else ""
    return " ".join(all_of_them[:most]) + more


def counts(owners: Owners, groups: Iterable[str]) -> dict[str, int]:
    """Return the number of slots of each group."""
    found = dict.fromkeys(groups, 0)
    for owner in owners:
        if owner in found:
            found[owner] += 1
    return found


def wanted(owned: Mapping[str, int], without: str = "") -> dict[str, int]:
    """Return the even number of slots of each group. Groups that own the most slots get the remainder.

    without: a group that gets none.
    """
    sharing = [group for group in owned if group != without]
    share, more = divmod(SLOTS, len(sharing))
    largest = sorted(sharing, key=lambda group: -owned[group])[:more]
    return {group: 0 if group == without else share + (group in largest) for group in owned}


def divided(owners: Owners, groups: Sequence[str]) -> list[SlotMove]:
    """Return the moves after which each group has consecutive slots, in the order of the groups."""
    bounds = [SLOTS * at // len(groups) for at in range(len(groups) + 1)]
    found = []
    for at, group in enumerate(groups):
        by_owner: dict[str, list[int]] = {}
        for slot in range(bounds[at], bounds[at + 1]):
            if owners[slot] != group:
                by_owner.setdefault(owners[slot], []).append(slot)
        found += [SlotMove(tuple(some), owner, group) for owner, some in by_owner.items()]
    return found


def distributed(
    owners: Owners, groups: Iterable[str], used: Mapping[str, Set[int]], without: str = ""
) -> list[SlotMove]:
    """Return the moves after which the slots are distributed as evenly as possible.

    used: the slots of each group that have keys; they stay. A group that is missing here gives no slots away.
    without: a group that gives all its slots away.
    """
    owned = counts(owners, groups)
    targets = wanted(owned, without)
    lacking = {group: targets[group] - owned[group] for group in owned if owned[group] < targets[group]}
    found = _given("", [slot for slot, owner in enumerate(owners) if owner not in owned], lacking)
    for group in owned:
        surplus = owned[group] - targets[group]
        if surplus > 0 and group in used:
            own = [slot for slot, owner in enumerate(owners) if owner == group and slot not in used[group]]
            found += _given(group, own[max(0, len(own) - surplus) :], lacking)
    return found


def _given(source: str, slots: Sequence[int], lacking: dict[str, int]) -> list[SlotMove]:
    """Distribute slots over the groups that lack some, and reduce these numbers."""
    left, found = iter(slots), []
    for group in lacking:
        if some := tuple(islice(left, lacking[group])):
            found.append(SlotMove(some, source, group))
            lacking[group] -= len(some)
    return found
