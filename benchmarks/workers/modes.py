"""One worker, one mode, all events that there are: prints one line of JSON. A process of its own, started by __main__.

each           no-op, ordering="partition"
batch          no-op, batches of --take
key            a handler that sleeps 1 ms, ordering="key", concurrency 100
none           no-op, ordering="none"
transactional  one output an event
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import click
import msgspec
import uvloop

from tidelog.cli.collector import collect_less
from tidelog.topics import Topic
from tidelog.workers import App, Event, Take, Worker

MODES = ("each", "batch", "key", "none", "transactional")


class Order(msgspec.Struct):
    id: int
    key: str
    item: str
    quantity: int
    price: float


class Meter:
    """Counts events; ``done`` when all have come."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.count = 0
        self.began = 0.0
        self.cpu = 0.0  # of the process, when the first events came
        self.ended = 0.0
        self.finish: Callable[[], None] = lambda: None

    def add(self, count: int) -> None:
        if not self.count:
            self.began, self.cpu = time.monotonic(), time.process_time()
        self.count += count
        if self.count >= self.events:
            self.ended = time.monotonic()
            self.finish()


def declare(app: App, orders: Topic[Any], mode: str, meter: Meter, take: int) -> None:
    """The processor of a mode."""
    add = meter.add
    if mode == "batch":

        @app.batch(orders, take=Take(take, within=0.05), name=mode)
        async def batch(records: list[Order]) -> None:
            add(len(records))

    elif mode == "key":

        @app.each(orders, ordering="key", concurrency=100, name=mode)
        async def sleep(_: Order) -> None:
            await asyncio.sleep(0.001)
            add(1)

    elif mode == "transactional":
        out = app.topic("out", Order, partition_by="id", partitions=4)

        @app.each(orders, transactional=True, name=mode)
        async def copy(event: Event[Order]) -> None:
            await event.send(out, event.record)
            add(1)

    else:

        @app.each(orders, ordering="none" if mode == "none" else "partition", name=mode)
        async def nothing(_: Order) -> None:
            add(1)


async def measure(url: str, mode: str, events: int, partitions: int, take: int) -> dict[str, Any]:
    """Seconds and CPU seconds until the worker is through."""
    app = App(f"bench-{mode}", url)
    orders = app.topic("orders", Order, partition_by="key", partitions=partitions)
    meter = Meter(events)
    declare(app, orders, mode, meter, take)
    worker = Worker(app)
    meter.finish = worker.stop
    await worker.run()
    stats = worker.stats[mode]
    return {
        "mode": mode, "events": meter.count, "seconds": meter.ended - meter.began,
        "cpu": time.process_time() - meter.cpu, "repeated": stats.repeated, "acknowledged": stats.acknowledged,
    }  # fmt: skip


@click.command()
@click.argument("url")
@click.argument("mode", type=click.Choice(MODES))
@click.option("--events", default=100_000)
@click.option("--partitions", default=16)
@click.option("--take", default=100)
def main(url: str, mode: str, events: int, partitions: int, take: int) -> None:
    collect_less()
    print(json.dumps(uvloop.run(measure(url, mode, events, partitions, take))))


if __name__ == "__main__":
    main()
