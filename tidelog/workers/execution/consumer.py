"""Consumers: they take the entries of a partition from its buffer and call the user's function.

    EachConsumer     one event at a time
    BatchConsumer    up to ``take.count`` at a time
    keyed            many at a time, one per key
    unordered        many at a time, in any order
    events_consumer  the function requests events itself

Rule 1: an event is started, and acknowledged, only while the partition is held.
Rule 2: a failed event blocks its partition until the failure policy has settled it.
Rule 3: user code that never waits must not block the event loop: the consumer yields after SLICE seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tidelog.client.entries import Entry, StreamId
from tidelog.codecs import UndecodableError
from tidelog.topics.groupreader import Row, entry_of
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.user_errors import as_failure
from tidelog.workers.execution.failures import FailureHandler
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.prefetch import PrefetchLimit
from tidelog.workers.execution.stats import Stats

SLICE: Final = 0.002  # seconds
Invoke = Callable[[Sequence[Row], int], Awaitable[None]]  # calls the function: rows, number of the attempt
BEFORE: Final = 100  # events that are acknowledged together before they are started, with ack="before"


class PartitionConsumer:
    """Consumes one partition. ``run`` returns when the partition is being released or is lost."""

    def __init__(self, declared: Processor, partition: ActivePartition, failures: FailureHandler, stats: Stats) -> None:
        self.declared = declared
        self.partition = partition
        self.failures = failures
        self.stats = stats
        self.rows = partition.buffer.rows  # entries to consume
        self._before = declared.ack == "before"
        self._after = declared.ack == "after"
        self._transactional = declared.transactional
        self.task: asyncio.Task[Any] | None = None  # the task in which the function runs

    async def run(self) -> None:
        """Consume until the partition is stopped."""
        partition, buffer = self.partition, self.partition.buffer
        self.task = asyncio.current_task()
        try:
            while not partition.stopping.is_set():
                if not buffer.rows:
                    partition.acks.soon()
                    await partition.filled()
                elif not partition.held:
                    return
                elif self._before:
                    await self._consume_acknowledged()
                else:
                    await self.consume()
        except StoppedError:
            pass

    async def consume(self) -> None:
        """Consume the buffered entries for up to SLICE seconds."""
        raise NotImplementedError

    async def settled(self, rows: list[Row], invoke: Invoke, error: Exception) -> None:
        """Apply the failure policy after a failed first attempt, until the events are finished or given up."""
        starts, begun = self.failures.starts, [row[0] for row in rows]
        before = starts.most_before(self.partition, begun)
        attempt = 1
        while True:
            left = await self.records_of(rows) if isinstance(error, UndecodableError) and len(rows) > 1 else rows
            if len(left) == len(rows):
                delay = await self.failures.settle(self.partition, rows, error, before + attempt)
                if delay is None:
                    starts.over(self.partition, begun)
                    return
                await self.partition.rest(delay)
                attempt += 1
            rows = left
            if not rows:
                starts.over(self.partition, begun)
                return
            try:
                await invoke(rows, attempt)
            except BaseException as again:  # noqa: BLE001 - the policy sees every error
                error = as_failure(again, asyncio.current_task())
            else:
                self.finish(rows)
                return

    async def records_of(self, rows: list[Row]) -> list[Row]:
        """Return the entries that can be decoded. The others are settled individually."""
        good = []
        for row in rows:
            try:
                self.partition.record(row)
                good.append(row)
            except Exception as error:  # noqa: BLE001 - the policy sees every error
                await self._end(row, error, 1)
        return good

    async def gathered(self, count: int, within: float) -> None:
        """Wait until this many entries are available, the time has passed, or the partition is being released."""
        buffer, stopping = self.partition.buffer, self.partition.stopping.is_set
        if len(self.rows) >= count or within <= 0 or stopping():
            return
        self.partition.acks.soon()
        buffer.want(count)
        try:
            async with asyncio.timeout(within):
                while len(self.rows) < count and not stopping():
                    buffer.filled.clear()
                    await buffer.filled.wait()
        except TimeoutError:
            pass
        finally:
            buffer.want(0)

    def finish(self, rows: list[Row]) -> None:
        """Acknowledge or commit events that were processed successfully."""
        self.stats.finished += len(rows)
        if self.partition.start_counts and self.declared.ack != "manual":
            self.failures.starts.over(self.partition, [row[0] for row in rows])
        if self._transactional:
            self.failures.commit(self.partition, rows)
        elif self._after:
            self.partition.acks.add_all([row[0] for row in rows])

    async def attempts(self, rows: list[Row]) -> None:
        """Call the function until the events are finished or given up."""
        invoke = self._invoke if not self.declared.plain else self.again
        try:
            await invoke(rows, 1)
        except BaseException as error:  # noqa: BLE001 - the policy sees every error
            await self.settled(rows, invoke, as_failure(error, self.task))
        else:
            self.finish(rows)

    async def again(self, rows: Sequence[Row], _: int) -> None:
        """Call the function directly with the record, or with the list of records."""
        raise NotImplementedError

    async def _invoke(self, rows: Sequence[Row], attempt: int) -> None:
        self.stats.busy += 1
        try:
            self.partition.actions.begin([row[0] for row in rows])
            await self.declared.invoke([self.event(row, attempt) for row in rows])
        finally:
            self.stats.busy -= 1

    def event(self, row: Row, attempt: int) -> Event[Any]:
        """Return the event of an entry."""
        partition = self.partition
        if partition.start_counts:
            attempt += self.failures.starts.before(partition, row[0])
        return Event(
            self.declared.topic, partition.number, entry_of(row), partition.actions, attempt, partition.claim.epoch
        )

    async def carefully(self, rows: list[Row], call: Callable[[list[Row]], Awaitable[None]]) -> None:
        """Start events that may have killed their process before: see ``attempts``."""
        starts, partition = self.failures.starts, self.partition
        owned, manual = self.declared.ordering != "none", self.declared.ack == "manual"
        if owned and not manual and partition.suspects.isdisjoint(row[0] for row in rows):
            partition.suspects.clear()  # suspects precede new entries, so the remaining ones were evicted
        over, alone = await starts.begin(partition, rows)
        try:
            for row in over:
                await self.died(row)
            left = [row for row in rows if row not in over] if over else rows
            if left:
                await call(left)
        finally:
            starts.end(alone)

    async def died(self, row: Row) -> None:
        """Apply the final action to an event whose processes have died."""
        starts = self.failures.starts
        error, attempt = starts.died(self.partition, row)
        try:
            await self._end(row, error, attempt)
        finally:
            starts.over(self.partition, [row[0]])

    async def _end(self, row: Row, error: Exception, attempt: int) -> None:
        """Apply the final action to an event that can't succeed, again until the server accepts it."""
        while (delay := await self.failures.settle(self.partition, [row], error, attempt)) is not None:
            await self.partition.rest(delay)

    async def _consume_acknowledged(self) -> None:
        """Acknowledge entries before they are processed (ack="before"). If the process ends, the rest is lost."""
        partition, waiting = self.partition, self.partition.buffer.rows
        count = max(BEFORE, self.declared.take.count if self.declared.take else 1)
        self.rows = deque(waiting.popleft() for _ in range(min(count, len(waiting))))
        partition.acks.add_all([row[0] for row in self.rows])
        await partition.acks.flush()
        while self.rows and partition.held:
            await self.consume()


