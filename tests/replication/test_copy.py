"""Full copies: of everything, interrupted anywhere, under load. Until it has one, a replica serves its old data."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
import redis

from persistence.fullcopy import Incoming
from respserver.testing import start_in_thread
from tests.replication.cluster import Cluster, Node, assert_same, cluster, connect, in_sync, wait_until
from tests.replication.proxy import Proxy
from tests.replication.workloads import Appends, Load

ENTRIES = 50_000  # 4 MB
ROWS = 500  # entries a command
RNG = random.Random(7)


def fill(leader: Node, entries: int) -> None:
    """Add entries that compress badly, so that a copy has some size."""
    for _ in range(entries // ROWS):
        values = [RNG.randbytes(80) for _ in range(ROWS)]
        leader("TMAPPEND", "big", "FIELDS", 1, "f", "VALUES", *values)
    leader("SAVE")


@pytest.fixture(scope="module")
def large() -> Iterator[Cluster]:
    """A leader with many entries, in its store."""
    with cluster() as made:
        fill(made.node(), ENTRIES)
        yield made


class Copying:
    """A replica that has old data of its own and is then told to follow the large leader through a proxy."""

    def __init__(self, made: Cluster) -> None:
        self.leader = made.nodes[0]
        self.replica = made.node()
        self.proxy: Proxy = made.proxy(self.leader)
        self.replica("SET", "old", "data")
        self.replica("TAPPEND", "olds", "f", "v")

    def begin(self) -> None:
        self.replica.follow(self.proxy.port)

    def has_old_data(self) -> bool:
        return [self.replica("GET", "old"), self.replica("TLEN", "olds")] == [b"data", 1]

    def under_way(self) -> bool:
        return int(self.replica.info().get("master_sync_total_bytes", 0)) > 0

    def completes(self) -> None:
        wait_until(lambda: in_sync(self.leader, self.replica), "the copy is complete", 60)
        assert self.replica("TLEN", "big") == self.leader("TLEN", "big")
        assert self.replica("EXISTS", "old", "olds") == 0
        assert_same(self.leader, self.replica)


@pytest.fixture
def copying(large: Cluster) -> Iterator[Copying]:
    made = Copying(large)
    yield made
    made.replica.kill()


def test_a_copy_that_is_cut_begins_again(copying: Copying) -> None:
    places = [*sorted(RNG.randrange(2_000_000) for _ in range(3)), 100, 30]
    copying.proxy.down.cut(after=places.pop())
    copying.begin()
    while places:
        wait_until(copying.proxy.down.fired.is_set, "the link is cut")
        assert copying.has_old_data()
        copying.proxy.down.cut(after=places.pop())
    wait_until(copying.proxy.down.fired.is_set, "the link is cut")
    copying.completes()


def test_a_replica_killed_during_the_copy_keeps_its_old_data(copying: Copying) -> None:
    copying.proxy.down.rate = 1_500_000
    copying.begin()
    for _ in range(3):
        passed = copying.proxy.down.passed
        wait_until(lambda: copying.under_way() and copying.proxy.down.passed > passed + 200_000, "a copy")  # noqa: B023
        copying.replica.kill()
        copying.replica.start()
        assert copying.has_old_data()
    copying.proxy.down.rate = None
    copying.completes()
    copying.replica.kill()
    copying.replica.start()
    copying.completes()


def test_a_damaged_byte_ends_the_copy(copying: Copying) -> None:
    for after in (5_000, 300_000):
        copying.proxy.down.corrupt(after=after)
        copying.begin()
        wait_until(copying.proxy.down.fired.is_set, "a byte is damaged")
    copying.completes()
    assert copying.replica.logged("damaged in transit")


def test_old_data_is_served_during_the_copy(copying: Copying) -> None:
    copying.proxy.down.rate = 1_500_000
    copying.begin()
    wait_until(copying.under_way, "a copy is under way")
    facts = copying.replica.info()
    assert facts["master_link_status"] == "down"
    assert facts["master_sync_total_bytes"] > 0
    assert copying.has_old_data()
    assert copying.replica.say("SET", "k", "v").startswith("READONLY")
    wait_until(lambda: b"state=send_bulk" in copying.leader.say("INFO", "replication"), "the leader shows it")
    copying.proxy.down.rate = None
    copying.completes()


def test_a_copy_that_is_called_off_changes_nothing(copying: Copying) -> None:
    copying.proxy.down.rate = 1_500_000
    copying.begin()
    wait_until(copying.under_way, "a copy is under way")
    copying.replica.lead(force=True)
    assert copying.has_old_data()
    copying.replica("SET", "old", "new")
    copying.replica.kill()
    copying.replica.start()
    assert copying.replica("GET", "old") == b"new"
    assert copying.replica.role == "master"


def test_writes_during_the_copy_come_after_it(copying: Copying) -> None:
    copying.proxy.down.rate = 1_500_000
    workload = Appends()
    with Load(workload, copying.leader, replicas=0) as load:
        copying.begin()
        load.more(20)
        wait_until(copying.under_way, "a copy is under way")
        copying.leader("SAVE")  # a checkpoint meanwhile changes nothing of the copy
        load.more(20)
        copying.proxy.down.rate = None
        wait_until(lambda: copying.replica.link_up, "the copy is complete", 60)
        load.more(20)
    copying.completes()
    workload.check(copying.replica.redis, workload.said)


def test_the_leader_dies_during_the_copy(servers: Cluster) -> None:
    leader = servers.node()
    fill(leader, 10_000)
    proxy = servers.proxy(leader)
    proxy.down.rate = 1_000_000
    replica = servers.node(of=proxy.port)
    wait_until(lambda: int(replica.info()["master_sync_in_progress"]) == 1, "a copy is under way")
    leader.kill()
    leader.start()
    proxy.calm()
    assert_same(leader, replica)


def test_two_copies_at_once(large: Cluster) -> None:
    leader = large.nodes[0]
    replicas = [large.node(of=leader.port) for _ in range(2)]
    assert_same(leader, *replicas)
    for replica in replicas:
        replica.kill()


# -- what is copied ----------------------------------------------------------------------------------------------
def test_a_copy_of_an_empty_server(servers: Cluster) -> None:
    leader = servers.node()
    replica = servers.node(of=leader.port)
    assert_same(leader, replica)
    assert replica("DBSIZE") == 0
    assert leader.offset == 0
    leader("SET", "k", "v")
    assert_same(leader, replica)


@pytest.mark.parametrize("saved", [True, False], ids=["from the store", "from the journal"])
def test_a_copy_holds_everything(servers: Cluster, saved: bool) -> None:
    leader = servers.node(stream_node_max_entries=10)
    leader("SET", b"bin\0\xff", bytes(range(256)))
    leader("SET", "expires", "v", "EX", 1000)
    leader("SET", "empty", "")
    leader("SET", "x" * 2000, "y" * 3_000_000)
    leader("TMAPPEND", "s", "FIELDS", 2, "a", "b", "VALUES", *range(100))
    leader("TAPPEV", "s", "COUNT", 35)
    leader("TREAD", "s", "0", 10, "GROUP", "pending", 0, "RETRY", 10_000_000, 0)
    leader("TREAD", "s", "0", 3, "GROUP", "mortal", 10_000_000)
    leader("TREAD", "gone", "0", 0, "GROUP", "of an empty stream", 0)
    leader("TAPPEND", "jobs", "f", "v")
    given_up = ("RETRY", 1, 0, "MAXDELIVERIES", 1, "DEADLETTER", "dead")
    leader("TREAD", "jobs", "0", 1, "GROUP", "g", 0, *given_up)
    leader("TREAD", "jobs", "0", 1, "GROUP", "g", 0)
    wait_until(lambda: leader("TLEN", "dead") == 1, "it is given up")
    leader("TAPPEND", "evicted", "f", "v")
    leader("TAPPEV", "evicted", "COUNT", 0)
    leader("TAPPEND", "dies", "f", "v")
    leader("PEXPIREAT", "dies", 9_999_999_999_999)
    if saved:
        leader("SAVE")
    replica = servers.node(of=leader.port)
    assert_same(leader, replica)
    assert replica("TLEN", "s") == 35
    assert replica("TPENDING", "s", "pending")[0] == 10
    assert replica("TLEN", "dead") == 1
    assert 0 < replica("TTL", "expires") <= 1000
    replica.restart()
    assert_same(leader, replica)
    assert leader.syncs == (1, 1)


def test_copies_of_copies(servers: Cluster) -> None:
    leader = servers.node()
    fill(leader, 1000)
    first = servers.node(of=leader.port)
    second = servers.node(of=first.port)
    third = servers.node(of=second.port)
    assert_same(leader, first, second, third)
    leader("TAPPEND", "big", "f", "v")
    assert_same(leader, first, second, third)


# -- slow copies -------------------------------------------------------------------------------------------------
def test_a_copy_may_take_longer_than_the_timeout(servers: Cluster) -> None:
    leader = servers.node(repl_timeout=2)
    leader("SET", "k", "x" * 250_000)
    leader("SAVE")
    proxy = servers.proxy(leader)
    proxy.down.rate = 100_000
    replica = servers.node(of=proxy.port, repl_timeout=2)
    assert_same(leader, replica)
    assert leader.syncs[0] == 1
    leader("SET", "k", "y" * 250_000)  # one batch
    assert_same(leader, replica)
    assert leader.syncs == (1, 0)


def test_a_copy_that_stands_still_is_given_up_by_both(servers: Cluster) -> None:
    leader = servers.node(repl_timeout=2)
    leader("SET", "k", "x" * 400_000)
    leader("SAVE")
    proxy = servers.proxy(leader)
    proxy.down.swallow(after=100_000)
    replica = servers.node(of=proxy.port, repl_timeout=2)
    wait_until(proxy.down.fired.is_set, "it stands still")
    assert_same(leader, replica)
    assert leader.syncs[0] == 2


def test_a_copy_waits_for_the_end_of_another(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that was called off is still being written when another leader is to be followed."""
    first, second = servers.node(), servers.node()
    for node in (first, second):
        node("SET", "k", node.port)
        node("SAVE")
    entered, go_on = threading.Event(), threading.Event()
    add = Incoming.add

    def slow(self: Incoming, payload: bytes) -> None:
        if not entered.is_set():
            entered.set()
            go_on.wait(2)
        else:
            go_on.set()
            time.sleep(0.3)  # the first one ends, if it hasn't
        add(self, payload)

    monkeypatch.setattr(Incoming, "add", slow)
    with start_in_thread() as follower, connect(follower.port) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", first.port)
        assert entered.wait(20)
        client.execute_command("REPLICAOF", "127.0.0.1", second.port)
        wait_until(lambda: client.get("k") == b"%d" % second.port, "the second leader's data")
        assert second.syncs == (1, 0)


def test_no_reload_while_a_copy_arrives(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory can't be reopened while a copy is being written into it."""
    leader = servers.node()
    leader("SET", "k", "v")
    leader("SAVE")
    entered, go_on = threading.Event(), threading.Event()
    add = Incoming.add

    def slow(self: Incoming, payload: bytes) -> None:
        entered.set()
        assert go_on.wait(20)
        add(self, payload)

    monkeypatch.setattr(Incoming, "add", slow)
    with start_in_thread(enable_debug_command="yes") as follower, connect(follower.port) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", leader.port)
        assert entered.wait(20)
        with pytest.raises(redis.ResponseError, match="copy"):
            client.execute_command("DEBUG", "RELOAD")
        go_on.set()
        wait_until(lambda: client.get("k") == b"v", "the leader's data")
        assert leader.syncs == (1, 0)
