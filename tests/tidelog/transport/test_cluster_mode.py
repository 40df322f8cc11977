"""A single server with ``cluster-enabled yes``: tidelog's clients use keys of different slots together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidelog import AsyncClient, Client
from tidelog.testing import Server, running_server
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import connect_to_leader
from tidelog.transport.call import plain
from tidelog.transport.connection import BlockingConnection


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(cluster_enabled="yes") as made:
        yield made


def test_clients(server: Server) -> None:
    with Client(server.url) as client:
        assert client.redis.execute_command("MGET", "a", "b") == [None, None]
        with client.redis.pipeline(transaction=True) as pipe:
            pipe.set("a", 1)
            pipe.set("b", 2)
            assert pipe.execute() == [True, True]

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            assert await client.redis.execute_command("MGET", "a", "b") == [b"1", b"2"]

    asyncio.run(run())


def test_a_user_with_few_permissions(server: Server) -> None:
    with Client(server.url) as client:
        client.redis.execute_command("ACL", "SETUSER", "reader", "on", ">p", "~*", "-@all", "+mget", "+client|setname")
        with Client(server.url.replace("//", "//reader:p@")) as reader:
            assert len(reader.redis.execute_command("MGET", "x", "y")) == 2
        denied = [entry[b"object"] for entry in client.redis.execute_command("ACL", "LOG")]
        assert denied == [b"client|setinfo"]  # which redis-py sends


def test_connections(server: Server) -> None:
    access = Access.of(server.url)
    connection = BlockingConnection(access, server.url, "x")
    assert connection.ask("MGET", "a", "b", "c") == [b"1", b"2", None]
    connection.close()

    async def run() -> None:
        made = await connect_to_leader(access, "x")
        assert await made.together(plain("EXISTS", "a", "b")) == [2]
        made.close()

    asyncio.run(run())
