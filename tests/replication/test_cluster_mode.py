"""``cluster-enabled yes`` with replicas: every member lists the same servers, and clients find the leader."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import ClusterNode, RedisCluster

from commands.slots import slot_of
from tests.replication.cluster import Cluster, Node, cluster, in_sync, wait_until
from tests.wire.rawclient import Raw


@pytest.fixture(scope="module")
def trio() -> Iterator[tuple[Node, Node, Node]]:
    """A leader and two replicas, for tests that leave the roles as they are."""
    with cluster() as made:
        yield _trio(made)


def _trio(made: Cluster) -> tuple[Node, Node, Node]:
    leader = made.node(cluster_enabled="yes")
    leader("SET", "k", "v")
    replicas = [made.node(of=leader.port, cluster_enabled="yes") for _ in range(2)]
    nodes = (leader, replicas[0], replicas[1])
    wait_until(lambda: in_sync(*nodes), "a first sync")
    _agree(*nodes)
    return nodes


def _members(node: Node) -> dict[str, tuple[str, str]]:
    """CLUSTER NODES of a node: (address, role) by ID."""
    lines = [line.split() for line in node.say("CLUSTER", "NODES").decode().splitlines()]
    assert [line[8:] for line in lines] == [["0-16383"] if "master" in line[2] else [] for line in lines]
    assert [line[2].startswith("myself") for line in lines].count(True) == 1
    return {line[0]: (line[1].partition("@")[0], line[2].removeprefix("myself,")) for line in lines}


def _agree(leader: Node, *replicas: Node) -> None:
    """Wait until all list these members with their own IDs."""
    nodes = (leader, *replicas)

    def agreed() -> bool:
        wanted = {
            node.say("CLUSTER", "MYID").decode(): (f"127.0.0.1:{node.port}", "master" if node is leader else "slave")
            for node in nodes
        }
        return len(wanted) == len(nodes) and all(_members(node) == wanted for node in nodes)

    wait_until(agreed, "members that agree")


def test_all_members_list_each_other_and_name_the_leader_alike(trio: tuple[Node, Node, Node]) -> None:
    leader, *replicas = trio
    ids = {node.say("CLUSTER", "MYID"): node.port for node in trio}
    for node in trio:
        ((first, last, *members),) = node.say("CLUSTER", "SLOTS")
        assert (first, last) == (0, 16383)
        assert {member[2]: (member[0], member[1]) for member in members} == {
            name: (b"127.0.0.1", port) for name, port in ids.items()
        }
        assert members[0][1] == leader.port
        assert node.say("CLUSTER", "MYSHARDID") == leader.say("CLUSTER", "MYSHARDID")
        assert b"cluster_state:ok" in node.say("CLUSTER", "INFO")
        assert b"cluster_known_nodes:3" in node.say("CLUSTER", "INFO")
        assert len(node.say("CLUSTER", "REPLICAS", leader.say("CLUSTER", "MYID"))) == 2
        refused = node.say("CLUSTER", "REPLICAS", replicas[0].say("CLUSTER", "MYID"))
        assert str(refused) == "ERR The specified node is not a master"


def test_a_replica_sends_clients_to_the_leader(trio: tuple[Node, Node, Node]) -> None:
    leader, replica, _ = trio
    moved = f"MOVED {slot_of(b'k')} 127.0.0.1:{leader.port}"
    with Raw(replica.port) as c:
        for words in (["GET", "k"], ["SET", "k", "x"], ["XREAD", "STREAMS", "k", "0"], ["WATCH", "k"]):
            assert str(c(*words)) == moved
        assert str(c("MGET", "k", "j")) == "CROSSSLOT Keys in request don't hash to the same slot"
        assert c("MULTI") == b"OK"
        assert str(c("GET", "k")) == moved
        assert str(c("EXEC")).startswith("EXECABORT")
        assert c("READONLY") == b"OK"
        assert c("GET", "k") == b"v"
        assert c.pipeline(*[("GET", "k")] * 20) == [b"v"] * 20
        assert str(c("SET", "k", "x")) == moved
        assert [c("MULTI"), c("GET", "k"), c("EXEC")] == [b"OK", b"QUEUED", [b"v"]]
        assert [c("MULTI"), str(c("INCR", "k"))] == [b"OK", moved]
        assert str(c("EXEC")).startswith("EXECABORT")
        assert c("READWRITE") == b"OK"
        assert str(c("GET", "k")) == moved
        assert c("DBSIZE") == 1  # without keys
        assert c("PING") == b"PONG"


def test_a_client_may_ask_for_keys_of_several_slots(trio: tuple[Node, Node, Node]) -> None:
    leader, replica, _ = trio
    with Raw(leader.port) as c, Raw(replica.port) as other:
        for each in (c, other):
            assert each("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert c("MGET", "k", "absent") == [b"v", None]
        assert [c("MULTI"), c("GET", "k"), c("EXISTS", "a", "b"), c("EXEC")] == [b"OK", b"QUEUED", b"QUEUED", [b"v", 0]]
        assert str(other("MGET", "k", "absent")) == f"MOVED {slot_of(b'k')} 127.0.0.1:{leader.port}"
        assert c("RESET") == b"RESET"
        assert str(c("MGET", "k", "absent")).startswith("CROSSSLOT ")


def test_shard_messages_are_published_at_the_leader(trio: tuple[Node, Node, Node]) -> None:
    leader, replica, _ = trio
    with Raw(replica.port) as listener, Raw(replica.port) as c:
        assert str(c("SPUBLISH", "k", "x")).startswith("MOVED ")
        assert str(listener("SSUBSCRIBE", "k")).startswith("MOVED ")
        listener("READONLY")
        assert listener("SSUBSCRIBE", "k") == [b"ssubscribe", b"k", 1]
        leader("SPUBLISH", "k", "x")
        assert listener.read() == [b"smessage", b"k", b"x"]


@pytest.mark.parametrize(
    ("program", "words", "expected"),
    [
        ("redis-cli", ["--cluster", "check", "127.0.0.1:{}"], "[OK] All 16384 slots covered."),
        ("redis-cli", ["--cluster", "info", "127.0.0.1:{}"], "keys in 1 masters."),
        ("redis-cli", ["-c", "-p", "{}", "MGET", "k", "{{k}}x"], "v"),
        # as with a redis-server that has all slots
        ("redis-benchmark", ["--cluster", "-p", "{}", "-q", "-n", "200", "-t", "set"], "Invalid cluster: 1 node(s)."),
    ],
)
def test_programs_of_redis(
    program: str, words: list[str], expected: str, trio: tuple[Node, Node, Node]
) -> None:  # fmt: skip
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    for node in trio[:2]:
        ran = subprocess.run(
            [program, *[word.format(node.port) for word in words]], capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        assert expected in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    trio[0]("FLUSHALL")
    trio[0]("SET", "k", "v")
    wait_until(lambda: in_sync(*trio), "the replicas")


# -- failovers -------------------------------------------------------------------------------------------------------
def _startup(*nodes: Node) -> list[ClusterNode]:
    return [ClusterNode("127.0.0.1", node.port) for node in nodes]


def test_redis_py_finds_the_new_leader_after_a_failover_and_a_promotion() -> None:
    with cluster() as made:
        first, second, third = _trio(made)
        client = RedisCluster(startup_nodes=_startup(second, third))
        assert client.set("a", 1)
        first("FAILOVER", "TO", "127.0.0.1", second.port)
        wait_until(lambda: second.role == "master" and first.link_up, "a handover")
        assert client.incr("a") == 2
        third.follow(second.port)
        wait_until(lambda: in_sync(second, first, third), "all in sync")
        _agree(second, first, third)
        assert client.incr("a") == 3
        wait_until(lambda: in_sync(second, first, third), "all in sync")
        second.kill()
        third.lead()
        first.follow(third.port)

        def again() -> bool:
            try:
                return bool(client.incr("a") >= 4)
            except redis.RedisError:
                return False

        wait_until(again, "the next leader")
        wait_until(lambda: in_sync(third, first), "all in sync")
        _agree(third, first)
        client.close()


def test_asynchronous_redis_py_through_a_failover() -> None:
    async def run(first: Node, second: Node) -> None:
        async with AsyncRedisCluster(host="127.0.0.1", port=second.port) as client:
            assert await client.set("a", 1)
            await asyncio.to_thread(first, "FAILOVER")
            await asyncio.to_thread(wait_until, lambda: second.role == "master" and first.link_up, "a handover")
            assert await client.incr("a") == 2
            assert await client.get("a") == b"2"

    with cluster() as made:
        first = made.node(cluster_enabled="yes")
        second = made.node(of=first.port, cluster_enabled="yes")
        wait_until(lambda: in_sync(first, second), "a first sync")
        asyncio.run(run(first, second))


def test_waiting_readers_are_sent_to_the_new_leader() -> None:
    with cluster() as made:
        first = made.node(cluster_enabled="yes")
        second = made.node(of=first.port, cluster_enabled="yes")
        wait_until(lambda: in_sync(first, second), "a first sync")
        first("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        with Raw(first.port) as one, Raw(first.port) as grouped, Raw(first.port) as stale:
            stale("READONLY")
            one.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
            grouped.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
            stale.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
            wait_until(lambda: first.info("clients")["blocked_clients"] == 3, "three readers")
            first("FAILOVER")
            for reader in (one, grouped):
                assert str(reader.read()) == f"MOVED {slot_of(b's')} 127.0.0.1:{second.port}"
            wait_until(lambda: first.link_up, "a handover")
            second("XADD", "s", "*", "f", "v")
            assert stale.read()[0][0] == b"s"


# -- identity ----------------------------------------------------------------------------------------------------------
def test_ids_survive_restarts_and_full_copies() -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        replica = made.node(cluster_enabled="yes")
        ids = [node.say("CLUSTER", "MYID") for node in (leader, replica)]
        replica.follow(leader.port)
        wait_until(lambda: in_sync(leader, replica), "a full copy")
        assert leader.syncs[0] == 1
        for node in (leader, replica):
            node.stop()
            node.start()
        wait_until(lambda: in_sync(leader, replica), "in sync again")
        assert [node.say("CLUSTER", "MYID") for node in (leader, replica)] == ids
        _agree(leader, replica)


def test_a_server_on_a_copied_directory_takes_an_id_of_its_own() -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        before = leader.say("CLUSTER", "MYID")
        replica = made.node(of=leader.port, start=False, cluster_enabled="yes")
        leader.stop()
        shutil.copytree(leader.directory, replica.directory, dirs_exist_ok=True)
        leader.start()
        replica.start()
        wait_until(lambda: in_sync(leader, replica), "in sync")
        _agree(leader, replica)
        assert leader.say("CLUSTER", "MYID") == before


def test_members_without_cluster_enabled_are_listed() -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        plain = made.node(of=leader.port)
        wait_until(lambda: in_sync(leader, plain), "in sync")
        assert sorted(_members(leader).values()) == sorted(
            [(f"127.0.0.1:{leader.port}", "master"), (f"127.0.0.1:{plain.port}", "slave")]
        )
        below = made.node(of=plain.port, cluster_enabled="yes")
        wait_until(lambda: below.link_up, "a link")
        assert sorted(_members(below).values()) == sorted(
            [(f"127.0.0.1:{plain.port}", "master"), (f"127.0.0.1:{below.port}", "slave")]
        )


def test_a_chain_of_replicas_knows_the_leader() -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes")
        middle = made.node(of=leader.port, cluster_enabled="yes")
        last = made.node(of=middle.port, cluster_enabled="yes")
        wait_until(lambda: str(last.say("GET", "k")).endswith(f":{leader.port}"), "a redirection to the leader")
        wait_until(lambda: len(_members(last)) == 3, "three members")
        assert _members(last)[leader.say("CLUSTER", "MYID").decode()] == (f"127.0.0.1:{leader.port}", "master")


def test_announced_addresses_are_those_that_clients_get() -> None:
    with cluster() as made:
        leader = made.node(cluster_enabled="yes", cluster_announce_ip="leader.example", cluster_announce_port=7001)
        replica = made.node(
            of=leader.port, cluster_enabled="yes", cluster_announce_ip="replica.example", cluster_announce_port=7002
        )
        wait_until(lambda: in_sync(leader, replica), "in sync")
        expected = [("leader.example:7001", "master"), ("replica.example:7002", "slave")]
        for node in (leader, replica):
            wait_until(lambda node=node: sorted(_members(node).values()) == expected, "the announced addresses")  # type: ignore[misc]
        assert str(replica.say("GET", "k")) == f"MOVED {slot_of(b'k')} leader.example:7001"


def test_announced_host_names_reach_all_members() -> None:
    with cluster() as made:
        leader = made.node(
            cluster_enabled="yes", cluster_announce_hostname="leader.example",
            cluster_preferred_endpoint_type="hostname",
        )  # fmt: skip
        replica = made.node(of=leader.port, cluster_enabled="yes", cluster_announce_hostname="replica.example")
        unnamed = made.node(of=leader.port, cluster_enabled="yes", cluster_preferred_endpoint_type="hostname")
        wait_until(lambda: in_sync(leader, replica, unnamed), "in sync")
        expected = {
            f"127.0.0.1:{leader.port}@0,leader.example", f"127.0.0.1:{replica.port}@0,replica.example",
            f"127.0.0.1:{unnamed.port}@0",
        }  # fmt: skip

        def addresses(node: Node) -> set[str]:
            return {line.split()[1] for line in node.say("CLUSTER", "NODES").decode().splitlines()}

        for node in (leader, replica, unnamed):
            wait_until(lambda node=node: addresses(node) == expected, "the host names")  # type: ignore[misc]
        assert str(replica.say("GET", "k")) == f"MOVED {slot_of(b'k')} 127.0.0.1:{leader.port}"
        assert str(unnamed.say("GET", "k")) == f"MOVED {slot_of(b'k')} leader.example:{leader.port}"
        ((_, _, *listed),) = leader.say("CLUSTER", "SLOTS")
        assert {member[0] for member in listed} == {b"leader.example", b"replica.example", b"127.0.0.1"}
