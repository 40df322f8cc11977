"""A worker that finds its leader by Sentinels goes on with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replication.cluster import Node, in_sync
from tests.replication.sentinels import SERVICE, Watch, watched_pair
from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog.transport.access import Access
from tidelog.workers import App, Event

pytestmark = pytest.mark.slow


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Watch, Node, Node]]:
    with watched_pair(tmp_path) as found:
        yield found


def test_a_failover_loses_no_event(made: tuple[Watch, Node, Node]) -> None:
    watch, leader, replica = made
    access = Access(
        sentinels=tuple(f"redis://127.0.0.1:{port}" for port in watch.ports), service=SERVICE, retries=300, retry_ms=100
    )
    app = App("shop", access=access, lease=2.0, grace=5.0)
    topic = app.topic("orders", Order, partition_by="key", partitions=3)
    copied = app.topic("copied", Order, partition_by="key", partitions=2)
    seen: list[int] = []

    @app.each(topic)
    async def bill(event: Event[Order]) -> None:
        if event.record.id % 10 == 0:
            await event.send(copied, event.record)
        await asyncio.sleep(0.01)
        seen.append(event.record.id)

    async def main() -> None:
        async with working(app) as worker:
            await topic.send_many(Order(number, f"k{number % 11}") for number in range(400))
            await until(lambda: in_sync(leader, replica))
            await until(lambda: len(seen) > 20)
            leader.kill()
            await until(lambda: set(seen) == set(range(400)))
            stats = worker.stats["bill"]
            await until(lambda: all(not each.buffer.in_flight for each in worker.executors["bill"].partitions.values()))
            assert stats.acknowledged >= 300

    asyncio.run(main())
