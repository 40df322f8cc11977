"""Rules of server groups that are broken on purpose, which the simulation of a group must detect.

A mutation is a function here that returns the patches of one broken rule, and a line in GROUP_MUTATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from coordinator.interface import CoordinatorError
from coordinator.renewals import Renewals
from persistence.history import History
from replication.handshake import Lineage
from respserver.group import document
from respserver.group.document import ServerGroupState
from respserver.group.insync import InSync
from respserver.group.membership import GroupMembership
from respserver.group.presence import MemberPresence
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.roles.roles import Roles
from respserver.runtime.data import Data
from tests.simulation.groups import GroupCase
from tests.simulation.mutations import Patch


def acknowledged_before_sync() -> list[Patch]:
    """A replica acknowledges as synced what is only in its system's memory."""

    def policy(data: Any) -> str:
        return "no" if data.follower else "always"

    def acknowledge(link: Any) -> None:
        follower, disk = link._follower, link._data.disk
        if follower is not None and follower.up:
            link._sent = disk.offset, disk.offset
            link._sent_at = link._clock.mono()
            follower.acknowledge(*link._sent)

    follow = Data.follow

    def followed(data: Any, follower: bool) -> None:
        follow(data, follower)
        data.configure()

    return [(Data, "_sync_policy", policy), (Data, "follow", followed), (LeaderLink, "_acknowledge", acknowledge)]


def released_before_confirmation() -> list[Patch]:
    """A leader releases what it has on its own disk."""

    def confirmed(insync: Any) -> int:
        if insync._data.follower:
            return int(insync._link.confirmed)
        return int(insync._data.disk.synced) if insync.leading and insync._valid() else -1

    return [(InSync, "confirmed", confirmed)]


def replica_shows_unconfirmed() -> list[Patch]:
    """A replica answers reads before the leader has confirmed what they show."""
    return [(LeaderLink, "withholds", lambda link: False)]


def lease_not_checked() -> list[Patch]:
    """A leader releases replies without a valid lease."""

    def confirmed(insync: Any) -> int:
        valid, insync._valid = insync._valid, lambda: True
        try:
            return int(original(insync))
        finally:
            insync._valid = valid

    original = InSync.confirmed
    return [(InSync, "confirmed", confirmed)]


def shrinks_after_release() -> list[Patch]:
    """A member that should leave the set does not count any more before the coordinator knows it."""
    recount = InSync.recount

    def recounted(insync: Any) -> None:
        names = insync.names
        insync.names = frozenset(name for name in names if not insync._too_slow(name))
        try:
            recount(insync)
        finally:
            insync.names = names

    return [(InSync, "recount", recounted)]


def joining_does_not_count() -> list[Patch]:
    """A member that joins counts only when the coordinator has answered."""
    recount = InSync.recount

    def recounted(insync: Any) -> None:
        joining, sent = insync._joining, insync._sent
        insync._joining, insync._sent = {}, []
        try:
            recount(insync)
        finally:
            insync._joining, insync._sent = joining, sent

    return [(InSync, "recount", recounted)]


def joins_before_it_has_everything() -> list[Patch]:
    """A member joins when it is near the end of the log."""
    return [(InSync, "_has_everything", lambda insync, feed: True)]


def outsider_is_elected() -> list[Patch]:
    """A member that is not in the in-sync set campaigns like the others."""
    campaign, without = GroupMembership._campaign, GroupMembership._without_leader

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

    return [(GroupMembership, "_campaign", campaigned), (GroupMembership, "_without_leader", without_leader)]


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


def epoch_stays() -> list[Patch]:
    """A new leader has the epoch of the old one."""
    campaign = GroupMembership._campaign

    def lower(state: ServerGroupState) -> ServerGroupState:
        return replace(state, epoch=state.epoch - 1)

    async def campaigned(member: Any, state: ServerGroupState) -> None:
        change = member.store.change
        member.store.change = lambda decide, *rest: change(lambda found: decide(lower(found)), *rest)
        try:
            await campaign(member, lower(state))
        finally:
            del member.store.change

    return [(GroupMembership, "_campaign", campaigned)]


def history_keeps_its_id() -> list[Patch]:
    """A new leader continues under the replication ID of the old one, and only IDs are compared."""

    def may_continue(replicas: Any, replid: str, offset: int, who: object) -> bool:
        return bool(replicas.disk.history.covers(replid, offset, replicas.disk.offset))

    return [(History, "shift", lambda history, offset, replid="": None), (Replicas, "_may_continue", may_continue)]


def old_leader_stays_in_set() -> list[Patch]:
    """The old leader stays in the set when another member is elected."""

    def elect(state: ServerGroupState, name: str, now: int, why: str) -> ServerGroupState:
        elected = original(state, name, now, why)
        return replace(elected, in_sync=state.in_sync)

    original = document.elect
    return [(document, "elect", elect)]


