"""A server whose log has diverged from its leader's deletes the end of its log, and continues without a copy."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from tests.replication.cluster import Cluster, Node, assert_same, block_history, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy, going_on
from tests.replication.test_full_disks import limit

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


def test_a_replica_ahead_of_another_replica_takes_a_copy(servers: Cluster) -> None:
    """The other replica has not received its last records yet: the histories did not diverge."""
    leader = servers.node()
    appended(leader, 10)
    proxy = servers.proxy(leader)
    late, replica = servers.node(of=proxy.port), servers.node(of=leader.port)
    assert_same(leader, late, replica)
    proxy.down.hold()
    appended(leader, 10)
    assert_same(leader, replica)
    replica.follow(late.port)
    wait_until(lambda: late.syncs == (1, 0), "it requests a copy")
    proxy.down.release()
    assert_same(late, replica)
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


def test_points_of_a_leader_that_lies(servers: Cluster) -> None:
    """Wherever it says that the histories diverged: records are deleted only if the log can end there and the leader
    has agreed, and never below the store."""
    node = servers.node()
    appended(node, 5)
    before = node.offset
    appended(node, 5)
    node("SAVE")
    stored = node.offset
    appended(node, 10)
    end, digest, own = node.offset, node.digest(), node.info()["master_replid"].encode()
    other, most = ID.encode(), 10**18 - 1
    lines: list[tuple[int, bytes]] = [
        (point, b"%b:%d" % (own, point)) for point in (0, 1, before, stored + 1, end - 1, end + 1, most)
    ]
    lines += [(0, b" ".join([b"%b:%d" % (own, end)] * 49))]
    for claimed in (0, most):
        for point, history in lines:
            answers = {b"TIDELOG": b"+OK %d %b:%d %b\r\n" % (claimed, other, claimed, history)}
            with FakeLeader(lambda _: b"-ERR no\r\n", answers=answers) as fake:
                node.follow(fake.port)
                wait_until(lambda fake=fake: fake.links, "the handshake is complete")  # type: ignore[misc]
                (psync, *_) = [argv for argv in fake.requests if argv[0] == b"PSYNC"]
            assert psync == [b"PSYNC", own, b"%d" % end], (claimed, point, history)
            assert (node.offset, node.digest(), truncated(node)) == (end, digest, 0)


@pytest.mark.parametrize(
    "psync",
    [lambda _: b"+CONTINUE %b\r\n" % (b"F" * 40), lambda _: b"-ERR no\r\n", lambda at: copy(at), lambda _: b""],
    ids=["an invalid ID", "an error", "a copy that never comes", "nothing"],
)
def test_a_leader_that_does_not_agree(servers: Cluster, psync: Callable[[int], bytes]) -> None:
    node = servers.node()
    appended(node, 10)
    point, own = node.offset, node.info()["master_replid"].encode()
    appended(node, 10)
    end, digest = node.offset, node.digest()
    line = b"+OK 5000000 %b:5000000 %b:%d\r\n" % (ID.encode(), own, point)
    with FakeLeader(psync, answers={b"TIDELOG": line}, close=True) as fake:
        node.follow(fake.port)
        wait_until(lambda: fake.links >= 2, "it tries again")
        assert [b"PSYNC", own, b"%d" % point] in fake.requests
    node.kill()
    node.start()
    assert (node.offset, node.digest(), truncated(node)) == (end, digest, 0)


def test_a_leader_that_agrees_and_sends_nothing(servers: Cluster) -> None:
    """The log ends at the point, also after a kill, and the server that has the records keeps them."""
    node = servers.node()
    appended(node, 10)
    point, digest, own = node.offset, node.digest(), node.info()["master_replid"].encode()
    appended(node, 10)
    line = b"+OK 5000000 %b:5000000 %b:%d\r\n" % (ID.encode(), own, point)
    with FakeLeader(lambda _: going_on(), answers={b"TIDELOG": line}) as fake:
        node.follow(fake.port)
        wait_until(lambda: truncated(node) == 1, "the records are deleted")
        wait_until(lambda: node.link_up, "the link is up")
        assert (node.offset, node.digest()) == (point, digest)
        assert node.info()["master_replid"] == ID
    node.kill()
    node.start()
    assert (node.offset, node.digest()) == (point, digest)


# -- what can fail at the old leader -----------------------------------------------------------------------------
def test_a_full_disk(diverged: tuple[Node, Node]) -> None:
    """It keeps its records and tries again. With room, it continues without a copy."""
    old, new = diverged
    end, digest, copies = old.offset, old.digest(), new.syncs[0]
    limit(old, 512 << 10)  # less than the new WAL
    old.follow(new.port)
    wait_until(lambda: old.logged("the end of this server's log can't be deleted"), "it says so")
    wait_until(lambda: old.say("EXISTS", "x") == 1, "it serves what it has")
    assert (truncated(old), new.syncs[0]) == (0, copies)
    wait_until(lambda: (old.offset, old.digest()) == (end, digest), "it has its records")
    limit(old, resource.RLIM_INFINITY)
    assert_same(new, old)
    assert (truncated(old), new.syncs[0]) == (1, copies)


def test_an_old_leader_that_cannot_note_that_it_follows(diverged: tuple[Node, Node]) -> None:
    """Other servers may have the deleted records under the current ID. A start as leader must not reuse it."""
    old, new = diverged
    end = old.offset
    block_history(old, True)
    old.follow(new.port)
    link = f"Link to the leader 127.0.0.1:{new.port}: "
    wait_until(lambda: any(link in line and "replication.new" in line for line in old.output), "it says so")
    assert (old.offset, truncated(old)) == (end, 0)
    block_history(old, False)
    assert_same(new, old)
    assert truncated(old) == 1
