"""streaq."""

import asyncio
import os
from typing import Any

import handled
from streaq import Worker

URL, COUNT = handled.arguments()
worker = Worker(redis_url=URL, concurrency=handled.AT_ONCE)
done = handled.Handled(COUNT)


@worker.task(ttl=0)
async def handle(order: dict[str, Any]) -> None:  # noqa: ARG001
    if done.add():
        os._exit(0)  # a worker runs until it gets a signal


async def main() -> None:
    async with worker:
        for begin in range(0, COUNT, 1000):
            orders = range(begin, min(begin + 1000, COUNT))
            await worker.enqueue_many([handle.enqueue(handled.order(number)) for number in orders])
    await worker.run_async()


asyncio.run(main())
