"""taskiq-redis: the stream broker, and taskiq's receiver as its worker process runs it."""

import asyncio
from typing import Any

import handled
from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

URL, COUNT = handled.arguments()
broker = RedisStreamBroker(URL, xread_count=handled.AT_ONCE)
done = handled.Handled(COUNT)
all_done = asyncio.Event()


@broker.task
async def handle(order: dict[str, Any]) -> None:  # noqa: ARG001
    if done.add():
        all_done.set()


async def main() -> None:
    await broker.startup()
    for number in range(COUNT):
        await handle.kiq(handled.order(number))
    broker.is_worker_process = True
    receiver = Receiver(broker, max_async_tasks=handled.AT_ONCE, run_startup=False)
    listening = asyncio.create_task(receiver.listen(asyncio.Event()))
    await all_done.wait()
    listening.cancel()


asyncio.run(main())
