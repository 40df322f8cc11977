"""Unmodified cluster clients and two server groups that share the slots: each group has a failover, and keys move
to the other group, while they write.

One test with node's clients runs in CI. `scripts/test long` runs all clients, with both coordinators.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from commands.slots import SLOTS, slot_of
from tests.coordinator.etcds import Etcds
from tests.foreign.test_node import HERE, _environment, modules
from tests.replication.cluster import Node, cluster, wait_until
from tests.replication.clusters import Groups, slot_ranges

__all__ = ["modules"]  # the fixture

ONE, TWO = "b", "a"  # keys of group 1 and of group 2
assert (slot_of(ONE.encode()) * 2 // SLOTS, slot_of(TWO.encode()) * 2 // SLOTS) == (0, 1)


@pytest.fixture(scope="module")
def file_groups() -> Iterator[Groups]:
    with cluster() as servers:
        yield Groups(servers, members=2, move_pause=2000)


@pytest.fixture(scope="module")
def etcd_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    etcd = Etcds(tmp_path_factory.mktemp("etcd"))
    try:
        with cluster() as servers:
            yield Groups(servers, members=2, move_pause=2000, coordinator=f"etcd://{etcd.hosts}")
    finally:
        etcd.close()


@pytest.fixture(params=["file", "etcd"])
def groups(request: pytest.FixtureRequest) -> Groups:
    """Two groups of two members in sync, which know each other, without keys."""
    return ready(request.getfixturevalue(f"{request.param}_groups"))


def ready(groups: Groups) -> Groups:
    for node in groups.nodes:
        node.start()
    for group in groups.groups:
        group.wait()("FLUSHALL")
    known(groups)
    return groups


def known(groups: Groups) -> None:
    """Wait until each member lists the leader and the replica of each group."""
    groups.agree()
    leaders = {group.wait().port for group in groups.groups}
    wait_until(
        lambda: (
            all({port for _, _, port in slot_ranges(node)} == leaders for node in groups.nodes)
            and all(len(shard) == 4 for node in groups.nodes for shard in node.say("CLUSTER", "SLOTS"))
        ),
        "the members",
    )


def kill_leader(groups: Groups, number: int) -> Node:
    """Kill the leader of a group, and return the new one. The old one starts again."""
    group = groups.groups[number - 1]
    old = group.wait()
    old.kill()
    wait_until(lambda: group.leader(*group.others(old)), "another leader")
    old.start()
    return groups.leader(number)


def hand_over(groups: Groups, number: int, leader: Node) -> None:
    """Let the other member of a group lead. Clients may write meanwhile."""
    group = groups.groups[number - 1]
    leader("FAILOVER")
    wait_until(lambda: group.leader(*group.others(leader)), "a handover")


def exchange(groups: Groups) -> None:
    """Move the keys of each group to the other one."""
    for key in (ONE, TWO):
        slot = slot_of(key.encode())
        at = _owner(groups, slot)
        to = "2" if at == "1" else "1"

        def moved(slot: int = slot, at: str = at, to: str = to) -> bool:
            if _owner(groups, slot) == at:
                groups.leader(at).say("TCLUSTER", "MOVE", slot, "TO", to)
            return _owner(groups, slot) == to and not groups.agree()["moves"]

        wait_until(moved, f"slot {slot} moves to group {to}")


def _owner(groups: Groups, slot: int) -> str:
    found: str = next(name for low, high, name in groups.agree()["slots"] if low <= slot <= high)
    return found


def node_clients(groups: Groups, modules: Path, planned: bool) -> None:
    with subprocess.Popen(
        ["node", str(HERE / "cluster.js"), str(groups.nodes[1].port)], env=_environment(modules), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "1 1\n"
            assert program.stdout.readline() == "2 2 2\n"
            for number in (1, 2):
                if planned:
                    hand_over(groups, number, groups.leader(number))
                else:
                    kill_leader(groups, number)
            exchange(groups)
            program.stdin.write("go\n")
            program.stdin.flush()
            assert program.stdout.readline() == "2 2\n"
            assert program.wait(60) == 0
        finally:
            program.kill()
    exchange(groups)
    assert [groups.leader(at)("GET", key) for at, key in ((1, ONE), (2, TWO))] == [b"2", b"2"]


def test_node_clients(file_groups: Groups, modules: Path) -> None:
    node_clients(ready(file_groups), modules, planned=True)


@pytest.mark.long
def test_node_clients_through_crashes(groups: Groups, modules: Path) -> None:
    node_clients(groups, modules, planned=False)


class Appends(threading.Thread):
    """Appends numbers to a stream of each group through one RedisCluster, which retries them (IDMP)."""

    def __init__(self, groups: Groups) -> None:
        super().__init__(daemon=True)
        nodes = [ClusterNode("127.0.0.1", node.port) for node in groups.nodes]
        retry = Retry(ConstantBackoff(0.05), 400)
        self._client = RedisCluster(startup_nodes=nodes, retry=retry, socket_timeout=2, socket_connect_timeout=2)
        self._ended = threading.Event()
        self.appended = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                for key in (ONE, TWO):
                    self._client.execute_command("XADD", key, "IDMP", "writer", str(number), "*", "n", str(number))
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

    def end(self) -> None:
        self._ended.set()
        self.join(60)
        assert not self.is_alive()
        assert self.error is None


@pytest.mark.long(short=True)
def test_redis_py(groups: Groups) -> None:
    writer = Appends(groups)
    writer.start()
    try:
        writer.more()
        for number in (2, 1):
            kill_leader(groups, number)
            writer.more()
            exchange(groups)
            writer.more()
        groups.leader(1)("FAILOVER")
        writer.more()
    finally:
        writer.end()
    for number, key in ((1, ONE), (2, TWO)):
        with redis.Redis(port=groups.leader(number).port) as client:
            assert [int(fields[b"n"]) for _, fields in client.xrange(key)] == list(range(writer.appended))


@pytest.mark.long
def test_redis_py_asyncio(groups: Groups) -> None:
    async def write(client: AsyncRedisCluster, number: int) -> None:
        for key in (ONE, TWO):
            for _ in range(400):  # while it loads its list of servers from a lost leader, it does not retry
                try:
                    assert await client.set(key, number)
                    break
                except redis.ConnectionError:
                    await asyncio.sleep(0.05)

    async def run() -> None:
        retry = AsyncRetry(ConstantBackoff(0.05), 400)
        async with AsyncRedisCluster(
            host="127.0.0.1", port=groups.nodes[3].port, retry=retry, socket_timeout=2
        ) as client:  # fmt: skip
            for number in (1, 2):
                await write(client, number)
                killed = asyncio.create_task(asyncio.to_thread(kill_leader, groups, number))
                while not killed.done():
                    await write(client, number)
                await killed
            await write(client, 3)
            assert [await client.get(key) for key in (ONE, TWO)] == [b"3", b"3"]

    asyncio.run(run())
    assert [groups.leader(at)("GET", key) for at, key in ((1, ONE), (2, TWO))] == [b"3", b"3"]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here (Debian: apt-get install redis-tools)")
    return found


def cli(port: int, *words: str) -> str:
    command = [tool("redis-cli"), "-c", "-p", str(port), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()


@pytest.mark.long
def test_redis_cli(groups: Groups) -> None:
    for number, key, other in ((1, ONE, 2), (2, TWO, 1)):
        assert [cli(node.port, "INCR", key) for node in groups.nodes] == ["1", "2", "3", "4"]
        kill_leader(groups, number)
        known(groups)
        through = groups.leader(other)
        assert cli(through.port, "INCR", key) == "5"
        assert cli(through.port, "GET", key) == "5"
        exchange(groups)
        assert cli(through.port, "INCR", key) == "6"
        exchange(groups)
        assert cli(through.port, "INCR", key) == "7"
        assert "All 16384 slots covered" in cli(through.port, "--cluster", "check", f"127.0.0.1:{through.port}")


@pytest.mark.long
def test_redis_benchmark(groups: Groups) -> None:
    """It finds the new leaders when it starts. A failover ends it, also with Redis: it looks for a new leader only
    among those that led when it started."""

    def run() -> None:
        words = ["--cluster", "-p", str(groups.nodes[0].port), "-q", "-t", "set", "-r", "1000", "-c", "8", "-n", "2000"]
        ran = subprocess.run([tool("redis-benchmark"), *words], capture_output=True, text=True, check=False, timeout=60)
        assert "requests per second" in ran.stdout, ran.stdout + ran.stderr
        assert all(groups.leader(number)("DBSIZE") > 100 for number in (1, 2))

    run()
    hand_over(groups, 1, groups.leader(1))
    kill_leader(groups, 2)
    known(groups)
    for number in (1, 2):
        groups.leader(number)("FLUSHALL")
    run()
