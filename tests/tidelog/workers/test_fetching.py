"""What is read, and when it is not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, working
from tests.waiting import until
from tidelog.client import Client, calls
from tidelog.client.steps import run
from tidelog.coordination import Claim, Lease
from tidelog.coordination.claims import take
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.call import plain
from tidelog.workers import App
from tidelog.workers.coordination.connections import WorkerConnector
from tidelog.workers.coordination.workergroups import WorkerGroups
from tidelog.workers.execution.executor import ProcessorExecutor
from tidelog.workers.execution.partition import ActivePartition

pytestmark = pytest.mark.slow


@asynccontextmanager
async def waiting(
    server: Server, partitions: int
) -> AsyncIterator[tuple[ProcessorExecutor, Topic[Order], Client, list[Claim]]]:
    """A processor without its worker, which owns all partitions, and waits for what comes into them."""
    app = App("shop", server.url)
    orders = app.topic("orders", Order, partitions=partitions)

    @app.each(orders)
    async def bill(_: Order) -> None: ...

    with server.client() as client:
        orders.use(sync=client)
        orders.sync.ready()
        lease = Lease("app:shop:lease:w", "w", 600.0, "app:shop:epoch")
        run(client, lease.acquire())
        taken = run(client, take(lease, [(f"app:shop:owner:bill:{at}", at) for at in range(partitions)]))
        groups = WorkerGroups(lease, WorkerConnector(Access((server.url,)), "w"))
        executor = ProcessorExecutor(app.processors["bill"], groups, lease, 1.0)
        await executor.start()
        for claim in taken.claims:
            executor.begin(claim)
        await until(lambda: client.redis.info("clients")["blocked_clients"] == 1)
        yield executor, orders, client, taken.claims
        await executor.stop()


def test_nothing_is_read_once_the_lease_is_over_though_nobody_has_noticed(tidelog_server: Server) -> None:
    """As in a process that goes on after a pause: the first thing that it sees is the reply of its TWAIT. What it read
    then would be missing at the partition's new owner, who would go on with what comes after it.
    """

    async def told() -> None:
        async with waiting(tidelog_server, 1) as (executor, orders, client, (claim,)):
            claim.tenure.until = -math.inf
            orders.sync.send_many([Order(1), Order(2)])
            await until(lambda: executor.lines[0].fetcher.hot or executor.stats.fetched)
            for _ in range(50):  # on the connection that TREAD would have left on
                await executor.lines[0].reads.ask(plain("PING"))
            (group,) = client.tgroup_list("orders:0")
            assert (group.pending, group.offset.ms) == (0, 0)

    asyncio.run(told())


def test_nothing_is_read_when_another_has_the_claim_though_the_lease_seems_to_last(tidelog_server: Server) -> None:
    """As in a process that was paused after it had looked, and before its TREAD had left."""

    async def told() -> None:
        async with waiting(tidelog_server, 2) as (executor, orders, client, (claim, _)):
            client.redis.set(claim.key, "app:shop:lease:x|x:98|99")
            orders.sync.send_many(Order(at, str(at)) for at in range(20))
            await until(lambda: 0 not in executor.partitions)
            await until(lambda: executor.stats.finished == client.tlen("orders:1"))  # the other one is read on
            (group,) = client.tgroup_list("orders:0")
            assert (group.pending, group.offset.ms) == (0, 0)

    asyncio.run(told())


@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_what_a_lost_reply_has_delivered_comes_before_anything_newer(
    tidelog_server: Server, ordering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server dies between the delivery and its reply: the entries are pending, and this worker never saw them."""
    app = App("shop", tidelog_server.url, lease=60.0, grace=60.0)
    orders = app.topic("orders", Order, partition_by="key", partitions=1)
    gate = asyncio.Event()
    seen: list[int] = []

    @app.each(orders, ordering=ordering)
    async def bill(order: Order) -> None:
        await gate.wait()
        seen.append(order.id)

    async def main() -> None:
        async with working(app) as worker:
            executor = worker.executors["bill"]
            await until(lambda: executor.partitions and executor.partitions[0].buffer.open)
            await orders.send(Order(0))
            await until(lambda: executor.stats.busy)
            channel = await executor.lines[0].reads.channel()
            monkeypatch.setattr(channel, "data_received", lambda _: channel.close("cut off"))
            await orders.send_many(Order(number) for number in range(1, 6))
            await until(lambda: channel.lost)
            await orders.send_many(Order(number) for number in range(6, 10))
            gate.set()
            await until(lambda: len(seen) == 10)
            await until(lambda: executor.stats.acknowledged == 10)

    asyncio.run(main())
    assert seen == list(range(10))


def test_what_is_in_hand_is_not_touched_once_the_partition_is_lost(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may come back after the lease is over: the new owner has made due what it must get first."""
    app = App("shop", tidelog_server.url, lease=10.0, grace=60.0)
    orders = app.topic("orders", Order, partition_by="key", partitions=1)
    gate = asyncio.Event()

    @app.each(orders)
    async def bill(order: Order) -> None:
        await gate.wait()

    def due() -> list[int]:
        with tidelog_server.client() as client:
            return [message.due for message in client.run(calls.tpending_range("orders:0", "shop.bill"))]

    async def main() -> None:
        await orders.send(Order(0))
        async with working(app) as worker:
            executor = worker.executors["bill"]
            await until(lambda: executor.stats.busy)
            partition, reads = executor.partitions[0], executor.lines[0].reads
            before, connected, waited = due(), reads.channel, asyncio.Event()

            async def late() -> AsyncConnection:
                nonlocal before
                channel = await connected()
                if not partition.claim.lost:
                    await channel.send([plain("PING")])  # touches that were sent before have arrived
                    before = due()
                partition.claim.lost = True
                waited.set()
                return channel

            monkeypatch.setattr(reads, "channel", late)
            await waited.wait()
            await (await connected()).send([plain("PING")])  # whatever was sent has arrived
            assert due() == before
            gate.set()

    asyncio.run(main())


def test_a_partition_that_is_released_while_it_is_taken_up_is_not_read(
    tidelog_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would consume what is read then."""

    async def told() -> None:
        async with waiting(tidelog_server, 1) as (executor, orders, client, (claim,)):
            recover = executor.recover
            releasing: list[asyncio.Task[None]] = []

            async def late(partition: ActivePartition) -> None:
                await recover(partition)
                releasing.append(asyncio.create_task(executor.released(0)))
                await partition.stopping.wait()

            await executor.released(0)
            monkeypatch.setattr(executor, "recover", late)
            executor.begin(claim)
            await until(lambda: releasing and releasing[0].done())
            assert not executor.lines[0].fetcher.streams
            orders.sync.send(Order(1))
            for _ in range(50):
                await executor.lines[0].reads.ask(plain("PING"))
            (group,) = client.tgroup_list("orders:0")
            assert (group.pending, group.offset.ms) == (0, 0)

    asyncio.run(told())
