"""The sample programs: append the data of the previous day, then run the worker of the shop, and append new data.

    TIDELOG_URL=redis://localhost:6379 python -m tidelog.quickstart.samples

Rule: a server that does not answer for a while does not end them. They reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from itertools import count
from time import time
from typing import Final

import redis

from tidelog.client import DEFAULT_URL, Client
from tidelog.client.asyncclient import AsyncClient
from tidelog.quickstart import history, shop
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import message_of
from tidelog.workers.execution.worker import Worker

log = logging.getLogger("tidelog.quickstart")
TURN: Final = 1.0  # s between two turns, in each of which an order, a temperature, and two page views are appended
FAILING: Final = 120  # one in this many orders can't be billed


async def append_forever(url: str) -> None:
    """Append some entries per second."""
    chance = random.Random()
    first = int(time()) % 10_000_000
    async with AsyncClient(url) as client:
        for turn in count(1):
            try:
                await shop.orders.send(history.order(first + turn, chance, turn % FAILING == 0))
                await client.tappend(history.TEMPERATURES, history.temperature(int(time() * 1000), chance))
                for _ in range(2):
                    await client.tappend(history.VIEWS, history.view(chance))
                    await asyncio.sleep(TURN / 2)
            except (redis.RedisError, OSError) as error:
                log.warning("nothing can be appended: %s", message_of(error))
                await asyncio.sleep(TURN)


async def main() -> None:
    """Run the worker and append entries until SIGTERM or SIGINT."""
    url = os.environ.get("TIDELOG_URL", DEFAULT_URL)
    appending = asyncio.create_task(append_forever(url))
    try:
        await Worker(shop.app).run()
    finally:
        await cancel_and_wait(appending)
        await shop.orders.close()
        await shop.invoices.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with Client(os.environ.get("TIDELOG_URL", DEFAULT_URL)) as filled:
        history.fill(filled)
    asyncio.run(main())
