"""Moves of slots between groups, by TCLUSTER ASSIGN and TCLUSTER MOVE at the leaders of their owners.

Rule 1: empty slots are assigned, which copies nothing. The server decides whether a slot is empty. A search here only
        chooses the slots that are worth a request.
Rule 2: between the search and the request, clients may write to a slot. The server then refuses the request, and the
        search is repeated.
Rule 3: slots with keys move with their keys. While a request is in progress, its state is read on another connection.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from redis.crc import key_slot

from tidelog.cluster import asking, slots
from tidelog.cluster.errors import ClusterError, MoveInterruptedError
from tidelog.cluster.slots import SlotMove
from tidelog.cluster.view import ClusterView, read
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError

PAGE: Final = 1000  # keys of a reply of SCAN
ASSIGN_MS: Final = 60_000  # timeout of a request: the server searches all its keys
MOVE_MS: Final = 7 * 86_400_000  # timeout of a move with keys
NOT_EMPTY: Final = "only empty slots can be assigned"  # a part of the server's error
POLL: Final = 0.5  # seconds between two readings of the state of a move
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


def move_with_keys(view: ClusterView, move: SlotMove, progress: Progress) -> None:
    """Move slots with their keys. Raises ClusterError, and MoveInterruptedError after it has aborted the move."""
    leader = view.groups[move.source].leading()
    words = ["TCLUSTER", "MOVE", *slots.ranges(move.slots), "TO", move.target]
    failed: list[str] = []

    def request() -> None:
        try:
            asking.ask(view.access, leader.url, *words, ms=MOVE_MS)
        except ReplyError as error:
            failed.append(f"{leader.name} ({leader.address}) replied: {error}")
        except OSError as error:
            failed.append(
                f"{leader.name} ({leader.address}) did not reply ({error}): tidelog cluster status shows what has moved"
            )

    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL)
            progress(_state(view, leader.url, move))
    except KeyboardInterrupt:
        raise MoveInterruptedError(_aborted(view, leader.url, move)) from None
    if failed:
        raise ClusterError(failed[0])


def _aborted(view: ClusterView, url: str, move: SlotMove) -> str:
    """Abort a move, and return a text about its outcome."""
    try:
        asking.ask(view.access, url, "TCLUSTER", "ABORT")
    except (OSError, ReplyError) as error:
        return f"the move was not aborted ({error}): tidelog cluster status shows what has moved"
    return f"the move was aborted: {len(move.slots):,} slots remain with group {move.source}, with their keys"


def _state(view: ClusterView, url: str, move: SlotMove) -> str:
    """Return the state of a move, as the leader reports it."""
    text = f"moving {len(move.slots):,} slots to group {move.target}"
    with suppress(OSError, ReplyError, ValueError, AttributeError):
        found = (json.loads(asking.ask(view.access, url, "TCLUSTER", "STATUS")) or {}).get("move")
        if found:
            text += f": {found.get('copied', 0):,} of {found.get('keys', 0):,} keys are copied"
            if found.get("problem"):
                text += f" ({found['problem']})"
    return text


def move(
    access: Access, wanted: Sequence[int], target: str, moved: Callable[[SlotMove], None], progress: Progress
) -> None:  # fmt: skip
    """Move slots to a group, which must have a leader, with their keys. ``moved``: called after each request.

    Raises ClusterError.
    """
    view = read(access)
    _check_group(view, target)
    view.groups[target].check_writable()
    by_owner: dict[str, list[int]] = {}
    for slot in wanted:
        if view.owners[slot] != target:
            by_owner.setdefault(view.owners[slot], []).append(slot)
    for owner, some in by_owner.items():
        request = SlotMove(tuple(some), owner, target)
        try:
            assign(view, request)
        except ClusterError as error:
            if NOT_EMPTY not in str(error):
                raise
            move_with_keys(view, request, progress)
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


def rebalance(
    access: Access, progress: Progress, dry_run: bool = False, without: str = "", only_empty: bool = True
) -> Rebalanced:  # fmt: skip
    """Distribute the slots evenly: first empty ones, and then, unless ``only_empty``, others with their keys.

    without: a group that gives all its slots away. Raises ClusterError if a group has no leader.
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
            if not only_empty:
                owners = list(view.owners)
                for each in moves:
                    for slot in each.slots:
                        owners[slot] = each.target
                done.moves = moves + slots.distributed(owners, view.groups, _all(view), without)
            return done
        _perform(done, moves, progress)
        if moves:
            done.view = _read_led(access)
        if not done.refusals:
            break
    if not only_empty:
        moves = slots.distributed(done.view.owners, done.view.groups, _all(done.view), without)
        _perform(done, moves, progress, with_keys=True)
        done.view, done.used = _read_led(access), {}
    return done


def _all(view: ClusterView) -> dict[str, set[int]]:
    """Return, for each group, that none of its slots stays because of its keys."""
    return {name: set() for name in view.groups}


def _perform(done: Rebalanced, moves: Sequence[SlotMove], progress: Progress, with_keys: bool = False) -> None:
    """Request moves. Each is added to the moves or to the refusals of the outcome.

    Raises ClusterError if a group that would get slots is not in sync.
    """
    done.refusals = []
    for name in {each.target for each in moves}:
        done.view.groups[name].check_writable()
    for each in moves:
        progress(f"moving {len(each.slots):,} slots to group {each.target}")
        try:
            if with_keys and each.source:
                move_with_keys(done.view, each, progress)
            else:
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
