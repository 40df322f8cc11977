"""``UnorderedConsumer``: many concurrent events in any order (ordering "none").

Each event has its own queue, and a failed event is returned to the server.
"""

from __future__ import annotations

import asyncio

import redis

from tidelog.operating.tasks import BackgroundTasks
from tidelog.topics.groupreader import Row
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination.connections import WorkerConnection
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.failures import FailureHandler
from tidelog.workers.execution.keyed import KeyedConsumer, KeyQueue, WorkSlots
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.prefetch import WORK, PrefetchLimit
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)


class UnorderedConsumer(KeyedConsumer):
    """Consumes one partition with ordering "none": it has no owner, and failed events are returned to the server."""

    def __init__(
        self, declared: Processor, partition: ActivePartition, failures: FailureHandler, stats: Stats, slots: WorkSlots,
        connection: WorkerConnection,
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats, slots)
        self._connection = connection
        self._taken = 0  # events that were put into queues
        self._finished = 0  # of these, finished at the last check
        self._timer: asyncio.TimerHandle | None = None  # of the next check
        self._returning = BackgroundTasks()
        partition.buffer.prefetch_limit = PrefetchLimit(self._waiting, self._least, declared.prefetch)

    def _waiting(self) -> int:
        """Return the number of events that are not started."""
        return len(self.rows) + self._queued - len(self._working)

    def _least(self) -> int:
        """Return this partition's part of the idle slots, which all partitions of the processor share."""
        return -(-self._slots.idle // self.declared.topic.partitions)

    async def run(self) -> None:
        """See ``KeyedConsumer.run``."""
        try:
            await super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _return_excess(self) -> None:
        """Return events to the server that will not be started within about a second."""
        self._timer = None
        partition, finished = self.partition, self._taken - self._queued
        done, self._finished = finished - self._finished, finished
        if partition.stopping.is_set() or not partition.held or self._before:
            return
        excess = self._queued - len(self._working) - max(done, 1)
        if excess > 0 and not self._slots.idle:
            prefetch_limit = partition.buffer.prefetch_limit
            assert prefetch_limit is not None  # noqa: S101 - see above
            prefetch_limit.ahead = max(1, done)
            withdrawn = self._slots.withdraw(self, excess)
            self._queued -= len(withdrawn)
            self._taken -= len(withdrawn)
            self._give_back([queue.items[0][0][0] for queue in withdrawn])
        if self._queued > len(self._working):
            self._timer = asyncio.get_running_loop().call_later(WORK, self._return_excess)

    def _give_back(self, ids: list[bytes]) -> None:
        partition = self.partition
        if not ids:
            return
        self.stats.returned += len(ids)
        for entry_id in ids:
            partition.suspects.discard(entry_id)
            partition.buffer.returned_now(entry_id)

        self._returning.spawn(self._return(ids))

    async def _return(self, ids: list[bytes]) -> None:
        try:
            await self._connection.ask(self.partition.buffer.nack(ids))
        except (LostError, redis.ResponseError) as error:  # they become due after their retry time
            log.info("processor %s: %d events will be returned later: %s", self.declared.name, len(ids), error)

    async def consume(self) -> None:
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        if not self._before:
            await self._look_up([row[0] for row in rows])
        for row in rows:
            queue = KeyQueue(self, None)
            queue.items.append((row, None))
            self._queued += 1
            self._slots.add(queue)
        self._taken += len(rows)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WORK, self._return_excess)
        await asyncio.sleep(0)

    async def _look_up(self, ids: list[bytes]) -> None:
        """Look up the start counts of events that were delivered before.

        A processor that does not see attempts checks only events up to the last delivered ID; later ones are new, or
        another worker has read them meanwhile.
        """
        partition = self.partition
        again = partition.buffer.take_redelivered()
        if not self._plain:
            deliveries = await self._deliveries(ids)
            again = [each for each in ids if deliveries.get(each, 1) > 1]
        if again:
            await self.failures.starts.look_up(partition, again, died=True)

    async def _deliveries(self, ids: list[bytes]) -> dict[bytes, int]:
        try:
            return await self._connection.repeat(lambda: self.partition.buffer.deliveries(ids))
        except redis.ResponseError:  # such as a deleted group: the events count as delivered for the first time
            return {}

    async def _failed(self, queue: KeyQueue, row: Row, error: Exception) -> None:
        if self._before:  # the server can't redeliver it
            await super()._failed(queue, row, error)
            return
        partition, buffer = self.partition, self.partition.buffer
        try:
            found = await self._connection.repeat(lambda: buffer.deliveries([row[0]]))
            if not found or not partition.held:
                partition.started.discard(row[0])
                buffer.forget([row[0]])  # another worker has received it
                return
            starts = self.failures.starts
            if found[row[0]] > 1 and row[0] not in partition.start_counts:
                await starts.look_up(partition, [row[0]], died=False)
                partition.suspects.discard(row[0])
            attempt = 1 + starts.before(partition, row[0])
            delay = await self.failures.settle(partition, [row], error, attempt)
            if delay is None:
                starts.over(partition, [row[0]])
            else:
                self.stats.returned += 1
                await starts.returned_now(partition, [row[0]], attempt=True)
                buffer.returned_now(row[0])
                await self._connection.ask(buffer.nack([row[0]], max(1, round(delay * 1000))))
        except (StoppedError, LostError):
            return
        except redis.ResponseError as refused:  # it becomes due after its retry time
            log.error("processor %s: %s can't be returned: %s", self.declared.name, row[0].decode(), refused)
            buffer.forget([row[0]])
