"""Each event during each workload: afterwards all servers are equal, and nothing is lost that must not be.

Which facts must survive (see workloads) depends on the event: everything that the leader confirmed if no leader is
lost, otherwise what WAIT promised. Events also check how replicas came back: with a full copy only where the journal
no longer holds what they lack.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
import redis

from tests.replication.cluster import Node, assert_same, connect, wait_until
from tests.replication.trio import Trio, Trios
from tests.replication.workloads import WORKLOADS, Load

FEW = 20  # steps of work between two moments


def link_cut(trio: Trio, load: Load) -> None:
    """The link to the leader breaks, again and again."""
    full, partial = trio.a.syncs
    for _ in range(3):
        load.more(FEW)
        connections = trio.b_link.connections
        trio.b_link.cut()
        wait_until(lambda before=connections: trio.b_link.connections > before, "it comes again")  # type: ignore[misc]
    load.more(FEW)
    wait_until(lambda: trio.b.link_up, "the link is up again")
    assert trio.a.syncs[0] == full
    assert trio.a.syncs[1] > partial


def link_silent(trio: Trio, load: Load) -> None:
    """The link stands still for a moment; then everything arrives."""
    full, _ = trio.a.syncs
    trio.b_link.down.hold()
    load.more(FEW * 2)
    trio.b_link.down.release()
    load.more(FEW)
    assert trio.a.syncs[0] == full


def replica_killed(trio: Trio, load: Load) -> None:
    """The replica dies, and comes back with what it has."""
    full, partial = trio.a.syncs
    trio.b.kill()
    load.more(FEW)
    trio.b.start()
    load.more(FEW)
    wait_until(lambda: trio.b.link_up and trio.c.link_up, "the links are up again")
    assert trio.a.syncs == (full, partial + 1)
    assert trio.b.syncs == (0, 1)  # its own replica


def leader_killed(trio: Trio, load: Load) -> None:
    """The leader dies and comes back: its replica goes on where it was."""
    trio.a.kill()
    trio.a.start()
    load.more(FEW)
    wait_until(lambda: trio.b.link_up, "the link is up again")
    assert trio.a.syncs == (0, 1)


def journal_cut(trio: Trio, load: Load) -> None:
    """The replica was away too long: the journal no longer holds what it lacks."""
    full, _ = trio.a.syncs
    trio.b_link.refuse()
    trio.b_link.cut()
    wait_until(lambda: not trio.b.link_up, "the cut is noticed")  # what had arrived before is applied by then
    trio.a("CONFIG", "SET", "repl-backlog-size", 16 << 10)
    end = trio.b.offset

    def gone() -> bool:
        trio.a("SET", "filler", "x" * 30_000)
        with contextlib.suppress(redis.ResponseError):  # a checkpoint is under way
            trio.a("SAVE")
        return int(trio.a.info()["repl_backlog_first_byte_offset"]) > end

    wait_until(gone, "the journal is cut")
    trio.a("DEL", "filler")
    load.more(FEW)
    trio.b_link.accept()
    wait_until(lambda: trio.b.link_up and trio.c.link_up, "the links are up again")
    assert trio.a.syncs[0] == full + 1


def chain_cut(trio: Trio, load: Load) -> None:
    """The replica of a replica dies, comes back, and loses its link."""
    full, partial = trio.b.syncs
    trio.c.kill()
    load.more(FEW)
    trio.c.start()
    wait_until(lambda: trio.c.link_up, "the link is up again")
    load.more(FEW)
    connections = trio.c_link.connections
    trio.c_link.cut()
    trio.b_link.cut()
    load.more(FEW)
    wait_until(lambda: trio.c_link.connections > connections, "it comes again")
    wait_until(lambda: trio.b.link_up and trio.c.link_up, "the links are up again")
    assert trio.b.syncs[0] == full
    assert trio.b.syncs[1] >= partial + 2


def promoted(trio: Trio, load: Load) -> None:
    """The leader is lost for good: a replica leads, and the other one goes on with it."""
    load.more(FEW * 2)
    trio.a.kill()
    wait_until(lambda: not trio.b.link_up, "it knows that its leader is away")
    full, partial = trio.b.syncs
    # What either replica has been promised, the other one has too; but one may have a little more: that one leads.
    if trio.c.offset > trio.b.offset:
        trio.b, trio.c = trio.c, trio.b
        full, partial = trio.b.syncs
    trio.b.lead()
    trio.c.follow(trio.b.port)
    load.switch(trio.b)
    load.more(FEW * 2)
    wait_until(lambda: trio.c.link_up, "the other one follows")
    assert trio.b.syncs == (full, partial + 1)
    trio.promoted()


def switched_back(trio: Trio, load: Load) -> None:
    """A replica leads while the old leader still works, which then follows it; and back again."""
    load.more(FEW * 2)
    trio.b.lead()
    load.switch(trio.b)
    trio.a.follow(trio.b.port)
    trio.c.follow(trio.b.port)
    load.more(FEW * 2)
    wait_until(lambda: trio.a.link_up and trio.c.link_up, "both follow")
    trio.a.lead()
    load.switch(trio.a)
    trio.b.follow(trio.b_link.port)
    trio.c.follow(trio.c_link.port)
    load.more(FEW)
    wait_until(lambda: trio.b.link_up and trio.c.link_up, "both follow the first one again")


LEADER_STAYS = (link_cut, link_silent, replica_killed, leader_killed, journal_cut, chain_cut)
LEADER_CHANGES = (promoted, switched_back)
EVENTS: tuple[Callable[[Trio, Load], None], ...] = LEADER_STAYS + LEADER_CHANGES


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("name", WORKLOADS)
def test_servers_are_equal_after(event: Callable[[Trio, Load], None], name: str, trios: Trios) -> None:
    workload = WORKLOADS[name]()
    changes = event in LEADER_CHANGES
    with trios.lend(chain=not changes) as trio:
        with Load(workload, trio.a, replicas=2 if changes else 1) as load:
            load.more(FEW)
            if changes:  # WAIT has only 20 ms, which can be too short on a busy machine
                wait_until(lambda: workload.promised or not workload.said, "WAIT has promised something")
            event(trio, load)
            for replica in (trio.b, trio.c):
                glance(replica, workload.glance)
        replicas = [node for node in (trio.b, trio.c) if node.running]
        with connect(trio.a.port) as client:
            workload.check(client, workload.promised if changes else workload.said)
        assert_same(trio.a, *replicas)


def glance(node: Node, look: Callable[[redis.Redis], None]) -> None:
    """Look at a replica a few times while the work goes on."""
    if not node.running:
        return
    with connect(node.port) as client:
        for _ in range(5):
            look(client)
            time.sleep(0.005)
