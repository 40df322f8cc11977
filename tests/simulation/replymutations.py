"""Rules of server groups that are broken on purpose: acknowledgements, withheld replies, the in-sync set, the lease."""

from __future__ import annotations

from typing import Any

from coordinator.interface import CoordinatorError
from coordinator.renewals import Renewals
from persistence.log import Log
from replication import frames
from replication.feed import ReplicaFeed
from respserver.clients.connection import Connection
from respserver.group.decisions import GroupDecisions
from respserver.group.document import ServerGroupState
from respserver.group.insync import InSync
from respserver.group.presence import MemberPresence
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.data import Data
from respserver.runtime.ticks import Ticks
from tests.simulation.world import Patch


# -- acknowledgements and withheld replies ---------------------------------------------------------------------------
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


def leader_does_not_sync() -> list[Patch]:
    """A leader counts what is only in its system's memory as its own copy."""

    def policy(data: Any) -> str:
        return "always" if data.follower else "no"

    follow = Data.follow

    def followed(data: Any, follower: bool) -> None:
        follow(data, follower)
        data.configure()

    return [
        (Data, "_sync_policy", policy),
        (Data, "follow", followed),
        (Log, "synced", property(lambda log: log.offset)),
    ]


def sent_counts() -> list[Patch]:
    """A leader counts a batch that it has sent as acknowledged."""
    send = ReplicaFeed.live_batch

    def sent(feed: Any, offset: int, batch: bytes) -> None:
        send(feed, offset, batch)
        feed.acknowledged = feed.on_disk = feed.position

    return [(ReplicaFeed, "live_batch", sent)]


def released_before_confirmation() -> list[Patch]:
    """A leader releases what it has on its own disk."""

    def confirmed(insync: Any) -> int:
        if insync._data.follower:
            return int(insync._link.confirmed)
        return int(insync._data.disk.synced) if insync.leading and insync._valid() else -1

    return [(InSync, "confirmed", confirmed)]


def reads_do_not_wait() -> list[Patch]:
    """The replies of a tick that only reads are sent at once, whatever they show."""
    release = Ticks._release_confirmed

    def released(ticks: Any, clients: list[Any]) -> None:
        offset = ticks._data.disk.offset
        before, ticks._data.offset_before = getattr(ticks._data, "offset_before", 0), offset
        if before != offset or not ticks._needed or ticks.confirmation.confirmed() < 0:
            release(ticks, clients)
            return
        for client in clients:
            client.shows_data = False
        release(ticks, clients)

    return [(Ticks, "_release_confirmed", released)]


def blocked_reads_do_not_wait() -> list[Patch]:
    """The result of a blocked read is sent at once."""

    def answer(client: Any, data: Any) -> None:
        late(client, data)
        client.shows_data = False

    late = Connection.answer_late
    return [(Connection, "answer_late", answer)]


def messages_do_not_wait() -> list[Patch]:
    """Messages of a transaction are sent at once."""

    def push(client: Any, data: bytes) -> None:
        shows = client.shows_data
        pushed(client, data)
        client.shows_data = shows

    pushed = Connection.push
    return [(Connection, "push", push)]


def message_before_its_changes() -> list[Patch]:
    """A leader sends a message to its replicas before the changes of its transaction."""

    def message(replicas: Any, channel: bytes, text: bytes, shard: bool) -> None:
        for feed in replicas.feeds:
            feed.message(frames.message(channel, text, shard))

    return [(Replicas, "message", message)]


def replica_shows_unconfirmed() -> list[Patch]:
    """A replica answers reads before the leader has confirmed what they show."""
    return [
        (InSync, "_follower_withholds", lambda insync: False),
        (LeaderLink, "withholds", lambda link, required: False),
    ]


def withheld_replies_outlive_the_role() -> list[Patch]:
    """The clients whose replies are withheld stay connected when the leader is replaced."""
    return [(Ticks, "cut_withheld", lambda ticks, why: None)]


# -- the in-sync set -------------------------------------------------------------------------------------------------
def min_in_sync_is_ignored() -> list[Patch]:
    """A leader accepts and releases writes though fewer than min-in-sync members are in sync."""
    recount = InSync.recount

    def recounted(insync: Any) -> None:
        least, insync.least = insync.least, 1
        try:
            recount(insync)
        finally:
            insync.least = least

    return [(InSync, "recount", recounted)]


def shrinks_after_release() -> list[Patch]:
    """A member that should leave the set does not count any more before the coordinator knows it."""
    recount = InSync.recount

    def recounted(insync: Any) -> None:
        names = insync.names
        insync.names = frozenset(name for name in names if not insync._leaves(name))
        try:
            recount(insync)
        finally:
            insync.names = names

    return [(InSync, "recount", recounted)]


def silent_member_stays() -> list[Patch]:
    """A member that is gone, or silent, stays in the set."""
    return [(InSync, "_leaves", lambda insync, name: "")]


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


def lost_reply_is_a_failure() -> list[Patch]:
    """A change of the set whose reply is lost counts as one that did not happen."""
    leading = GroupDecisions._leading

    async def lead(member: Any, state: ServerGroupState) -> None:
        try:
            await leading(member, state)
        except CoordinatorError:
            member.in_sync._sent.clear()
            member.in_sync._joining.clear()
            member.in_sync.recount()
            raise

    return [(GroupDecisions, "_leading", lead)]


def joins_before_it_has_everything() -> list[Patch]:
    """A member joins when it is near the end of the log."""
    return [(InSync, "_has_everything", lambda insync, feed: True)]


def copy_in_the_set() -> list[Patch]:
    """A member of the in-sync set gets a copy, without leaving the set."""
    return [
        (InSync, "may_copy", lambda insync, name: True),
        (InSync, "copying", lambda insync, name: False),
    ]


# -- the lease -------------------------------------------------------------------------------------------------------
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


def renewed_while_stuck() -> list[Patch]:
    """The lease is renewed though the event loop does not advance."""
    wait = Renewals.wait
    return [(Renewals, "wait", lambda renewals, now, counter: wait(renewals, now, -1))]


def lease_without_margin() -> list[Patch]:
    """A lease is valid for longer than its duration less the margin."""

    def succeeded(renewals: Any) -> None:
        if not renewals.lost:
            renewals.valid_until = renewals._sent + renewals._duration * 1.02

    return [(Renewals, "succeeded", succeeded)]


def lost_lease_is_not_described() -> list[Patch]:
    """The seconds of a lost lease are minus infinity, which ROLE and INFO can't show."""

    def seconds_left(presence: Any) -> float:
        keeper = presence._keeper
        return float(keeper.valid_until - presence._services.clock()) if keeper is not None else 0.0

    return [(MemberPresence, "seconds_left", property(seconds_left))]
