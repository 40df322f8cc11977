"""Events that end their process: counted on the server, given to the failure policy, and the others go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import Order, process, working
from tests.waiting import eventually, until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.workers import App

pytestmark = pytest.mark.slow
ORDERS = 40
DEADLY = 17

HEAD = """
import os
import signal
import msgspec
from tidelog.client import Client
from tidelog.workers import *

class Order(msgspec.Struct):
    id: int
    key: str = "k"

app = App("shop", URL, lease=0.5, grace=5.0, on_error=[Retry(2, first=0.01), DeadLetter()])
orders = app.topic("orders", Order, partition_by="key", partitions=2)
told = Client(URL)

def see(order):
    told.tappend("told", {"id": order.id})
    if order.id == 17:
        os.kill(os.getpid(), signal.SIGKILL)
"""
EACH = """
@app.each(orders, name="bill", ordering="ORDERING")
async def bill(order: Order) -> None:
    see(order)
"""
EVENT = """
@app.each(orders, name="bill", ordering="ORDERING", timeout=60)
async def bill(event: Event[Order]) -> None:
    see(event.record)
"""
BATCH = """
@app.batch(orders, name="bill", take=Take(2, within=0), ordering="ORDERING")
async def bill(batch: list[Order]) -> None:
    for order in batch:
        see(order)
"""
EVENTS = """
@app.processor(orders, name="bill")
async def bill(events: Events[Order]) -> None:
    async for order in events.records():
        see(order)
"""


def seen(client: Client) -> Counter[int]:
    return Counter(int(entry["id"]) for page in client.pages("told") for entry in page)


@pytest.mark.parametrize(
    ("form", "ordering"),
    [
        (EACH, "partition"), (EVENT, "key"), (EACH, "none"), (BATCH, "none"), (EVENTS, "partition"),
    ],
    ids=["each", "key", "none", "batch", "events"],
)  # fmt: skip
def test_one_that_kills_its_process_becomes_a_dead_letter(
    tidelog_server: Server, tmp_path: Path, form: str, ordering: str
) -> None:
    topic: Topic[Any] = Topic("orders", Order, partition_by="key", partitions=2, url=tidelog_server.url)
    topic.sync.send_many(Order(number, f"k{number}") for number in range(ORDERS))
    deaths = 0
    with tidelog_server.client() as client:
        while not client.redis.exists("orders.dead:0") or len(seen(client)) < ORDERS:
            assert deaths < 8
            with process(tidelog_server, tmp_path, HEAD + form.replace("ORDERING", ordering)) as worker:
                eventually(
                    lambda: not worker.running
                    or (client.redis.exists("orders.dead:0") and len(seen(client)) == ORDERS)
                )
                deaths += not worker.running
        letters = client.trange("orders.dead:0")
        found = seen(client)
        left = client.redis.keys("app:shop:tried:*")
    topic.sync.close()
    assert deaths == found[DEADLY] == 3  # an attempt, and two retries
    assert b"DiedError" in (letters[0]["dlq:error"] or b"")
    assert b"has died 3 times" in (letters[0]["dlq:message"] or b"")
    given_up = {int(letter["id"]) for letter in letters}
    assert DEADLY in given_up
    assert len(given_up) <= (2 if form == BATCH else 1)  # a batch is given up as a whole
    assert set(found) == set(range(ORDERS))
    assert len(left) <= 2


def test_a_worker_that_stops_in_order_takes_its_starts_back(tidelog_server: Server) -> None:
    app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
    topic: Any = app.topic("orders", Order, partition_by="key", partitions=1)
    began: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        began.append(order.id)
        if len(began) < 3:
            await asyncio.sleep(600)

    async def main(client: Client) -> None:
        await topic.send(Order(1))
        for count in (1, 2):
            worker_task: asyncio.Task[None] | None = None
            async with working(app) as worker:
                partition = worker.executors["bill"].partitions
                await until(lambda: len(began) == count)  # noqa: B023
                claim = partition[0].claim
                worker_task = partition[0].task
                assert worker_task is not None
                worker_task.cancel()  # as after the grace
            client.redis.set(claim.key, f"app:shop:lease:gone|gone:1|{claim.epoch}")  # as if it had died
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 1)
        assert client.redis.keys("app:shop:tried:*") == []

    with tidelog_server.client() as client:
        asyncio.run(main(client))


def test_a_first_delivery_asks_the_server_nothing(tidelog_server: Server) -> None:
    app = App("shop", tidelog_server.url, lease=20.0, grace=20.0)
    topic: Any = app.topic("orders", Order, partition_by="key", partitions=1)
    finished: list[int] = []

    @app.each(topic)
    async def bill(order: Order) -> None:
        finished.append(order.id)

    async def main(client: Client) -> None:
        await topic.send_many(Order(number) for number in range(100))
        async with working(app):
            await until(lambda: len(finished) == 100)
        counts = client.redis.info("commandstats")
        assert counts.get("cmdstat_set", {"calls": 0})["calls"] - before < 20

    with tidelog_server.client() as client:
        before = client.redis.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"]
        asyncio.run(main(client))
