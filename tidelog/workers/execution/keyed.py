"""``KeyedConsumer``: many concurrent events, one per key (ordering "key").

    buffer --> KeyedConsumer (per partition) --> KeyQueue (per key) --> ready --> WorkSlots (per processor)

A slot is a coroutine that lives as long as the processor, so that an event does not cost a task. A queue is ready, in a
slot, or waiting for a retry, so two events of a key are never in progress at once.

Rule 1: a key that waits for a retry blocks only itself. The events behind it do not count against the partition's
        prefetch, up to BACKLOG times the prefetch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final

from tidelog.client.entries import Entry, StreamId
from tidelog.topics.groupreader import Row
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.user_errors import as_failure
from tidelog.workers.execution.consumer import BEFORE, SLICE, PartitionConsumer
from tidelog.workers.execution.failures import FailureHandler
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
BACKLOG: Final = 9  # prefetches


class KeyQueue:
    """The events of one key that are in flight, oldest first."""

    __slots__ = ("attempt", "consumer", "items", "key", "resting")

    def __init__(self, consumer: KeyedConsumer, key: bytes | None) -> None:
        self.consumer = consumer
        self.key = key  # None: no other event has this key
        self.items: deque[tuple[Row, Any]] = deque()  # entry, record; the record is None if it can't be decoded
        self.attempt = 1  # of the first event
        self.resting = False


class WorkSlots:
    """Calls the function for up to ``count`` events concurrently."""

    def __init__(self, count: int) -> None:
        self._ready: deque[KeyQueue] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._until = 0.0  # on the monotonic clock: when the event loop must get control
        self._asked = False  # whether ``_looped`` is scheduled

    @property
    def idle(self) -> int:
        """The number of idle slots."""
        return len(self._idle)

    def withdraw(self, consumer: KeyedConsumer, count: int) -> list[KeyQueue]:
        """Remove and return up to ``count`` queues of a consumer that are not started, the last ones first."""
        others, found = deque[KeyQueue](), list[KeyQueue]()
        while self._ready:
            queue = self._ready.pop()
            if queue.consumer is consumer and len(found) < count:
                found.append(queue)
            else:
                others.appendleft(queue)
        self._ready.extend(others)
        return found

    def add(self, queue: KeyQueue) -> None:
        """Add a queue whose first event can be started."""
        self._ready.append(queue)
        idle = self._idle
        while idle:
            future = idle.pop()
            if not future.done():
                future.set_result(None)
                return

    async def run(self) -> None:
        """Run the slots until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._count):
                group.create_task(self._slot())

    async def _slot(self) -> None:
        ready, idle = self._ready, self._idle
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - run made it
        while True:
            while not ready:
                future = self._loop.create_future()
                idle.append(future)
                await future
            queue = ready.popleft()
            try:
                await queue.consumer.work(queue, task)
            except asyncio.CancelledError:
                if not queue.consumer.abandoned or task.uncancel():
                    raise
            else:
                if queue.consumer.abandoned and task.cancelling():  # the function suppressed the cancellation
                    task.uncancel()
            if time.monotonic() > self._until:
                if self._asked:
                    await asyncio.sleep(0)
                else:  # a function that awaits yields to the event loop by itself
                    self._asked = True
                    self._until = time.monotonic() + SLICE
                    self._loop.call_soon(self._looped)

    def _looped(self) -> None:
        """Record that the event loop had control."""
        self._asked = False
        self._until = time.monotonic() + SLICE


