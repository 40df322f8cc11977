"""Rules that are broken on purpose for a run. A simulation that does not detect a broken rule checks too little.

A mutation is a function here that returns the patches of one broken rule, and a line in MUTATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from unittest.mock import patch

from persistence.fullcopy import READY, Incoming
from persistence.history import History
from persistence.log import Log
from persistence.noderuns import MOST_NODES
from persistence.ownnodes import OwnNodes
from persistence.storecopy import NODES, StoreCopy
from replication.feed import ReplicaFeed
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.ticks import Ticks
from storage.keyspace.replay import replay
from tests.simulation import delaymutations as delays
from tests.simulation.cases import Case
from tests.simulation.world import Patch


@dataclass(frozen=True)
class Mutation:
    """``case``: what runs. ``seed``: a seed that detects it. A change of the servers may let another seed detect it, so
    ``seeds`` seeds are tried from 0 on if that one does not. 1 of 16 seeds detects the rarest mutations: none of 40
    detects them in 8 % of all changes, none of 200 in none."""

    patches: Callable[[], list[Patch]]
    case: Case
    seed: int
    seeds: int = 200

    def tried(self) -> Iterator[Case]:
        for seed in (self.seed, *range(self.seeds)):
            yield replace(self.case, seed=seed)


class Broken(Protocol):
    @property
    def patches(self) -> Callable[[], list[Patch]]: ...


@contextmanager
def broken(mutation: Broken) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, value in mutation.patches():
            stack.enter_context(patch.object(target, name, value))
        yield


def reply_before_sync() -> list[Patch]:
    """Replies are released although the WAL is not synced."""
    return [(Log, "_sync_now", lambda log: None)]


def reply_before_log() -> list[Patch]:
    """Replies are released before the batch is written to the WAL."""
    commit = Ticks.commit

    def early(ticks: Any) -> bool:
        flush, ticks._flush = ticks._flush, []
        ticks._send_all(flush)
        return commit(ticks)

    return [(Ticks, "commit", early)]


def batch_applied_twice() -> list[Patch]:
    """A replica applies each batch twice and logs it once."""
    apply = LeaderLink.batch

    def twice(link: Any, offset: int, batch: bytes) -> None:
        apply(link, offset, batch)
        ks = link._data.ks
        before = len(ks.log)
        replay(ks, batch)
        del ks.log[before:]

    return [(LeaderLink, "batch", twice)]


def sent_counts_as_acknowledged() -> list[Patch]:
    """WAIT counts a replica as soon as the batch was sent to it."""
    send = ReplicaFeed.live_batch

    def sent(feed: Any, offset: int, batch: bytes) -> None:
        send(feed, offset, batch)
        feed.acknowledged = feed.on_disk = feed.position

    return [(ReplicaFeed, "live_batch", sent)]


def unsynced_is_acknowledged() -> list[Patch]:
    """A replica acknowledges as synced what is only in its memory or its system's."""

    def acknowledge(link: Any) -> None:
        follower = link._follower
        if follower is not None and follower.up:
            link._sent = link._applied, link._applied
            link._sent_at = link._clock.mono()
            follower.acknowledge(*link._sent)

    return [(LeaderLink, "_acknowledge", acknowledge)]


def promotion_keeps_id() -> list[Patch]:
    """A promoted replica keeps the replication ID of its old leader, and only IDs are compared."""

    def may_continue(replicas: Any, replid: str, offset: int, who: object) -> bool:
        return bool(replicas.disk.history.covers(replid, offset, replicas.disk.offset))

    return [(History, "shift", lambda history, offset: None), (Replicas, "_may_continue", may_continue)]


def copy_in_place_too_early() -> list[Patch]:
    """A full copy takes the place of the old data before it is complete."""
    finish = Incoming.finish

    def early(incoming: Any, offset: int, entries: int, history: History) -> None:
        ready = incoming._directory / READY
        incoming._path.rename(ready)
        incoming._path = ready
        finish(incoming, offset, entries, history)

    return [(Incoming, "finish", early)]


def unequal_nodes_are_reused() -> list[Patch]:
    """Only the keys of nodes decide whether they are equal, at the leader and at the replica."""

    def is_equal(copy: Any, db: Any, first: bytes, run: Any) -> Generator[int, None, bool]:
        cursor, last, count = copy._txn.cursor(db=db), b"", 0
        there = cursor.set_range(first)
        while there and cursor.key() <= run.last and count <= MOST_NODES:
            last, count = bytes(cursor.key()), count + 1
            there = cursor.next()
        yield 1
        return (last, count) == (run.last, run.nodes)

    def take(own: Any, first: bytes, last: bytes, digest: bytes) -> list[tuple[bytes, bytes]]:
        with own.reading():
            cursor = own._txn.cursor(db=own._databases[NODES])
            cursor.set_range(first)
            return [(bytes(key), bytes(blob)) for key, blob in cursor if bytes(key) <= last]

    return [(StoreCopy, "_is_equal", is_equal), (OwnNodes, "take", take)]


def _case(kind: str, *faults: str, **options: Any) -> Case:
    return Case(0, kind, faults, **{"works": ("appends", "groups"), "seconds": 2.0, **options})


MUTATIONS: dict[str, Mutation] = {
    "reply before sync": Mutation(reply_before_sync, _case("one leader", "power"), 0),
    "reply before log": Mutation(reply_before_log, _case("one leader", "kill_at_step"), 5),
    "batch applied twice": Mutation(batch_applied_twice, _case("one leader", "reset"), 0),
    "sent counts as acknowledged": Mutation(
        sent_counts_as_acknowledged, _case("promotions", "promote", "partition", "one_way"), 4
    ),
    "unsynced is acknowledged": Mutation(
        unsynced_is_acknowledged, _case("promotions", "promote", "blackout", appendfsync="everysec"), 6
    ),
    "promotion keeps ID": Mutation(promotion_keeps_id, _case("promotions", "promote", seconds=3.0), 0),
    "copy in place too early": Mutation(
        copy_in_place_too_early,
        _case("one leader", "kill_in_copy", "kill_in_copy", "checkpoint", "partition", "kill", backlog=1, seconds=4.0),
        1,
    ),
    "unequal nodes are reused": Mutation(
        unequal_nodes_are_reused,
        _case("promotions", "diverge", "diverge", "kill", node_entries=4, seconds=4.0, backlog=1),
        5,
    ),
    "cancellation forgotten": Mutation(
        delays.cancellation_forgotten,
        _case(
            "promotions", "kill_in_copy", "partition", "kill", "checkpoint", "diverge",
            works=("delays",) * 3, seconds=4.0, backlog=1,
        ),
        5,
    ),
    "tokens forgotten": Mutation(
        delays.tokens_forgotten,
        _case("one leader", "kill", "restart", "checkpoint", works=("delays",) * 2, seconds=3.0, members=1),
        0,
    ),
}