class EachConsumer(PartitionConsumer):
    """Calls the function for one event at a time."""

    async def consume(self) -> None:
        if self.partition.suspects:
            await self.carefully([self.rows.popleft()], self.attempts)
            return
        if self.declared.plain:
            await self._consume_records()
            return
        partition, rows = self.partition, self.rows
        until = time.monotonic() + SLICE
        while rows and partition.held and (self._before or not partition.stopping.is_set()):
            await self.attempts([rows.popleft()])
            if time.monotonic() > until:
                break
        await asyncio.sleep(0)

    async def _consume_records(self) -> None:
        """Call the function directly with each record, without an event object and without a task."""
        partition, declared = self.partition, self.declared
        function, decode, stream = declared.function, declared.topic.codec.decode, partition.stream
        rows, claim, clock, stopping = self.rows, partition.claim, time.monotonic, partition.stopping.is_set
        acknowledge = None if self._before else partition.acks.add
        until = clock() + SLICE
        finished = 0
        self.stats.busy += 1
        try:
            while rows and claim.held:
                row = rows.popleft()
                try:
                    ms, _, seq = row[0].partition(b".")
                    await function(decode(Entry(StreamId(int(ms), int(seq)), row[1:]), stream))
                except BaseException as error:  # noqa: BLE001 - the policy sees every error
                    await self.settled([row], self.again, as_failure(error, self.task))
                else:
                    finished += 1
                    if acknowledge is not None:
                        acknowledge(row[0])
                if clock() > until or stopping():
                    break
        finally:
            self.stats.busy -= 1
            self.stats.finished += finished
        await asyncio.sleep(0)

    async def again(self, rows: Sequence[Row], _: int) -> None:
        await self.declared.function(self.partition.record(rows[0]))


