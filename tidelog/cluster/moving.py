"""Moves of empty slots between groups, by TCLUSTER ASSIGN at the leaders of their owners.

Rule 1: the server decides whether a slot is empty. A search here only chooses the slots that are worth a request.
Rule 2: between the search and the request, clients may write to a slot. The server then refuses the request, and the
        search is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis.crc import key_slot

from tidelog.cluster import asking, slots
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.slots import SlotMove
from tidelog.cluster.view import ClusterView, read
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError

PAGE: Final = 1000  # keys of a reply of SCAN
ASSIGN_MS: Final = 60_000  # timeout of a request: the server searches all its keys
ATTEMPTS: Final = 3

Progress = Callable[[str], None]


@dataclass
class Rebalanced:
    """The outcome: what was moved, and what could not be moved."""

    view: ClusterView  # afterwards
    moves: list[SlotMove] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)  # the even number of slots of each group
    used: dict[str, set[int]] = field(default_factory=dict)  # slots with keys, of groups that own too many slots
    refusals: list[str] = field(default_factory=list)  # of the last attempt


def assign(view: ClusterView, move: SlotMove) -> None:
    """Move slots. Raises ClusterError with the error of the server."""
    group = view.groups.get(move.source) or view.groups[move.target]
    leader = group.leading()
    words = ["TCLUSTER", "ASSIGN", *slots.ranges(move.slots), "TO", move.target]
    try:
        asking.ask(view.access, leader.url, *words, ms=ASSIGN_MS)
    except ReplyError as error:
        raise ClusterError(f"{leader.name} ({leader.address}) replied: {error}") from None
    except OSError as error:
        raise ClusterError(
            f"{leader.name} ({leader.address}) did not reply ({error}), so the outcome is unknown:"
            " tidelog cluster status shows it"
        ) from None


def move(access: Access, wanted: Sequence[int], target: str, moved: Callable[[SlotMove], None]) -> None:
    """Move slots to a group, which must have a leader. ``moved``: called after each request. Raises ClusterError."""
    view = read(access)
    _check_group(view, target)
    view.groups[target].leading()  # slots of a group without a leader are not served
    by_owner: dict[str, list[int]] = {}
    for slot in wanted:
        if view.owners[slot] != target:
            by_owner.setdefault(view.owners[slot], []).append(slot)
    for owner, some in by_owner.items():
        request = SlotMove(tuple(some), owner, target)
        assign(view, request)
        moved(request)


def divide(access: Access, progress: Progress) -> Rebalanced:
    """Give each group consecutive slots. If there are keys by now, distribute the slots as ``rebalance`` does.

    Raises ClusterError if a group has no leader.
    """
    view = _read_led(access)
    done = Rebalanced(view)
    _perform(done, slots.divided(view.owners, list(view.groups)), progress)
    if not done.refusals:
        done.view = read(access)
        return done
    rest = rebalance(access, progress)
    rest.moves[:0] = done.moves
    return rest


def rebalance(access: Access, progress: Progress, dry_run: bool = False, without: str = "") -> Rebalanced:
    """Distribute the slots evenly, as far as they are empty.

    without: a group that gives all its empty slots away. Raises ClusterError if a group has no leader.
    """
    done = Rebalanced(_read_led(access))
    if without:
        _check_group(done.view, without)
        if len(done.view.groups) == 1:
            raise ClusterError(f"group {without} is the only one: no other group can get its slots")
    for _ in range(ATTEMPTS):
        view = done.view
        owned = slots.counts(view.owners, view.groups)
        done.targets = slots.wanted(owned, without)
        donors = [name for name in view.groups if owned[name] > done.targets[name]]
        done.used = {name: used_slots(view, name, progress) for name in donors}
        moves = slots.distributed(view.owners, view.groups, done.used, without)
        if dry_run:
            done.moves = moves
            return done
        _perform(done, moves, progress)
        if moves:
            done.view = _read_led(access)
        if not done.refusals:
            break
    return done


def _perform(done: Rebalanced, moves: Sequence[SlotMove], progress: Progress) -> None:
    """Request moves. Each is added to the moves or to the refusals of the outcome."""
    done.refusals = []
    for each in moves:
        progress(f"moving {len(each.slots):,} slots to group {each.target}")
        try:
            assign(done.view, each)
        except ClusterError as error:
            done.refusals.append(str(error))
        else:
            done.moves.append(each)


def _read_led(access: Access) -> ClusterView:
    """Return the cluster. Raises ClusterError if a group has no leader."""
    view = read(access)
    for group in view.groups.values():
        group.leading()
    return view


def _check_group(view: ClusterView, group: str) -> None:
    if group not in view.groups:
        raise ClusterError(f"there is no group {group}: the groups are {', '.join(view.groups)}")


def used_slots(view: ClusterView, group: str, progress: Progress) -> set[int]:
    """Return the slots of a group that have keys. It ends early if all slots have. Raises ClusterError."""
    own = {slot for slot, owner in enumerate(view.owners) if owner == group}
    leader = view.groups[group].leading()
    found: set[int] = set()
    seen = 0
    try:
        connection = asking.connected(view.access, leader.url)
        try:
            cursor = b"0"
            while True:
                cursor, keys = connection.ask("SCAN", cursor, "COUNT", PAGE)
                found.update(map(key_slot, keys))
                seen += len(keys)
                progress(f"searching group {group}: {seen:,} keys in {len(found):,} slots")
                if cursor == b"0" or own <= found:
                    return found & own
        finally:
            connection.close()
    except (OSError, ReplyError) as error:
        raise ClusterError(f"{leader.name} ({leader.address}): the search for keys failed: {error}") from None
