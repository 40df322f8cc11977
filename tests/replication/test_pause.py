"""CLIENT PAUSE on a replica: what its leader writes waits as well, and the link stays up."""

from __future__ import annotations

import time

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.wire.rawclient import Raw

LONG = 600_000  # ms


def stays(replica: Node, offset: int) -> None:
    """The replica stays where it is for a while in which it would have caught up."""
    end = time.monotonic() + 0.7
    while time.monotonic() < end:
        assert replica.offset == offset
        time.sleep(0.05)


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_a_paused_replica_applies_nothing(servers: Cluster, mode: str) -> None:
    leader, replica = servers.pair(repl_timeout=2)
    leader("XADD", "s", "1-0", "f", "v")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    # with ALL only a client that is there already, and UNPAUSE, can tell
    with Raw(replica.port) as raw:
        before = replica.offset
        assert raw("CLIENT", "PAUSE", LONG, mode) == b"OK"
        for number in range(2, 50):
            leader("XADD", "s", f"{number}-0", "f", "x" * 10_000)
        assert leader("WAIT", 1, 300) == 0
        if mode == "WRITE":
            stays(replica, before)
            assert raw("XLEN", "s") == 1
        # longer than repl-timeout: both sides keep the link
        time.sleep(3)
        state = leader.info()["slave0"]
        assert (state["state"], state["offset"]) == ("online", before)
        assert state["lag"] <= 2
        if mode == "WRITE":
            assert replica.link_up
        assert raw("CLIENT", "UNPAUSE") == b"OK"
        assert leader("WAIT", 1, 10_000) == 1
        assert_same(leader, replica)
        assert raw("XLEN", "s") == 49
    assert leader.syncs[0] == 1


def test_the_pause_ends_by_itself(servers: Cluster) -> None:
    leader, replica = servers.pair()
    assert replica.say("CLIENT", "PAUSE", 1500, "WRITE") == b"OK"
    before = replica.offset
    leader("SET", "k", "v")
    stays(replica, before)
    wait_until(lambda: in_sync(leader, replica), "in sync again")
    assert replica("GET", "k") == b"v"


def test_a_long_pause_costs_no_memory(servers: Cluster) -> None:
    """The replica stops reading; the leader keeps what it lacks in its journal."""
    leader, replica = servers.pair()
    assert replica.say("CLIENT", "PAUSE", LONG, "WRITE") == b"OK"
    used = leader.info("memory")["mem_clients_slaves"], replica.info("memory")["used_memory"]
    for _ in range(30):
        leader("TAPPEND", "s", "f", "x" * 1_000_000)
    assert leader.info("memory")["mem_clients_slaves"] - used[0] < 10_000_000
    assert replica.info("memory")["used_memory"] - used[1] < 10_000_000
    assert replica("TLEN", "s") == 0
    assert replica.say("CLIENT", "UNPAUSE") == b"OK"
    assert_same(leader, replica)
    assert leader.syncs[0] == 1


def test_a_link_that_is_made_during_a_pause(servers: Cluster) -> None:
    leader, replica = servers.pair()
    assert replica.say("CLIENT", "PAUSE", LONG, "WRITE") == b"OK"
    before = replica.offset
    leader("SET", "k", "v")
    assert replica.say("CLIENT", "KILL", "TYPE", "master") == 1
    wait_until(lambda: leader.syncs[1] == 1 and replica.link_up, "a new link")
    leader("SET", "k", "w")
    stays(replica, before)
    assert replica.say("CLIENT", "UNPAUSE") == b"OK"
    assert_same(leader, replica)
    assert replica("GET", "k") == b"w"


def test_a_replica_of_a_paused_one_waits_too(servers: Cluster) -> None:
    leader, replica = servers.pair()
    last = servers.node(of=replica.port)
    wait_until(lambda: in_sync(replica, last), "in sync")
    assert replica.say("CLIENT", "PAUSE", LONG, "ALL") == b"OK"
    before = last.offset
    leader("SET", "k", "v")
    stays(last, before)
    with Raw(replica.port) as raw:
        assert raw("CLIENT", "UNPAUSE") == b"OK"
    assert_same(leader, replica)
    assert_same(replica, last)


def test_a_paused_replica_that_becomes_the_leader(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "before")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    assert replica.say("CLIENT", "PAUSE", LONG, "WRITE") == b"OK"
    leader("SET", "k", "after")
    replica("REPLICAOF", "NO", "ONE")
    assert replica.say("CLIENT", "UNPAUSE") == b"OK"
    assert replica("GET", "k") == b"before"
    assert replica("SET", "k", "own")
