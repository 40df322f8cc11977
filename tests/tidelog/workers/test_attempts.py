"""The number of an attempt, and retries with ack="before"."""


from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import SOON, Order, orders, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.workers import App, DeadLetter, Event, Events, Halt, Skip


@pytest.mark.parametrize("form", ["each", "key", "none", "events"])
def test_an_event_that_is_given_back_knows_its_attempt(app: App, form: str) -> None:
    """Also at another worker."""
    topic = orders(app)
    seen: list[int] = []

    def see(event: Event[Order]) -> None:
        seen.append(event.attempt)
        if len(seen) < 5:
            event.nack()
        else:
            event.ack()

    if form == "events":

        @app.processor(topic, name="bill", ack="manual")
        async def bill_events(events: Events[Order]) -> None:
            async for event in events:
                see(event)

    else:

        @app.each(topic, name="bill", ack="manual", ordering="partition" if form == "each" else form)  # type: ignore[arg-type]
        async def bill(event: Event[Order]) -> None:
            see(event)
            if len(seen) == 3:
                await asyncio.sleep(0)

    async def main() -> None:
        await topic.send(Order(1))
        async with working(app):
            await until(lambda: len(seen) == 5)
        assert seen == [1, 2, 3, 4, 5]

    asyncio.run(main())


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_an_attempt_is_known_to_the_next_worker(app: App, tidelog_server: Server, ordering: Any) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, name="bill", ack="manual", ordering=ordering)
    async def bill(event: Event[Order]) -> None:
        seen.append(event.attempt)
        if len(seen) < 3:
            event.nack(delay=0.2)
        else:
            event.ack()

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        for count in (1, 2, 3):
            async with working(app) as worker:
                await until(lambda: len(seen) == count)  # noqa: B023
                await until(lambda: count < 3 or worker.stats["bill"].acknowledged == 1)  # noqa: B023
        assert seen == [1, 2, 3]
        await until(lambda: not client.redis.keys("app:shop:tried:*"))  # what is settled leaves nothing

    with tidelog_server.client() as client:
        asyncio.run(main(client))


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_before_has_retries_and_an_ending_too(app: App, tidelog_server: Server, ordering: Any) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ordering=ordering, ack="before", on_error=[SOON, DeadLetter()])
    async def bill(order: Order) -> None:
        seen.append(order.id)
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(120))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].deadlettered == 120)
        assert len(seen) == 360

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert client.tlen("orders.dead:0") == 120


def test_before_with_a_loop_is_tried_again(app: App) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.processor(topic, ack="before", on_error=[SOON, DeadLetter()])
    async def bill(events: Events[Order]) -> None:
        async for order in events.records():
            seen.append(order.id)
            if order.id == 1 and seen.count(1) < 3:
                raise ValueError("twice")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(3))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].finished == 3)
        assert seen == [0, 1, 1, 1, 2]

    asyncio.run(main())


def test_a_halt_of_what_is_acknowledged_before_does_not_hold_up_the_end(app: App) -> None:
    topic = orders(app)

    @app.each(topic, ordering="key", ack="before", on_error=[Halt()])
    async def bill(_: Order) -> None:
        raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(5))
        async with working(app) as worker:
            partitions = worker.executors["bill"].partitions
            await until(lambda: partitions)
            (partition,) = partitions.values()
            await until(lambda: partition.ended)  # long before the grace is over
        assert worker.stats["bill"].failed == 1

    async def limited() -> None:
        async with asyncio.timeout(15):
            await main()

    asyncio.run(limited())


def test_a_queue_knows_the_attempt(app: App) -> None:
    topic = orders(app)
    attempts: dict[int, list[int]] = {}

    @app.each(topic, ordering="none", on_error=[SOON, Skip()])
    async def bill(event: Event[Order]) -> None:
        attempts.setdefault(event.record.id, []).append(event.attempt)
        if event.record.id % 3 == 0:
            raise ValueError("always")

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(30))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 30)
        assert attempts == {number: [1, 2, 3] if number % 3 == 0 else [1] for number in range(30)}

    asyncio.run(main())
