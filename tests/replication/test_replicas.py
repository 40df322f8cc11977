"""What a replica does for clients: it refuses writes, serves reads, wakes blocked readers, passes messages on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from redis.lock import Lock

from tests.replication.cluster import Cluster, Node, assert_same, cluster, in_sync, new_port, wait_until
from tests.wire.rawclient import Raw


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """A leader, its replica, and a replica of that."""
    with cluster() as made:
        leader, replica = made.pair()
        made.node(of=replica.port)
        wait_until(lambda: in_sync(leader, made.nodes[2]), "the chain is in sync")
        yield made


@pytest.fixture
def leader(shared: Cluster) -> Node:
    shared.nodes[0]("FLUSHALL")
    return shared.nodes[0]


@pytest.fixture
def replica(shared: Cluster, leader: Node) -> Node:
    wait_until(lambda: in_sync(leader, *shared.nodes[1:]), "in sync")
    return shared.nodes[1]


@pytest.fixture
def last(shared: Cluster, replica: Node) -> Node:
    """The replica of the replica."""
    return shared.nodes[2]


WRITES: tuple[tuple[str | int, ...], ...] = (
    ("TAPPEND", "s", "f", "v"),
    ("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", 1),
    ("TAPPEV", "s", "COUNT", 0),
    ("TREAD", "s", "0", 1, "GROUP", "g", 0),
    ("TREAD", "s", "0", 1, "BLOCK", 0, "GROUP", "g", 0),
    ("TWAIT", 0, "GROUP", "g", "s"),
    ("TACK", "s", "g", "1.1"),
    ("TNACK", "s", "g", "1.1"),
    ("TTOUCH", "s", "g", 10, "1.1"),
    ("TGROUP", "DESTROY", "s", "g"),
    ("TGROUP", "SETID", "s", "g", 0),
    ("SET", "k", "v"),
    ("APPEND", "k", "v"),
    ("RENAME", "k", "l"),
    ("MSETEX", 1, "k", "v"),
    ("INCR", "n"),
    ("DEL", "k"),
    ("EXPIRE", "k", 10),
    ("FLUSHALL",),
)


@pytest.mark.parametrize("words", WRITES, ids=lambda words: words[0])
def test_writes_are_refused(words: tuple[str | int, ...], replica: Node) -> None:
    assert replica.say(*words) == "READONLY You can't write against a read only replica."


def test_transactions_with_writes_are_refused(replica: Node) -> None:
    with Raw(replica.port) as raw:
        assert raw("MULTI") == b"OK"
        assert raw("SET", "k", "v").startswith("READONLY")
        assert raw("EXEC").startswith("EXECABORT")
        assert raw.pipeline(("MULTI",), ("GET", "k"), ("EXEC",))[2] == [None]


def test_reads_are_served(leader: Node, replica: Node, last: Node) -> None:
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(10))
    leader("TREAD", "s", "0", 4, "GROUP", "g", 0, "RETRY", 100_000, 0)
    leader("SET", "k", "v", "EX", 100)
    wait_until(lambda: in_sync(leader, replica, last), "in sync")
    for node in (replica, last):
        for words in (
            ("TRANGE", "s", "-", "+"), ("TREAD", "s", "0", 3), ("TLEN", "s"), ("TCOUNT", "s", "-", "+"), ("GET", "k"),
            ("TPENDING", "s", "g", "-", "+", 10), ("TSEEK", "s", "0", 3), ("TREVRANGE", "s", "+", "-"), ("DBSIZE",),
            ("EXPIRETIME", "k"), ("TYPE", "s"), ("SCAN", 0),
        ):  # fmt: skip
            assert node.say(*words) == leader.say(*words), words


def test_blocked_readers_of_a_replica_wake_when_the_leader_appends(leader: Node, replica: Node, last: Node) -> None:
    with Raw(replica.port) as near, Raw(last.port) as far:
        for raw in (near, far):
            raw.send("TREAD", "s", "", 10, "BLOCK", 0)
            assert raw.nothing_yet()
        entry = leader("TAPPEND", "s", "f", "v")
        assert near.read() == [[entry, b"f", b"v"]]
        assert far.read() == [[entry, b"f", b"v"]]


def test_waits_for_many_streams_on_a_replica(leader: Node, replica: Node, last: Node) -> None:
    with Raw(replica.port) as near, Raw(last.port) as far:
        assert near("TWAIT", 1, "s", 0, "t", 0) is None
        for node, raw in ((replica, near), (last, far)):
            raw.send("TWAIT", 0, "s", 0, "t", "")
            wait_until(lambda node=node: node.info("clients")["blocked_clients"] == 1, "it waits")  # type: ignore[misc]
        leader("TAPPEND", "t", "f", "v")
        assert near.read() == far.read() == [b"t"]
        assert near("TWAIT", 0, "s", 0, "t", 0) == [b"t"]
        near.send("TWAIT", 0, "s", 0)
        wait_until(lambda: replica.info("clients")["blocked_clients"] == 1, "it waits")
        leader("SET", "s", "a string")
        assert near.read().startswith("WRONGTYPE ")


def test_one_batch_wakes_with_all_of_it(leader: Node, replica: Node) -> None:
    with Raw(replica.port) as raw:
        raw.send("TREAD", "s", "", 10, "BLOCK", 0)
        assert raw.nothing_yet()
        pipe = leader.redis.pipeline(transaction=True)
        for number in range(3):
            pipe.execute_command("TAPPEND", "s", "n", number)
        pipe.execute()
        assert [row[2] for row in raw.read()] == [b"0", b"1", b"2"]


def test_an_expired_key_is_hidden_before_the_leader_says_so(leader: Node, replica: Node) -> None:
    leader("SET", "k", "v", "PX", 3000)
    leader("SET", "other", "v")
    wait_until(lambda: in_sync(leader, replica), "in sync")
    assert replica("GET", "k") == b"v"
    leader.freeze()  # it can't expire it meanwhile
    try:
        wait_until(lambda: replica("GET", "k") is None, "it is hidden")
        assert replica("EXISTS", "k") == 0
        assert replica("TTL", "k") == -2
        assert replica("GET", "other") == b"v"
    finally:
        leader.thaw()
    assert_same(leader, replica)
    wait_until(lambda: replica("DBSIZE") == 1, "it is gone")


def test_messages_reach_subscribers_everywhere(leader: Node, replica: Node, last: Node) -> None:
    with Raw(replica.port) as near, Raw(last.port) as far:
        near("SUBSCRIBE", "news")
        far("PSUBSCRIBE", "n*")
        leader("PUBLISH", "news", "hello")
        assert near.read() == [b"message", b"news", b"hello"]
        assert far.read() == [b"pmessage", b"n*", b"news", b"hello"]
        replica("PUBLISH", "news", "only here")  # must come after it
        assert near.read() == [b"message", b"news", b"only here"]


def test_messages_of_shard_channels(leader: Node, replica: Node, last: Node) -> None:
    with Raw(replica.port) as near, Raw(last.port) as far:
        near("SSUBSCRIBE", "news")
        far("SSUBSCRIBE", "news")
        far("SUBSCRIBE", "news")
        leader("SPUBLISH", "news", "hello")
        leader("PUBLISH", "news", "to all")
        assert near.read() == [b"smessage", b"news", b"hello"]
        assert far.read() == [b"smessage", b"news", b"hello"]
        assert far.read() == [b"message", b"news", b"to all"]
        replica("SPUBLISH", "news", "only here")
        assert near.read() == [b"smessage", b"news", b"only here"]


def test_keys_with_new_names_and_parts_of_strings(leader: Node, replica: Node) -> None:
    with Raw(replica.port) as reader:
        leader("TAPPEND", "s", "f", "v")
        leader("TREAD", "s", 0, 1, "GROUP", "g", 60_000, "RETRY", 1000, 0)
        leader("MSET", "a", "one", "b", "two")
        leader("APPEND", "a", " more")
        leader("SETRANGE", "a", 20, "end")
        leader("INCRBYFLOAT", "n", "1.5")
        leader("MSETEX", 2, "x", 1, "y", 2, "EX", 1000)
        leader("RENAME", "a", "b")
        assert_same(leader, replica)
        reader.send("TREAD", "t", "", 1, "BLOCK", 0)
        wait_until(lambda: replica.redis.info("clients")["blocked_clients"] == 1, "the reader waits")
        leader("RENAME", "s", "t")
        assert reader.read()[0][1:] == [b"f", b"v"]
        leader("SETRANGE", "b", 0, "ONE")
        leader("COPY", "b", "c")
        assert_same(leader, replica)
        assert replica("GET", "c") == replica("GET", "b") == b"ONE more".ljust(20, b"\0") + b"end"


def test_a_replica_refuses_the_scripts_that_it_knows(replica: Node) -> None:
    assert replica.say("EVAL", Lock.LUA_RELEASE_SCRIPT, 1, "lock", "token").startswith("READONLY")
    assert replica.say("EVALSHA", "0" * 40, 0).startswith("NOSCRIPT")


def test_what_info_and_role_say(leader: Node, replica: Node, last: Node) -> None:
    ours, theirs = leader.info(), replica.info()
    assert ours["role"] == "master"
    assert ours["connected_slaves"] == 1
    wait_until(lambda: leader.info()["slave0"]["offset"] == leader.offset, "the replica has acknowledged")
    facts = leader.info()["slave0"]
    assert facts["ip"] == "127.0.0.1"
    assert facts["port"] == replica.port
    assert facts["state"] == "online"
    assert facts["lag"] in (0, 1, 2)
    assert theirs["role"] == "slave"
    assert (theirs["master_host"], theirs["master_port"]) == ("127.0.0.1", leader.port)
    assert theirs["master_link_status"] == "up"
    assert theirs["master_sync_in_progress"] == 0
    assert theirs["slave_read_only"] == 1
    assert theirs["slave_priority"] == 100
    assert theirs["connected_slaves"] == 1
    assert theirs["master_replid"] == ours["master_replid"] == last.info()["master_replid"]
    role, offset, replicas = leader.say("ROLE")
    assert (role, offset) == (b"master", leader.offset)
    assert [row[:2] for row in replicas] == [[b"127.0.0.1", b"%d" % replica.port]]
    assert replica.say("ROLE") == [b"slave", b"127.0.0.1", leader.port, b"connected", leader.offset]


def test_client_lists_show_the_links(leader: Node, replica: Node) -> None:
    assert " flags=S " in leader.say("CLIENT", "LIST", "TYPE", "replica").decode()
    assert " flags=M " in replica.say("CLIENT", "LIST", "TYPE", "master").decode()
    full, partial = leader.syncs
    assert leader.say("CLIENT", "KILL", "TYPE", "replica") == 1
    wait_until(lambda: leader.syncs == (full, partial + 1) and replica.link_up, "it comes again")
    assert replica.say("CLIENT", "KILL", "TYPE", "master") == 1
    wait_until(lambda: leader.syncs == (full, partial + 2) and replica.link_up, "it comes again")


def test_what_is_done_to_clients_is_not_done_to_links(leader: Node, replica: Node) -> None:
    full, partial = leader.syncs
    for node in (leader, replica):
        node("CONFIG", "SET", "timeout", 1)
        node.say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        node.say("CLIENT", "KILL", "TYPE", "pubsub")
        node.say("CLIENT", "PAUSE", 300)
    with Raw(leader.port) as raw:
        raw.send("SET", "k", "v")
        assert raw.nothing_yet()
        assert raw.read() == b"OK"
        assert raw("WAIT", 1, 5000) == 1
    time.sleep(2.2)  # twice the time after which an idle client is cut
    assert replica.link_up
    assert leader.syncs == (full, partial)
    for node in (leader, replica):
        node("CONFIG", "SET", "timeout", 0)


def test_limits_of_clients_do_not_count_links(servers: Cluster) -> None:
    leader = servers.node()
    leader("CONFIG", "SET", "client-output-buffer-limit", "normal 1 1 1")
    replica = servers.node(of=leader.port)
    leader("SET", "k", "x" * 10_000_000)
    assert_same(leader, replica)
    assert leader.syncs[0] == 1


def test_the_same_leader_again(leader: Node, replica: Node) -> None:
    assert replica.say("REPLICAOF", "127.0.0.1", leader.port) == b"OK Already connected to specified master"
    assert replica.say("SLAVEOF", "127.0.0.1", leader.port) == b"OK Already connected to specified master"
    assert replica.say("REPLICAOF", "127.0.0.1", "x") == "ERR Invalid master port"
    assert leader.say("REPLICAOF", "NO", "ONE") == b"OK"


# -- change of role ----------------------------------------------------------------------------------------------
def test_group_readers_are_sent_away_and_plain_ones_stay(servers: Cluster) -> None:
    leader, other = servers.node(), servers.node()
    leader("TAPPEND", "s", "f", "v")
    with Raw(leader.port) as group, Raw(leader.port) as plain, Raw(leader.port) as waiting:
        plain.send("TREAD", "s", "", 1, "BLOCK", 0)
        group.send("TREAD", "s", "", 1, "BLOCK", 0, "GROUP", "g", 0)
        waiting("SET", "k", "v")
        waiting.send("WAIT", 1, 0)
        wait_until(lambda: leader.info("clients")["blocked_clients"] == 3, "all wait")
        leader.follow(other.port, force=True)
        assert group.read().startswith("UNBLOCKED ")
        assert waiting.read().startswith("UNBLOCKED ")
        assert plain.nothing_yet()
        wait_until(lambda: in_sync(other, leader), "in sync")
        entry = other("TAPPEND", "s", "f", "w")
        assert plain.read() == [[entry, b"f", b"w"]]


def test_waits_for_groups_end_and_others_stay(servers: Cluster) -> None:
    leader, other = servers.node(), servers.node()
    for key in ("s", "t"):
        leader("TREAD", key, "", 0, "GROUP", "g", 0)
    with Raw(leader.port) as group, Raw(leader.port) as plain:
        plain.send("TWAIT", 0, "s", 0, "t", 0)
        group.send("TWAIT", 0, "GROUP", "g", "s", "t")
        wait_until(lambda: leader.info("clients")["blocked_clients"] == 2, "both wait")
        leader.follow(other.port, force=True)
        assert group.read().startswith("UNBLOCKED ")
        assert group("TWAIT", 0, "GROUP", "g", "s", "t").startswith("READONLY ")
        wait_until(lambda: in_sync(other, leader), "in sync")
        assert plain.nothing_yet()
        other("TAPPEND", "t", "f", "v")
        assert plain.read() == [b"t"]


def test_a_queued_transaction_is_discarded(servers: Cluster) -> None:
    leader, other = servers.node(), servers.node()
    with Raw(leader.port) as raw:
        raw.pipeline(("MULTI",), ("SET", "k", "v"))
        leader.follow(other.port)
        reply = raw("EXEC")
        assert isinstance(reply, str)
        assert "READONLY" in reply
    assert leader("GET", "k") is None


def test_stale_data(servers: Cluster) -> None:
    leader, replica = servers.pair()
    leader("SET", "k", "v")
    assert_same(leader, replica)
    replica("CONFIG", "SET", "replica-serve-stale-data", "no")
    assert replica("GET", "k") == b"v"
    leader.kill()
    text = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
    wait_until(lambda: replica.say("GET", "k") == text, "reads are refused")
    assert replica.say("INFO", "replication")
    assert replica.say("PING")
    assert replica.say("SET", "k", "v") in (text, "READONLY You can't write against a read only replica.")
    replica("CONFIG", "SET", "replica-serve-stale-data", "yes")
    assert replica("GET", "k") == b"v"
    replica("CONFIG", "SET", "replica-serve-stale-data", "no")
    leader.start()
    wait_until(lambda: replica.say("GET", "k") == b"v", "the leader is back")


def test_a_leader_that_comes_up_later(servers: Cluster) -> None:
    port = new_port()
    replica = servers.node(of=port)
    assert replica.role == "slave"
    assert not replica.link_up
    assert replica.say("ROLE")[3] in (b"connect", b"connecting")
    assert replica.info()["master_link_down_since_seconds"] >= 0
    leader = servers.node(start=False)
    leader.port, leader.redis = port, redis.Redis(port=port)
    leader.start()
    leader("SET", "k", "v")
    assert_same(leader, replica)


def test_a_name_that_does_not_resolve(servers: Cluster) -> None:
    node = servers.node()
    node("SET", "k", "v")
    node("REPLICAOF", "no.such.host.invalid", 6379)
    wait_until(lambda: node.logged("no.such.host.invalid:6379: "), "it says so")
    assert node("GET", "k") == b"v"
    node.lead()
    assert node("SET", "k", "w")


def test_a_replica_of_itself(servers: Cluster) -> None:
    """It can't get a link, and otherwise works."""
    node = servers.node()
    node("SET", "k", "v")
    node.follow(node.port)
    wait_until(lambda: node.logged(f"127.0.0.1:{node.port}: "), "it says so")
    assert not node.link_up
    assert node("GET", "k") == b"v"
    node.lead()
    assert node("SET", "k", "w")
