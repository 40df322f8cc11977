"""The clients and a cluster of two redis-servers: the results are those of a single server."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from tests.conftest import RedisServer
from tests.tidelog.client.rediscluster import HALF, RedisCluster, keys_of_both, started
from tests.waiting import eventually
from tidelog.client import Client, calls
from tidelog.client.asyncclient import AsyncClient
from tidelog.testing import Server
from tidelog.topics.pipeline import CallPipeline
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.slots import slot_of

A, B = keys_of_both(8)


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    yield from started(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def cluster(_cluster: RedisCluster) -> RedisCluster:
    _cluster.flush()
    return _cluster


def random_calls(seed: int) -> list[Call[Any]]:
    """Calls whose results depend on their order."""
    chosen = random.Random(seed)
    made: list[Call[Any]] = []
    for number in range(60):
        key = chosen.choice(A[:4] + B[:4])
        made += chosen.choice(
            [
                [plain("INCR", f"{{{key}}}n")],
                [plain("SET", f"{{{key}}}s", number), plain("GET", f"{{{key}}}s")],
                [plain("XADD", f"{{{key}}}x", f"{number + 1}-1", "f", number), plain("XLEN", f"{{{key}}}x")],
                [plain("MULTI"), plain("INCR", f"{{{key}}}n"), plain("GET", f"{{{key}}}n"), plain("EXEC")],
                [plain("XRANGE", f"{{{key}}}x", "-", "+", "COUNT", 2)],
                [plain("GETRANGE", f"{{{key}}}x", 0, 1)],  # WRONGTYPE if it is there
                [plain("NOSUCH", f"{{{key}}}x")],
                [plain("DEL", f"{{{key}}}n", f"{{{key}}}s")],
            ]
        )
    return made


def outcomes(results: list[Any]) -> list[Any]:
    return [str(each) if isinstance(each, Exception) else each for each in results]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("several", [False, True])
def test_pipelines_have_the_results_of_one_server(
    cluster: RedisCluster, newer_redis: RedisServer, seed: int, several: bool
) -> None:
    made = random_calls(seed)
    url = cluster.urls if several else cluster.url

    async def run() -> list[Any]:
        async with AsyncClient(url) as client:
            return await client.together(*made, raise_on_error=False)

    with Client(f"redis://127.0.0.1:{newer_redis.port}") as single:
        expected = outcomes(single.together(*made, raise_on_error=False))
    with Client(url) as client:
        assert outcomes(client.together(*made, raise_on_error=False)) == expected
        cluster.flush()
        assert outcomes(client.together(*made, raise_on_error=False)) == expected  # now that the map is known
    cluster.flush()
    assert outcomes(asyncio.run(run())) == expected


def test_single_calls_and_commands_of_redis_py(cluster: RedisCluster) -> None:
    with Client(cluster.url) as client:
        for key in A[:2] + B[:2]:
            assert client.run(plain("SET", key, key)) == b"OK"
        assert [client.redis.get(key) for key in A[:2] + B[:2]] == [key.encode() for key in A[:2] + B[:2]]
        assert client.redis.dbsize() == 4
        with pytest.raises(CrossGroupError, match="on different groups"):
            client.redis.rename(A[0], B[0])
    with Client(cluster.url, decode_responses=True) as client:  # the first command concerns all members
        assert set(client.redis.scan_iter(count=1)) == {*A[:2], *B[:2]}
        assert client.redis.xadd(B[4], {"n": 1}, id="1-1") == "1-1"
        assert client.redis.xread({A[4]: "0", B[4]: "0"}, block=1000) == client.redis.xread({B[4]: "0"})
        with pytest.raises(redis.ResponseError, match="scan_iter"):
            client.redis.scan()


def piped(client: Client | AsyncClient, **options: Any) -> Any:
    return client.redis.pipeline(**options)


def test_pipelines_of_redis_py(cluster: RedisCluster) -> None:
    with Client(cluster.urls) as client:
        with piped(client, transaction=False) as pipe:
            pipe.set(A[0], 1).set(B[0], 2).incr(A[0]).hgetall(B[1]).lpush(B[0], 1)
            *done, failed = pipe.execute(raise_on_error=False)
        assert done == [True, True, 2, {}]
        assert "WRONGTYPE" in str(failed) or "wrong kind" in str(failed)
        with piped(client) as pipe:
            pipe.watch(B[0])
            seen = int(pipe.get(B[0]))
            pipe.multi()
            pipe.set(B[0], seen + 1)
            assert pipe.execute() == [True]
        with piped(client) as pipe, pytest.raises(CrossGroupError):
            pipe.set(A[0], 5).set(B[0], 5).execute()
        assert client.redis.get(B[0]) == b"3"


def test_commands_of_redis_py_for_asyncio(cluster: RedisCluster) -> None:
    async def run() -> None:
        async with AsyncClient(cluster.urls) as client:
            found = [key async for key in client.redis.scan_iter()]
            assert found == []
            await client.redis.set(A[0], 1)
            await client.redis.set(B[0], 2)
            async with piped(client, transaction=False) as pipe:
                assert await pipe.incr(A[0]).incr(B[0]).execute() == [2, 3]
            async with piped(client) as pipe:
                await pipe.watch(B[0])
                seen = int(await pipe.get(B[0]))
                pipe.multi()
                pipe.set(B[0], seen + 1)
                assert await pipe.execute() == [True]
            async with piped(client) as pipe:
                assert await pipe.incr(B[0]).incr(B[0]).execute() == [5, 6]
            assert sorted([key async for key in client.redis.scan_iter()]) == sorted([A[0].encode(), B[0].encode()])
            await client.redis.xadd(B[1], {"n": 1}, id="1-1")
            assert await client.redis.xread({A[1]: "0", B[1]: "0"}, block=1000)

    asyncio.run(run())


def test_a_channel_has_one_member(cluster: RedisCluster) -> None:
    with Client(cluster.url) as client:
        subscriber = client.redis.pubsub(ignore_subscribe_messages=True)
        subscriber.subscribe(B[0])
        assert subscriber.get_message(timeout=5) is None
        assert client.redis.publish(B[0], "text") == 1
        assert subscriber.get_message(timeout=5)["data"] == b"text"
        with pytest.raises(CrossGroupError, match="one pubsub"):
            subscriber.subscribe(A[0])
        with pytest.raises(CrossGroupError, match="by their names"):
            subscriber.psubscribe("*")
        subscriber.close()


def test_a_reader_of_two_groups_gets_the_first_entry_of_either(cluster: RedisCluster) -> None:
    read = Call(("XREAD", "BLOCK", 20_000, "STREAMS", A[0], B[0], "0", "0"), lambda reply: reply, 20_000)
    with Client(cluster.url) as client:
        assert client.redis.dbsize() == 0  # after this, it knows the map
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.append(client.run(read)))
        reader.start()
        eventually(lambda: all(_blocked(node) for node in cluster.nodes), "both members have a blocked reader")
        client.redis.xadd(B[0], {"n": 1}, id="1-1")
        reader.join(10)
        assert found == [{B[0].encode(): [[b"1-1", [b"n", b"1"]]]}]
        eventually(lambda: not any(_blocked(node) for node in cluster.nodes), "the other reader is gone")

        later = Call(("XREAD", "BLOCK", 20_000, "STREAMS", A[0], B[0], "0", "1-1"), lambda reply: reply, 20_000)

        async def run() -> Any:
            async with AsyncClient(cluster.url) as client:
                assert await client.redis.dbsize() == 1
                waiting = asyncio.create_task(client.run(later))
                await asyncio.to_thread(eventually, lambda: all(_blocked(node) for node in cluster.nodes))
                await client.redis.xadd(A[0], {"n": 2}, id="2-1")
                return await waiting

        assert asyncio.run(run()) == {A[0].encode(): [[b"2-1", [b"n", b"2"]]]}
        eventually(lambda: not any(_blocked(node) for node in cluster.nodes), "the other reader is gone")
        quick = Call(("XREAD", "BLOCK", 20, "STREAMS", A[1], B[1], "0", "0"), lambda reply: reply, 20)
        assert client.run(quick) is None


def _blocked(node: redis.Redis) -> int:
    blocked: int = node.info("clients")["blocked_clients"]
    return blocked


def test_an_empty_slot_that_moves_while_calls_are_sent(cluster: RedisCluster) -> None:
    """Each INCR is executed once. The slot is empty when it moves, as Redis requires of SETSLOT NODE."""
    key = A[7]
    slot = slot_of(key)
    with Client(cluster.urls) as client:
        for number in range(6):
            cluster.move(slot, 1 - number % 2)
            assert client.together(*[plain("INCR", key)] * 3, plain("INCR", B[0])) == [1, 2, 3, number + 1]
            assert client.run(plain("GET", key)) == b"3"
            assert client.redis.delete(key) == 1
    assert cluster.owner(key) is cluster.nodes[0]


def test_calls_of_other_tasks_do_not_fail_with_a_member(cluster: RedisCluster) -> None:
    """Tasks share a pipeline. One member hangs: only the calls that were sent to it fail."""

    async def run() -> None:
        async with AsyncClient(cluster.urls, socket_timeout=0.5) as client:
            pipeline = CallPipeline(client)
            await pipeline.send([plain("SET", A[0], 0), plain("SET", B[0], 0)])
            cluster.processes[1].send_signal(signal.SIGSTOP)
            try:
                sent = [pipeline.send([plain("INCR", key)]) for key in (A[0], B[0], A[0])]
                done = await asyncio.gather(*sent, return_exceptions=True)
            finally:
                cluster.processes[1].send_signal(signal.SIGCONT)
            assert [done[0], done[2]] == [[1], [2]]
            assert isinstance(done[1], redis.TimeoutError)
            assert await pipeline.send([plain("INCR", A[0])]) == [3]

    asyncio.run(run())
    for node in cluster.nodes:
        eventually(lambda node=node: cluster.complete(node), "the cluster is complete")  # type: ignore[misc]


def test_missing_permissions_are_named(cluster: RedisCluster) -> None:
    for node in cluster.nodes:
        node.execute_command("ACL", "SETUSER", "reader", "on", ">p", "~*", "-@all", "+get")
    with Client(cluster.url.replace("//", "//reader:p@")) as client:
        with pytest.raises(NoPermissionError, match=r"\+cluster\|slots \+cluster\|myid \+command"):
            client.run(plain("GET", B[0]))
        with pytest.raises(NoPermissionError, match=r"\+cluster\|slots \+cluster\|myid \+command"):
            client.together(plain("GET", B[0]))


def test_other_servers_are_sent_nothing_more(tidelog_server: Server) -> None:
    """Neither a command nor a round trip is added for a server that is not in a cluster."""
    with Client(tidelog_server.url) as watching:
        watching.redis.config_resetstat()
        with Client(tidelog_server.url) as client:
            client.tappend("s", {"a": 1})
            client.together(calls.tlen("s"), calls.tlen("t"))
            assert list(client.redis.scan_iter()) == [b"s"]
            with piped(client) as pipe:
                pipe.set("x", 1).execute()
        sent = {
            name.removeprefix("cmdstat_"): row["calls"] for name, row in watching.redis.info("commandstats").items()
        }
    assert not [name for name in sent if name.startswith(("cluster", "command"))]
    assert sent["hello"] == 1
    assert sent["client|multislot"] == 1


def test_halves() -> None:
    assert all(slot_of(key) < HALF for key in A)
    assert all(slot_of(key) >= HALF for key in B)
