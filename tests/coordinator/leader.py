"""A leader as a process: takes the key, renews its lease, and prints whether it is valid.

python leader.py URL KEY MS      prints "leads", then "valid" or "invalid" and the milliseconds since the last beat
"""

from __future__ import annotations

import asyncio
import sys
import time

from coordinator.clock import boottime
from coordinator.connect import connect
from coordinator.keeper import LeaseKeeper


async def lead(url: str, key: str, ms: int) -> None:
    coordinator = connect(url, timeout=ms / 5000)
    granted = boottime()
    lease = await coordinator.grant(ms)
    assert await coordinator.swap(key, b"leader", 0, lease) is not None
    keeper = LeaseKeeper(lambda: connect(url, timeout=ms / 5000), lease, granted, lambda: None)
    print("leads", flush=True)
    last = time.monotonic()
    while not keeper.lost:
        now = time.monotonic()
        # Before the beat: this is what a release of replies would see first after the process was stopped.
        print("valid" if keeper.valid() else "invalid", round((now - last) * 1000), flush=True)
        last = now
        keeper.beat()
        await asyncio.sleep(ms / 20_000)
    print("lost", int(keeper.valid()), flush=True)
    keeper.stop()
    await coordinator.close()


if __name__ == "__main__":
    asyncio.run(lead(sys.argv[1], sys.argv[2], int(sys.argv[3])))