def copy_in_the_set() -> list[Patch]:
    """A member of the in-sync set gets a copy, without leaving the set."""
    return [
        (InSync, "may_copy", lambda insync, name: True),
        (InSync, "copying", lambda insync, name: False),
    ]


def rewinds_too_far() -> list[Patch]:
    """A member that rewinds its log deletes also what was confirmed: up to the first leader that both know."""

    def too_far(own: Any, leader: Any) -> tuple[str, int] | None:
        point = diverged(own, leader)
        if point is None or point[1] == own.end:
            return point
        return min(
            ((name, min(end, leader.points[name])) for name, end in own.points.items() if name in leader.points),
            key=lambda each: each[1],
        )

    diverged = Lineage.diverged
    return [(Lineage, "diverged", too_far)]


def min_in_sync_is_ignored() -> list[Patch]:
    """A leader accepts and releases writes though fewer than min-in-sync members are in sync."""
    recount = InSync.recount

    def recounted(insync: Any) -> None:
        least, insync._config.min_in_sync = insync._config.min_in_sync, 1
        try:
            recount(insync)
        finally:
            insync._config.min_in_sync = least

    return [(InSync, "recount", recounted)]


def renewed_while_stuck() -> list[Patch]:
    """The lease is renewed though the event loop does not advance."""
    wait = Renewals.wait
    return [(Renewals, "wait", lambda renewals, now, counter: wait(renewals, now, -1))]


def lost_reply_is_a_failure() -> list[Patch]:
    """A change of the set whose reply is lost counts as one that did not happen."""
    leading = GroupMembership._leading

    async def lead(member: Any, state: ServerGroupState) -> None:
        try:
            await leading(member, state)
        except CoordinatorError:
            member.in_sync._sent.clear()
            member.in_sync._joining.clear()
            member.in_sync.recount()
            raise

    return [(GroupMembership, "_leading", lead)]


def lost_lease_is_not_described() -> list[Patch]:
    """The seconds of a lost lease are minus infinity, which ROLE and INFO can't show."""

    def seconds_left(presence: Any) -> float:
        keeper = presence._keeper
        return float(keeper.valid_until - presence._services.clock()) if keeper is not None else 0.0

    return [(MemberPresence, "seconds_left", property(seconds_left))]


@dataclass(frozen=True)
class GroupMutation:
    """As ``mutations.Mutation``. ``quick``: it runs in each test run, the others in long ones."""

    patches: Callable[[], list[Patch]]
    case: GroupCase
    quick: bool = False
    seeds: int = 40

    def tried(self) -> Iterator[GroupCase]:
        for seed in (self.case.seed, *range(self.seeds)):
            yield replace(self.case, seed=seed)


def _case(seed: int, *faults: str, **options: Any) -> GroupCase:
    return GroupCase(seed, faults, **{"seconds": 5.0, **options})


# The set has two members, and shrinks to one.
_PAIR: Final = {"members": 2, "min_in_sync": 1}
GROUP_MUTATIONS: dict[str, GroupMutation] = {
    "released before confirmation": GroupMutation(
        released_before_confirmation, _case(0, "isolate", seconds=3.0), quick=True
    ),
    "min-in-sync is ignored": GroupMutation(min_in_sync_is_ignored, _case(0, "isolate", seconds=3.0)),
    "epoch stays": GroupMutation(epoch_stays, _case(0, "isolate", "kill", seconds=3.0), quick=True),
    "old leader stays in the set": GroupMutation(old_leader_stays_in_set, _case(0, "isolate", "kill", seconds=3.0)),
    "keeps its link": GroupMutation(keeps_its_link, _case(0, "isolate", "kill", "failover", seconds=3.0)),
    "lease not checked": GroupMutation(lease_not_checked, _case(0, "deserted", seconds=3.0)),
    "shrinks after the release": GroupMutation(shrinks_after_release, _case(0, "isolate", min_in_sync=1)),
    "joining does not count": GroupMutation(joining_does_not_count, _case(4, "lost_swap", **_PAIR)),
    "lost reply is a failure": GroupMutation(lost_reply_is_a_failure, _case(0, "lost_swap", **_PAIR)),
    "outsider is elected": GroupMutation(outsider_is_elected, _case(0, "isolate", "kill", "cut_off")),
    "acknowledged before the sync": GroupMutation(acknowledged_before_sync, _case(0, "blackout")),
    "renewed while stuck": GroupMutation(renewed_while_stuck, _case(5, "stuck")),
    "history keeps its ID": GroupMutation(history_keeps_its_id, _case(0, "isolate", "kill")),
    "replica shows what is not confirmed": GroupMutation(
        replica_shows_unconfirmed, _case(4, "isolate", "slow", seconds=6.0)
    ),
}
