"""docs/workers-programs.md: its programs run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order
from tests.waiting import eventually
from tidelog.testing import Server
from tidelog.topics import TopicError
from tidelog.workers import App, Worker

TEXT = (Path(__file__).parents[3] / "docs" / "workers-programs.md").read_text()
SOURCE = "\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def program(server: Server, seen: list[int], partitions: int = 1) -> dict[str, Any]:
    app = App("shop", server.url, lease=20.0, grace=20.0)
    topic = app.topic("orders", Order, partition_by="key", partitions=partitions)

    @app.each(topic)
    async def bill(order: Order) -> None:
        seen.append(order.id)

    made: dict[str, Any] = {"__name__": "shop", "app": app, "topic": topic}
    exec(compile(SOURCE, "shop.py", "exec", dont_inherit=True), made)
    return made


def test_a_lifespan(tidelog_server: Server) -> None:
    seen: list[int] = []
    made = program(tidelog_server, seen)

    async def served() -> None:
        async with made["lifespan"](None):
            await made["topic"].send(Order(1))
            while not seen:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(served(), 60))
    assert seen == [1]


def test_a_lifespan_that_cannot_begin_says_so(tidelog_server: Server) -> None:
    App("shop", tidelog_server.url).topic("orders", Order, partition_by="key", partitions=3).sync.send(Order(1))
    made = program(tidelog_server, [])

    async def served() -> None:
        async with made["lifespan"](None):
            pytest.fail("it has begun")

    with pytest.raises(TopicError):
        asyncio.run(asyncio.wait_for(served(), 60))


def test_a_thread(tidelog_server: Server) -> None:
    seen: list[int] = []
    made = program(tidelog_server, seen)
    worker = Worker(made["app"])
    thread = made["in_thread"](worker)
    made["topic"].sync.send(Order(1))
    eventually(lambda: seen)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    with tidelog_server.client() as client:
        assert client.redis.keys("app:shop:lease:*") == []
