"""Connections of a worker, over a real server."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import LostError
from tidelog.workers.coordination.connections import WorkerConnector


def test_a_line_that_is_closed_while_it_connects_leaves_no_connection(tidelog_server: Server) -> None:
    async def main() -> None:
        line = WorkerConnector(Access((tidelog_server.url,)), "closing").connection()
        connecting = asyncio.create_task(line.channel())
        await asyncio.sleep(0)
        line.close()
        with pytest.raises(LostError):
            await connecting
        with tidelog_server.client() as client:
            await until(lambda: all(each["name"] != "closing" for each in client.redis.client_list()))

    asyncio.run(main())
