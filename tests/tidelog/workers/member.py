"""A process that takes part: for tests that kill it, stop it, or let it go in order.

    python -m tests.tidelog.workers.member URL NAME TTL

Prints ``+ partition epoch`` and ``- partition``, with the time, for what it begins and what it gives up or loses.
SIGTERM lets it leave. A ``?`` on its standard input is answered with ``= partitions``: those whose claims it believes
to hold.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time

from tests.tidelog.workers.ownerkit import Notes, Worker
from tidelog.coordination import Claim


class Printed(Notes):
    """A listener that prints."""

    async def acquired(self, claim: Claim) -> None:
        await super().acquired(claim)
        print("+", claim.partition, claim.epoch, time.time(), flush=True)

    async def released(self, partition: int) -> None:
        await super().released(partition)
        print("-", partition, time.time(), flush=True)

    def lost(self, partition: int) -> None:
        super().lost(partition)
        print("-", partition, time.time(), flush=True)


async def main(url: str, name: str, ttl: float) -> None:
    worker = await Worker(url, name, ttl, notes=Printed()).start()
    asked = asyncio.get_running_loop()
    asked.add_reader(sys.stdin, lambda: (sys.stdin.readline(), print("=", *sorted(worker.owned), flush=True)))
    going = asyncio.Event()
    asked.add_signal_handler(signal.SIGTERM, going.set)
    await going.wait()
    asked.remove_reader(sys.stdin)
    await worker.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
