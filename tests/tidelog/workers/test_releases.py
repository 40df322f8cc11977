"""Returned events, releases of partitions, and topics that grow."""


from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, orders, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic, admin
from tidelog.workers import App, Event
from tidelog.workers.execution import worker as worker_module


def test_what_is_given_back_comes_again_at_once(app: App) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ack="manual")
    async def bill(event: Event[Order]) -> None:
        seen.append(event.record.id)
        if seen.count(event.record.id) < 5:
            event.nack()
        else:
            event.ack()

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(200))
        async with asyncio.timeout(15), working(app) as worker:  # the lease is 20 s
            await until(lambda: worker.stats["bill"].acknowledged == 200)

    asyncio.run(main())


def test_nothing_is_remembered_of_events_that_may_go_to_another_worker(app: App) -> None:
    topic = orders(app)

    @app.each(topic, ack="manual", ordering="none")
    async def bill(event: Event[Order]) -> None:
        if event.record.id < 50:
            event.nack(delay=600)
        else:
            event.ack()

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(60))
        async with working(app) as worker:
            (partition,) = worker.executors["bill"].partitions.values()
            await until(lambda: worker.stats["bill"].acknowledged == 10 and not partition.buffer.in_flight)
            await until(lambda: not (partition.start_counts or partition.started or partition.suspects))

    asyncio.run(main())


def test_a_stream_that_cannot_be_read_does_not_hold_up_others(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 2)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main(client: Client) -> None:
        keys = {topic.partition(Order(0, f"k{number}")): f"k{number}" for number in range(50)}
        async with working(app) as worker:
            await until(lambda: len(worker.executors["bill"].partitions) == 2)
            await topic.send(Order(0, keys[0]))
            await topic.send(Order(0, keys[1]))
            await until(lambda: len(seen) == 2)
            client.redis.delete("orders:1")
            client.redis.set("orders:1", "no stream")
            async with asyncio.timeout(25):
                for number in range(1, 101):  # a second for each, if it held them up
                    await topic.send(Order(number, keys[0]))
                    await until(lambda number=number: number in seen)  # type: ignore[misc]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_after_the_grace_what_is_in_work_is_cancelled(tidelog_server: Server, ordering: Any) -> None:
    app = App("shop", tidelog_server.url, lease=0.5, grace=0.5)
    topic = orders(app)
    inside, cancelled = asyncio.Event(), asyncio.Event()

    @app.each(topic, ordering=ordering)
    async def bill(_: Order) -> None:
        inside.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        async with working(app) as worker:
            await inside.wait()
            executor = worker.executors["bill"]
            (partition,) = executor.partitions.values()
            await executor.released(0)
            assert cancelled.is_set()
            assert not partition.held
        assert pending(client, app, "bill") == 1

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_topic_that_grows_is_taken_up(
    app: App, tidelog_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "GROWTH", 0.05)
    topic = orders(app, None)
    fixed = app.topic("fixed", Order, partition_by="key", partitions=1)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    @app.each(topic, name="queue", ordering="none")
    async def queue(order: Order) -> None:
        seen.append(order.id)

    @app.each(fixed, name="other")
    async def other(_: Order) -> None: ...

    async def main(client: Client) -> None:
        sender: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=2, url=tidelog_server.url)
        await sender.send_many(Order(number, f"k{number}") for number in range(50))
        async with working(app) as worker:
            await until(lambda: len(seen) == 100)
            await asyncio.to_thread(admin.grow, client, "fixed", 3)
            await until(lambda: "fixed has changed" in caplog.text)
            await asyncio.to_thread(admin.grow, client, "orders", 4, True)
            await until(lambda: len(worker.executors["queue"].partitions) == 4)
            await until(lambda: len(worker.executors["bill"].partitions) == 4)
            grown: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=4, url=tidelog_server.url)
            await grown.send_many(Order(number, f"k{number}") for number in range(50, 100))
            await until(lambda: worker.stats["bill"].finished == worker.stats["queue"].finished == 100)
            await grown.close()
        await sender.close()
        assert sorted(seen) == sorted([*range(100)] * 2)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
