"""Each event once when the app is idle, whatever the numbers are; and partitions don't wait for each other."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest

from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog.client.alone import run_alone
from tidelog.testing import Server
from tidelog.topics import deadletters
from tidelog.workers import App, DeadLetter, Events, Take

EVENTS = 60


@pytest.fixture
def app(tidelog_server: Server) -> App:
    return App("shop", tidelog_server.url, lease=60.0, grace=60.0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("prefetch", [7, 100])
@pytest.mark.parametrize("partitions", [1, 5])
def test_each_event_once(
    app: App, tidelog_server: Server, partitions: int, prefetch: int, batch: int, workers: int
) -> None:
    """Four processors with all the ways of taking events, on one topic."""
    topic = app.topic("orders", Order, partition_by="key", partitions=partitions)
    seen: dict[str, list[Order]] = defaultdict(list)

    @app.batch(topic, take=Take(batch, within=0.01), prefetch=prefetch)
    async def in_batches(orders: list[Order]) -> None:
        assert 1 <= len(orders) <= batch
        seen["batch"] += orders

    @app.processor(topic, prefetch=prefetch)
    async def in_a_loop(events: Events[Order]) -> None:
        async for order in events.records():
            seen["loop"].append(order)

    @app.each(topic, ordering="key", concurrency=batch, prefetch=prefetch)
    async def by_key(order: Order) -> None:
        await asyncio.sleep(0)
        seen["key"].append(order)

    @app.each(topic, ordering="none", concurrency=batch, prefetch=prefetch)
    async def from_a_queue(order: Order) -> None:
        await asyncio.sleep(0)
        seen["none"].append(order)

    async def main() -> None:
        async with app.test(workers=workers, server=tidelog_server, lease=60.0, grace=60.0) as test:
            for first in (0, EVENTS):
                await test.feed(topic, *(Order(at, f"k{at % 9}") for at in range(first, first + EVENTS)))
                await test.idle(60)
                for form, orders in seen.items():
                    assert Counter(order.id for order in orders) == Counter(range(first + EVENTS)), form

    asyncio.run(main())
    assert len(seen) == 4
    for form in ("batch", "loop", "key"):
        for key in range(9):
            numbers = [order.id for order in seen[form] if order.key == f"k{key}"]
            assert numbers == sorted(numbers), form


@pytest.mark.parametrize("form", ["each", "batch", "loop"])
def test_a_partition_that_stands_still_holds_up_no_other(app: App, form: str) -> None:
    topic = app.topic("orders", Order, partition_by="key", partitions=3)
    gate = asyncio.Event()
    seen: list[str] = []
    slow = topic.partition(Order(0, "slow"))
    others = [key for key in map(str, range(30)) if topic.partition(Order(0, key)) != slow]

    async def see(order: Order) -> None:
        if order.key == "slow":
            await gate.wait()
        seen.append(order.key)

    if form == "each":
        app.each(topic, prefetch=5)(see)
    elif form == "batch":

        @app.batch(topic, prefetch=5, take=Take(2, within=0))
        async def in_batches(orders: list[Order]) -> None:
            for order in orders:
                await see(order)

    else:

        @app.processor(topic, prefetch=5)
        async def in_a_loop(events: Events[Order]) -> None:
            async for order in events.records():
                await see(order)

    async def main() -> None:
        async with working(app):
            await topic.send_many(Order(at, "slow") for at in range(50))
            await topic.send_many(Order(at, key) for at in range(20) for key in others)
            await until(lambda: len(seen) == 20 * len(others))
            assert "slow" not in seen
            gate.set()
            await until(lambda: len(seen) == 20 * len(others) + 50)

    asyncio.run(main())


def test_dead_letters_that_are_replayed_are_processed(app: App, tidelog_server: Server) -> None:
    topic = app.topic("orders", Order, partition_by="key", partitions=2)
    broken = True
    seen: list[int] = []

    @app.each(topic, on_error=[DeadLetter()])
    async def bill(order: Order) -> None:
        if broken and order.id % 2:
            raise RuntimeError("broken")
        seen.append(order.id)

    async def main() -> None:
        nonlocal broken
        async with app.test(server=tidelog_server, lease=60.0, grace=60.0) as test:
            await test.feed(topic, *(Order(at, f"k{at}") for at in range(10)))
            await test.idle(60)
            assert sorted(seen) == [0, 2, 4, 6, 8]
            broken = False
            letters = await test.dead_letters(topic)
            assert len(letters) == 5
            with tidelog_server.client() as client:
                done = run_alone(client, deadletters.replay("orders.dead"))
            assert (done.letters, done.refused) == (5, ())
            await test.idle(60)
            assert sorted(seen) == list(range(10))
            assert not await test.dead_letters(topic)

    asyncio.run(main())
