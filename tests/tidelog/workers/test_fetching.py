"""What is read, and when it is not."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.tidelog.workers.workerkit import Order, until
from tidelog.client.access import Access
from tidelog.client.steps import run
from tidelog.leases import Claim, Lease
from tidelog.testing import Server
from tidelog.workers import App
from tidelog.workers.channel import plain
from tidelog.workers.executor import Executor
from tidelog.workers.link import Link

pytestmark = pytest.mark.slow


def test_nothing_is_read_once_the_lease_is_over_though_nobody_has_noticed(tidelog_server: Server) -> None:
    """As in a process that goes on after a pause: the first thing that it sees is the reply of its TWAIT. What it read
    then would be missing at the partition's new owner, who would go on with what comes after it.
    """
    app = App("shop", tidelog_server.url)
    orders = app.topic("orders", Order, partitions=1)

    @app.each(orders)
    async def bill(_: Order) -> None: ...

    async def told() -> None:
        client = tidelog_server.client()
        orders.use(sync=client)
        orders.sync.ready()
        lease = Lease("app:shop:lease:w", "w", 600.0, "app:shop:epoch")
        run(client, lease.acquire())
        executor = Executor(app.processors["bill"], Link(Access((tidelog_server.url,)), "w"), lease, 1.0)
        await executor.start()
        executor.begin(Claim("", 0, lease.tenure, 1, b""))
        await until(lambda: client.redis.info("clients")["blocked_clients"] == 1)
        lease.tenure.until = -math.inf
        orders.sync.send_many([Order(1), Order(2)])
        await until(lambda: executor._fetcher._hot or executor.stats.fetched)
        for _ in range(50):  # on the connection that TREAD would have left on
            await executor._reads.ask(plain("PING"))
        (group,) = client.tgroup_list("orders:0")
        assert (group.pending, group.offset.ms) == (0, 0)
        await executor.stop()
        client.close()

    asyncio.run(told())
