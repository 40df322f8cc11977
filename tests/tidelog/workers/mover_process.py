"""A worker of the app ``shop``, which has the topic ``orders`` and no processor: for tests that kill it.

    python -m tests.tidelog.workers.mover_process URL NAME LEASE
"""

from __future__ import annotations

import asyncio
import sys

from tidelog.workers import App, Worker


def main() -> None:
    url, name, lease = sys.argv[1:]
    app = App("shop", url, lease=float(lease))
    app.topic("orders", partition_by="id", codec="json")
    asyncio.run(Worker(app, name=name).run())


if __name__ == "__main__":
    main()
