"""A storm over workers in a cluster: slots move, and leaders and workers are killed and suspended, at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.replication.cluster import cluster
from tests.replication.clusterfaults import ClusterFaults
from tests.replication.clusters import Groups
from tests.tidelog.workers.test_cluster_workers import SHOP, Told, in_loop, records
from tests.tidelog.workers.workerkit import Order, Process
from tests.waiting import until
from tidelog import Client
from tidelog.topics import Topic

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
PARTITIONS = 64
WORKERS = 3
AGAIN = "told = Client(URL)\n\n@app.each(orders, on_error=[Retry(1000, first=0.05, most=1.0), Pause()])"


class Storm:
    """A cluster, and the worker processes."""

    def __init__(self, groups: Groups, folder: Path, chance: random.Random) -> None:
        self.groups, self.folder, self.chance = groups, folder, chance
        self._faults = ClusterFaults(groups, chance, [f"orders:{number}" for number in range(PARTITIONS)])
        source = SHOP.replace("told = Client(URL)\n\n@app.each(orders)", AGAIN).replace(
            "import App", "import App, Pause, Retry"
        )
        assert AGAIN in source
        self._source = source
        self.workers = [self._started() for _ in range(WORKERS)]
        self.done: list[str] = []

    def _started(self) -> Process:
        return Process(self.groups.url(3), self.folder, self._source)

    def step(self) -> None:
        """Do something at random. At its end, every group has a leader, and every worker runs."""
        faults = self._faults
        what: Callable[[], None] = self.chance.choice(
            [faults.move, faults.move, faults.kill, faults.freeze, self.worker]
        )
        self.done.append(what.__name__)
        what()
        faults.ended()
        for each in self.workers:
            assert each.running, f"a worker has ended by itself: {each.log[-8000:]}"

    def worker(self) -> None:
        at = self.chance.randrange(WORKERS)
        if self.chance.random() < 0.5:
            self.workers[at].kill()
            self.workers[at] = self._started()
        else:
            self.workers[at].pause()
            time.sleep(5 * self.chance.random())
            self.workers[at].signal(signal.SIGCONT)


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    seed = int(os.environ.get("TIDELOG_SEED") or random.randrange(1 << 30))
    print(f"TIDELOG_SEED={seed}")
    with cluster() as servers:
        made = Storm(Groups(servers, members=2, group_lease=2000), tmp_path, random.Random(seed))
        try:
            yield made
        finally:
            for each in made.workers:
                each.kill()


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
@in_loop
async def test_each_key_stays_in_order(storm: Storm) -> None:
    """Every record that was sent is processed, and the first times of the records of a key are in order."""
    topic: Topic[Order] = Topic("orders", Order, partition_by="key", partitions=PARTITIONS, url=storm.groups.url(3))
    ending, sent = asyncio.Event(), 0

    async def send() -> None:
        nonlocal sent
        producer = topic.producer("sender")
        while not ending.is_set():
            try:
                await producer.send_many(records(sent, 40))
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                await asyncio.sleep(0.1)  # the same batch again, with the same numbers
                continue
            sent += 40
            await asyncio.sleep(0.05)

    sending = asyncio.create_task(send())
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        await asyncio.to_thread(storm.step)
        await asyncio.sleep(storm.chance.random())
    ending.set()
    await sending
    with Client(storm.groups.url(3)) as client:
        told = Told(client)
        await until(lambda: len(told.read().ids) == sent, "every record was processed", 180)
        told.check(sent)
    print(f"{sent} records, {told.count} calls, {len(storm.done)} steps: {storm.done}")
    await topic.close()
