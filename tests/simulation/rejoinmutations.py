"""Rules of server groups that are broken on purpose: elections, handovers, rejoining."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from persistence import rewind as rewinding
from persistence.history import History
from replication.handshake import Lineage
from respserver.clients.pauses import Pauses
from respserver.group import document
from respserver.group.document import ServerGroupState
from respserver.group.election import Election
from respserver.group.handover import Handover
from respserver.roles.link import COMPARED, LeaderLink
from respserver.roles.replicas import Replicas
from respserver.roles.roles import Roles
from tests.simulation import mutations
from tests.simulation.world import Patch


# -- elections and handovers -----------------------------------------------------------------------------------------
def outsider_is_elected() -> list[Patch]:
    """A member that is not in the in-sync set campaigns like the others."""
    campaign, without = Election._campaign, Election.without_leader

    def added(member: Any, state: ServerGroupState) -> ServerGroupState:
        return replace(state, in_sync=tuple(sorted({*state.in_sync, member.name})))

    async def campaigned(member: Any, state: ServerGroupState) -> None:
        change = member.store.change
        member.store.change = lambda decide, *rest: change(lambda found: decide(added(member, found)), *rest)
        try:
            await campaign(member, added(member, state))
        finally:
            del member.store.change

    async def without_leader(member: Any, state: ServerGroupState) -> float:
        return await without(member, added(member, state))

    return [(Election, "_campaign", campaigned), (Election, "without_leader", without_leader)]


def epoch_stays() -> list[Patch]:
    """A new leader has the epoch of the old one."""
    campaign = Election._campaign

    def lower(state: ServerGroupState) -> ServerGroupState:
        return replace(state, epoch=state.epoch - 1)

    async def campaigned(member: Any, state: ServerGroupState) -> None:
        change = member.store.change
        member.store.change = lambda decide, *rest: change(lambda found: decide(lower(found)), *rest)
        try:
            await campaign(member, lower(state))
        finally:
            del member.store.change

    return [(Election, "_campaign", campaigned)]


def old_leader_stays_in_set() -> list[Patch]:
    """The old leader stays in the set when another member is elected."""

    def elect(state: ServerGroupState, name: str, now: int, why: str) -> ServerGroupState:
        elected = original(state, name, now, why)
        return replace(elected, in_sync=state.in_sync)

    original = document.elect
    return [(document, "elect", elect)]


def keeps_its_link() -> list[Patch]:
    """A member that becomes the leader does not close its connection to the old one."""
    lead, unfollow = Roles.become_leader, Roles.unfollow

    def led(roles: Any, replid: str = "") -> None:
        roles._link.stop = lambda: None
        try:
            lead(roles, replid)
        finally:
            del roles._link.stop

    def unfollowed(roles: Any) -> None:
        if not roles._data.follower:
            unfollow(roles)

    return [(Roles, "become_leader", led), (Roles, "unfollow", unfollowed)]


def shortest_log_wins() -> list[Patch]:
    """The candidate with the shortest log becomes the leader."""

    async def must_wait(member: Any, others: list[str], epoch: int, end: int, damaged: bool) -> bool:
        for name in others:
            found = await member.store.presence(name)
            if found is not None and (found[0].vacant != epoch or (found[0].end, name) < (end, member.name)):
                return True
        return False

    return [(Election, "_must_wait", must_wait)]


def hands_over_aloud() -> list[Patch]:
    """A leader that hands over continues to release replies until it follows."""
    hand_over = Handover.step

    async def handed(member: Any) -> None:
        member.in_sync.silence = lambda: None
        try:
            await hand_over(member)
        finally:
            del member.in_sync.silence
            if not member._standing.led:
                member.in_sync.silence()

    return [(Handover, "step", handed)]


def hands_over_too_early() -> list[Patch]:
    """A leader hands over while it accepts writes, to a member that lacks a part of its log."""
    hand_over = Handover.step

    async def handed(member: Any) -> None:
        feed = member.in_sync.feed(member._standing.target)
        if feed is not None:
            feed.on_disk = max(feed.on_disk, member._data.disk.offset)
        since, member._ticks.withheld_since = member._ticks.withheld_since, lambda: None
        try:
            await hand_over(member)
        finally:
            member._ticks.withheld_since = since

    return [(Handover, "step", handed), (Pauses, "hold_writes", lambda pauses, hold, reads=False: None)]


# -- rejoining -------------------------------------------------------------------------------------------------------
def history_keeps_its_id() -> list[Patch]:
    """A new leader continues under the replication ID of the old one, and only IDs are compared."""

    def may_continue(replicas: Any, replid: str, offset: int, who: object) -> bool:
        return bool(replicas.disk.history.covers(replid, offset, replicas.disk.offset))

    return [(History, "shift", lambda history, offset, replid="": None), (Replicas, "_may_continue", may_continue)]


def rewinds_too_far() -> list[Patch]:
    """A member that rewinds its log deletes also what was confirmed: up to the end of the leader before."""

    def too_far(own: Any, leader: Any) -> tuple[str, int] | None:
        point = diverged(own, leader)
        if point is None or point[1] == own.end:
            return point
        shared = [(name, min(end, leader.points[name])) for name, end in own.points.items() if name in leader.points]
        return max((each for each in shared if each[1] < point[1]), key=lambda each: each[1], default=point)

    diverged = Lineage.diverged
    return [(Lineage, "diverged", too_far)]


def rewinds_too_little() -> list[Patch]:
    """A member continues from where its log diverged, and keeps the records after it."""

    async def rewound(link: Any, offset: int) -> None:
        """Do nothing."""

    return [(LeaderLink, "rewound", rewound)]


def rewinds_under_its_store() -> list[Patch]:
    """A member rewinds its log though its store has the effects of records after the new end."""

    def checksum(link: Any, offset: int) -> tuple[int, int] | None:
        found: tuple[int, int] | None = link._data.disk.checksum_of_end(COMPARED, offset)
        return found

    return [(LeaderLink, "_checksum_before", checksum), (rewinding, "Store", _StoreAtTheBegin)]


class _StoreAtTheBegin:
    """A store that says that it has no effects of the log."""

    offset = 0

    def __init__(self, path: Path) -> None: ...
    def close(self) -> None: ...


def unequal_nodes_are_reused() -> list[Patch]:
    """Only the keys of nodes decide whether they are equal, at the leader and at the replica."""
    return mutations.unequal_nodes_are_reused()
