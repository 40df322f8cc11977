"""Consumers: what takes the entries of a partition out of its buffer and gives them to the user's function.

    EachConsumer    one event at a time
    BatchConsumer   up to ``take.count`` at a time
    keyed.py        many at a time, one of each key
    generators.py   the function takes them itself

Rule 1: an event is begun only while the partition is held, and acknowledged only then.
Rule 2: a failed event holds its partition back until the policy has settled it.
Rule 3: user code that never waits must not keep the event loop: after SLICE seconds others get their turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from tidelog.client.entries import Entry, StreamId
from tidelog.codecs import UndecodableError
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.processor import Declared
from tidelog.workers.declare.user_errors import failure
from tidelog.workers.execution.buffers import Row
from tidelog.workers.execution.failures import Failures
from tidelog.workers.execution.partition import Partition, StoppedError, entry_of
from tidelog.workers.execution.prefetch import Pace
from tidelog.workers.execution.stats import Stats

SLICE: Final = 0.002  # seconds
Invoke = Callable[[Sequence[Row], int], Awaitable[None]]  # the user's function, with these; the number of the attempt
BEFORE: Final = 100  # events that are acknowledged together before they are begun, with ack="before"


class Consumer:
    """Of one partition. ``run`` returns when the partition is to be released, or is lost."""

    def __init__(self, declared: Declared, partition: Partition, failures: Failures, stats: Stats) -> None:
        self.declared = declared
        self.partition = partition
        self.failures = failures
        self.stats = stats
        self.rows = partition.buffer.rows  # what is consumed
        self._before = declared.ack == "before"
        self._after = declared.ack == "after"
        self._transactional = declared.transactional
        self.task: asyncio.Task[Any] | None = None  # in which the function runs

    async def run(self) -> None:
        """Consume until told to stop."""
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
        """Consume what is in the buffer, in slices."""
        raise NotImplementedError

    async def settled(self, rows: list[Row], invoke: Invoke, error: Exception) -> None:
        """After a first attempt failed: what the policy says, until the events are finished or given up."""
        starts, begun = self.failures.starts, [row[0] for row in rows]
        before = max((starts.before(self.partition, each) for each in begun), default=0) if self.partition.tried else 0
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
                error = failure(again, asyncio.current_task())
            else:
                self.finish(rows)
                return

    async def records_of(self, rows: list[Row]) -> list[Row]:
        """Those of them that are records. The others are settled, each alone."""
        good = []
        for row in rows:
            try:
                self.partition.record(row)
                good.append(row)
            except Exception as error:  # noqa: BLE001 - the policy sees every error
                while (delay := await self.failures.settle(self.partition, [row], error, 1)) is not None:
                    await self.partition.rest(delay)
        return good

    async def gathered(self, count: int, within: float) -> None:
        """Wait until there are so many entries, or so many seconds have gone by, or the partition is to be released."""
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
        """The processor is through with these."""
        self.stats.finished += len(rows)
        if self.partition.tried and self.declared.ack != "manual":
            self.failures.starts.over(self.partition, [row[0] for row in rows])
        if self._transactional:
            self.failures.commit(self.partition, rows)
        elif self._after:
            self.partition.acks.add_all([row[0] for row in rows])

    async def attempts(self, rows: list[Row]) -> None:
        """Give events to the function, with all that is around it, until they are finished or given up."""
        invoke = self._invoke if not self.declared.plain else self.again
        try:
            await invoke(rows, 1)
        except BaseException as error:  # noqa: BLE001 - the policy sees every error
            await self.settled(rows, invoke, failure(error, self.task))
        else:
            self.finish(rows)

    async def again(self, rows: Sequence[Row], _: int) -> None:
        """Give bare records to the bare function, where they are given one by one, or as a list."""
        raise NotImplementedError

    async def _invoke(self, rows: Sequence[Row], attempt: int) -> None:
        self.stats.busy += 1
        try:
            self.partition.sink.begin([row[0] for row in rows])
            await self.declared.invoke([self.event(row, attempt) for row in rows])
        finally:
            self.stats.busy -= 1

    def event(self, row: Row, attempt: int) -> Event[Any]:
        """The event of an entry."""
        partition = self.partition
        if partition.tried:
            attempt += self.failures.starts.before(partition, row[0])
        return Event(
            self.declared.topic, partition.number, entry_of(row), partition.sink, attempt, partition.claim.epoch
        )

    async def carefully(self, rows: list[Row], call: Callable[[list[Row]], Awaitable[None]]) -> None:
        """Begin events that may have killed the process that had them: see ``tried``."""
        starts, partition = self.failures.starts, self.partition
        owned, manual = self.declared.ordering != "none", self.declared.ack == "manual"
        if owned and not manual and partition.doubtful.isdisjoint(row[0] for row in rows):
            partition.doubtful.clear()  # they come before what is new: the others were evicted
        over, alone = await starts.begin(partition, rows)
        try:
            for row in over:
                error, attempt = starts.died(partition, row)
                try:
                    while (delay := await self.failures.settle(partition, [row], error, attempt)) is not None:
                        await partition.rest(delay)
                finally:
                    starts.over(partition, [row[0]])
            left = [row for row in rows if row not in over] if over else rows
            if left:
                await call(left)
        finally:
            starts.end(alone)

    async def _consume_acknowledged(self) -> None:
        """ack="before": the server forgets them first. What was not begun when the process ends is not done at all."""
        partition, waiting = self.partition, self.partition.buffer.rows
        count = max(BEFORE, self.declared.take.count if self.declared.take else 1)
        self.rows = deque(waiting.popleft() for _ in range(min(count, len(waiting))))
        partition.acks.add_all([row[0] for row in self.rows])
        await partition.acks.flush()
        while self.rows and partition.held:
            await self.consume()


class EachConsumer(Consumer):
    """One event at a time."""

    async def consume(self) -> None:
        if self.partition.doubtful:
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
        """The bare record to the bare function: no event, no task, and nothing made twice."""
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
                    await self.settled([row], self.again, failure(error, self.task))
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


class BatchConsumer(Consumer):
    """Up to ``take.count`` events at a time. A failure is one of the whole batch, but for entries that are no records:
    those are settled alone.
    """

    def __init__(
        self, declared: Declared, partition: Partition, failures: Failures, stats: Stats,
        limit: asyncio.Semaphore | None,
    ) -> None:  # fmt: skip
        super().__init__(declared, partition, failures, stats)
        self._limit = limit  # of calls at a time, of all partitions
        if limit is not None and declared.take is not None:
            count, buffer = declared.take.count, partition.buffer
            buffer.pace = Pace(lambda: len(buffer.rows), lambda: count, declared.prefetch)

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
        if partition.buffer.again:  # nobody owns the partition
            again, partition.buffer.again = partition.buffer.again, []
            await self.failures.starts.look_up(partition, again, died=True)
        if partition.doubtful:
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
            await self.settled(good, self.again, failure(error, self.task))
        else:
            self.finish(good)
        finally:
            self.stats.busy -= 1
        await asyncio.sleep(0)

    async def again(self, rows: Sequence[Row], _: int) -> None:
        await self.declared.function([self.partition.record(row) for row in rows])

    async def _taken(self) -> list[Row]:
        """The next batch: full, or what came ``within`` so many seconds of the first one."""
        take = self.declared.take
        assert take is not None  # noqa: S101 - a batch processor has one
        partition = self.partition
        if not self._before:
            await self.gathered(take.count, take.within)
        if partition.stopping.is_set() and not self._before:
            return []
        rows = self.rows
        return [rows.popleft() for _ in range(min(take.count, len(rows)))]
