"""Keys of an app that hold what no worker wrote: workers report them and go on, and new ones can begin."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App

KEYS = (
    "app:shop:members:bill", "app:shop:owner:bill:0", "app:shop:leader", "app:shop:paused:bill",
    "app:shop:parked:bill:0", "app:shop:epoch", "app:shop:timer:tick",
)  # fmt: skip
TEXTS = (b"\xff", b"[[[", b'{"a": {"b": "\xff"}}', b"[" * 100_000)


def shop(server: Server, seen: list[int]) -> tuple[App, Topic[Any]]:
    app = App("shop", server.url, lease=1.0, grace=5.0)
    topic = app.topic("orders", Order, partition_by="key", partitions=2)

    @app.each(topic, ordering="key", name="bill")
    async def bill(order: Order) -> None:
        seen.append(order.id)

    @app.timer(interval=0.05, on_leader=True)
    async def tick() -> None: ...

    return app, topic


@pytest.mark.parametrize("text", TEXTS)
def test_one_that_cannot_be_decoded_ends_nobody(
    tidelog_server: Server, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Of all keys at once: a worker that runs goes on, and another one begins and takes over."""
    seen: list[int] = []
    app, topic = shop(tidelog_server, seen)

    async def main(client: Client) -> None:
        async with working(app) as first:
            await topic.send(Order(1))
            await until(lambda: 1 in seen)
            for key in KEYS:
                client.redis.set(key, text)
            client.tappev("app:shop:control", {"kind": text, "processor": b"bill"}, count=1000)
            await topic.send(Order(2, "other"))
            await until(lambda: 2 in seen)
            async with working(app) as second:
                await topic.send_many(Order(number, f"k{number}") for number in range(3, 40))
                await until(lambda: set(range(1, 40)) <= set(seen))
                await until(lambda: second.executors["bill"].partitions)
            await topic.send_many(Order(number, f"k{number}") for number in range(40, 60))
            await until(lambda: set(range(1, 60)) <= set(seen))
            assert first.stats["bill"].failed == 0
        await topic.close()

    with tidelog_server.client() as client:
        asyncio.run(main(client))
    reports = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(reports) == len(set(reports))  # each once
    assert any("members:bill" in each for each in reports)


@pytest.mark.parametrize("text", TEXTS)
def test_a_worker_begins_where_all_of_them_are_forged(tidelog_server: Server, text: bytes) -> None:
    seen: list[int] = []
    app, topic = shop(tidelog_server, seen)

    async def main() -> None:
        async with working(app):
            await topic.send_many(Order(number, f"k{number}") for number in range(20))
            await until(lambda: set(range(20)) <= set(seen))
        await topic.close()

    with tidelog_server.client() as client:
        for key in KEYS:
            client.redis.set(key, text)
        client.redis.set("app:shop:control", text)  # which should be a stream
    asyncio.run(main())


def test_keys_of_another_type_stop_what_they_stand_for_and_nothing_else(tidelog_server: Server) -> None:
    """One partition can't be owned, the leader can't be found: the other partition is processed."""
    seen: list[int] = []
    app, topic = shop(tidelog_server, seen)

    async def main(client: Client) -> None:
        for key in ("app:shop:owner:bill:0", "app:shop:leader", "app:shop:timer:tick"):
            client.tappend(key, {"a": "b"})
        async with working(app) as worker:
            await topic.send_many(Order(number, f"k{number}") for number in range(20))
            there = client.tlen("orders:1")
            await until(lambda: len(seen) == there)
            assert list(worker.executors["bill"].partitions) == [1]
            client.redis.delete("app:shop:owner:bill:0")
            await until(lambda: len(seen) == 20)
        await topic.close()

    with tidelog_server.client() as client:
        asyncio.run(main(client))
