"""Connections whose server leads a group that has no slots any more: all slots were moved to another group."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tidelog import AsyncClient, Client, calls
from tidelog.client.entries import StreamId
from tidelog.coordination import Keeper, Lease
from tidelog.transport.access import Access
from tidelog.transport.call import plain
from tidelog.transport.leader import LeaderConnection
from tidelog.transport.routedconnection import connect_to_groups

(KEY, OTHER), _ = keys_of_both(2)


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, ...]]:
    with cluster() as servers:
        groups = Groups(servers, divide=False)
        groups.assign("0-16383", to="2")
        yield tuple(f"redis://127.0.0.1:{node.port}" for node in groups.nodes)


@pytest.fixture(params=["the empty group", "both"])
def access(urls: tuple[str, ...], request: pytest.FixtureRequest) -> Iterator[Access]:
    yield Access(urls[:1] if request.param == "the empty group" else urls, retries=0)
    with closing(redis.Redis.from_url(urls[1])) as leader:
        leader.flushall()


def test_requests(access: Access) -> None:
    with closing(LeaderConnection(access, "test")) as servers:
        assert isinstance(servers.ask(calls.tappend(KEY, {"n": 1}))[0], StreamId)
        assert servers.ask(plain("DBSIZE"), plain("UNLINK", KEY)) == [1, 1]


def test_ranges(access: Access) -> None:
    with closing(LeaderConnection(access, "test")) as servers:

        def length() -> int:
            number: int = servers.leader(KEY).ask("TLEN", KEY)
            return number

        with pytest.raises(ConnectionError, match="MOVED"):  # the attempt that shows it
            servers.attempts(length, KEY)
        assert servers.attempts(length, KEY) == 0


def test_all_leaders(access: Access, urls: tuple[str, ...]) -> None:
    with closing(LeaderConnection(access, "test")) as servers:
        assert [each.url for each in servers.leaders()] == [urls[1]]


def test_a_lease(access: Access) -> None:
    with Keeper(access, Lease("lease:{test}", "w1", 60.0, "epoch:{test}")) as keeper:
        assert keeper.wait(20)


def test_the_client(access: Access) -> None:
    with Client(access) as client:
        assert client.redis.dbsize() == 0
        client.redis.set(KEY, "1")
        assert client.redis.mget(KEY, OTHER) == [b"1", None]
    with Client(access) as client:
        assert client.redis.dbsize() == 1


def test_the_async_client(access: Access) -> None:
    async def run() -> None:
        async with AsyncClient(access) as client:
            assert await client.redis.dbsize() == 0
            await client.redis.set(KEY, "1")
        async with AsyncClient(access) as client:
            assert await client.redis.dbsize() == 1

    asyncio.run(run())


def test_connections_of_flows_and_the_gateway(access: Access) -> None:
    async def run() -> None:
        connection = await connect_to_groups(access, "test")
        try:
            assert await connection.send([calls.tlen(KEY)]) == [0]
        finally:
            connection.close()

    asyncio.run(run())
