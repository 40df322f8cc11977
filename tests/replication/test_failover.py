"""FAILOVER: roles are swapped, nothing acknowledged is lost, and a failover that can't succeed is given up."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import redis

from replication.handshake import request
from tests.replication.cluster import Cluster, Node, assert_same, block_history, connect, in_sync, wait_until
from tests.wire.rawclient import Raw


class Writers:
    """Clients that append to the current leader. After READONLY or a lost connection they try the next server."""

    def __init__(self, *nodes: Node, count: int = 3) -> None:
        self.nodes = nodes
        self.confirmed: list[list[bytes]] = [[] for _ in range(count)]  # values, by writer
        self.longest = 0.0  # seconds that a write took
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, writer: int) -> None:
        at, number = 0, 0
        while not self._stop.is_set():
            try:
                with connect(self.nodes[at].port) as client:
                    while not self._stop.is_set():
                        value = b"%d-%d" % (writer, number)
                        number += 1
                        began = time.monotonic()
                        client.execute_command("TAPPEND", "s", "n", value)
                        self.longest = max(self.longest, time.monotonic() - began)
                        self.confirmed[writer].append(value)
            except (redis.RedisError, OSError):
                at = (at + 1) % len(self.nodes)
                time.sleep(0.01)

    def more(self, count: int = 30) -> None:
        goals = [len(confirmed) + count for confirmed in self.confirmed]
        wait_until(lambda: all(len(c) >= g for c, g in zip(self.confirmed, goals, strict=True)), "more writes")

    def stop(self) -> set[bytes]:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        return {value for confirmed in self.confirmed for value in confirmed}


def failover_state(node: Node) -> str:
    return str(node.info()["master_failover_state"])


def assert_all_there(node: Node, confirmed: set[bytes]) -> None:
    there = [row[2] for row in node("TRANGE", "s", "-", "+")]
    assert len(there) == len(set(there)), "an entry is there twice"
    missing = confirmed - set(there)
    assert not missing, f"{len(missing)} of {len(confirmed)} acknowledged writes are gone"


def test_nothing_acknowledged_is_lost(servers: Cluster) -> None:
    leader, replica = servers.pair()
    writers = Writers(leader, replica)
    try:
        writers.more()
        for old, new in ((leader, replica), (replica, leader), (leader, replica)):
            assert old.say("FAILOVER", "TO", "127.0.0.1", new.port) == b"OK"
            wait_until(lambda: new.role == "master" and old.role == "slave", "roles are swapped")  # noqa: B023
            wait_until(lambda: old.link_up, "the old leader follows")  # noqa: B023
            assert failover_state(old) == failover_state(new) == "no-failover"
            writers.more()
    finally:
        confirmed = writers.stop()
    assert_same(replica, leader)
    assert_all_there(replica, confirmed)
    assert replica.syncs[0] == 0
    assert leader.info()["master_port"] == replica.port
    assert replica.info()["connected_slaves"] == 1


def test_without_a_target(servers: Cluster) -> None:
    leader, first = servers.pair()
    second = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, first, second), "in sync")
    writers = Writers(leader, first, second, count=2)
    try:
        writers.more()
        assert leader.say("FAILOVER") == b"OK"
        wait_until(lambda: leader.role == "slave" and "master" in (first.role, second.role), "it follows one of them")
        new, other = (first, second) if first.role == "master" else (second, first)
        other.follow(new.port)
        writers.more()
    finally:
        confirmed = writers.stop()
    assert_same(new, leader, other)
    assert_all_there(new, confirmed)
    assert new.syncs[0] == 0


def test_a_frozen_target_times_out(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    replica.freeze()
    leader("SET", "k", "w")
    writers = Writers(leader, count=2)
    try:
        assert leader.say("FAILOVER", "TO", "127.0.0.1", replica.port, "TIMEOUT", 400) == b"OK"
        assert failover_state(leader) == "waiting-for-sync"
        wait_until(lambda: failover_state(leader) == "no-failover", "it is given up")
        assert leader.role == "master"
        replica.thaw()
        writers.more()
    finally:
        replica.thaw()
        confirmed = writers.stop()
    assert writers.longest >= 0.2, "writes did not wait"
    assert_same(leader, replica)
    assert_all_there(leader, confirmed)


def test_a_failover_can_be_aborted(servers: Cluster) -> None:
    leader, replica = servers.pair()
    replica.freeze()
    try:
        leader("SET", "k", "w")
        assert leader.say("FAILOVER") == b"OK"
        assert failover_state(leader) == "waiting-for-sync"
        assert leader.say("FAILOVER").startswith("ERR FAILOVER already in progress")
        assert leader.say("FAILOVER", "ABORT") == b"OK"
        assert failover_state(leader) == "no-failover"
        assert leader("SET", "k", "x")
    finally:
        replica.thaw()
    assert_same(leader, replica)
    assert leader.say("FAILOVER", "ABORT").startswith("ERR No failover in progress")


def test_a_forced_failover(servers: Cluster) -> None:
    """When the time is over, a target that lacks something becomes the leader nevertheless."""
    leader = servers.node()
    proxy = servers.proxy(leader)
    replica = servers.node(of=proxy.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    proxy.down.hold()
    leader("SET", "lacking", "v")
    assert leader.say("FAILOVER", "TO", "127.0.0.1", replica.port, "FORCE", "TIMEOUT", 300) == b"OK"
    wait_until(lambda: replica.role == "master", "it leads")
    proxy.down.release()
    wait_until(lambda: leader.role == "slave" and leader.link_up, "the old one follows")
    assert_same(replica, leader)


def test_errors(servers: Cluster) -> None:
    leader = servers.node()
    assert leader.say("FAILOVER") == "ERR FAILOVER requires connected replicas."
    replica = servers.node(of=leader.port)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    assert leader.say("FAILOVER", "TO", "127.0.0.1", 1) == "ERR FAILOVER target HOST and PORT is not a replica."
    assert leader.say("FAILOVER", "TIMEOUT", 0) == "ERR FAILOVER timeout must be greater than 0"
    assert "requires both a timeout and target" in leader.say("FAILOVER", "FORCE")
    assert replica.say("FAILOVER") == "ERR FAILOVER is not valid when server is a replica."
    assert leader.say("FAILOVER", "ABORT") == "ERR No failover in progress."
    assert leader.role == "master"


@pytest.mark.parametrize("how", ["frozen", "killed", "cut off"])
def test_the_target_is_lost_while_it_takes_over(servers: Cluster, how: str) -> None:
    """It had everything, so the leader hands over, but gets no answer: it goes on as leader."""
    leader = servers.node(repl_timeout=2)
    leader("SET", "k", "v")
    replica = servers.node(of=leader.port, repl_timeout=2)
    wait_until(lambda: in_sync(leader, replica), "in sync")
    wait_until(lambda: leader.info()["slave0"]["offset"] == leader.offset, "acknowledged")
    replica.freeze()
    assert leader.say("FAILOVER", "TIMEOUT", 300) == b"OK"
    if how == "killed":
        replica.kill()
    elif how == "cut off":
        assert leader.say("FAILOVER", "ABORT") == b"OK"
    wait_until(lambda: failover_state(leader) == "no-failover" and leader.role == "master", "it leads on")
    assert leader("SET", "k", "w")
    if how == "killed":
        replica.start()
    else:
        replica.thaw()
    assert_same(leader, replica)
    assert [leader.role, replica.role] == ["master", "slave"]


def test_group_readers_are_told_and_go_on_at_the_new_leader(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("TAPPEND", "s", "n", 1)
    with Raw(leader.port) as raw:
        (message,) = raw("TREAD", "s", "0", 1, "GROUP", "g", 0, "RETRY", 200, 0)
        raw.send("TREAD", "s", "0", 1, "BLOCK", 0, "GROUP", "other", 0)
        assert raw.read()[0][0] == message[0]
        raw.send("TREAD", "s", "0", 1, "BLOCK", 0, "GROUP", "other", 0)
        assert raw.nothing_yet()
        assert leader.say("FAILOVER") == b"OK"
        assert raw.read().startswith("UNBLOCKED")
    wait_until(lambda: replica.role == "master", "it leads")
    with Raw(replica.port) as raw:
        raw.send("TREAD", "s", "0", 1, "BLOCK", 0, "GROUP", "g", 0, "RETRY", 200, 0)
        assert raw.read()[0][0] == message[0]
        assert raw("TACK", "s", "g", message[0]) == 1
    assert_same(replica, leader)


def test_failover_there_and_back_without_a_write(servers: Cluster) -> None:
    """Nothing was logged under the present ID; nevertheless the replica must be asked by that ID."""
    first, second = servers.pair()
    first("FAILOVER")
    wait_until(lambda: in_sync(second, first), "roles are swapped")
    second("FAILOVER", "TIMEOUT", 5000)
    wait_until(lambda: in_sync(first, second), "and swapped again")
    assert first.role == "master"
    assert first("SET", "k", "v")
    assert_same(first, second)
    assert (first.syncs[0], second.syncs[0]) == (1, 0)


def test_a_failover_that_fails_while_the_new_id_can_not_be_saved(servers: Cluster) -> None:
    """The target refuses, and the old leader can't save a new ID: it keeps trying to follow."""
    leader, replica = servers.pair()
    replica("CONFIG", "SET", "requirepass", "secret")
    block_history(leader, True)
    leader("FAILOVER")
    wait_until(lambda: leader.logged("This server continues to follow"), "it has tried to lead again")
    block_history(leader, False)
    leader("CONFIG", "SET", "masterauth", "secret")
    with replica.redis.client() as client:
        client.execute_command("AUTH", "secret")
        client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: leader.link_up, "it follows")


def test_failover_ignores_replicas_that_never_said_where_they_listen(servers: Cluster) -> None:
    """Such as a tool that makes copies."""
    leader = servers.node()
    leader("SET", "k", "v")
    replid, offset = leader.info()["master_replid"], leader.offset
    with socket.create_connection(("127.0.0.1", leader.port), 10) as tool:
        tool.sendall(request("REPLCONF", "tidelog", 1))
        assert tool.recv(100).startswith(b"+OK ")
        tool.sendall(request("PSYNC", replid, offset))
        assert tool.recv(1000).startswith(b"+CONTINUE")
        leader("FAILOVER", "TIMEOUT", 500)
        tool.sendall(request("REPLCONF", "ACK", offset, "FACK", offset))
        wait_until(lambda: leader.info()["master_failover_state"] == "no-failover", "it is given up", 5)
    assert leader.role == "master"
