"""Tasks for `taskiq worker`; where its server is stands in the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["FOREIGN_URL"]
IDLE = int(os.environ.get("FOREIGN_IDLE", "600000"))  # ms after which what a worker left is another's

broker = RedisStreamBroker(
    URL, queue_name="tasks", consumer_group_name="workers", consumer_id="0", xread_block=20, xread_count=1,
    idle_timeout=IDLE, unacknowledged_lock_timeout=10, maxlen=10_000,
).with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=600))  # fmt: skip


@broker.task
async def add(a: int, b: int) -> int:
    return a + b


@broker.task
async def where() -> int:
    """The process that does it."""
    return os.getpid()


@broker.task
async def fail() -> None:
    raise ValueError("as told")


@broker.task
def wait_for(name: str) -> str:
    """Say that it began, and end only when the file ``name`` is there. It runs in a thread of the worker's."""
    path = Path(name)
    with path.with_suffix(".began").open("a") as began:
        began.write(f"{os.getpid()}\n")
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()
