"""A replica becomes the leader: what it takes over, who goes on with it without a copy, and what must be copied."""

from __future__ import annotations

import time

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.wire.rawclient import Raw

RETRY = 300  # ms


def read(node: Node, retry: int = RETRY, count: int = 100) -> list[bytes]:
    rows = node("TREAD", "jobs", "0", count, "GROUP", "g", 0, "RETRY", retry, 0)
    return [row[0] for row in rows if row is not None]


def test_unacknowledged_messages_come_again_and_no_others(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("TMAPPEND", "jobs", "FIELDS", 1, "n", "VALUES", *range(60))
    delivered = read(leader, count=40)
    done = delivered[::2]
    with Raw(leader.port) as raw:
        for entry in done:
            assert raw("TACK", "jobs", "g", entry) == 1
        assert raw("WAIT", 1, 0) == 1
    leader.kill()
    replica.lead()
    with Raw(replica.port) as raw:
        again: list[bytes] = []
        deadline = time.monotonic() + 10
        while len(again) < 40 and time.monotonic() < deadline:
            raw.send("TREAD", "jobs", "0", 100, "BLOCK", 1000, "GROUP", "g", 0, "RETRY", 60_000, 0)
            again += [row[0] for row in raw.read() or ()]
        raw.send("TREAD", "jobs", "0", 100, "BLOCK", 2 * RETRY, "GROUP", "g", 0, "RETRY", 60_000, 0)
        assert raw.read() is None, "something came that was not to come"
    assert len(again) == len(set(again)) == 40  # 20 that were delivered once, 20 new ones
    assert not set(again) & set(done)
    assert set(delivered) - set(done) < set(again)


def test_blocked_readers_get_what_falls_due_at_the_new_leader(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("TAPPEND", "jobs", "n", 1)
    (message,) = read(leader)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    leader.kill()
    replica.lead()
    with Raw(replica.port) as raw:
        raw.send("TREAD", "jobs", "", 1, "BLOCK", 0, "GROUP", "g", 0, "RETRY", RETRY, 0)
        assert raw.read()[0][0] == message


def test_a_group_gets_a_full_time_to_live(servers: Cluster) -> None:
    """That the leader was away is not the readers' silence."""
    leader, replica = servers.pair()
    leader("TREAD", "s", "0", 0, "GROUP", "g", 1500)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    leader.kill()
    time.sleep(1.2)  # the point is how much of its time has passed
    replica.lead()
    time.sleep(0.8)
    assert len(replica("TGROUP", "LIST", "s")) == 1
    wait_until(lambda: not replica("TGROUP", "LIST", "s"), "then it ends")


def test_what_expired_meanwhile_goes_at_the_new_leader(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "v", "PX", 100)
    leader("SET", "stays", "v")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    leader.kill()
    wait_until(lambda: replica("GET", "k") is None, "it is hidden")
    offset = replica.offset
    replica.lead()
    wait_until(lambda: replica("DBSIZE") == 1, "it is gone")
    assert replica.offset > offset  # and that is logged, for replicas to come


def test_the_new_leader_has_a_new_history(servers: Cluster) -> None:
    leader, replica = servers.pair()
    old = leader.info()["master_replid"]
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.lead()
    facts = replica.info()
    assert facts["master_replid"] != old
    assert facts["master_replid2"] == old
    assert facts["second_repl_offset"] in (leader.offset, leader.offset + 1)
    replica.restart()
    assert replica.info()["master_replid"] == facts["master_replid"]
    assert replica.info()["master_replid2"] == old


@pytest.mark.parametrize("restarted", [False, True])
def test_the_old_leader_goes_on_if_it_wrote_nothing_else(servers: Cluster, restarted: bool) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    if restarted:
        leader.kill()
    replica.lead()
    replica("SET", "k", "w")
    if restarted:
        leader.start()
    leader.follow(replica.port)
    assert_same(replica, leader)
    assert replica.syncs == (0, 1)
    assert leader("GET", "k") == b"w"


def test_the_old_leader_gives_up_what_only_it_has(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.lead()
    leader("TAPPEND", "lost", "f", "v")
    replica("TAPPEND", "kept", "f", "v")
    leader.follow(replica.port)
    assert_same(replica, leader)
    assert replica.syncs[0] == 1
    assert leader("EXISTS", "lost") == 0
    assert leader("TLEN", "kept") == 1


def test_equally_long_logs_of_two_leaders_are_not_taken_for_one(servers: Cluster) -> None:
    """Both went on from the same offset, with as many bytes of other records."""
    leader, replica = servers.pair()
    replica.lead()
    leader("SET", "k", "a")
    replica("SET", "k", "b")
    assert leader.offset == replica.offset
    leader.follow(replica.port)
    assert_same(replica, leader)
    assert leader("GET", "k") == b"b"


def test_down_and_up_again_without_a_copy(servers: Cluster) -> None:
    """A leader that becomes a replica and leads again: its replica goes on each time."""
    first, second = servers.pair()
    third = servers.node(of=second.port)
    assert_same(first, second, third)
    second.lead()
    second("SET", "k", 1)
    assert_same(second, third)
    first.follow(second.port)
    assert_same(second, first, third)
    second.follow(third.port)  # a circle, for a moment
    third.lead()
    third("SET", "k", 2)
    assert_same(third, second, first)
    assert [node.syncs[0] for node in (first, second, third)] == [1, 1, 0]


def test_an_old_directory_is_not_taken_for_a_replica(servers: Cluster) -> None:
    """A directory restored from a backup, whose log went on differently since."""
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()  # leads, by its configuration: other writes, under a name of its own or not
    replica("SET", "k", "x")
    leader("SET", "k", "y")
    replica.follow(leader.port)
    assert_same(leader, replica)
    assert replica("GET", "k") == b"y"


def test_a_replica_that_is_restarted_as_a_leader_has_other_history(servers: Cluster) -> None:
    leader, replica = servers.pair()
    other = servers.node(of=leader.port)
    assert_same(leader, replica, other)
    leader.kill()
    replica.stop()
    replica.config.pop("replicaof")
    replica.start()
    replica("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(50))
    other.follow(replica.port)
    assert_same(replica, other)
    leader.start()
    leader("SET", "a", "b")
    leader.follow(replica.port)
    assert_same(replica, leader, other)
    assert leader("EXISTS", "a") == 0
