"""FastStream's subscriber of a Redis stream that publishes to another one."""

import asyncio
from typing import Any

import handled
import redis.asyncio
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

URL, COUNT = handled.arguments()
broker = RedisBroker(URL, logger=None)
app = FastStream(broker, logger=None)
done = handled.Handled(COUNT)


@broker.subscriber(stream=StreamSub("orders", group="g", consumer="c", max_records=handled.AT_ONCE))
@broker.publisher(stream="out")
async def handle(order: dict[str, Any]) -> dict[str, Any]:
    if done.add():
        app.exit()
    order["total"] = order["price"] * 3
    return order


async def main() -> None:
    async with redis.asyncio.Redis.from_url(URL) as client:
        await client.xgroup_create("orders", "g", id="0", mkstream=True)
        await broker.connect()
        for begin in range(0, COUNT, 1000):
            pipeline = client.pipeline()
            for number in range(begin, min(begin + 1000, COUNT)):
                await broker.publish(handled.order(number), stream="orders", pipeline=pipeline)
            await pipeline.execute()
        await app.run()
        assert await client.xlen("out") >= COUNT - handled.AT_ONCE, "it does not publish"


asyncio.run(main())
