"""Many events at a time: ordering "key" and "none".

    buffer --> KeyedConsumer (one a partition) --> Queue (one a key) --> ready --> Slots (one a processor)

A slot is a coroutine that lives as long as the processor: an event costs no task. A queue is ready, or in a slot, or
rests after a failure, so no two events of a key are in work at once. With ordering "none" each event has a queue of its
own, and a failed one goes back to the server.

Rule 1: a key that rests after a failure holds back only itself. What waits behind it does not count against the
        partition's prefetch, up to BACKLOG times as much.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, Pending, StreamId
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.connections import Line
from tidelog.workers.declare.processor import Declared
from tidelog.workers.declare.user_errors import failure
from tidelog.workers.execution.buffers import Row
from tidelog.workers.execution.consumer import BEFORE, SLICE, Consumer
from tidelog.workers.execution.failures import Failures
from tidelog.workers.execution.partition import Partition, StoppedError
from tidelog.workers.execution.prefetch import WORK, Pace
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
BACKLOG: Final = 9  # prefetches


class Queue:
    """The events of one key that are in hand, oldest first."""

    __slots__ = ("attempt", "consumer", "items", "key", "resting")

    def __init__(self, consumer: KeyedConsumer, key: bytes | None) -> None:
        self.consumer = consumer
        self.key = key  # None: nothing else is of this key
        self.items: deque[tuple[Row, Any]] = deque()  # entry, record; the record is None if there is none
        self.attempt = 1  # of the first one
        self.resting = False


class Slots:
    """Calls the function for up to ``count`` events at a time."""

    def __init__(self, count: int) -> None:
        self._ready: deque[Queue] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._until = 0.0  # on the monotonic clock: by then the loop is to go round
        self._asked = False  # whether it will tell when it does

    @property
    def idle(self) -> int:
        """How many have nothing to do."""
        return len(self._idle)

    def withdraw(self, consumer: KeyedConsumer, count: int) -> list[Queue]:
        """Take back up to so many queues of a consumer that nobody has begun, the last ones first."""
        kept, found = deque[Queue](), list[Queue]()
        while self._ready:
            queue = self._ready.pop()
            if queue.consumer is consumer and len(found) < count:
                found.append(queue)
            else:
                kept.appendleft(queue)
        self._ready.extend(kept)
        return found

    def give(self, queue: Queue) -> None:
        """This one may be worked on."""
        self._ready.append(queue)
        idle = self._idle
        while idle:
            future = idle.pop()
            if not future.done():
                future.set_result(None)
                return

    async def run(self) -> None:
        """Work until cancelled."""
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
                if queue.consumer.abandoned and task.cancelling():  # and the function has kept it back
                    task.uncancel()
            if time.monotonic() > self._until:
                if self._asked:
                    await asyncio.sleep(0)
                else:  # a handler that waits lets the loop go round by itself
                    self._asked = True
                    self._until = time.monotonic() + SLICE
                    self._loop.call_soon(self._looked)

    def _looked(self) -> None:
        """The loop has gone round."""
        self._asked = False
        self._until = time.monotonic() + SLICE


class KeyedConsumer(Consumer):
    """Of one partition: sorts its events by key."""

    def __init__(
        self, declared: Declared, partition: Partition, failures: Failures, stats: Stats, slots: Slots
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats)
        self._slots = slots
        self._queues: dict[bytes, Queue] = {}
        self._queued = 0  # events in queues, those in work included
        self._working: set[asyncio.Task[Any]] = set()  # slots with one of its events
        self.abandoned = False  # what is in work is cancelled
        self._resting = 0  # events of keys that rest
        self._less = asyncio.Event()  # set when one of these numbers has become smaller
        self._plain = declared.plain
        self._simple = declared.ack == "after" and not declared.transactional

    async def run(self) -> None:
        """Until told to stop, and until what is in work is finished."""
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
        queue = Queue(self, key)
        queue.items.append((row, record))
        if key is not None:
            self._queues[key] = queue
        self._slots.give(queue)

    async def work(self, queue: Queue, slot: asyncio.Task[Any]) -> None:
        """Give the first event of a queue to the function."""
        partition = self.partition
        if self.abandoned or not partition.claim.held or (partition.stopping.is_set() and not self._before):
            return
        row, record = queue.items[0]
        self._working.add(slot)
        self.stats.busy += 1
        alone = False
        try:
            if partition.doubtful and row[0] in partition.doubtful:
                over, alone = await self.failures.starts.begin(partition, [row])
                if over:
                    await self._died(queue, row)
                    return
            if self._plain and record is not None:
                await self.declared.function(record)
            else:
                await self._call(row, record, queue.attempt)
        except BaseException as error:  # noqa: BLE001 - the policy sees every error
            await self._failed(queue, row, failure(error, slot))
        else:
            if self._simple:
                self.stats.finished += 1
                partition.acks.add(row[0])
                if partition.tried:
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

    async def _died(self, queue: Queue, row: Row) -> None:
        """The processes that had this event have died: it gets the policy's ending."""
        error, attempt = self.failures.starts.died(self.partition, row)
        try:
            while (delay := await self.failures.settle(self.partition, [row], error, attempt)) is not None:
                await self.partition.rest(delay)
        except StoppedError:
            return
        finally:
            self.failures.starts.over(self.partition, [row[0]])
        await self._settled(queue)

    async def _call(self, row: Row, record: Any, attempt: int) -> None:
        if self._plain:
            await self.declared.function(self.partition.record(row))
            return
        self.partition.sink.begin((row[0],))
        event = self.event(row, attempt)
        if record is not None:
            event.record = record
        await self.declared.invoke([event])

    def _next(self, queue: Queue) -> None:
        """The first one is settled."""
        queue.items.popleft()
        self._queued -= 1
        queue.attempt = 1
        if queue.items:
            self._slots.give(queue)
        elif queue.key is not None:
            del self._queues[queue.key]

    async def _failed(self, queue: Queue, row: Row, error: Exception) -> None:
        partition = self.partition
        try:
            before = self.failures.starts.before(partition, row[0]) if partition.tried else 0
            delay = await self.failures.settle(partition, [row], error, before + queue.attempt)
        except StoppedError:
            if self._before:  # they are given up, and nothing is to wait for them
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
        if partition.tried:
            self.failures.starts.over(partition, [row[0]])
        await self._settled(queue)

    async def _settled(self, queue: Queue) -> None:
        """The first event has got its ending, which may be that its key is parked."""
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

    def _rested(self, queue: Queue) -> None:
        queue.resting = False
        self._rest_more(-len(queue.items))
        self._slots.give(queue)

    def _rest_more(self, count: int) -> None:
        self._resting += count
        self.partition.buffer.extra = min(self._resting, BACKLOG * self.declared.prefetch)
        self.partition.buffer.changed()


