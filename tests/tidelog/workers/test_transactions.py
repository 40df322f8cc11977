"""Transactional processors: what they send and what they acknowledge is one step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App, AppError, CallNext, DeadLetter, Event, Events, Retry, Take


def topics(app: App, **options: Any) -> tuple[Topic[Any], Topic[Any]]:
    orders = app.topic("orders", Order, partition_by="key", partitions=3)
    return orders, app.topic("out", Order, partition_by="key", partitions=2, **options)


def sent(client: Client) -> list[tuple[str, int]]:
    """Keys and numbers of what was sent on, each key in order."""
    return [(entry["key"].decode(), int(entry["id"])) for at in range(2) for entry in client.trange(f"out:{at}")]


@pytest.mark.parametrize("form", ["each", "key", "batch", "events"])
def test_what_a_failed_attempt_has_sent_is_thrown_away(app: App, tidelog_server: Server, form: str) -> None:
    orders, out = topics(app)
    failed: list[int] = []

    async def copy(event: Event[Order]) -> None:
        await event.send(out, event.record)
        await event.send(out, Order(event.record.id + 1000, event.record.key))
        if event.record.id % 10 == 0 and failed.count(event.record.id) < (1 if event.record.id else 9):
            failed.append(event.record.id)
            raise RuntimeError("broken")

    on_error = [Retry(2, first=0.01, most=0.01), DeadLetter()]
    if form in ("each", "key"):
        ordering: Any = "key" if form == "key" else "partition"

        @app.each(orders, name="bill", transactional=True, on_error=on_error, ordering=ordering)
        async def bill(event: Event[Order]) -> None:
            await copy(event)

    elif form == "batch":

        @app.batch(orders, name="bill", transactional=True, take=Take(1), on_error=on_error)
        async def bill_batch(batch: list[Event[Order]]) -> None:
            for event in batch:
                await copy(event)

    else:

        @app.processor(orders, name="bill", transactional=True, on_error=on_error)
        async def bill_events(events: Events[Order]) -> None:
            async for event in events:
                await copy(event)

    async def main(client: Client) -> None:
        await orders.send_many(Order(number, f"k{number % 7}") for number in range(100))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 100)
            await until(lambda: worker.stats["bill"].deadlettered == 1)  # counted after the acknowledgement
        assert pending(client, app, "bill") == 0

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        numbers = [number for _, number in sent(client)]
        assert Counter(numbers) == Counter([*range(1, 100), *range(1001, 1100)])
        assert client.tlen("orders.dead:0") == 1
        for key in range(7):
            mine = [number for name, number in sent(client) if name == f"k{key}" and number < 1000]
            assert mine == sorted(mine)


def test_middleware_that_passes_an_event_on_twice_is_refused(app: App, tidelog_server: Server) -> None:
    orders, out = topics(app)
    errors: list[str] = []

    async def twice(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        await call_next(events)
        if events[0].record.id % 2:
            try:
                await call_next(events)
            except AppError as error:
                errors.append(str(error))
                raise

    @app.each(orders, transactional=True, middleware=[twice], on_error=[DeadLetter()])
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)

    async def main() -> None:
        await orders.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            await until(lambda: worker.stats["bill"].deadlettered == 5)

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert sorted(number for _, number in sent(client)) == [0, 2, 4, 6, 8]
    (told,) = set(errors)
    assert told.startswith("processor 'bill': middleware has passed on the same event twice")


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_middleware_may_try_again_what_failed(app: App, tidelog_server: Server, ordering: Any) -> None:
    """What the middleware itself has sent before stays; what the failed call has sent does not."""
    orders, out = topics(app)
    failed: set[int] = set()

    async def again(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        (event,) = events
        await event.send(out, Order(event.record.id + 1000, event.record.key))
        try:
            await call_next(events)
        except RuntimeError:
            await call_next(events)

    @app.each(orders, transactional=True, middleware=[again], ordering=ordering)
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)
        if event.record.id not in failed:
            failed.add(event.record.id)
            raise RuntimeError

    async def main() -> None:
        await orders.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            assert worker.stats["bill"].failed == 0

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert sorted(number for _, number in sent(client)) == [*range(10), *range(1000, 1010)]


def test_what_middleware_sends_between_two_tries_stays(app: App, tidelog_server: Server) -> None:
    """Only what came out of the failed call is thrown away, for each layer: what the inner one sent, too."""
    orders, out = topics(app)

    async def outer(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        (event,) = events
        try:
            await call_next(events)
        except RuntimeError:
            await event.send(out, Order(event.record.id + 1000, event.record.key))
            await call_next(events)

    async def inner(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        (event,) = events
        await event.send(out, Order(event.record.id + 2000, event.record.key))
        await call_next(events)

    failed: set[int] = set()

    @app.each(orders, transactional=True, middleware=[outer, inner])
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)
        if event.record.id not in failed:
            failed.add(event.record.id)
            raise RuntimeError

    async def main() -> None:
        await orders.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            assert worker.stats["bill"].failed == 0

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert sorted(number for _, number in sent(client)) == [*range(10), *range(1000, 1010), *range(2000, 2010)]


def test_what_an_inner_layer_has_finished_is_thrown_away_when_an_outer_one_tries_again(
    app: App, tidelog_server: Server
) -> None:
    orders, out = topics(app)
    failed: set[int] = set()

    async def again(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        while True:
            try:
                await call_next(events)
            except RuntimeError:
                continue
            break

    async def one_by_one(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        for event in events:
            await call_next([event])

    @app.batch(orders, take=Take(5, within=0.01), transactional=True, middleware=[again, one_by_one])
    async def bill(events: list[Event[Order]]) -> None:
        (event,) = events
        await event.send(out, event.record)
        if event.record.id not in failed:
            failed.add(event.record.id)
            raise RuntimeError

    async def main() -> None:
        await orders.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)
            assert worker.stats["bill"].failed == 0

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert sorted(number for _, number in sent(client)) == list(range(10))


def test_middleware_that_leaves_a_task_behind_can_not_send_twice(app: App, tidelog_server: Server) -> None:
    """What is still in the function may not be passed on again by an outer layer either."""
    orders, out = topics(app)
    gate = asyncio.Event()
    errors: list[str] = []

    async def again(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        try:
            await call_next(events)
        except RuntimeError:
            try:
                await call_next(events)
            except AppError as error:
                errors.append(str(error))
        gate.set()
        await asyncio.gather(*tasks)

    tasks: list[asyncio.Task[Any]] = []

    async def leaving(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        tasks.append(asyncio.ensure_future(call_next(events)))
        await asyncio.sleep(0.01)
        raise RuntimeError

    @app.each(orders, transactional=True, middleware=[again, leaving])
    async def bill(event: Event[Order]) -> None:
        await gate.wait()
        await event.send(out, event.record)

    async def main() -> None:
        await orders.send(Order(1, "k"))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 1)

    asyncio.run(main())
    assert len(errors) == len(tasks) == 1
    with tidelog_server.client() as client:
        assert [number for _, number in sent(client)] == [1]


def test_middleware_may_pass_a_batch_on_in_parts(app: App, tidelog_server: Server) -> None:
    orders, out = topics(app)

    async def one_by_one(events: Sequence[Event[Any]], call_next: CallNext) -> None:
        for event in events:
            await call_next([event])

    @app.batch(orders, take=Take(5, within=0.01), transactional=True, middleware=[one_by_one])
    async def bill(events: list[Event[Order]]) -> None:
        (event,) = events
        await event.send(out, event.record)

    async def main() -> None:
        await orders.send_many(Order(number, f"k{number}") for number in range(10))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 10)

    asyncio.run(main())
    with tidelog_server.client() as client:
        assert sorted(number for _, number in sent(client)) == list(range(10))


def test_nothing_happens_once_another_has_the_claim(app: App, tidelog_server: Server) -> None:
    orders, out = topics(app)
    gate = asyncio.Event()
    inside = asyncio.Event()
    epochs: list[int] = []

    @app.each(orders, transactional=True)
    async def bill(event: Event[Order]) -> None:
        epochs.append(event.epoch)
        await event.send(out, event.record)
        inside.set()
        await gate.wait()

    async def main(client: Client) -> None:
        await orders.send(Order(1))
        async with working(app) as worker:
            await inside.wait()
            (partition,) = [each for each in worker.executors["bill"].partitions.values() if each.buffer.in_flight]
            key = f"app:shop:owner:bill:{partition.number}"
            client.redis.set(key, "app:shop:lease:other|other:1|999999")  # a lease that has ended: free to be taken
            gate.set()
            await until(lambda: len(epochs) == 2)  # claimed again, and delivered again
            await until(lambda: worker.stats["bill"].acknowledged == 1)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert [number for _, number in sent(client)] == [1]
    assert epochs[0] < epochs[1]


def test_what_the_server_refuses_becomes_a_dead_letter_and_the_others_come_through(
    app: App, tidelog_server: Server
) -> None:
    orders, out = topics(app)

    @app.each(orders, transactional=True)
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)

    async def main(client: Client) -> None:
        await out.ready()
        number = out.partition(Order(0, "k0"))
        client.redis.set(f"out:{number}", "no stream")
        await orders.send_many(Order(at, f"k{at % 7}") for at in range(50))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 50)
            good = [at for at in range(50) if out.partition(Order(0, f"k{at % 7}")) != number]
            await until(lambda: worker.stats["bill"].deadlettered == 50 - len(good))
            found = [int(entry["id"]) for entry in client.trange(f"out:{1 - number}")]
            assert sorted(found) == good

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert pending(client, app, "bill") == 0


def test_topics_that_drop_are_kept_short(app: App, tidelog_server: Server) -> None:
    orders, out = topics(app, partition_size=10, overflow="drop")

    @app.each(orders, transactional=True)
    async def bill(event: Event[Order]) -> None:
        await event.send(out, event.record)

    async def main(client: Client) -> None:
        await orders.send_many(Order(number, f"k{number % 7}") for number in range(300))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 300)
            await until(lambda: [client.tlen(f"out:{at}") for at in range(2)] == [10, 10])

    with tidelog_server.client() as client:
        asyncio.run(main(client))
