"""What is taken ahead with ordering "none": about a second of work; what nobody has begun goes to idle workers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog.testing import Server
from tidelog.workers import App, Take
from tidelog.workers.execution.prefetch import PrefetchLimit


def test_a_pace_follows_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidelog.workers.execution.prefetch.time", SimpleNamespace(monotonic=lambda: now))
    waiting = 0
    prefetch_limit = PrefetchLimit(lambda: waiting, lambda: 5, 1000)
    assert prefetch_limit.room(0, 0) == 5
    prefetch_limit.took(b"10.0", 5, now)
    now += 0.01
    prefetch_limit.left({})  # 5 in 10 ms
    assert prefetch_limit.room(0, 0) == 500
    waiting = 300
    assert prefetch_limit.room(300, 0) == 0  # more than half of what may wait does
    assert prefetch_limit.room(300, 400) == 200  # somebody waits for more
    waiting = 0
    prefetch_limit.took(b"20.0", 500, now)
    now += 50
    prefetch_limit.left({b"20.0": now})  # not yet
    assert prefetch_limit.room(500, 0) == 500
    prefetch_limit.left({})
    assert prefetch_limit.room(0, 0) == 10
    assert PrefetchLimit(lambda: 0, lambda: 5, 3).room(2, 0) == 1  # the limit is of all that is in hand


@pytest.mark.parametrize("form", ["each", "batch"])
def test_a_worker_that_comes_later_gets_a_share(tidelog_server: Server, form: str) -> None:
    app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
    topic: Any = app.topic("orders", Order, partitions=2)

    if form == "each":

        @app.each(topic, name="bill", ordering="none", concurrency=2)
        async def bill(_: Order) -> None:
            await asyncio.sleep(0.05)

    else:

        @app.batch(topic, name="bill", take=Take(2, within=0), ordering="none")
        async def bill_batch(_: list[Order]) -> None:
            await asyncio.sleep(0.05)

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(120))
        async with working(app) as first:
            await until(lambda: first.stats["bill"].finished >= 4)
            async with working(app) as second:
                await until(lambda: first.stats["bill"].finished + second.stats["bill"].finished >= 120)
                assert second.stats["bill"].finished >= 15
        await topic.close()

    asyncio.run(main())


def test_what_nobody_has_begun_is_given_back_when_calls_become_slow(tidelog_server: Server) -> None:
    app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
    topic: Any = app.topic("orders", Order, partitions=1)
    slow, began = asyncio.Event(), 0

    @app.each(topic, name="bill", ordering="none", concurrency=1)
    async def bill(_: Order) -> None:
        nonlocal began
        began += 1
        if began > 200:
            await slow.wait()

    async def main() -> None:
        await topic.send_many(Order(number) for number in range(400))
        async with working(app) as first:
            buffer = first.executors["bill"].partitions[0].buffer
            await until(lambda: began == 201)
            await until(lambda: len(buffer.in_flight) <= 3)  # the one that is begun, and next to nothing else
            slow.set()
            await until(lambda: first.stats["bill"].acknowledged == 400)
            assert first.stats["bill"].deadlettered == 0
        await topic.close()

    asyncio.run(main())


def test_prefetch_stays_a_limit(tidelog_server: Server) -> None:
    app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
    topic: Any = app.topic("orders", Order, partitions=1)
    most, seen = 0, 0
    worker: Any = None

    @app.each(topic, name="bill", ordering="none", concurrency=5, prefetch=7)
    async def bill(_: Order) -> None:
        nonlocal most, seen
        seen += 1
        most = max(most, len(worker.executors["bill"].partitions[0].buffer.in_flight))
        await asyncio.sleep(0)

    async def main() -> None:
        nonlocal worker
        await topic.send_many(Order(number) for number in range(300))
        async with working(app) as worker:
            await until(lambda: seen == 300)
        await topic.close()

    asyncio.run(main())
    assert most <= 7