class FreeConsumer(KeyedConsumer):
    """Of one partition, with ordering "none": nobody owns it, and a failed event goes back to the server."""

    def __init__(
        self, declared: Declared, partition: Partition, failures: Failures, stats: Stats, slots: Slots, line: Line
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats, slots)
        self._line = line
        self._taken = 0  # events that were put into queues
        self._finished = 0  # of these, at the last look
        self._timer: asyncio.TimerHandle | None = None  # of the next look
        self._returning: set[asyncio.Task[None]] = set()
        partition.buffer.pace = Pace(self._waiting, self._least, declared.prefetch)

    def _waiting(self) -> int:
        """Events that nobody has begun."""
        return len(self.rows) + self._queued - len(self._working)

    def _least(self) -> int:
        """What can be begun at once is for all partitions of the processor."""
        return -(-self._slots.idle // self.declared.topic.partitions)

    async def run(self) -> None:
        """See ``KeyedConsumer.run``."""
        try:
            await super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _look(self) -> None:
        """What will not be begun within a second or so is given back."""
        self._timer = None
        partition, finished = self.partition, self._taken - self._queued
        done, self._finished = finished - self._finished, finished
        if partition.stopping.is_set() or not partition.held or self._before:
            return
        excess = self._queued - len(self._working) - max(done, 1)
        if excess > 0 and not self._slots.idle:
            pace = partition.buffer.pace
            assert pace is not None  # noqa: S101 - see above
            pace.ahead = max(1, done)
            withdrawn = self._slots.withdraw(self, excess)
            self._queued -= len(withdrawn)
            self._taken -= len(withdrawn)
            self._give_back([queue.items[0][0][0] for queue in withdrawn])
        if self._queued > len(self._working):
            self._timer = asyncio.get_running_loop().call_later(WORK, self._look)

    def _give_back(self, ids: list[bytes]) -> None:
        partition, group = self.partition, self.declared.group
        if not ids:
            return
        self.stats.returned += len(ids)
        for entry_id in ids:
            partition.doubtful.discard(entry_id)
            partition.buffer.given_back(entry_id)

        async def send() -> None:
            try:
                await self._line.ask(calls.tnack(partition.buffer.stream, group, *ids))
            except (LostError, redis.ResponseError) as error:  # they are due when their retry time is over
                log.info("processor %s: %d events will be returned later: %s", self.declared.name, len(ids), error)

        task = asyncio.get_running_loop().create_task(send())
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def consume(self) -> None:
        rows = [self.rows.popleft() for _ in range(len(self.rows))]
        if not self._before:
            await self._look_up([row[0] for row in rows])
        for row in rows:
            queue = Queue(self, None)
            queue.items.append((row, None))
            self._queued += 1
            self._slots.give(queue)
        self._taken += len(rows)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WORK, self._look)
        await asyncio.sleep(0)

    async def _look_up(self, ids: list[bytes]) -> None:
        """What is known of those that were delivered before. A processor that does not see attempts asks only about
        those that are older than what it has read: the others are new, or were read by another worker meanwhile.
        """
        partition = self.partition
        again, partition.buffer.again = partition.buffer.again, []
        if not self._plain:
            deliveries = await self._deliveries(ids)
            again = [each for each in ids if deliveries.get(each, 1) > 1]
        if again:
            await self.failures.starts.look_up(partition, again, died=True)

    async def _deliveries(self, ids: list[bytes]) -> dict[bytes, int]:
        """How often each was delivered. Most are neighbours: one page has them; the others are asked for one by one."""
        texts = [entry_id.decode() for entry_id in ids]
        ordered = sorted(texts, key=StreamId.parse)
        try:
            (page,) = await self._line.ask(self._pending(ordered[0], ordered[-1], 2 * len(ids)))
            found = {str(message.id).encode(): int(message.deliveries) for message in page}
            missing = [text for entry_id, text in zip(ids, texts, strict=True) if entry_id not in found]
            for (message,) in filter(None, await self._line.ask(*[self._pending(text, text, 1) for text in missing])):
                found[str(message.id).encode()] = message.deliveries
        except redis.ResponseError:  # the group is gone, for instance: they count as delivered for the first time
            return {}
        return found

    def _pending(self, first: str, last: str, count: int) -> Call[list[Pending]]:
        return calls.tpending_range(self.partition.buffer.stream, self.declared.group, first, last, count)

    async def _failed(self, queue: Queue, row: Row, error: Exception) -> None:
        if self._before:  # the server has nothing that it could deliver again
            await super()._failed(queue, row, error)
            return
        partition, group = self.partition, self.declared.group
        stream, text = partition.buffer.stream, row[0].decode()
        try:
            (found,) = await self._line.ask(self._pending(text, text, 1))
            if not found or not partition.held:
                partition.begun.discard(row[0])
                partition.buffer.forget([row[0]])  # somebody else has it, or had it
                return
            starts = self.failures.starts
            if found[0].deliveries > 1 and row[0] not in partition.tried:
                await starts.look_up(partition, [row[0]], died=False)
                partition.doubtful.discard(row[0])
            attempt = 1 + starts.before(partition, row[0])
            delay = await self.failures.settle(partition, [row], error, attempt)
            if delay is None:
                starts.over(partition, [row[0]])
            else:
                self.stats.returned += 1
                await starts.given_back(partition, [row[0]], attempt=True)
                partition.buffer.given_back(row[0])
                await self._line.ask(calls.tnack(stream, group, text, delay=max(1, round(delay * 1000))))
        except (StoppedError, LostError):
            return
        except redis.ResponseError as refused:  # it is due again when its retry time is over
            log.error("processor %s: %s can't be given back: %s", self.declared.name, text, refused)
            partition.buffer.forget([row[0]])
