"""Clients that have the URLs of some members of a group of servers, with cluster-enabled: through failovers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

from tests.waiting import eventually
from tidelog.client.asyncclient import AsyncClient
from tidelog.client.client import Client
from tidelog.testing import Server, running_server
from tidelog.transport.access import Access
from tidelog.transport.call import plain
from tidelog.transport.leader import LeaderConnection


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    with (
        running_server(cluster_enabled="yes") as leader,
        running_server(cluster_enabled="yes", replicaof=f"127.0.0.1 {leader.port}") as replica,
    ):
        eventually(lambda: _linked(replica), "a link")
        yield leader, replica


def _linked(server: Server) -> bool:
    with server.client() as client:
        return client.redis.info("replication").get("master_link_status") == "up"


def _hand_over(old: Server) -> None:
    with old.client() as client:
        client.redis.execute_command("FAILOVER")
    eventually(lambda: _linked(old), "a handover")


def _url(*servers: Server) -> str:
    return f"redis://{','.join(f'127.0.0.1:{server.port}' for server in servers)}"


def test_a_client_of_several_hosts_follows_a_failover_and_uses_keys_of_several_slots(
    pair: tuple[Server, Server],
) -> None:
    leader, replica = pair
    with Client(_url(replica, leader)) as client:
        client.tappend("a", {"n": 1})
        assert client.redis.mget("x", "y") == [None, None]
        with client.redis.pipeline(transaction=True) as block:
            block.set("x", 1)
            block.set("y", 2)
            assert block.execute() == [True, True]
        _hand_over(leader)
        eventually(lambda: _appended(client), "the new leader")
        assert client.redis.mget("x", "y") == [b"1", b"2"]


def _appended(client: Client) -> bool:
    try:
        client.tappend("a", {"n": 2})
    except redis.ConnectionError:  # of the connection to the old leader
        return False
    return True


def test_an_asynchronous_client_does_so_too(pair: tuple[Server, Server]) -> None:
    leader, replica = pair

    async def run() -> None:
        async with AsyncClient(_url(replica, leader)) as client:
            await client.tappend("a", {"n": 1})
            assert await client.redis.mget("x", "y") == [None, None]
            await asyncio.to_thread(_hand_over, leader)
            with suppress(redis.ConnectionError):  # of the connection to the old leader
                await client.tappend("a", {"n": 2})
            if await client.tlen("a") == 1:
                await client.tappend("a", {"n": 2})
            assert await client.tlen("a") == 2

    asyncio.run(run())


def test_the_lookup_follows_moved_and_a_replica_that_names_the_leader(pair: tuple[Server, Server]) -> None:
    leader, replica = pair
    dead = "redis://127.0.0.1:1"
    connection = LeaderConnection(Access((dead, f"redis://127.0.0.1:{replica.port}"), retry_ms=50), "test")
    assert connection.ask(plain("SET", "k", "v"), plain("MGET", "k", "x")) == [b"OK", [b"v", None]]
    assert connection.leader().url.endswith(f":{leader.port}")
    _hand_over(leader)
    assert connection.ask(plain("GET", "k")) == [b"v"]
    assert connection.leader().url.endswith(f":{replica.port}")
    connection.close()
