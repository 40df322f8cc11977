"""Delayed records and workers: the server delivers, whether workers run or not."""

from __future__ import annotations

import asyncio

import pytest

from tests.tidelog.workers.workerkit import Order, orders, working
from tests.waiting import eventually, until
from tidelog import Client
from tidelog.testing import Server
from tidelog.workers import App


def test_a_processor_gets_delayed_records_when_they_are_due(tidelog_server: Server, client: Client) -> None:
    async def main() -> None:
        ran: list[int] = []
        app = App("shop", tidelog_server.url)
        topic = orders(app)

        @app.each(topic)
        async def bill(order: Order) -> None:
            ran.append(order.id)

        await topic.send(Order(1), delay=0.01)
        await asyncio.to_thread(lambda: eventually(lambda: client.tlen("orders:0") == 1))  # without a worker
        async with working(app):
            await topic.send(Order(4), delay=0.9)
            await topic.send(Order(3), delay=0.4)
            await topic.send(Order(2))
            await until(lambda: len(ran) == 4)
        assert ran == [1, 2, 3, 4]

    asyncio.run(main())


def test_records_that_an_earlier_version_delayed_are_reported(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        app = App("shop", tidelog_server.url)
        orders(app)
        async with working(app):
            pass

    asyncio.run(main())
    client.tappend("orders:delayed", {"id": 1})  # a stream of somebody else
    asyncio.run(main())
    assert "orders:delayed" not in caplog.text
    for number in range(3):
        client.tappend("orders:delayed", {"delayed:due": "+5000", "delayed:key": number, "id": number})
    asyncio.run(main())
    assert "topic orders: the stream orders:delayed has 4 records that an earlier version" in caplog.text
    assert client.tlen("orders:delayed") == 4
    caplog.clear()
    client.tread("orders:delayed", "0", 10, group="mover")
    client.tack("orders:delayed", "mover", *[entry.id for entry in client.trange("orders:delayed")])
    asyncio.run(main())
    assert "orders:delayed" not in caplog.text
