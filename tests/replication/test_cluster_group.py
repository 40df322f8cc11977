"""Cluster clients of a server group: they follow each leader, and retried appends are in the log exactly once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest
import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster
from redis.retry import Retry

from tests.replication.cluster import Node, cluster, wait_until
from tests.replication.groups import Group, status
from tests.wire.rawclient import Raw


@pytest.fixture(scope="module")
def shared() -> Iterator[Group]:
    with cluster() as servers:
        yield Group(servers, cluster_enabled="yes")


@pytest.fixture
def group(shared: Group) -> Group:
    """Three members in sync, which list each other."""
    for node in shared.nodes:
        node.start()
    leader = shared.wait()
    wait_until(lambda: all(len(_listed(node)) == 3 for node in shared.nodes), "all members")
    assert {role for _, role in _listed(leader).values()} == {"master", "slave"}
    return shared


def _listed(node: Node) -> dict[str, tuple[int, str]]:
    """CLUSTER NODES of a member: the ports and roles by ID."""
    lines = [line.split() for line in node.say("CLUSTER", "NODES").decode().splitlines()]
    return {
        line[0]: (int(line[1].partition("@")[0].rpartition(":")[2]), line[2].removeprefix("myself,")) for line in lines
    }


class Appends(threading.Thread):
    """Appends numbers through a RedisCluster, which retries them. The server knows a repeated one by IDMP."""

    def __init__(self, group: Group, stream: str) -> None:
        super().__init__(daemon=True)
        nodes = [ClusterNode("127.0.0.1", node.port) for node in group.nodes]
        retry = Retry(ConstantBackoff(0.05), 200)
        self._client = RedisCluster(startup_nodes=nodes, retry=retry, socket_timeout=1, socket_connect_timeout=1)
        self._stream = stream
        self._ended = threading.Event()
        self.appended = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Appends:
        self.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(30)
        assert not self.is_alive()

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                self._client.execute_command("XADD", self._stream, "IDMP", "writer", str(number), "*", "n", str(number))
                self.appended = number + 1
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._client.close()

    def more(self) -> None:
        before = self.appended
        wait_until(lambda: self.error is not None or self.appended > before + 20, "more appends")
        assert self.error is None

    def check(self, leader: Node) -> None:
        with redis.Redis(port=leader.port) as client:
            stored = [int(fields[b"n"]) for _, fields in client.xrange(self._stream)]
        assert stored == list(range(len(stored)))
        assert self.appended <= len(stored) <= self.appended + 1


def test_retried_appends_through_failovers(group: Group) -> None:
    leader = group.wait()
    with Appends(group, "numbers") as writer:
        leader.kill()
        writer.more()
        leader.start()
        leader = group.wait()
        leader("FAILOVER")
        writer.more()
        leader = group.wait()
        leader.freeze()  # the others replace it after its lease
        wait_until(lambda: group.leader(*group.others(leader)), "another leader")
        writer.more()
        leader.thaw()
        writer.more()
    writer.check(group.wait())


def test_all_members_agree_on_leader_and_ids(group: Group) -> None:
    leader = group.wait()
    ids = {node.say("CLUSTER", "MYID").decode(): node.port for node in group.nodes}
    assert len(ids) == 3
    for node in group.nodes:
        assert {name: port for name, (port, _) in _listed(node).items()} == ids
        ((_, _, first, *_),) = node.say("CLUSTER", "SLOTS")
        assert first[1] == leader.port
        assert b"cluster_state:ok" in node.say("CLUSTER", "INFO")
        assert f"cluster_current_epoch:{status(leader)['epoch']}\r\n".encode() in node.say("CLUSTER", "INFO")
    assert len({node.say("CLUSTER", "MYSHARDID") for node in group.nodes}) == 1


def test_asyncio_and_reads_of_replicas(group: Group) -> None:
    leader = group.wait()

    async def run() -> None:
        retry = AsyncRetry(ConstantBackoff(0.05), 200)
        async with AsyncRedisCluster(
            host="127.0.0.1", port=group.others(leader)[0].port, retry=retry,
            load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN,
        ) as client:  # fmt: skip
            assert await client.set("a", 1)
            leader.kill()
            for _ in range(200):  # it does not retry while it loads its list of commands from the lost leader
                try:
                    assert await client.set("a", 2)
                    break
                except redis.ConnectionError:
                    await asyncio.sleep(0.05)
            leader.start()
            await asyncio.to_thread(group.wait)
            assert {await client.get("a") for _ in range(6)} == {b"2"}

    asyncio.run(run())


def test_without_a_leader_clients_are_told_that_the_cluster_is_down(group: Group) -> None:
    leader = group.wait()
    lost, other = group.others(leader)
    lost.kill()
    group.wait(leader, other)
    other.kill()
    wait_until(lambda: status(leader)["in_sync"] == [group.name(leader)], "only the leader in sync")
    leader.kill()
    lost.start()  # it lacks data, perhaps, so it does not lead
    wait_until(lambda: status(lost)["phase"] == "waiting", "a member that waits")
    with Raw(lost.port) as c:
        assert c("GET", "a") == "CLUSTERDOWN The cluster is down"
        assert c("CLUSTER", "SLOTS") == []
        facts = c("CLUSTER", "INFO")
        assert b"cluster_state:fail" in facts
        assert b"cluster_size:0" in facts
        assert c("CLUSTER", "NODES").split()[2:4] == [b"myself,slave", b"-"]
        assert c("CLUSTER", "SHARDS")[0][1] == []
    leader.start()
    other.start()
    group.wait()
    assert leader.say("CLUSTER", "INFO").startswith(b"cluster_state:ok")
