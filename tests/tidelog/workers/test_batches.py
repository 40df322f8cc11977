"""Batches: entries that can't be decoded, retries, and full batches."""


from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import SOON, Order, orders, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.workers import App, DeadLetter, Event, Events, Skip, Take


@pytest.mark.parametrize("form", ["records", "events", "loop"])
def test_an_entry_of_a_batch_that_is_no_record_is_given_up_alone(
    app: App, tidelog_server: Server, form: str
) -> None:  # fmt: skip
    topic = orders(app)
    good: list[int] = []
    on_error = [SOON, DeadLetter()]

    async def through(_: Any, call_next: Any) -> None:
        await call_next(_)

    if form == "records":

        @app.batch(topic, name="bill", take=Take(10, within=5), middleware=[through], on_error=on_error)
        async def bill(batch: list[Order]) -> None:
            good.extend(order.id for order in batch)

    elif form == "events":

        @app.batch(topic, name="bill", take=Take(10, within=5), on_error=on_error)
        async def bill_events(batch: list[Event[Order]]) -> None:
            good.extend([event.record.id for event in batch])

    else:

        @app.processor(topic, name="bill", on_error=on_error)
        async def bill_loop(events: Events[Order]) -> None:
            async for batch in events.batches(Take(10, within=5)):
                good.extend([event.record.id for event in batch])

    async def main(client: Client) -> None:
        await topic.ready()
        for number in range(10):
            client.tappend("orders:0", {"id": "none" if number in (2, 5) else str(number), "key": "k"})
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            await until(lambda: worker.stats["bill"].deadlettered == 2)
        assert good == [0, 1, 3, 4, 6, 7, 8, 9]

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_batch_of_a_loop_that_fails_is_tried_again_as_it_was(app: App) -> None:
    """Though more has come meanwhile: otherwise it would count as another one, and be tried for ever."""
    topic = orders(app)
    batches: list[list[int]] = []

    @app.processor(topic, on_error=[SOON, Skip()])
    async def bill(events: Events[Order]) -> None:
        async for batch in events.batches(Take(100, within=0)):
            batches.append([event.record.id for event in batch])
            if any(event.record.id < 2 for event in batch):
                await topic.send_many(Order(100 + len(batches)) for _ in range(3))
                raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(2))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 11)
        assert batches[:3] == [[0, 1]] * 3

    asyncio.run(main())


def test_a_full_batch_does_not_wait_for_its_time(app: App) -> None:
    """Though the buffer is more than half full, and has no room for more by itself."""
    topic = orders(app)
    sizes: list[int] = []

    @app.batch(topic, take=Take(100, within=3600), prefetch=100)
    async def bill(batch: list[Order]) -> None:
        sizes.append(len(batch))

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(70))
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: partitions)
            (partition,) = partitions.values()
            await until(lambda: len(partition.buffer.rows) == 70)
            await topic.send_many(Order(number) for number in range(30))
            await until(lambda: sizes)
        assert sizes == [100]

    asyncio.run(main())
