"""One worker in this event loop, a real server: every kind of processor gets every event once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, orders, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.topics.admin import grow
from tidelog.workers import App, Event, Events, Take


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("prefetch", [1, 7, 1000])
@pytest.mark.parametrize("form", ["each", "event", "key", "none", "batch", "batch-none", "events", "events-batches"])
def test_each_event_once_and_in_order(
    app: App, tidelog_server: Server, partitions: int, prefetch: int, form: str
) -> None:
    topic = orders(app, partitions)
    seen: list[tuple[str, int]] = []
    ready = max(prefetch, 5)

    async def see(order: Order) -> None:
        if order.id % 10 == 0:
            await asyncio.sleep(0)
        seen.append((order.key, order.id))

    if form in ("each", "key", "none"):

        @app.each(topic, ordering="partition" if form == "each" else form, prefetch=prefetch)  # type: ignore[arg-type]
        async def bill(order: Order) -> None:
            await see(order)

    elif form == "event":

        @app.each(topic, prefetch=prefetch, timeout=60)
        async def bill_event(event: Event[Order]) -> None:
            assert event.attempt == 1
            assert event.topic is topic
            await see(event.record)

    elif form.startswith("batch"):

        ordering = "none" if form.endswith("none") else "partition"

        @app.batch(topic, take=Take(5, within=0), prefetch=ready, ordering=ordering)  # type: ignore[arg-type]
        async def bill_many(batch: list[Order]) -> None:
            assert 1 <= len(batch) <= 5
            for order in batch:
                await see(order)

    else:

        @app.processor(topic, prefetch=prefetch)
        async def bill_all(events: Events[Order]) -> None:
            if form == "events":
                async for order in events.records():
                    await see(order)
            else:
                async for batch in events.batches(Take(5, within=0)):
                    for event in batch:
                        await see(event.record)

    (name,) = app.processors

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number % 7}") for number in range(200))
        async with working(app) as worker:
            await until(lambda: len(seen) >= 200)
            await topic.send_many(Order(number, f"k{number % 7}") for number in range(200, 300))
            await until(lambda: len(seen) >= 300)
            stats = worker.stats[name]
            await until(lambda: stats.acknowledged == 300)
            assert stats.finished == 300
            assert (stats.failed, stats.repeated, stats.busy) == (0, 0, partitions if form.startswith("events") else 0)

    asyncio.run(main())
    assert Counter(seen) == Counter((f"k{number % 7}", number) for number in range(300))
    if "none" not in form:
        by_key = defaultdict(list)
        for key, number in seen:
            by_key[key].append(number)
        assert all(numbers == sorted(numbers) for numbers in by_key.values())
    with tidelog_server.client() as client:
        assert pending(client, app, name) == 0


def test_newest_skips_what_was_there(app: App) -> None:
    topic = orders(app, 1)
    seen: list[int] = []

    @app.each(topic, start="latest")
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main() -> None:
        await topic.send(Order(1))
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: 0 in partitions and partitions[0].buffer.open)
            await topic.send(Order(2))
            await until(lambda: seen)

    asyncio.run(main())
    assert seen == [2]


@pytest.mark.parametrize("ordering", ["partition", "none"])
def test_newest_skips_nothing_of_partitions_that_are_new(tidelog_server: Server, ordering: Any) -> None:
    """Only what there was when the processor began is old, not what came into a partition before a worker saw it."""
    seen: list[int] = []

    async def run(records: range, expected: int) -> None:
        app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
        topic = app.topic("orders", Order, partition_by="id")

        @app.each(topic, start="latest", ordering=ordering)
        async def bill(order: Order) -> None:
            seen.append(order.id)

        await topic.send_many(Order(number) for number in records)
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: len(partitions) == topic.partitions)
            await until(lambda: all(each.buffer.open for each in partitions.values()))
            await topic.send(Order(1000))
            await until(lambda: len(seen) == expected)

    with tidelog_server.client() as client:
        before: Topic[Order] = Topic("orders", Order, partition_by="id", partitions=2)
        before.use(sync=client)
        before.sync.ready()
        asyncio.run(run(range(10), 1))
        assert seen == [1000]
        grow(client, "orders", 4)
        asyncio.run(run(range(10, 30), 22))
        assert sorted(seen) == [*range(10, 30), 1000, 1000]


def test_keys_are_worked_on_at_the_same_time_and_each_key_alone(app: App) -> None:
    topic = orders(app, 2)
    working_on: Counter[str] = Counter()
    most = 0
    gate = asyncio.Event()
    done: list[int] = []

    @app.each(topic, ordering="key", concurrency=6)
    async def bill(order: Order) -> None:
        nonlocal most
        working_on[order.key] += 1
        assert working_on[order.key] == 1
        most = max(most, sum(working_on.values()))
        if most == 6:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        working_on[order.key] -= 1
        done.append(order.id)

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number % 20}") for number in range(400))
        async with working(app) as worker:
            await until(lambda: len(done) == 400)
            assert worker.stats["bill"].failed == 0

    asyncio.run(main())
    assert most == 6


def test_manual_acknowledgement(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 1)
    seen: list[tuple[int, int]] = []
    kept: list[Event[Order]] = []

    @app.each(topic, ack="manual")
    async def bill(event: Event[Order]) -> None:
        seen.append((event.record.id, event.attempt))
        if event.record.id == 1 and len(seen) == 1:
            event.nack(delay=0.05)
        elif event.record.id == 2:
            kept.append(event)
        else:
            event.ack()

    async def main(client: Client) -> None:
        for number in (1, 2, 3):
            await topic.send(Order(number))
        async with working(app) as worker:
            await until(lambda: len(seen) == 4)
            await until(lambda: worker.stats["bill"].acknowledged == 2)
            assert pending(client, app, "bill") == 1
            kept[0].ack()
            await until(lambda: pending(client, app, "bill") == 0)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
    assert sorted(number for number, _ in seen) == [1, 1, 2, 3]


def test_what_takes_longer_than_the_retry_time_is_not_delivered_twice(tidelog_server: Server) -> None:
    app = App("shop", tidelog_server.url, lease=6.0)
    topic = orders(app, 1)
    seen: list[int] = []

    @app.each(topic, prefetch=5)
    async def bill(order: Order) -> None:
        seen.append(order.id)
        if order.id == 0:
            await asyncio.sleep(8)  # the retry time is the lease

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(3))
        async with working(app) as worker:
            await until(lambda: len(seen) == 3)
            assert worker.stats["bill"].repeated == 0

    asyncio.run(main())
    assert seen == [0, 1, 2]


def test_evicted_entries_are_counted_and_passed_over(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 1)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async def main(client: Client) -> None:
        await topic.send_many(Order(number) for number in range(10))
        client.tread("orders:0", "0", 4, group="shop.bill", retry=10_000)  # a worker that died had these
        client.ttrim("orders:0", count=3)
        async with working(app) as worker:
            await until(lambda: len(seen) == 3)
            await until(lambda: worker.stats["bill"].missing >= 4)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert pending(client, app, "bill") == 0
    assert seen == [7, 8, 9]


def test_a_handler_that_blocks_is_named_and_the_lease_is_kept(
    tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", tidelog_server.url, lease=4.0)
    topic = orders(app, 1)
    seen: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        time.sleep(5)  # noqa: ASYNC251 - longer than the lease
        seen.append(order.id)

    async def main() -> None:
        await topic.send(Order(1))
        async with working(app) as worker:
            await until(lambda: worker.lease.held)
            epoch = worker.lease.epoch
            await until(lambda: seen)
            await until(lambda: "was blocked" in caplog.text)
            assert (worker.lease.held, worker.lease.epoch) == (True, epoch)

    asyncio.run(main())
    (line,) = [record.getMessage() for record in caplog.records if "was blocked" in record.getMessage()]
    assert "active processors: bill" in line
    assert seen == [1]
