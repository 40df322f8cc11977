"""A worker of the app ``shop`` that runs its cron, each second, while it leads: for tests that stop and kill it.

    python -m tests.tidelog.workers.timer_process URL NAME LEASE

Each run appends two entries to the stream ``ran``: when it begins, and, half a second later, when it ends.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import datetime

from tidelog import AsyncClient
from tidelog.workers import App, Worker


async def work(url: str, name: str, lease: float) -> None:
    app = App("shop", url, lease=lease)
    async with AsyncClient(url) as client:

        @app.cron("* * * * * *", catch_up=True)
        async def tick(time: datetime) -> None:
            moment = str(round(time.timestamp()))
            await client.tappend("ran", {"what": "begin", "moment": moment, "worker": name})
            await asyncio.sleep(0.5)
            await client.tappend("ran", {"what": "end", "moment": moment, "worker": name})

        await Worker(app, name=name).run()


def main() -> None:
    url, name, lease = sys.argv[1:]
    asyncio.run(work(url, name, float(lease)))


if __name__ == "__main__":
    main()
