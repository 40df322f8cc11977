"""A replica refuses a copy that would delete data, and incomplete data does not lead."""

from __future__ import annotations

import shutil

import pytest
import redis

from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy


def filled(node: Node, entries: int = 1000) -> None:
    node("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[f"v{number}" for number in range(entries)])


def refuses(node: Node) -> bool:
    return bool(node.info()["master_sync_refused"])


def emptied(leader: Node) -> None:
    """Start a leader with an empty directory, as after its volume was replaced."""
    leader.kill()
    shutil.rmtree(leader.directory)
    leader.directory.mkdir()
    leader.start()


@pytest.fixture
def trapped(servers: Cluster) -> tuple[Node, Node]:
    """A leader that has come back empty, and its replica, which refuses to become empty."""
    leader = servers.node()
    replica = servers.node(of=leader.port)
    filled(leader)
    assert_same(leader, replica)
    emptied(leader)
    wait_until(lambda: refuses(replica), "the copy is refused")
    return leader, replica


def test_an_empty_leader_does_not_empty_its_replicas(trapped: tuple[Node, Node]) -> None:
    leader, replica = trapped
    assert replica("TLEN", "s") == 1000
    assert replica("ROLE")[:4] == [b"slave", b"127.0.0.1", leader.port, b"refused"]
    assert replica.info()["master_link_status"] == "down"
    wait_until(lambda: replica.logged("a full copy is refused"), "the refusal is in the log")
    assert replica.logged("REPLICAOF host port FORCE")
    assert leader.syncs == (0, 0), "the leader did not even begin to send a copy"
    leader("SET", "k", "v")  # still shorter
    replica.restart()
    wait_until(lambda: refuses(replica), "the copy is refused after a restart, too")
    assert replica("TLEN", "s") == 1000
    replica.lead()
    leader.follow(replica.port)
    assert_same(replica, leader)
    assert leader("TLEN", "s") == 1000


def test_a_refused_copy_can_be_forced(trapped: tuple[Node, Node]) -> None:
    leader, replica = trapped
    assert replica("REPLICAOF", "127.0.0.1", leader.port) == b"OK Already connected to specified master"
    assert refuses(replica)
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'replicaof' command"):
        replica("REPLICAOF", "127.0.0.1", leader.port, "FORCED")
    assert replica("REPLICAOF", "127.0.0.1", leader.port, "force") == b"OK"
    assert_same(leader, replica)
    assert replica("DBSIZE") == 0
    assert not refuses(replica)


def test_force_is_for_one_copy(trapped: tuple[Node, Node]) -> None:
    leader, replica = trapped
    replica("REPLICAOF", "127.0.0.1", leader.port, "FORCE")
    assert_same(leader, replica)
    filled(leader)
    assert_same(leader, replica)
    emptied(leader)
    wait_until(lambda: refuses(replica), "the next copy is refused again")
    assert replica("TLEN", "s") == 1000


def test_force_without_a_copy_is_used_up(servers: Cluster) -> None:
    """A replica that continued does not take the empty copy of a later start of its leader."""
    leader = servers.node()
    replica = servers.node(of=leader.port)
    filled(leader)
    assert_same(leader, replica)
    replica.lead()
    replica("REPLICAOF", "127.0.0.1", leader.port, "FORCE")
    assert_same(leader, replica)
    emptied(leader)
    wait_until(lambda: refuses(replica), "the copy is refused")
    assert replica("TLEN", "s") == 1000


def test_a_directive_allows_it(trapped: tuple[Node, Node]) -> None:
    leader, replica = trapped
    replica("CONFIG", "SET", "replica-accept-shorter", "yes")
    assert_same(leader, replica)
    assert replica("DBSIZE") == 0


def test_a_longer_history_of_others_is_taken(servers: Cluster) -> None:
    leader, other = servers.node(), servers.node()
    filled(leader, 2000)
    filled(other)
    other.follow(leader.port)
    assert_same(leader, other)
    assert other("TLEN", "s") == 2000


def test_a_server_without_keys_takes_any_copy(servers: Cluster) -> None:
    leader, other = servers.node(), servers.node()
    filled(other)
    other("FLUSHALL")
    other.follow(leader.port)
    assert_same(leader, other)


def test_a_shorter_history_with_a_common_beginning_is_taken(servers: Cluster) -> None:
    """As after a failover by Sentinel: the old leader has entries that the new one lacks."""
    leader = servers.node()
    replica = servers.node(of=leader.port)
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica.lead()
    filled(leader)
    replica("SET", "k", "w")
    leader.follow(replica.port)
    assert_same(replica, leader)
    assert leader("DBSIZE") == 1


def test_a_leader_of_an_earlier_version_does_not_describe_its_history(servers: Cluster) -> None:
    node = servers.node()
    filled(node)
    with FakeLeader() as fake:
        node.follow(fake.port)
        wait_until(lambda: fake.links, "the handshake is complete")
        assert not refuses(node)


@pytest.mark.parametrize(
    "reply", [b"+OK 17\r\n", b"+OK 0 " + b"A" * 40 + b":0\r\n", b"+OK -1 " + b"a" * 40 + b":0\r\n"]
)
def test_an_invalid_description_of_a_history_ends_the_link(servers: Cluster, reply: bytes) -> None:
    node = servers.node()
    filled(node)
    with FakeLeader(answers={b"TIDELOG": reply}) as fake:
        node.follow(fake.port)
        wait_until(lambda: node.logged("the leader describes its history as"), "the link ends")
        assert not fake.links


# -- incomplete data ---------------------------------------------------------------------------------------------
def test_a_replica_that_has_never_caught_up_does_not_lead(servers: Cluster) -> None:
    leader = servers.node()
    filled(leader)
    leader.freeze()
    replica = servers.node(of=leader.port)
    try:
        assert replica.info()["slave_priority"] == 0
        with pytest.raises(redis.ResponseError, match=r"has not caught up .* REPLICAOF NO ONE FORCE"):
            replica("REPLICAOF", "NO", "ONE")
        replica.restart()
        assert replica.info()["slave_priority"] == 0
    finally:
        leader.thaw()
    wait_until(lambda: replica.info()["slave_priority"] == 100, "it has caught up")
    assert replica("TLEN", "s") == 1000
    leader.kill()
    replica.restart()
    assert replica.info()["slave_priority"] == 100, "it has caught up once"
    replica.lead()
    assert replica.role == "master"


def test_force_leads(servers: Cluster) -> None:
    replica = servers.node(of=servers.node(start=False).port)
    assert replica("REPLICAOF", "NO", "ONE", "FORCE") == b"OK"
    replica("SET", "k", "v")
    replica.config.pop("replicaof")
    replica.restart()
    assert not replica.logged("lacks data")
    assert replica("GET", "k") == b"v"


def test_a_copy_is_incomplete_until_its_replica_has_caught_up(servers: Cluster) -> None:
    """The store that a copy transfers is older than the end of the log."""
    leader = servers.node()
    filled(leader)
    leader("SAVE")
    proxy = servers.proxy(leader)
    replica = servers.node(of=proxy.port, replica_priority=7)
    wait_until(lambda: in_sync(leader, replica), "a first sync")
    wait_until(lambda: replica.info()["slave_priority"] == 7, "it has caught up")
    proxy.close()
    assert replica.info()["slave_priority"] == 7, "without a link, it is still complete"
    replica.config.pop("replicaof")
    replica.restart()
    assert not replica.logged("lacks data")


def test_starting_incomplete_data_as_a_leader_is_logged(servers: Cluster) -> None:
    replica = servers.node(of=servers.node(start=False).port)
    assert replica.info()["slave_priority"] == 0
    replica.config.pop("replicaof")
    replica.restart()
    assert replica.logged("a replica that had not caught up with its leader")
    replica.restart()
    assert not replica.logged("a replica that had not caught up with its leader")


def test_the_leader_that_hands_over_stays_complete(servers: Cluster) -> None:
    leader, replica = servers.pair()
    filled(leader)
    assert_same(leader, replica)
    leader("FAILOVER")
    wait_until(lambda: in_sync(replica, leader), "the roles are exchanged")
    assert leader.info()["slave_priority"] == 100


def test_the_first_copy_of_an_unrelated_history_is_incomplete(servers: Cluster) -> None:
    """Sentinel must not choose a server whose data is still that of another group."""
    node = servers.node()
    filled(node)
    answers = {b"TIDELOG": b"+OK 5000000 %b:5000000\r\n" % ID.encode()}
    with FakeLeader(lambda _: copy(5_000_000), answers=answers) as fake:
        node.follow(fake.port)
        wait_until(lambda: node.info()["master_sync_in_progress"], "the copy begins")
        assert node.info()["slave_priority"] == 0
        with pytest.raises(redis.ResponseError, match=r"has not caught up .* REPLICAOF NO ONE FORCE"):
            node("REPLICAOF", "NO", "ONE")
    wait_until(lambda: not node.info()["master_sync_in_progress"], "the link ends")
    assert node.info()["slave_priority"] == 100, "its own data is complete"
    assert node("REPLICAOF", "NO", "ONE") == b"OK"


def test_a_leader_that_is_loading_is_asked_again(servers: Cluster) -> None:
    node = servers.node()
    filled(node)
    with FakeLeader(answers={b"TIDELOG": b"-LOADING Redis is loading the dataset in memory\r\n"}) as fake:
        node.follow(fake.port)
        wait_until(lambda: node.logged("the leader refuses REPLCONF tidelog (reply: LOADING"), "the link ends")
        assert not fake.links
