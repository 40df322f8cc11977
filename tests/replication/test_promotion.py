"""A replica becomes the leader: what it takes over, which servers go on with it without a copy, which need one."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.replication.proxy import Proxy
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
    """Its readers could not reach the leader while that was away."""
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
    assert replica.syncs == (0, 1)
    assert leader("EXISTS", "lost") == 0
    assert leader("TLEN", "kept") == 1


def test_equally_long_logs_of_two_leaders_are_not_taken_for_one(servers: Cluster) -> None:
    """Both went on from the same offset, with different records of the same length."""
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


def test_siblings_go_on_at_the_new_leader(servers: Cluster) -> None:
    """While it was a replica it kept what they may lack, and it keeps that as long as any leader."""
    leader, replica = servers.pair()
    sibling = servers.node(of=leader.port)
    assert_same(leader, replica, sibling)
    sibling.kill()
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(100))
    assert_same(leader, replica)
    replica("SAVE")
    replica.lead()
    replica("SET", "k", "v")
    time.sleep(0.5)  # time to let go of it
    sibling.config["replicaof"] = f"127.0.0.1 {replica.port}"
    sibling.start()
    assert_same(replica, sibling)
    assert replica.syncs == (0, 1)


def star(servers: Cluster) -> tuple[Node, Node, Proxy, Node, Proxy]:
    """A leader and two replicas, each behind a proxy."""
    leader = servers.node()
    leader("SET", "k", "v")
    made: list[tuple[Node, Proxy]] = []
    for _ in range(2):
        proxy = servers.proxy(leader)
        made.append((servers.node(of=proxy.port), proxy))
    (b, to_b), (c, to_c) = made
    wait_until(lambda: in_sync(leader, b, c), "in sync")
    return leader, b, to_b, c, to_c


def test_an_offset_within_a_batch_of_the_new_leader(servers: Cluster) -> None:
    """One replica takes ten batches as one and becomes the leader; another has only some of them."""
    leader, b, to_b, c, to_c = star(servers)
    to_b.down.hold()
    for number in range(5):
        leader("TAPPEND", "s", "n", number)
    wait_until(lambda: c.offset == leader.offset, "c has five")
    to_c.down.hold()
    for number in range(5, 10):
        leader("TAPPEND", "s", "n", number)
    to_b.down.release()
    wait_until(lambda: b.offset == leader.offset, "b has ten")
    assert c.offset < b.offset
    leader.kill()
    b.lead()
    to_c.cut()
    c.follow(b.port)
    assert_same(b, c)
    assert b.syncs == (0, 1)
    assert [row[2] for row in c("TRANGE", "s", "-", "+")] == [b"%d" % number for number in range(10)]
    c.kill()
    c.start()
    assert_same(b, c)
    assert b.syncs == (0, 2)


def test_a_replica_that_has_more_than_the_new_leader(servers: Cluster) -> None:
    leader, b, to_b, c, _ = star(servers)
    to_b.down.hold()
    leader("TAPPEND", "s", "n", 1)
    wait_until(lambda: c.offset == leader.offset, "c has it")
    leader.kill()
    to_b.cut()
    b.lead()
    c.follow(b.port)
    assert_same(b, c)
    assert b.syncs == (0, 1)
    assert c("EXISTS", "s") == 0
    for number in range(3):
        b("TAPPEND", "s", "n", number)
    assert_same(b, c)


def due_at(node: Node) -> int | None:
    found: int | None = node("TPENDING", "jobs", "w")[3]
    return found


def test_a_replica_that_takes_over_knows_of_the_stop(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("TAPPEND", "jobs", "n", 1)
    leader("TREAD", "jobs", "0", 1, "GROUP", "w", 0, "RETRY", 60_000, 0)
    before = due_at(leader)
    wait_until(lambda: in_sync(leader, replica), "the replica has the group")
    assert due_at(replica) == before
    os.kill(leader.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(leader.pid, signal.SIGCONT)
    assert before is not None
    wait_until(lambda: (due_at(leader) or 0) >= before + 1000, "the leader has noticed")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    after = due_at(leader)
    leader.kill()
    replica.lead()
    assert due_at(replica) == after


@pytest.mark.parametrize("stopped", ["leader", "replica"])
def test_a_server_that_was_stopped_keeps_its_link(servers: Cluster, stopped: str) -> None:
    """What the other one has sent meanwhile is read before that seems to have been silent."""
    leader, replica = servers.pair()
    one, other = (leader, replica) if stopped == "leader" else (replica, leader)
    one("CONFIG", "SET", "repl-timeout", 2)
    other("CONFIG", "SET", "repl-timeout", 60)
    leader("SET", "k", "v")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    before = leader.info("stats")["sync_partial_ok"]
    os.kill(one.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(one.pid, signal.SIGCONT)
    leader("SET", "k", "w")
    wait_until(lambda: replica("GET", "k") == b"w", "the link goes on")
    assert leader.info("stats")["sync_partial_ok"] == before
    assert not any("was silent" in line for line in one.output)
