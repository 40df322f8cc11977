"""``ProcessorExecutor``: runs one processor in one worker, for the partitions that the worker owns.

    acquired  entries that a previous owner left pending become due, in the order of their IDs, so that they precede new
              ones; then the fetcher reads the partition, and a consumer processes it
    released  no event is started any more; events in progress are finished within ``grace``, acknowledgements are
              flushed, and the remaining entries are returned
    lost      all entries are dropped, and none is acknowledged

Rule 1: after a lost connection, claims are compared with the server before anything else is sent.
Rule 2: each group of a cluster has a line of its own (``GroupLine``), so a group that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis

from tidelog.client import calls, strings
from tidelog.client.steps import arun
from tidelog.coordination import Claim, Lease
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.operating.tasks import BackgroundTasks, set_within
from tidelog.options.start import LATEST
from tidelog.topics.groupreader import group_offset, id_of, touch
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.workergroups import WorkerGroups
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.consumer import BatchConsumer, EachConsumer, PartitionConsumer
from tidelog.workers.execution.event_actions import PartitionEventActions
from tidelog.workers.execution.events_consumer import EventsConsumer
from tidelog.workers.execution.failures import FailureHandler
from tidelog.workers.execution.group_creation import create_groups_at_end
from tidelog.workers.execution.groupline import GroupLine
from tidelog.workers.execution.keyed import KeyedConsumer, WorkSlots
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.unordered import UnorderedConsumer

log = logs.get(__name__)
RESUMED: Final = 1.0  # seconds between two checks while something is paused
ADOPTED: Final = 1000  # keys per command
AGAIN: Final = 1.0  # seconds until a partition whose consumer failed is restarted


class ProcessorExecutor:
    """Executes ``declared`` for the worker that holds ``lease``. ``grace``: seconds to finish events at a release."""

    def __init__(
        self, declared: Processor, groups: WorkerGroups, lease: Lease, grace: float, stats: Stats | None = None
    ) -> None:  # fmt: skip
        self.declared = declared
        self.stats = stats or Stats()
        self.partitions: dict[int, ActivePartition] = {}
        self._lease = lease
        self._grace = grace
        self._retry_ms = max(1, round(lease.ttl * 1000))
        self._groups = groups
        self._urgent = groups.home.connector.connection()  # for calls that must not wait behind large replies
        self.lines = [GroupLine(declared, each, self.stats, self._claims_on, self._taken) for each in groups.all]
        self._line_of = {id(line.group): line for line in self.lines}
        self.failures = FailureHandler(
            declared, lease.owner, self._urgent, groups, self.stats, self.pause, self.check_pauses
        )  # fmt: skip
        self._slots = WorkSlots(declared.concurrency)
        self._batches = asyncio.Semaphore(declared.concurrency) if declared.ordering == "none" else None
        self._tasks: list[asyncio.Task[Any]] = []
        self._passing = BackgroundTasks(self._logged)
        self._context = logs.context(processor=declared.name)
        self.paused: set[str] = set()  # paused partitions, or pauses.ALL
        self._pauses_changed = asyncio.Event()  # the pauses on the server may have changed
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # why it can't continue
        self.recheck_claims: Callable[[], None] = lambda: None  # called when a claim turned out to be another worker's

    # -- start and stop --------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Read the pauses and start the tasks. Raises the server's errors."""
        self.paused = set(await self._urgent.repeat(lambda: pauses.read(self._paused_key)))
        await self._adopt_parked()
        if self.declared.start == LATEST:
            await self._urgent.repeat(lambda: create_groups_at_end(self.declared))
        for line in self.lines:
            self._spawn(line.fetcher.run())
            self._spawn(line.committer.run())
        self._spawn(touch(self._touchable, self._lease.ttl, self._touch))
        self._spawn(self._watch_pauses())
        if self.declared.ordering != "partition":
            self._spawn(self._slots.run())

    async def stop(self) -> None:
        """Stop. Partitions that were not released are dropped."""
        for number in list(self.partitions):
            self.lost(number)
        tasks = [*self._tasks, *self._passing.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failure.cancel() and not self.failure.cancelled():
            self.failure.exception()  # mark it as retrieved
        for line in self.lines:
            line.close()
        self._urgent.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name=self.declared.name, context=self._context)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _in_passing(self, work: Any) -> None:
        self._passing.spawn(work, name=self.declared.name, context=self._context)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Report the error of a task without which the processor or a partition would stall: the worker must end.

        A task of a partition fails only with an error that is not an Exception.
        """
        if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
            self.failure.set_exception(error)

    def _logged(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("processor %s: %s", self.declared.name, error, exc_info=error)

    # -- PartitionListener -----------------------------------------------------------------------------------
    async def acquired(self, claim: Claim) -> None:
        """See ``PartitionListener.acquired``."""
        self.begin(claim)

    def begin(self, claim: Claim) -> None:
        """Start consuming a partition."""
        line = self.line_of(claim.partition)
        buffer = Buffer(self.declared, claim, self._retry_ms, line.fetcher.room_available)
        acks = Acks(line.reads, buffer, self.stats)
        actions = PartitionEventActions(
            self.declared, buffer, acks, claim, self._urgent, line.reads, self._groups, self._logged,
            self._reject,
        )  # fmt: skip
        partition = ActivePartition(self.declared.topic, claim, buffer, acks, actions, line.committer)
        actions.settled = partial(self._manually, partition)
        self.partitions[claim.partition] = partition
        context = self._context.copy()
        context.run(logs.enter, partition=claim.partition)
        partition.task = asyncio.create_task(self._consume(partition), context=context)
        partition.task.add_done_callback(self._ended)

    def _manually(self, partition: ActivePartition, entry_id: bytes, acknowledged: bool) -> None:
        """Update the start counts after the function has acknowledged or returned an event itself."""
        starts = self.failures.starts
        if not acknowledged:
            starts.returned(partition, entry_id)
            if self.declared.ordering != "none":  # otherwise any worker may get it, and reads its counts
                partition.suspects.add(entry_id)
        elif partition.start_counts:
            starts.over(partition, [entry_id])

    def _reject(self, text: str) -> Exception:
        """End the worker, because the declaration can't be executed. The event stays pending."""
        if not self.failure.done():
            self.failure.set_exception(AppError(text))
        return StoppedError(text)

    async def released(self, number: int) -> None:
        """See ``PartitionListener.released``."""
        partition = self.partitions.pop(number, None)
        if partition is not None:
            await self._finish(partition)

    def lost(self, number: int) -> None:
        """See ``PartitionListener.lost``."""
        partition = self.partitions.pop(number, None)
        if partition is None:
            return
        partition.claim.lost = True
        partition.stop()
        self.line_of(number).fetcher.remove(partition.buffer)
        self.stats.dropped += len(partition.buffer.in_flight)
        partition.buffer.rows.clear()
        partition.acks.drop()
        if partition.task is not None:
            partition.task.cancel()

    def _taken(self, claim: Claim) -> None:
        """Handle a claim that turned out to be another worker's."""
        claim.lost = True
        partition = self.partitions.get(claim.partition)
        if partition is not None and partition.claim is claim:
            log.warning("processor %s: another worker took partition %d", self.declared.name, claim.partition)
            self.lost(claim.partition)
            self.recheck_claims()

    # -- one partition ---------------------------------------------------------------------------------------
    async def _consume(self, partition: ActivePartition) -> None:
        if not self.paused.isdisjoint((pauses.ALL, str(partition.number))):
            return  # it is started when it is resumed
        try:
            await self.recover(partition)
            if partition.stopping.is_set():  # nobody would consume the entries
                return
            consumer = self._consumer(partition)
            self.line_of(partition.number).fetcher.add(partition.buffer)
            await consumer.run()
        except Exception as error:
            if is_denied(error):
                raise
            if not isinstance(error, LostError):
                log.exception("processor %s: restarting %s", self.declared.name, partition.buffer.stream)
                with suppress(StoppedError):
                    await partition.rest(AGAIN)
            self._in_passing(self._restart(partition))  # settles finished events and returns the others first
            return
        if partition.held and not partition.stopping.is_set():  # the function is done
            self._in_passing(self._finish(partition))

    async def recover(self, partition: ActivePartition) -> None:
        """Make all pending messages due in the order of their IDs; due messages are delivered before new entries.

        Messages of parked keys are delivered as well, and set aside again.
        """
        buffer = partition.buffer
        partition.parked = set(await self._drive(pauses.read(self._parked_key(partition.number))))
        partition.parked_known = True
        if partition.parked:
            self.check_pauses()
        created = calls.tread(buffer.stream, buffer.start, 0, group=buffer.group)
        reads = self.line_of(partition.number).reads
        _, offset = await reads.ask(created, group_offset(buffer.stream, buffer.group))
        if self.declared.ordering == "none":
            buffer.offset = offset
            return
        died, partition.claim.inherited = partition.claim.inherited, False
        await self.failures.starts.look_up(partition, await reads.repeat(buffer.make_due), died)

    def _consumer(self, partition: ActivePartition) -> PartitionConsumer:
        declared, failures, stats = self.declared, self.failures, self.stats
        if declared.kind == "events":
            return EventsConsumer(declared, partition, failures, stats)
        if declared.kind == "batch":
            return BatchConsumer(declared, partition, failures, stats, self._batches)
        if declared.ordering == "key":
            return KeyedConsumer(declared, partition, failures, stats, self._slots)
        if declared.ordering == "none":
            reads = self.line_of(partition.number).reads
            return UnorderedConsumer(declared, partition, failures, stats, self._slots, reads)
        return EachConsumer(declared, partition, failures, stats)

    async def _finish(self, partition: ActivePartition) -> None:
        """Start no event any more, finish the current ones, acknowledge, and return the rest."""
        partition.stop()
        self.line_of(partition.number).fetcher.remove(partition.buffer)
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
            async with asyncio.timeout(partition.claim.tenure.left):
                await self._return_rest(partition)
        except TimeoutError:
            log.warning("processor %s: %s was not returned: no server", self.declared.name, partition.buffer.stream)
        partition.ended = True
        partition.acks.drop()
        partition.buffer.clear()

    async def _return_rest(self, partition: ActivePartition) -> None:
        """Acknowledge finished entries and make the others due for the next owner."""
        buffer = partition.buffer
        await buffer.not_reading.wait()
        await partition.acks.flush()
        await partition.committer.flushed(partition)
        await self.failures.settled(partition)
        while buffer.in_flight and partition.held:
            ids = sorted(buffer.in_flight, key=id_of)
            try:
                await self.line_of(partition.number).reads.send([buffer.nack(ids)])
            except LostError:
                continue
            self.stats.returned += len(ids)
            begun = [each for each in ids if each in partition.started]
            if begun:
                await self.failures.starts.returned_now(partition, begun)
            buffer.forget(ids)

    # -- pauses ----------------------------------------------------------------------------------------------
    def pause(self, partition: ActivePartition | None) -> None:
        """Stop consuming one partition, or all, until they are resumed on the server."""
        self.paused.add(pauses.ALL if partition is None else str(partition.number))
        for each in [partition] if partition is not None else list(self.partitions.values()):
            self._in_passing(self._finish(each))

    def check_pauses(self) -> None:
        """Check the pauses on the server soon."""
        self._pauses_changed.set()

    async def _watch_pauses(self) -> None:
        """Check the pauses after a notification, and every second while something is paused."""
        trouble = FailureLog(log)
        while True:
            holding = bool(self.paused) or any(each.parked for each in self.partitions.values())
            await set_within(self._pauses_changed, RESUMED if holding else None)
            self._pauses_changed.clear()
            try:
                await self._compare(set(await self._drive(pauses.read(self._paused_key))))
                await self._compare_parked()
            except (LostError, redis.ResponseError) as error:
                if not isinstance(error, LostError):  # already logged by the connector
                    trouble.warn(f"processor {self.declared.name}: its pauses can't be read: {text_of(error)}")
                self._pauses_changed.set()
                await asyncio.sleep(RESUMED)

    async def _compare(self, paused: set[str]) -> None:
        """Stop partitions that are paused on the server, and start those that are resumed."""
        before, self.paused = self.paused, paused
        for partition in list(self.partitions.values()):
            names = {pauses.ALL, str(partition.number)}
            if names & paused and not names & before:
                log.warning("processor %s: %s is paused", self.declared.name, partition.buffer.stream)
                self._in_passing(self._finish(partition))
            elif names & before and not names & paused:
                log.info("processor %s: %s is resumed", self.declared.name, partition.buffer.stream)
                await self._restart(partition)

    async def _compare_parked(self) -> None:
        """Restart partitions whose parked keys were changed by others."""
        if self.declared.ordering != "key":
            return
        begun = [each for each in self.partitions.values() if each.parked_known and not each.stopping.is_set()]
        found = [self._parked_key(each.number) for each in begun]
        (texts,) = await self._urgent.ask(strings.mget(*found)) if found else ([],)
        for partition, key, text in zip(begun, found, texts, strict=True):
            if partition.parked != set(pauses.decoded(text, key)):
                await self._restart(partition)

    async def _restart(self, partition: ActivePartition) -> None:
        await self._finish(partition)
        if self.partitions.get(partition.number) is partition and partition.claim.held:
            self.begin(partition.claim)

    # -- the server ------------------------------------------------------------------------------------------
    @property
    def _paused_key(self) -> str:
        return pauses.paused_key(self.declared.app, self.declared.name)

    def _parked_key(self, partition: int) -> str:
        tag = self._groups.tag(self.declared.topic.stream(partition))
        return pauses.parked_key(self.declared.app, self.declared.name, partition, tag)

    async def _adopt_parked(self) -> None:
        """Move the parked keys from names without a hash tag to those of a cluster, or the reverse."""
        declared = self.declared
        count = declared.topic.partitions if declared.ordering == "key" else 0
        moves: list[tuple[str, str]] = []
        for at in range(count):
            alone, tagged = pauses.parked_keys(declared.app, declared.name, at, declared.topic.stream(at))
            moves.append((alone, tagged) if self._parked_key(at) == tagged else (tagged, alone))
        for start in range(0, count, ADOPTED):
            page = moves[start : start + ADOPTED]
            (there,) = await self._urgent.ask(strings.mget(*[old for old, _ in page]))
            for (old, new), text in zip(page, there, strict=True):
                if text is not None:
                    await self._urgent.repeat(partial(pauses.move, old, new))

    async def _drive(self, steps: Any) -> Any:
        """Drive an operation that the caller can repeat as a whole. Raises LostError."""
        return await arun(self._urgent, steps)

    def line_of(self, partition: int) -> GroupLine:
        """Return the line to the group that has a partition."""
        return self._line_of[id(self._groups.of(self.declared.topic.stream(partition)))]

    def _claims_on(self, line: GroupLine) -> list[Claim]:
        return [each.claim for number, each in self.partitions.items() if self.line_of(number) is line]

    def drop_moved(self) -> None:
        """Drop the partitions whose slots were assigned to another group: nothing can be acknowledged here."""
        for number in self._groups.lost(self.declared.topic.stream, [*self.partitions]):
            self.lost(number)

    def _touchable(self) -> list[Buffer]:
        return [partition.buffer for partition in self.partitions.values() if partition.held]

    async def _touch(self, buffer: Buffer, call: Call[int]) -> None:
        reads = self.line_of(buffer.claim.partition).reads
        channel = await reads.channel()  # this may take longer than the lease lasts
        if buffer.active:  # otherwise it would postpone what the new owner has made due
            await channel.send([call])
