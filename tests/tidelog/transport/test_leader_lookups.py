"""Lookups of the leader by many connections at the same time."""

from __future__ import annotations

import asyncio

import pytest
import redis

from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import connect_to_leader


def test_a_server_that_hangs_delays_one_lookup(tidelog_server: Server) -> None:
    hung: list[asyncio.StreamWriter] = []

    async def main() -> None:
        listening = await asyncio.start_server(lambda _, writer: hung.append(writer), "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        access = Access((f"redis://127.0.0.1:{port}", tidelog_server.url)).single_attempt(1000)
        for _ in range(2):
            made = await asyncio.gather(*(connect_to_leader(access, "x") for _ in range(40)))
            assert {each.place for each in made} == {tidelog_server.url}
            for each in made:
                each.close()
        assert len(hung) == 1
        hung[0].close()
        listening.close()

    asyncio.run(main())


def test_users_that_share_a_lookup(tidelog_server: Server) -> None:
    """A wrong password of one user is not an error of the others."""
    with tidelog_server.client() as client:
        client.redis.execute_command("ACL", "SETUSER", "ann", "on", ">right", "+@all", "~*")

    async def main() -> None:
        def access(password: str) -> Access:
            return Access((tidelog_server.url, "redis://127.0.0.1:1"), username="ann", password=password)

        passwords = ["wrong", "right", "wrong", "right"]
        found = await asyncio.gather(
            *(connect_to_leader(access(each), "x") for each in passwords), return_exceptions=True
        )
        for password, each in zip(passwords, found, strict=True):
            if password == "right":
                assert not isinstance(each, BaseException)
                each.close()
            else:
                with pytest.raises(redis.ResponseError, match="WRONGPASS"):
                    raise each  # type: ignore[misc]

    asyncio.run(main())
