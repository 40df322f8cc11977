"""Delayed records in running workers."""

from __future__ import annotations

import asyncio

import pytest

from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog import Client
from tidelog.client import strings
from tidelog.coordination import Lease
from tidelog.testing import Server
from tidelog.topics import admin
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, connect
from tidelog.workers import App
from tidelog.workers.coordination.delayed_records import DelayedRecordSender

CLAIM = "orders:delayed:mover"


def mover(client: Client) -> str:
    """The lease of who moves; empty: nobody."""
    return (client.run(strings.get(CLAIM)) or b"").partition(b"|")[0].decode()


def app_of(server: Server, name: str, ran: list[int], lease: float = 10) -> App:
    app = App(name, server.url, lease=lease)
    topic = app.topic("orders", Order, partition_by="id", partitions=2)

    @app.each(topic)
    async def bill(order: Order) -> None:
        ran.append(order.id)

    return app


def test_a_processor_gets_records_when_it_is_time(tidelog_server: Server) -> None:
    async def main() -> None:
        ran: list[int] = []
        app = app_of(tidelog_server, "shop", ran)
        async with working(app):
            topic = app.topics["orders"]
            await topic.send(Order(3), delay=0.9)
            await topic.send(Order(2), delay=0.4)
            await topic.send(Order(1))
            await until(lambda: len(ran) == 3)
        assert ran == [1, 2, 3]

    asyncio.run(main())


def test_one_of_two_apps_moves_and_the_other_goes_on(tidelog_server: Server, client: Client) -> None:
    async def main() -> None:
        ran: dict[str, list[int]] = {"shop": [], "stock": []}
        apps = {name: app_of(tidelog_server, name, ran[name], lease=5.0) for name in ran}

        async def work(name: str, end: asyncio.Event) -> None:
            async with working(apps[name], name=name):
                await end.wait()

        async with asyncio.TaskGroup() as group:
            shop_ends, stock_ends = asyncio.Event(), asyncio.Event()
            group.create_task(work("shop", shop_ends))
            await until(lambda: mover(client) == "app:shop:lease:shop")
            stock = group.create_task(work("stock", stock_ends))
            topic = apps["shop"].topics["orders"]
            await until(lambda: topic.agreed)
            await topic.send(Order(1), delay=0.1)
            await until(lambda: [1] == ran["shop"] == ran["stock"])
            assert mover(client) == "app:shop:lease:shop"
            shop_ends.set()
            await until(lambda: mover(client) == "app:stock:lease:stock")
            await asyncio.to_thread(topic.sync.send, Order(2), delay=0.1)
            await until(lambda: ran["stock"] == [1, 2])
            assert not stock.done()
            stock_ends.set()
        topic.sync.close()

    asyncio.run(main())


def test_a_deleted_topic_does_not_stop_the_others(tidelog_server: Server, client: Client) -> None:
    async def main() -> None:
        ran: list[int] = []
        app = app_of(tidelog_server, "shop", ran)
        other = app.topic("other", Order, partition_by="id", partitions=1)
        async with working(app):
            await other.send(Order(1), delay=3600)
            await until(lambda: admin.waiting(client, "other") == 1)
            await asyncio.to_thread(admin.delete, client, "other")
            await app.topics["orders"].send(Order(2), delay=0.3)
            await until(lambda: ran == [2])

    asyncio.run(main())


@pytest.mark.parametrize("key", ["a:delayed", "a:delayed:mover", "topic:a"])
def test_a_topic_that_can_not_be_moved_does_not_stop_the_others(
    tidelog_server: Server, client: Client, key: str
) -> None:
    async def main() -> None:
        ran: list[int] = []
        app = app_of(tidelog_server, "shop", ran)
        bad = app.topic("a", Order, partition_by="id", partitions=1)
        client.redis.delete(key)
        async with working(app):
            await bad.send(Order(1), delay=0.2)
            facts = client.run(strings.get("topic:a")) or b""
            client.redis.set(key, "text")
            topic = app.topics["orders"]
            for number in range(3):
                await topic.send(Order(number), delay=0.3)
                await until(lambda number=number: ran == list(range(number + 1)))  # type: ignore[misc]
            client.redis.delete(key)
            if key == "topic:a":
                client.redis.set(key, facts)
            elif key == "a:delayed":
                await bad.send(Order(2), delay=0)
            await until(lambda: client.tlen("a:0") == 1)

    asyncio.run(main())


def test_the_leader_ends_in_order(tidelog_server: Server, client: Client) -> None:
    """So that the next one moves at once, not when a lease is over."""

    async def main() -> None:
        ran: list[int] = []
        app = app_of(tidelog_server, "shop", ran)
        async with working(app, name="w2"):
            await until(lambda: mover(client) == "app:shop:lease:w2")
        assert mover(client) == ""

    asyncio.run(main())


def test_one_connection_is_closed_where_the_other_does_not_come_about(tidelog_server: Server) -> None:
    async def main() -> None:
        made: list[AsyncConnection] = []
        asked = asyncio.Event()

        async def once() -> AsyncConnection:
            if made:
                asked.set()
                await asyncio.Event().wait()
            made.append(await connect(Access((tidelog_server.url,)), tidelog_server.url, "w1"))
            return made[0]

        leading = asyncio.create_task(
            DelayedRecordSender(["orders"], Lease("lease:w1", "w1", 60, "epoch"), once).lead()
        )
        await asked.wait()
        leading.cancel()
        await asyncio.wait([leading])
        assert made[0].lost is not None

    asyncio.run(main())