class BatchConsumer(PartitionConsumer):
    """Calls the function for up to ``take.count`` events at a time.

    A failure concerns the whole batch, except that entries that can't be decoded are settled individually.
    """

    def __init__(
        self, declared: Processor, partition: ActivePartition, failures: FailureHandler, stats: Stats,
        limit: asyncio.Semaphore | None,
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats)
        self._limit = limit  # of concurrent calls for all partitions
        if limit is not None and declared.take is not None:
            count, buffer = declared.take.count, partition.buffer
            buffer.prefetch_limit = PrefetchLimit(lambda: len(buffer.rows), lambda: count, declared.prefetch)

    async def consume(self) -> None:
        rows = await self._taken()
        if not rows:
            return
        if self._limit is None:
            await self._consume_batch(rows)
            return
        async with self._limit:
            await self._consume_batch(rows)

    async def _consume_batch(self, rows: list[Row]) -> None:
        partition = self.partition
        if not partition.held or (partition.stopping.is_set() and not self._before):
            return
        if partition.buffer.redelivered:  # only without an owner
            await self.failures.starts.look_up(partition, partition.buffer.take_redelivered(), died=True)
        if partition.suspects:
            await self.carefully(rows, self.attempts)
            return
        if not self.declared.plain:
            await self.attempts(rows)
            await asyncio.sleep(0)
            return
        records, good = [], []
        decode, stream = self.declared.topic.codec.decode, partition.stream
        for row in rows:
            try:
                ms, _, seq = row[0].partition(b".")
                records.append(decode(Entry(StreamId(int(ms), int(seq)), row[1:]), stream))
                good.append(row)
            except Exception as error:  # noqa: BLE001 - the policy sees every error
                await self.settled([row], self.again, error)
        if not good:
            return
        self.stats.busy += 1
        try:
            await self.declared.function(records)
        except BaseException as error:  # noqa: BLE001 - the policy sees every error
            await self.settled(good, self.again, as_failure(error, self.task))
        else:
            self.finish(good)
        finally:
            self.stats.busy -= 1
        await asyncio.sleep(0)

    async def again(self, rows: Sequence[Row], _: int) -> None:
        await self.declared.function([self.partition.record(row) for row in rows])

    async def _taken(self) -> list[Row]:
        """Return the next batch: full, or the entries that arrived ``within`` the time after the first one."""
        take = self.declared.take
        assert take is not None  # noqa: S101 - a batch processor has one
        partition = self.partition
        if not self._before:
            await self.gathered(take.count, take.within)
        if partition.stopping.is_set() and not self._before:
            return []
        rows = self.rows
        return [rows.popleft() for _ in range(min(take.count, len(rows)))]