class KeyedConsumer(PartitionConsumer):
    """Consumes one partition: sorts its events by key."""

    def __init__(
        self, declared: Processor, partition: ActivePartition, failures: FailureHandler, stats: Stats, slots: WorkSlots
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats)
        self._slots = slots
        self._queues: dict[bytes, KeyQueue] = {}
        self._queued = 0  # events in queues, including those in progress
        self._working: set[asyncio.Task[Any]] = set()  # slots that process an event of this partition
        self.abandoned = False  # events in progress are cancelled
        self._resting = 0  # events of keys that wait for a retry
        self._less = asyncio.Event()  # set when one of these numbers decreases
        self._plain = declared.plain
        self._simple = declared.ack == "after" and not declared.transactional

    async def run(self) -> None:
        """Consume until the partition is stopped and the events in progress are finished."""
        try:
            await super().run()
            while self.partition.held and (self._working or (self._before and self._queued)):
                await self._fewer()
        finally:
            self.abandoned = True
            for slot in self._working:
                slot.cancel()
            while self._working:
                await self._fewer()

    async def _consume_acknowledged(self) -> None:
        while self._queued >= max(BEFORE, self.declared.concurrency) and self.partition.held:
            await self._fewer()
        await super()._consume_acknowledged()

    async def _fewer(self) -> None:
        self._less.clear()
        await self._less.wait()

    async def consume(self) -> None:
        rows, partition, key_of = self.rows, self.partition, self.declared.key_of
        decode, stream = self.declared.topic.codec.decode, partition.stream
        until = time.monotonic() + SLICE
        while rows and (self._before or not partition.stopping.is_set()):
            row = rows.popleft()
            try:
                ms, _, seq = row[0].partition(b".")
                record = decode(Entry(StreamId(int(ms), int(seq)), row[1:]), stream)
                key = key_of(record)
            except Exception:  # noqa: BLE001 - raised again where the policy sees it
                record = key = None
            if key is not None and partition.parked and pauses.shown_key(key) in partition.parked:
                await self.failures.set_aside(partition, [row])
            else:
                self._sort(row, record, key)
            if time.monotonic() > until:
                break
        await asyncio.sleep(0)

    def _sort(self, row: Row, record: Any, key: bytes | None) -> None:
        self._queued += 1
        queue = self._queues.get(key) if key is not None else None
        if queue is not None:
            queue.items.append((row, record))
            if queue.resting:
                self._rest_more(1)
            return
        queue = KeyQueue(self, key)
        queue.items.append((row, record))
        if key is not None:
            self._queues[key] = queue
        self._slots.add(queue)

    async def work(self, queue: KeyQueue, slot: asyncio.Task[Any]) -> None:
        """Call the function for the first event of a queue."""
        partition = self.partition
        if self.abandoned or not partition.claim.held or (partition.stopping.is_set() and not self._before):
            return
        row, record = queue.items[0]
        self._working.add(slot)
        self.stats.busy += 1
        alone = False
        try:
            if partition.suspects and row[0] in partition.suspects:
                over, alone = await self.failures.starts.begin(partition, [row])
                if over:
                    with suppress(StoppedError):
                        await self.died(row)
                        await self._settled(queue)
                    return
            if self._plain and record is not None:
                await self.declared.function(record)
            else:
                await self._call(row, record, queue.attempt)
        except BaseException as error:  # noqa: BLE001 - the policy sees every error
            await self._failed(queue, row, as_failure(error, slot))
        else:
            if self._simple:
                self.stats.finished += 1
                partition.acks.add(row[0])
                if partition.start_counts:
                    self.failures.starts.over(partition, [row[0]])
            else:
                self.finish([row])
            self._next(queue)
        finally:
            if alone:
                self.failures.starts.end(alone)
            self.stats.busy -= 1
            self._working.discard(slot)
            self._less.set()

    async def _call(self, row: Row, record: Any, attempt: int) -> None:
        if self._plain:
            await self.declared.function(self.partition.record(row))
            return
        self.partition.actions.begin((row[0],))
        event = self.event(row, attempt)
        if record is not None:
            event.record = record
        await self.declared.invoke([event])

    def _next(self, queue: KeyQueue) -> None:
        """Remove the first event, which is settled."""
        queue.items.popleft()
        self._queued -= 1
        queue.attempt = 1
        if queue.items:
            self._slots.add(queue)
        elif queue.key is not None:
            del self._queues[queue.key]

    async def _failed(self, queue: KeyQueue, row: Row, error: Exception) -> None:
        partition = self.partition
        try:
            before = self.failures.starts.before(partition, row[0]) if partition.start_counts else 0
            delay = await self.failures.settle(partition, [row], error, before + queue.attempt)
        except StoppedError:
            if self._before:  # the events are given up, and nothing must wait for them
                self._queued -= len(queue.items)
                queue.items.clear()
                if queue.key is not None:
                    del self._queues[queue.key]
            return
        if delay is not None:
            queue.attempt += 1
            queue.resting = True
            self._rest_more(len(queue.items))
            asyncio.get_running_loop().call_later(delay, self._rested, queue)
            return
        if partition.start_counts:
            self.failures.starts.over(partition, [row[0]])
        await self._settled(queue)

    async def _settled(self, queue: KeyQueue) -> None:
        """Continue after the final action for the first event, which may have parked its key."""
        partition = self.partition
        if queue.key is not None and pauses.shown_key(queue.key) in partition.parked:
            behind = [item[0] for item in queue.items][1:]
            while behind:
                await self.failures.set_aside(partition, behind)
                for _ in behind:
                    queue.items.pop()
                    self._queued -= 1
                behind = [item[0] for item in queue.items][1:]
        self._next(queue)

    def _rested(self, queue: KeyQueue) -> None:
        queue.resting = False
        self._rest_more(-len(queue.items))
        self._slots.add(queue)

    def _rest_more(self, count: int) -> None:
        self._resting += count
        self.partition.buffer.uncounted = min(self._resting, BACKLOG * self.declared.prefetch)
        self.partition.buffer.changed()
