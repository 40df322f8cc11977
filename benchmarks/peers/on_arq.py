"""arq."""

import asyncio
from typing import Any

import handled
from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

URL, COUNT = handled.arguments()
done = handled.Handled(COUNT)


async def handle(ctx: dict[str, Any], order: dict[str, Any]) -> None:  # noqa: ARG001
    done.add()


async def main() -> None:
    settings = RedisSettings.from_dsn(URL)
    pool = await create_pool(settings)
    for number in range(COUNT):
        await pool.enqueue_job("handle", handled.order(number))
    worker = Worker(
        functions=[handle], redis_settings=settings, burst=True, max_jobs=handled.AT_ONCE, poll_delay=0.01,
        keep_result=0, handle_signals=False,
    )  # fmt: skip
    await worker.main()


asyncio.run(main())
