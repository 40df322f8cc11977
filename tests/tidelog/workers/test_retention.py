"""The retention of an app's topics: the server evicts nothing that a processor of the app still needs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import redis

from tests.tidelog.workers.workerkit import Order, pending, working
from tests.waiting import until
from tidelog import Client
from tidelog.client import steps
from tidelog.client.steps import Steps
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.topics.admin import alter, grow
from tidelog.topics.settings import Retention
from tidelog.transport.call import Call
from tidelog.workers import App, Worker
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.group_creation import create_protecting_groups


def shop(server: Server, **options: Any) -> tuple[App, Topic[Order]]:
    """An app with three processors of the topic ``orders``; ``count`` starts at its end."""
    app = App("shop", server.url)
    topic = app.topic("orders", Order, partition_by="id", **({"partitions": 2} | options))

    @app.each(topic)
    async def bill(order: Order) -> None: ...

    @app.each(topic)
    async def mail(order: Order) -> None: ...

    @app.each(topic, start="latest")
    async def count(order: Order) -> None: ...

    return app, topic


def lengths(client: Client, partitions: int = 2) -> int:
    return sum(client.tlen(f"orders:{at}") for at in range(partitions))


def test_entries_remain_until_all_processors_have_finished_them(tidelog_server: Server, client: Client) -> None:
    """Also those of a processor that no worker runs yet."""

    async def main() -> None:
        app, topic = shop(tidelog_server, partition_size=10)
        await topic.send_many([Order(n) for n in range(100)])
        first = Worker(app, ["bill"])
        task = asyncio.create_task(first.run(signals=False))
        await until(lambda: first.ready.is_set() and first.stats["bill"].acknowledged == 100)
        for at in range(2):
            assert client.tcfg_retain(f"orders:{at}", client.tcfg(f"orders:{at}"), dry=True) == 0
            assert {group.name for group in client.tgroup_list(f"orders:{at}")} == {b"shop.bill", b"shop.mail"}
        async with working(app) as second:
            await until(lambda: second.stats["mail"].acknowledged == 100)
            await until(lambda: lengths(client) == 20)
        first.stop()
        await task

    asyncio.run(main())


def test_a_retention_that_is_changed_while_a_worker_runs(tidelog_server: Server, client: Client) -> None:
    async def main() -> None:
        app, topic = shop(tidelog_server)
        async with working(app) as worker:
            await topic.send_many([Order(n) for n in range(1000)])
            await until(lambda: all(stats.acknowledged == 1000 for stats in worker.stats.values()))
            assert lengths(client) == 1000
            await asyncio.to_thread(alter, client, "orders", Retention(partition_size=10))
            await until(lambda: lengths(client) == 20)
            assert pending(client, app, "bill") == 0

    asyncio.run(main())


def test_a_topic_that_grows(tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups of all processors exist in the new partitions before any of them reads."""
    monkeypatch.setattr("tidelog.workers.execution.worker.GROWTH", 0.05)

    async def main() -> None:
        _, first = shop(tidelog_server, partition_size=10)
        await first.ready()
        await first.close()
        app, _ = shop(tidelog_server, partitions=None)
        worker = Worker(app, ["bill"])
        task = asyncio.create_task(worker.run(signals=False))
        await worker.ready.wait()
        await asyncio.to_thread(grow, client, "orders", 4)
        await until(lambda: client.tgroup_list("orders:3"))
        await until(lambda: {group.name for group in client.tgroup_list("orders:3")} >= {b"shop.bill", b"shop.mail"})
        worker.stop()
        await task

    asyncio.run(main())


def test_groups_that_the_server_temporarily_rejects_are_created_later(tidelog_server: Server, client: Client) -> None:
    app, topic = shop(tidelog_server, partition_size=10)
    topic.sync.ready()
    refused = redis.ResponseError("NOREPLICAS Not enough good replicas to write.")

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        return [*client.together(*calls[:-1], raise_on_error=False), refused]

    assert not steps.drive(send, create_protecting_groups(app.processors.values()))
    assert len(client.tgroup_list("orders:1")) == 1
    assert steps.run(client, create_protecting_groups(app.processors.values()))
    assert {group.name for group in client.tgroup_list("orders:1")} == {b"shop.bill", b"shop.mail"}


def test_a_worker_begins_after_the_groups_exist(
    tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []

    def rejected(processors: Iterable[Processor]) -> Steps[bool]:
        tries.append(True)
        if len(tries) == 1:
            return False
        return (yield from create_protecting_groups(processors))

    monkeypatch.setattr("tidelog.workers.execution.worker.create_protecting_groups", rejected)
    monkeypatch.setattr("tidelog.workers.execution.worker.AGAIN", 0.01)

    async def main() -> None:
        app, _ = shop(tidelog_server, partition_size=10)
        async with working(app):
            assert len(tries) == 2

    asyncio.run(main())
