"""WAIT, WAITAOF and min-replicas-to-write: what they promise is true."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.replication.test_psync import Replica
from tests.wire.rawclient import Raw, pack


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """A leader and two replicas."""
    with cluster() as made:
        leader, first = made.pair()
        second = made.node(of=leader.port)
        wait_until(lambda: in_sync(leader, first, second), "a first sync")
        yield made


@pytest.fixture
def leader(shared: Cluster) -> Iterator[Node]:
    leader, first, second = shared.nodes
    yield leader
    for replica in (first, second):
        replica.thaw()
    wait_until(lambda: in_sync(leader, first, second), "in sync again")
    wait_until(lambda: leader.info()["connected_slaves"] == 2, "both are there")


@pytest.fixture
def first(shared: Cluster) -> Node:
    return shared.nodes[1]


@pytest.fixture
def second(shared: Cluster) -> Node:
    return shared.nodes[2]


def test_wait_counts_replicas(leader: Node) -> None:
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAIT", 2, 0) == 2
        assert raw("WAIT", 1, 0) >= 1
        assert raw("WAIT", 0, 0) in (0, 1, 2)


def test_replicas_show_the_write_when_wait_returns(leader: Node, first: Node, second: Node) -> None:
    with Raw(leader.port) as raw:
        for number in range(100):
            raw.send("SET", "n", number)
            raw.send("WAIT", 2, 0)
            assert raw.read() == b"OK"
            assert raw.read() == 2
            for replica in (first, second):
                assert int(replica("GET", "n")) == number


def test_a_frozen_replica_is_not_counted(leader: Node, first: Node, second: Node) -> None:
    first.freeze()
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        began = time.monotonic()
        assert raw("WAIT", 2, 200) == 1
        assert 0.198 < time.monotonic() - began < 2  # the clock of deadlines counts whole milliseconds
        second.freeze()
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAIT", 1, 100) == 0


@pytest.mark.parametrize("call", ["TPUBLISH fence 1 stage", "XADD s IDMP ann 1 * f v"])
def test_a_write_that_another_connection_repeats(leader: Node, first: Node, second: Node, call: str) -> None:
    """A client whose connection was lost before the reply waits for what it has sent on the former one."""
    with Raw(leader.port) as lost, Raw(leader.port) as raw:
        lost("TSTAGE", "stage", "0", "t", "FIELDS", "1", "f", "VALUES", "v")
        assert lost("WAIT", 2, 0) == 2
        first.freeze()
        second.freeze()
        lost(*call.split())
        assert raw("WAIT", 1, 0) == 2  # it has written nothing
        raw(*call.split())
        assert raw("WAIT", 1, 100) == 0
        assert raw("WAITAOF", 0, 1, 100)[1] == 0
        first.thaw()
        assert raw("WAIT", 1, 0) == 1


def test_wait_ends_when_the_replica_is_there_again(leader: Node, first: Node) -> None:
    first.freeze()
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        raw.send("WAIT", 2, 0)
        assert raw.nothing_yet()
        wait_until(lambda: leader.info("clients")["blocked_clients"] == 1, "it waits")
        first.thaw()
        assert raw.read() == 2


def test_a_connection_that_wrote_nothing_does_not_wait(leader: Node, first: Node, second: Node) -> None:
    first.freeze()
    second.freeze()
    leader("TAPPEND", "s", "f", "v")
    with Raw(leader.port) as raw:
        assert raw("WAIT", 2, 0) == 2


def test_in_a_transaction_nothing_waits(leader: Node, first: Node) -> None:
    first.freeze()
    with Raw(leader.port) as raw:
        raw.pipeline(("MULTI",), ("TAPPEND", "s", "f", "v"), ("WAIT", 2, 0))
        began = time.monotonic()
        reply = raw("EXEC")
        assert reply[1] in (0, 1, 2)
        assert time.monotonic() - began < 2


def test_wait_for_more_replicas_than_there_are(leader: Node) -> None:
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAIT", 5, 200) == 2


def test_wait_is_refused_on_a_replica(leader: Node, first: Node) -> None:
    assert first.say("WAIT", 1, 0).startswith("ERR WAIT cannot be used with replica instances")
    assert first.say("WAITAOF", 0, 1, 0).startswith("ERR WAITAOF cannot be used with replica instances")


def test_waitaof_counts_disks(leader: Node) -> None:
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAITAOF", 1, 2, 0) == [1, 2]
        assert raw("WAITAOF", 0, 1, 0)[1] >= 1


def test_waitaof_does_not_count_a_frozen_replica(leader: Node, first: Node) -> None:
    first.freeze()
    with Raw(leader.port) as raw:
        raw("TAPPEND", "s", "f", "v")
        assert raw("WAITAOF", 1, 1, 0) == [1, 1]
        assert raw("WAITAOF", 1, 2, 300) == [1, 1]
        raw.send("WAITAOF", 1, 2, 0)
        assert raw.nothing_yet()
        first.thaw()
        assert raw.read() == [1, 2]


def test_waitaof_is_quick_where_replicas_sync_always(servers: Cluster) -> None:
    leader = servers.node(appendfsync="always")
    replica = servers.node(of=leader.port, appendfsync="always")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    with Raw(leader.port) as raw:
        began = time.monotonic()
        for _ in range(20):
            raw("TAPPEND", "s", "f", "v")
            assert raw("WAITAOF", 1, 1, 0) == [1, 1]
        assert time.monotonic() - began < 5  # no waiting for the next second


def test_a_replica_that_connects_again_counts_once(servers: Cluster) -> None:
    """The leader has not yet detected that its earlier connection is closed."""
    leader = servers.node(min_replicas_max_lag=600)
    leader("SET", "k", "v")
    replid, offset = leader.info()["master_replid"], leader.offset
    leader("CONFIG", "SET", "min-replicas-to-write", 2)
    with Replica(leader.port) as earlier, Replica(leader.port) as later:
        for replica in (earlier, later):
            replica.introduce()
            assert replica.ask("PSYNC", replid, offset).startswith(b"+CONTINUE")
            replica.sock.sendall(pack("REPLCONF", "ACK", offset, "FACK", offset))
        wait_until(lambda: leader.info()["connected_slaves"] == 2, "both connections")
        assert "NOREPLICAS" in str(leader.say("SET", "k", "w"))
        assert leader.info()["min_slaves_good_slaves"] == 1
        leader("CONFIG", "SET", "min-replicas-to-write", 1)
        with Raw(leader.port) as raw:
            assert raw("SET", "k", "x") == b"OK"
            end = leader.offset
            for replica in (earlier, later):
                replica.sock.sendall(pack("REPLCONF", "ACK", end, "FACK", end))
            assert raw("WAIT", 1, 0) == 1
            assert raw("WAIT", 2, 200) == 1
            assert raw("WAITAOF", 1, 2, 200) == [1, 1]


# -- min-replicas-to-write ---------------------------------------------------------------------------------------
def test_writes_are_refused_with_too_few_replicas(servers: Cluster) -> None:
    leader, replica = servers.pair(min_replicas_max_lag=2)
    leader("CONFIG", "SET", "min-replicas-to-write", 1)
    assert leader("SET", "k", "v")
    replica.kill()
    wait_until(lambda: "NOREPLICAS" in str(leader.say("SET", "k", "w")), "writes are refused")
    assert leader.info()["min_slaves_good_slaves"] == 0
    assert leader("GET", "k") in (b"v", b"w")
    with Raw(leader.port) as raw:
        raw("MULTI")
        assert raw("SET", "k", "x").startswith("NOREPLICAS")
        assert raw("EXEC").startswith("EXECABORT")
    replica.start()
    wait_until(lambda: leader.say("SET", "k", "z") == b"OK", "writes are taken again")
    assert leader.info()["min_slaves_good_slaves"] == 1


def test_a_silent_replica_does_not_count(servers: Cluster) -> None:
    leader, replica = servers.pair(min_replicas_max_lag=1)
    leader("CONFIG", "SET", "min-replicas-to-write", 1)
    replica.freeze()
    wait_until(lambda: "NOREPLICAS" in str(leader.say("SET", "k", "w")), "writes are refused")
    replica.thaw()
    wait_until(lambda: leader.say("SET", "k", "z") == b"OK", "writes are taken again")


def test_min_replicas_to_write_can_be_set_at_run_time(servers: Cluster) -> None:
    leader = servers.node()
    assert leader("SET", "k", "v")
    leader("CONFIG", "SET", "min-replicas-to-write", 1)
    assert "NOREPLICAS" in str(leader.say("SET", "k", "w"))
    leader("CONFIG", "SET", "min-replicas-to-write", 0)
    assert leader("SET", "k", "w")
