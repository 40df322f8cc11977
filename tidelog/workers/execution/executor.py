"""``Executor``: one processor in one worker. It is told which partitions are ours, and consumes them.

    acquired  what a former owner left pending is made due, in the order of IDs, so it comes before anything new;
              then the fetcher reads the partition, and a consumer works on it
    released  nothing is begun any more; what is in work is finished within ``grace``, acknowledgements are flushed, and
              the rest is given back
    lost      everything is dropped, nothing is acknowledged

Rule 1: while a message is in hand, longer than half of the retry time, TTOUCH keeps it from being delivered again.
Rule 2: after a lost connection, claims are compared with the server before anything else is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis

from tidelog.client import calls, strings
from tidelog.client.entries import Pending
from tidelog.client.steps import arun
from tidelog.coordination import Claim, Lease
from tidelog.coordination.claims import check
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.errors import NoGroupError, is_denied
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.connections import Link
from tidelog.workers.declare.processor import Declared
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer, id_of
from tidelog.workers.execution.consumer import BatchConsumer, Consumer, EachConsumer
from tidelog.workers.execution.event_actions import ProcessorSink
from tidelog.workers.execution.events_consumer import EventsConsumer
from tidelog.workers.execution.failures import Failures
from tidelog.workers.execution.fetcher import Fetcher
from tidelog.workers.execution.group_creation import begin_newest
from tidelog.workers.execution.keyed import FreeConsumer, KeyedConsumer, Slots
from tidelog.workers.execution.partition import Partition, StoppedError
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.transactions import Committer

log = logs.get(__name__)
PAGE: Final = 1000  # pending messages that are made due at once
RESUMED: Final = 1.0  # seconds between two looks while something is held back
AGAIN: Final = 1.0  # seconds until a partition whose consumer failed is begun again


class Executor:
    """Of ``declared``, for the worker that holds ``lease``. ``grace``: seconds for what is in work at a release."""

    def __init__(
        self, declared: Declared, link: Link, lease: Lease, grace: float, stats: Stats | None = None
    ) -> None:  # fmt: skip
        self.declared = declared
        self.stats = stats or Stats()
        self.partitions: dict[int, Partition] = {}
        self._lease = lease
        self._grace = grace
        self._retry_ms = max(1, round(lease.ttl * 1000))
        self._reads = link.line(self._opened)  # TREAD, TACK, TTOUCH, TNACK, in their order
        self._small = link.line()  # what must not wait behind large replies
        self._start = "0" if declared.start == "oldest" else ""
        owned = declared.ordering != "none"
        self._fetcher = Fetcher(link, self._reads, declared.group, self._retry_ms, self._start, self._taken, owned)
        self._committer = Committer(link, lease, declared.group, self.stats, self._taken)
        self._failures = Failures(declared, lease.owner, self._small, self._committer, self, self.stats)
        self._slots = Slots(declared.concurrency)
        self._batches = asyncio.Semaphore(declared.concurrency) if declared.ordering == "none" else None
        self._tasks: list[asyncio.Task[Any]] = []
        self._passing: set[asyncio.Task[Any]] = set()
        self._context = logs.context(processor=declared.name)
        self._paused: set[str] = set()  # partitions, or pauses.ALL
        self._told = asyncio.Event()  # what is held back may have changed
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # why it can't go on
        self.doubted: Callable[[], None] = lambda: None  # called when a claim was another's: compare all of them

    # -- life ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Look at what is paused, and begin to read. Errors are those of the server."""
        while True:
            try:
                self._paused = set(await self._small_run(pauses.read(self._paused_key)))
                if self.declared.start == "newest":
                    await self._small_run(begin_newest(self.declared))
            except LostError:
                continue
            break
        self._spawn(self._fetcher.run())
        self._spawn(self._committer.run())
        self._spawn(self._keep())
        self._spawn(self._watch_marks())
        if self.declared.ordering != "partition":
            self._spawn(self._slots.run())

    async def stop(self) -> None:
        """End. Partitions that were not released are dropped."""
        for number in list(self.partitions):
            self.lost(number)
        tasks = [*self._tasks, *self._passing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failure.cancel() and not self.failure.cancelled():
            self.failure.exception()  # it was raised where the worker waits, or nobody waits any more
        self._reads.close()
        self._small.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name=self.declared.name, context=self._context)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _in_passing(self, work: Any) -> None:
        task = asyncio.create_task(work, name=self.declared.name, context=self._context)
        task.add_done_callback(self._logged)
        task.add_done_callback(self._passing.discard)
        self._passing.add(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Without any of these tasks the processor, or a partition, would stand still: the worker has to end. Those of
        partitions end with an error only if it is no Exception.
        """
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _logged(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("processor %s: %s", self.declared.name, error, exc_info=error)

    # -- what the ownership tells ----------------------------------------------------------------------------
    async def acquired(self, claim: Claim) -> None:
        """The partition is ours: begin."""
        self.begin(claim)

    def begin(self, claim: Claim) -> None:
        """Consume a partition."""
        stream = self.declared.topic.stream(claim.partition)
        buffer = Buffer(stream, claim, self.declared.prefetch, self.stats, self._fetcher.roomy)
        acks = Acks(self._reads, buffer, self.declared.group, lambda: claim.held, self.stats)
        sink = ProcessorSink(self.declared, buffer, acks, claim, self._small, self._reads, self._logged)
        partition = Partition(self.declared.topic, claim, buffer, acks, sink)
        sink.settled = partial(self._manually, partition)
        self.partitions[claim.partition] = partition
        context = self._context.copy()
        context.run(logs.enter, partition=claim.partition)
        partition.task = asyncio.create_task(self._consume(partition), context=context)
        partition.task.add_done_callback(self._ended)

    def _manually(self, partition: Partition, entry_id: bytes, acknowledged: bool) -> None:
        """The function has acknowledged an event, or given it back."""
        starts = self._failures.starts
        if not acknowledged:
            starts.returned(partition, entry_id)
            if self.declared.ordering != "none":  # there it may go to another worker, and whoever gets it looks
                partition.doubtful.add(entry_id)
        elif partition.tried:
            starts.over(partition, [entry_id])

    async def released(self, number: int) -> None:
        """The partition is to go: when this returns, nothing of it is in hand."""
        partition = self.partitions.pop(number, None)
        if partition is not None:
            await self._finish(partition)

    def lost(self, number: int) -> None:
        """The partition is somebody else's already."""
        partition = self.partitions.pop(number, None)
        if partition is None:
            return
        partition.claim.lost = True
        partition.stop()
        self._fetcher.remove(partition.buffer)
        self.stats.dropped += len(partition.buffer.held)
        partition.buffer.rows.clear()
        partition.acks.drop()
        if partition.task is not None:
            partition.task.cancel()

    def _taken(self, claim: Claim) -> None:
        """A claim turned out to be somebody else's."""
        claim.lost = True
        partition = self.partitions.get(claim.partition)
        if partition is not None and partition.claim is claim:
            log.warning("processor %s: partition %d was taken by another", self.declared.name, claim.partition)
            self.lost(claim.partition)
            self.doubted()

    # -- one partition ---------------------------------------------------------------------------------------
    async def _consume(self, partition: Partition) -> None:
        if not self._paused.isdisjoint((pauses.ALL, str(partition.number))):
            return  # begun when it is resumed
        try:
            await self._recover(partition)
            if partition.stopping.is_set():  # meanwhile: nobody would consume what is read
                return
            consumer = self._consumer(partition)
            self._fetcher.add(partition.buffer)
            await consumer.run()
        except Exception as error:
            if is_denied(error):
                raise
            if not isinstance(error, LostError):
                log.exception("processor %s: %s is begun again", self.declared.name, partition.buffer.stream)
                with suppress(StoppedError):
                    await partition.rest(AGAIN)
            self._in_passing(self._begin_again(partition))  # what is finished is settled first, the rest given back
            return
        if partition.held and not partition.stopping.is_set():  # it wants no more
            self._in_passing(self._finish(partition))

    async def _recover(self, partition: Partition) -> None:
        """Make everything due that is pending, in the order of IDs: due messages are delivered before new ones.

        Messages of parked keys come too, and are set aside again.
        """
        stream, group = partition.buffer.stream, self.declared.group
        parked = pauses.parked_key(self.declared.app, self.declared.name, partition.number)
        partition.parked = set(await self._small_run(pauses.read(parked)))
        partition.parked_known = True
        if partition.parked:
            self.look()
        if self.declared.ordering == "none":
            await self._reads.ask(calls.tread(stream, self._start, 0, group=group))
            (listed,) = await self._reads.ask(calls.tgroup_list(stream))
            for each in listed:
                if each.name == group.encode():
                    partition.buffer.begin_after(each.offset)
            return
        died, partition.claim.inherited = partition.claim.inherited, False
        start = "-"
        while True:
            try:
                page: list[Pending]
                (page,) = await self._reads.ask(calls.tpending_range(stream, group, start, "+", PAGE))
            except NoGroupError:
                await self._reads.ask(calls.tread(stream, self._start, 0, group=group))
                continue
            if not page or not partition.held:
                return
            ids = [str(message.id).encode() for message in page]
            await self._failures.starts.look_up(partition, ids, died)
            await self._reads.ask(calls.tnack(stream, group, *ids))
            last = page[-1].id
            start = f"{last.ms}.{last.seq + 1}"

    def _consumer(self, partition: Partition) -> Consumer:
        declared, failures, stats = self.declared, self._failures, self.stats
        if declared.kind == "events":
            return EventsConsumer(declared, partition, failures, stats)
        if declared.kind == "batch":
            return BatchConsumer(declared, partition, failures, stats, self._batches)
        if declared.ordering == "key":
            return KeyedConsumer(declared, partition, failures, stats, self._slots)
        if declared.ordering == "none":
            return FreeConsumer(declared, partition, failures, stats, self._slots, self._reads)
        return EachConsumer(declared, partition, failures, stats)

    async def _finish(self, partition: Partition) -> None:
        """Begin nothing any more, finish what is in work, acknowledge, give the rest back."""
        partition.stop()
        self._fetcher.remove(partition.buffer)
        task = partition.task
        if task is not None:
            await asyncio.wait([task], timeout=self._grace)
            if not task.done():
                log.warning(
                    "processor %s: %s is not finished after %g s and is cancelled", self.declared.name,
                    partition.buffer.stream, self._grace,
                )  # fmt: skip
                task.cancel()
                await asyncio.wait([task])
        try:
            async with asyncio.timeout(max(0.0, partition.claim.tenure.until - self._lease.clock())):
                await self._give_back(partition)
        except TimeoutError:
            log.warning("processor %s: no server to give %s back to", self.declared.name, partition.buffer.stream)
        partition.ended = True
        partition.acks.drop()
        partition.buffer.clear()

    async def _give_back(self, partition: Partition) -> None:
        """Acknowledge what is finished; what is not is due again, for whoever comes next."""
        buffer = partition.buffer
        await buffer.quiet.wait()
        await partition.acks.flush()
        await self._committer.flushed(partition)
        await self._failures.settled(partition)
        while buffer.held and partition.held:
            ids = sorted(buffer.held, key=id_of)
            try:
                await self._reads.send([calls.tnack(buffer.stream, self.declared.group, *ids)])
            except LostError:
                continue
            self.stats.returned += len(ids)
            begun = [each for each in ids if each in partition.begun]
            if begun:
                await self._failures.starts.given_back(partition, begun)
            buffer.forget(ids)

    # -- what is held back -----------------------------------------------------------------------------------
    def pause(self, partition: Partition | None) -> None:
        """Stop consuming one partition, or all, until it is resumed on the server."""
        self._paused.add(pauses.ALL if partition is None else str(partition.number))
        for each in [partition] if partition is not None else list(self.partitions.values()):
            self._in_passing(self._finish(each))

    def look(self) -> None:
        """Something may be held back now, or be resumed: look soon."""
        self._told.set()

    async def _watch_marks(self) -> None:
        """Look when told, and every second while something is held back."""
        trouble = FailureLog(log)
        while True:
            holding = bool(self._paused) or any(each.parked for each in self.partitions.values())
            try:
                async with asyncio.timeout(RESUMED if holding else None):
                    await self._told.wait()
            except TimeoutError:
                pass
            self._told.clear()
            try:
                await self._compare(set(await self._small_run(pauses.read(self._paused_key))))
                await self._compare_parked()
            except (LostError, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # which the link has logged
                    trouble.warn(f"processor {self.declared.name}: its pauses can't be read: {text_of(error)}")
                self._told.set()
                await asyncio.sleep(RESUMED)

    async def _compare(self, paused: set[str]) -> None:
        """Pause what is paused on the server, and begin what is not any more."""
        before, self._paused = self._paused, paused
        for partition in list(self.partitions.values()):
            names = {pauses.ALL, str(partition.number)}
            if names & paused and not names & before:
                log.warning("processor %s: %s is paused", self.declared.name, partition.buffer.stream)
                self._in_passing(self._finish(partition))
            elif names & before and not names & paused:
                log.info("processor %s: %s is resumed", self.declared.name, partition.buffer.stream)
                await self._begin_again(partition)

    async def _compare_parked(self) -> None:
        """Begin again where keys are parked or resumed by others."""
        if self.declared.ordering != "key":
            return
        begun = [each for each in self.partitions.values() if each.parked_known and not each.stopping.is_set()]
        found = [pauses.parked_key(self.declared.app, self.declared.name, each.number) for each in begun]
        (texts,) = await self._small.ask(strings.mget(*found)) if found else ([],)
        for partition, key, text in zip(begun, found, texts, strict=True):
            if partition.parked != set(pauses.decoded(text, key)):
                await self._begin_again(partition)

    async def _begin_again(self, partition: Partition) -> None:
        await self._finish(partition)
        if self.partitions.get(partition.number) is partition and partition.claim.held:
            self.begin(partition.claim)

    # -- the server ------------------------------------------------------------------------------------------
    @property
    def _paused_key(self) -> str:
        return pauses.paused_key(self.declared.app, self.declared.name)

    async def _small_run(self, steps: Any) -> Any:
        """An operation that may be repeated as a whole by the caller. LostError."""
        return await arun(self._small, steps)

    async def _opened(self, channel: AsyncConnection) -> None:
        """A new connection: somebody may have taken partitions meanwhile."""
        claims = [each.claim for each in self.partitions.values() if each.claim.key]
        if claims:
            for claim in await arun(channel, check(claims)):
                self._taken(claim)

    async def _keep(self) -> None:
        """Touch what is in hand for long."""
        period = self._lease.ttl / 4
        while True:
            await asyncio.sleep(period)
            for partition in list(self.partitions.values()):
                now = time.monotonic()
                ids = partition.buffer.aging(now - self._lease.ttl / 2, now) if partition.held else []
                if ids:
                    touch = calls.ttouch(partition.buffer.stream, self.declared.group, self._retry_ms, *ids)
                    try:
                        channel = await self._reads.channel()  # which may take longer than the lease lasts
                        if partition.held:  # or it would put off what the new owner has made due
                            await channel.send([touch])
                    except LostError:
                        break
