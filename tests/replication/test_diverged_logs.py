"""A server whose log has diverged from its leader's deletes the end of its log, and continues without a copy."""

from __future__ import annotations

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy

AHEAD = 200  # entries that only the old leader has


def appended(node: Node, count: int, what: str = "v") -> None:
    for number in range(count):
        node("XADD", "x", "*", "f", f"{what}{number}")


@pytest.fixture
def diverged(servers: Cluster) -> tuple[Node, Node]:
    """An old leader with records that no other server has, and the new leader."""
    old = servers.node()
    appended(old, 100)
    new = servers.node(of=old.port)
    assert_same(old, new)
    appended(old, 50, "both")
    assert_same(old, new)
    new.lead()
    appended(old, AHEAD, "lost")
    return old, new


def truncated(node: Node) -> int:
    return int(node.info("stats")["sync_truncated"])


def test_an_old_leader_rejoins_without_a_copy(diverged: tuple[Node, Node]) -> None:
    old, new = diverged
    appended(new, 30, "new")
    before = new.syncs
    old.follow(new.port)
    assert_same(new, old)
    assert new.syncs == (before[0], before[1] + 1)
    assert truncated(old) == 1
    assert old.logged("The end of this server's log is being deleted")
    assert old("XLEN", "x") == 180
    appended(new, 5)
    assert_same(new, old)
    old.restart()
    assert_same(new, old)
    assert new.syncs[0] == before[0]


def test_an_old_leader_that_was_killed(diverged: tuple[Node, Node]) -> None:
    old, new = diverged
    old.kill()
    appended(new, AHEAD + 100, "new")  # its log is longer, too
    before = new.syncs
    old.config["replicaof"] = f"127.0.0.1 {new.port}"
    old.start()
    assert_same(new, old)
    assert (new.syncs[0], truncated(old)) == (before[0], 1)


def test_a_store_beyond_the_point_needs_a_copy(diverged: tuple[Node, Node]) -> None:
    old, new = diverged
    old("SAVE")
    before = new.syncs
    old.follow(new.port)
    assert_same(new, old)
    assert (new.syncs[0], truncated(old)) == (before[0] + 1, 0)
    assert old("XLEN", "x") == 150


def test_the_old_leader_leads_again(diverged: tuple[Node, Node]) -> None:
    """Two failovers, each with lost records."""
    old, new = diverged
    appended(new, 10, "new")
    old.follow(new.port)
    assert_same(new, old)
    old.lead()
    appended(new, 20, "lost again")
    appended(old, 5, "third")
    new.follow(old.port)
    assert_same(old, new)
    assert (old.syncs[0], truncated(old), truncated(new)) == (1, 1, 1)
    assert new("XLEN", "x") == 165


def test_replicas_of_the_old_leader_follow(servers: Cluster, diverged: tuple[Node, Node]) -> None:
    """A replica of the old leader has the lost records as well. It deletes them, too."""
    old, new = diverged
    third = servers.node(of=old.port)
    assert_same(old, third)
    old.follow(new.port)
    wait_until(lambda: truncated(old) == 1, "the old leader has deleted its records")
    assert_same(new, old, third)
    assert third("XLEN", "x") == 150


def test_a_replica_ahead_of_another_replica_keeps_its_records(servers: Cluster) -> None:
    """The other replica has not received them yet: the histories did not diverge."""
    leader = servers.node()
    appended(leader, 10)
    proxy = servers.proxy(leader)
    late, replica = servers.node(of=proxy.port), servers.node(of=leader.port)
    assert_same(leader, late, replica)
    proxy.close()
    appended(leader, 10)
    assert_same(leader, replica)
    replica.follow(late.port)
    assert truncated(replica) == 0


# -- what the leader is asked ------------------------------------------------------------------------------------
def asked(node: Node, point: int) -> tuple[list[bytes], list[list[bytes]]]:
    """The PSYNC and the REPLCONF history of a node whose leader says that the histories diverged at ``point``."""
    own = node.info()["master_replid"].encode()
    line = b"+OK 5000000 %b:5000000 %b:%d\r\n" % (ID.encode(), own, point)
    with FakeLeader(lambda _: copy(5_000_000), answers={b"TIDELOG": line}) as fake:
        node.follow(fake.port)
        wait_until(lambda: fake.links, "the handshake is complete")
        requests = list(fake.requests)
    return (
        next(argv for argv in requests if argv[0] == b"PSYNC"),
        [argv for argv in requests if argv[:2] == [b"REPLCONF", b"history"]],
    )


def test_nothing_is_deleted_before_the_leader_has_agreed(servers: Cluster) -> None:
    node = servers.node()
    appended(node, 10)
    point, digest, replid = node.offset, node.digest(), node.info()["master_replid"].encode()
    appended(node, 10)
    end = node.offset
    psync, history = asked(node, point)
    assert psync == [b"PSYNC", replid, b"%d" % point]
    assert len(history) == 1
    assert history[0][2].startswith(b"0:"), "all bytes before the point"
    assert (node.offset, truncated(node)) == (end, 0)
    assert node.digest() != digest


def test_a_point_at_which_no_record_begins(servers: Cluster) -> None:
    node = servers.node()
    appended(node, 10)
    point = node.offset + 1
    appended(node, 10)
    psync, _ = asked(node, point)
    assert psync[2] == b"%d" % node.offset
