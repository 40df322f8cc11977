"""``app.test()``: an app in process, on a server of its own; ``idle`` waits for everything, and says for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from tests.waiting import until
from tidelog.client.steps import arun
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App, AppError, DeadLetter, Event, Events, Halt, Park, Retry, Take
from tidelog.workers.operate import control
from tidelog.workers.operate.testing import NotIdleError

ELSEWHERE = "redis://127.0.0.1:1"  # nobody answers there

pytestmark = pytest.mark.slow


class Order(msgspec.Struct):
    id: int
    key: str = "k"


def shop() -> tuple[App, Topic[Order]]:
    app = App("shop", url=ELSEWHERE)
    return app, app.topic("orders", Order, partition_by="key", partitions=4)


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(told())


def test_what_was_sent_is_processed_when_it_is_idle_and_everything_is_put_back() -> None:
    app, orders = shop()
    later = app.topic("bills", Order, partitions=2)
    seen: list[int] = []
    billed: list[int] = []

    @app.each(orders, transactional=True)
    async def bill(event: Event[Order]) -> None:
        seen.append(event.record.id)
        await event.send(later, event.record)

    @app.batch(later, take=Take(10, within=0.01))
    async def book(batch: list[Order]) -> None:
        await asyncio.sleep(0.001)
        billed.extend(order.id for order in batch)

    kept = app.access

    async def told() -> None:
        async with app.test(workers=2) as test:
            assert await test.feed(orders, *(Order(at, str(at)) for at in range(200))) == 200
            await orders.send(Order(200))
            await test.idle()
            assert sorted(seen) == sorted(billed) == list(range(201))
            assert test.stats["bill"].finished == test.stats["book"].finished == 201
            assert await test.dead_letters(orders) == []
            (process, _) = (await test.status()).processors
            assert sum(each.finished for each in process.partitions) == 201
            assert {each.owner for each in process.partitions} <= {"test-1", "test-2"}

    story(told)
    assert app.access is kept
    assert app.lease == 10.0
    assert app.grace == 30.0
    assert orders.url == later.url == ELSEWHERE
    with pytest.raises(Exception, match="known after ready"):
        _ = orders.settings


def test_a_topic_with_a_client_of_its_own_gets_it_back(tidelog_server: Server) -> None:
    app, orders = shop()

    @app.each(orders)
    async def bill(_: Order) -> None: ...

    async def told() -> None:
        with tidelog_server.client() as ours:
            orders.use(sync=ours)
            async with app.test() as test:
                await test.feed(orders, Order(1))
                await test.idle()
                assert ours.tlen("orders:0") == 0
            assert orders.client is ours

    story(told)


def test_dead_letters_are_at_hand(tidelog_server: Server) -> None:
    app, orders = shop()

    @app.each(orders, on_error=[Retry(1, first=0.01), DeadLetter()])
    async def bill(order: Order) -> None:
        if order.id == 3:
            raise ValueError("three")

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, *(Order(at) for at in range(5)))
            await test.idle(timeout=60)
            (letter,) = await test.dead_letters(orders)
            assert (letter.error, letter.message, letter.processor) == ("ValueError", "three", "shop.bill")

    story(told)


def test_a_timeout_says_what_is_not_idle(tidelog_server: Server) -> None:
    app, orders = shop()
    release = asyncio.Event()

    @app.each(orders)
    async def bill(_: Order) -> None:
        await release.wait()

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, Order(1, "a"), Order(2, "a"))
            at = orders.partition(Order(1, "a"))
            with pytest.raises(NotIdleError) as caught:
                await test.idle(timeout=1.0)
            assert str(caught.value).startswith("app 'shop' is not idle after 1 s:\n  bill: orders:")
            assert f"bill: orders:{at}: " in str(caught.value)
            release.set()
            await test.idle()

    story(told)


def test_without_workers_it_says_that_nobody_owns_the_partition(tidelog_server: Server) -> None:
    app, orders = shop()

    @app.each(orders)
    async def bill(_: Order) -> None: ...

    async def told() -> None:
        async with app.test(server=tidelog_server, workers=0) as test:
            await test.idle()
            await test.feed(orders, Order(1))
            with pytest.raises(NotIdleError, match="1 entries not delivered, 0 not acknowledged; owned by nobody"):
                await test.idle(timeout=0)
            await test.add_worker()
            await test.idle()

    story(told)


def test_parked_keys_count_as_idle_and_halted_processors_do_not(tidelog_server: Server) -> None:
    app, orders = shop()

    @app.each(orders, ordering="key", on_error=[Park()])
    async def bill(order: Order) -> None:
        if order.key == "bad":
            raise ValueError("bad")

    @app.each(orders, on_error=[Halt()])
    async def book(order: Order) -> None:
        if order.id == 7:
            raise ValueError("seven")

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, Order(1, "bad"), Order(2, "bad"), Order(3, "good"))
            await test.idle()
            bill_status, _ = (await test.status()).processors
            assert sum(each.set_aside for each in bill_status.partitions) == 2
            assert [key for each in bill_status.partitions for key in each.parked] == ["bad"]
            await test.feed(orders, Order(7, "good"))
            with pytest.raises(NotIdleError, match=r"book is halted: ValueError: seven"):
                await test.idle()
            await test.idle(paused=True)

    story(told)


def test_ack_before_waits_for_what_is_in_work(tidelog_server: Server) -> None:
    app, orders = shop()
    done: list[int] = []

    @app.each(orders, ack="before")
    async def bill(order: Order) -> None:
        await asyncio.sleep(0.05)
        done.append(order.id)

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, *(Order(at) for at in range(5)))
            await test.idle()
            assert done == [0, 1, 2, 3, 4]

    story(told)


def test_a_loop_over_events_becomes_idle(tidelog_server: Server) -> None:
    app, orders = shop()
    done: list[int] = []

    @app.processor(orders)
    async def bill(events: Events[Order]) -> None:
        note = done.append
        async for order in events.records():
            note(order.id)

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, Order(1), Order(2))
            await test.idle()
            assert done == [1, 2]

    story(told)


def test_the_server_may_die(tidelog_server: Server) -> None:
    app, orders = shop()
    done: list[int] = []

    @app.each(orders)
    async def bill(order: Order) -> None:
        done.append(order.id)

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, Order(1))
            await test.idle()
            await asyncio.to_thread(test.server.kill)
            await asyncio.to_thread(test.server.start)
            await test.feed(orders, Order(2))
            await test.idle(timeout=60)
            assert done[0] == 1
            assert done[-1] == 2

    story(told)


def test_held_back_and_resumed_from_outside(tidelog_server: Server) -> None:
    """What ``tidelog app pause`` and ``resume`` do: workers notice, without anything being held back before."""
    app, orders = shop()
    done: list[int] = []

    @app.each(orders, ordering="key")
    async def bill(order: Order) -> None:
        done.append(order.id)

    async def told() -> None:
        async with app.test(server=tidelog_server) as test:
            await test.feed(orders, Order(1, "a"), Order(2, "b"))
            await test.idle()
            assert await arun(test.client, control.pause(app, "bill")) == ["all partitions"]
            executor = test.workers[0].executors["bill"]
            await until(lambda: executor.paused == {"*"})
            await test.feed(orders, Order(3, "a"), Order(4, "b"))
            await test.idle(paused=True)
            assert sorted(done) == [1, 2]
            assert await arun(test.client, control.resume(app, "bill")) == ["all partitions"]
            await test.idle()
            assert sorted(done) == [1, 2, 3, 4]
            at = orders.partition(Order(0, "a"))
            assert await arun(test.client, control.pause(app, "bill", key="a")) == [f"key a in partition {at}"]
            await until(lambda: "a" in executor.partitions[at].parked)
            await test.feed(orders, Order(5, "a"), Order(6, "b"))
            await test.idle()
            assert sorted(done) == [1, 2, 3, 4, 6]
            assert await arun(test.client, control.resume(app, "bill", key="a")) == [f"key a in partition {at}"]
            await test.idle()
            assert sorted(done) == [1, 2, 3, 4, 5, 6]

    story(told)


def test_what_kills_a_worker_is_raised(tidelog_server: Server) -> None:
    app, orders = shop()

    @app.each(orders)
    async def bill(_: Order) -> None: ...

    with tidelog_server.client() as client:
        other: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=2)
        other.use(sync=client)
        other.sync.ready()

    async def told() -> None:
        with pytest.raises(Exception, match="partitions is 2 on the server, 4 here"):
            async with app.test(server=tidelog_server):
                pass

    story(told)
    assert orders.url == ELSEWHERE


def test_what_makes_no_sense_is_refused() -> None:
    app, _ = shop()
    with pytest.raises(AppError, match=r"lease \(9 s\) at most grace \(2 s\)"):
        app.test(lease=9, grace=2)
    with pytest.raises(AppError, match="no processor 'bil'"):
        app.test(processors=["bil"])
