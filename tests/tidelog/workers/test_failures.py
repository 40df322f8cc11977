"""What the failure policy decides is carried out: real server, a worker in this event loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.tidelog.workers.workerkit import SOON, Order, orders, pending, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.client.steps import run
from tidelog.testing import Server
from tidelog.workers import (
    App,
    DeadLetter,
    Event,
    Events,
    Halt,
    Park,
    Pause,
    Retry,
    Skip,
    Take,
)
from tidelog.workers.coordination import pauses


@pytest.mark.parametrize("form", ["each", "event", "key", "none", "batch", "events"])
def test_retries_then_a_dead_letter_and_the_others_go_on(app: App, tidelog_server: Server, form: str) -> None:
    topic = orders(app)
    seen: list[int] = []

    def see(order: Order) -> None:
        seen.append(order.id)
        if order.id == 3:
            raise ValueError("no such customer")

    if form in ("each", "key", "none"):

        @app.each(topic, name="bill", ordering="partition" if form == "each" else form, on_error=[SOON, DeadLetter()])  # type: ignore[arg-type]
        async def bill(order: Order) -> None:
            see(order)

    elif form == "event":

        @app.each(topic, name="bill", on_error=[SOON, DeadLetter()])
        async def bill_event(event: Event[Order]) -> None:
            assert event.attempt == 1 + seen.count(event.record.id)
            see(event.record)

    elif form == "batch":

        @app.batch(topic, name="bill", take=Take(1), on_error=[SOON, DeadLetter()])
        async def bill_batch(batch: list[Order]) -> None:
            see(batch[0])

    else:

        @app.processor(topic, name="bill", on_error=[SOON, DeadLetter()])
        async def bill_events(events: Events[Order]) -> None:
            async for event in events:
                assert event.attempt == 1 + seen.count(event.record.id)
                see(event.record)

    async def main(client: Client) -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(6))
        async with working(app) as worker:
            await until(lambda: client.tlen("orders.dead:0") == 1)
            await until(lambda: set(seen) == set(range(6)))
            stats = worker.stats["bill"]
            await until(lambda: (stats.acknowledged, stats.deadlettered) == (6, 1))
            assert (stats.failed, stats.retried, stats.deadlettered, stats.finished) == (3, 2, 1, 5)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert pending(client, app, "bill") == 0
        (letter,) = client.trange("orders.dead:0")
        text = letter.text()
        assert (text["dlq:topic"], text["dlq:partition"], text["dlq:processor"]) == ("orders", "0", "shop.bill")
        assert (text["dlq:error"], text["dlq:message"], text["dlq:attempts"]) == ("ValueError", "no such customer", "3")
        assert (text["dlq:key"], text["id"]) == ("k3", "3")
        assert text["dlq:id"] == str(client.trange("orders:0")[3].id)
    assert seen.count(3) == 3
    if form not in ("key", "none"):
        assert seen == [0, 1, 2, 3, 3, 3, 4, 5]


@pytest.mark.parametrize("form", ["each", "key", "none", "batch", "events"])
def test_an_entry_that_is_no_record_is_given_up_alone(app: App, tidelog_server: Server, form: str) -> None:
    topic = orders(app)
    seen: list[int] = []
    if form in ("each", "key", "none"):

        @app.each(topic, name="bill", ordering="partition" if form == "each" else form)  # type: ignore[arg-type]
        async def bill(order: Order) -> None:
            seen.append(order.id)

    elif form == "batch":

        @app.batch(topic, name="bill", take=Take(3, within=0.05))
        async def bill_batch(batch: list[Order]) -> None:
            seen.extend(order.id for order in batch)

    else:

        @app.processor(topic, name="bill")
        async def bill_events(events: Events[Order]) -> None:
            async for order in events.records():
                seen.append(order.id)  # noqa: PERF401 - one at a time

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        client.tappend("orders:0", [("id", "seven"), ("id", b"\xff")])
        await topic.send(Order(2))
        async with working(app) as worker:
            await until(lambda: sorted(seen) == [1, 2])
            await until(lambda: worker.stats["bill"].acknowledged == 3)

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert pending(client, app, "bill") == 0
        (letter,) = client.trange("orders.dead:0")
        assert letter["dlq:error"].endswith(b"UndecodableError")
        assert letter["dlq:attempts"] == b"1"
        assert letter.pairs[-2:] == [(b"id", b"seven"), (b"id", b"\xff")]


def test_skip(app: App, tidelog_server: Server) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, on_error=[Skip()])
    async def bill(order: Order) -> None:
        seen.append(order.id)
        if order.id == 1:
            raise RuntimeError

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(3))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 3)
            assert worker.stats["bill"].skipped == 1

    asyncio.run(main())
    assert seen == [0, 1, 2]


def test_a_parked_key_is_held_back_until_it_is_resumed(app: App, tidelog_server: Server) -> None:
    topic = orders(app)
    seen: list[tuple[str, int]] = []
    broken = True

    @app.each(topic, ordering="key", on_error=[Park()])
    async def bill(order: Order) -> None:
        if order.key == "bad" and broken:
            raise RuntimeError("broken")
        seen.append((order.key, order.id))

    key = pauses.parked_key("shop", "bill", 0)

    async def main(client: Client) -> None:
        nonlocal broken
        await topic.send_many(Order(number, "bad" if number % 2 else "good") for number in range(10))
        async with working(app) as worker:
            await until(lambda: len(seen) == 5 and worker.stats["bill"].parked == 5)
            (name, facts), *more = run(client, pauses.read(key)).items()
            assert (name, more) == ("bad", [])
            assert facts["error"] == "RuntimeError: broken"
        assert pending(client, app, "bill") == 5
        async with working(app) as worker:  # another worker knows
            await topic.send(Order(10, "good"))
            await until(lambda: len(seen) == 6 and worker.stats["bill"].parked == 5)
            assert worker.stats["bill"].failed == 0
            broken = False
            run(client, pauses.remove(key, ["bad"]))
            await until(lambda: len(seen) == 11)
            await until(lambda: not pending(client, app, "bill"))

    with tidelog_server.client() as client:
        asyncio.run(main(client))
    assert [number for name, number in seen if name == "bad"] == [1, 3, 5, 7, 9]
    assert set(seen[:5]) == {("good", number) for number in (0, 2, 4, 6, 8)}


@pytest.mark.parametrize("final", [Pause(), Halt()])
def test_a_partition_or_a_processor_is_held_back_until_it_is_resumed(
    app: App, tidelog_server: Server, final: Pause | Halt
) -> None:
    topic = orders(app, 2)
    seen: list[int] = []
    other: list[int] = []
    broken = True
    first, second = 0, 1

    @app.each(topic, on_error=[final])
    async def bill(event: Event[Order]) -> None:
        if event.partition == first and broken:
            raise RuntimeError("broken")
        seen.append(event.record.id)

    @app.each(topic)
    async def index(order: Order) -> None:
        other.append(order.id)

    key = pauses.paused_key("shop", "bill")
    name = str(first) if isinstance(final, Pause) else pauses.ALL

    async def main(client: Client) -> None:
        nonlocal broken
        await topic.ready()
        keys = {topic.partition(Order(0, f"k{number}")): f"k{number}" for number in range(100)}
        async with working(app):
            await topic.send(Order(1, keys[first]))
            await until(lambda: name in run(client, pauses.read(key)))
            await topic.send_many([Order(2, keys[first]), Order(3, keys[second])])
            await until(lambda: sorted(other) == [1, 2, 3])
            if isinstance(final, Pause):
                await until(lambda: seen == [3])
        async with working(app) as worker:  # it stays so
            partitions = worker.executors["bill"].partitions
            await until(lambda: len(partitions) == 2)
            assert not partitions[0].buffer.open
            assert worker.stats["bill"].failed == 0
            assert seen == ([3] if isinstance(final, Pause) else [])
            broken = False
            run(client, pauses.remove(key, [name]))
            await until(lambda: sorted(seen) == [1, 2, 3])

    with tidelog_server.client() as client:
        asyncio.run(main(client))
        assert client.redis.get(key) is None


def test_a_key_that_fails_for_ever_blocks_only_itself(app: App) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ordering="key", prefetch=10, on_error=[Retry(1000, first=1000, most=1000), Skip()])
    async def bill(order: Order) -> None:
        if order.key == "bad":
            raise RuntimeError
        seen.append(order.id)

    async def main() -> None:
        await topic.send_many(Order(number, "bad") for number in range(50))
        await topic.send_many(Order(number, "good") for number in range(50))
        async with working(app):
            await until(lambda: len(seen) == 50)

    asyncio.run(main())


def test_a_timeout_is_a_failure_and_cancels_the_handler(app: App) -> None:
    topic = orders(app)
    cancelled: list[int] = []
    seen: list[int] = []

    @app.each(topic, timeout=0.05, on_error=[Skip()])
    async def bill(order: Order) -> None:
        if order.id == 0:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(order.id)
                raise
        seen.append(order.id)

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(2))
        async with working(app) as worker:
            await until(lambda: seen == [1])
            await until(lambda: worker.stats["bill"].acknowledged == 2)

    asyncio.run(main())
    assert cancelled == [0]


def test_a_generator_that_returns_early_or_fails_before_its_first_event(app: App) -> None:
    topic = orders(app)
    calls = 0
    seen: list[int] = []

    @app.processor(topic, on_error=[SOON, Skip()])
    async def bill(events: Events[Order]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("no connection")
        async for order in events.records():
            seen.append(order.id)
            if calls == 2:
                return

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(3))
        async with working(app) as worker:
            await until(lambda: seen == [0, 0, 1, 2])
            assert worker.stats["bill"].failed == 2
            await until(lambda: worker.stats["bill"].acknowledged == 3)

    asyncio.run(main())
    assert calls == 3


def test_before_means_at_most_once(app: App, tidelog_server: Server) -> None:
    topic = orders(app)
    seen: list[int] = []

    @app.each(topic, ack="before", on_error=[Skip()])
    async def bill(order: Order) -> None:
        seen.append(order.id)
        if order.id % 2:
            raise RuntimeError

    async def main(client: Client) -> None:
        await topic.send_many(Order(number) for number in range(250))
        async with working(app) as worker:
            await until(lambda: len(seen) == 250)
            assert worker.stats["bill"].acknowledged == 250
            assert pending(client, app, "bill") == 0

    with tidelog_server.client() as client:
        asyncio.run(main(client))
    assert seen == list(range(250))


def test_a_halt_stops_the_processor_in_all_workers(app: App, tidelog_server: Server) -> None:
    topic = orders(app, 4)
    seen: list[int] = []
    broken = True

    @app.each(topic, on_error=[Halt()])
    async def bill(order: Order) -> None:
        if order.id == 0 and broken:
            raise RuntimeError("broken")
        seen.append(order.id)

    async def main(client: Client) -> None:
        nonlocal broken
        async with working(app, "w1") as first, working(app, "w2") as second:
            both = [first.executors["bill"], second.executors["bill"]]
            await until(lambda: [len(each.partitions) for each in both] == [2, 2])
            parts = [part for each in both for part in each.partitions.values()]
            await until(lambda: all(part.buffer.open for part in parts))
            await topic.send(Order(0))
            await until(lambda: not any(part.buffer.open for part in parts))
            await topic.send_many(Order(number, f"k{number}") for number in range(1, 40))
            assert not seen
            broken = False
            run(client, pauses.remove(pauses.paused_key("shop", "bill"), [pauses.ALL]))
            await until(lambda: sorted(seen) == list(range(40)))

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_batches_of_a_queue_are_limited_for_each_worker(app: App) -> None:
    topic = orders(app, 4)
    seen: list[int] = []
    now = most = 0

    @app.batch(topic, ordering="none", take=Take(5, within=0), concurrency=2)
    async def bill(batch: list[Order]) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        seen.extend(order.id for order in batch)

    async def main() -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(200))
        async with working(app):
            await until(lambda: len(seen) == 200)

    asyncio.run(main())
    assert most == 2
