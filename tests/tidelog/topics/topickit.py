"""Topics of orders, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tidelog import Client
from tidelog.testing import Server
from tidelog.topics import Topic


class Order(msgspec.Struct):
    id: int
    item: str
    price: float | None = None


def orders(server: Server, **options: Any) -> Topic[Order]:
    settings: dict[str, Any] = {"partition_by": "id", "partitions": 4} | options
    return Topic("orders", Order, url=server.url, **settings)


def run(use: Callable[[Topic[Order]], Awaitable[Any]], topic: Topic[Order]) -> Any:
    """Run a coroutine function with the topic, and close the topic's connections."""

    async def main() -> Any:
        try:
            return await use(topic)
        finally:
            await topic.close()

    return asyncio.run(main())


def sent(client: Client, topic: Topic[Order], partitions: int = 4) -> list[list[Order]]:
    """The records of each partition."""
    return [
        [topic.decode(entry, at) for entry in client.trange(topic.stream(at))] for at in range(partitions)
    ]  # fmt: skip
