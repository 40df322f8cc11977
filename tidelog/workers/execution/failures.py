"""``FailureHandler``: carries out the decisions of a processor's failure policy.

RetryAfter  the caller waits and retries in place
Skip        the event is acknowledged
DeadLetter  the event is written to the dead-letter queue and acknowledged, in one transaction; if the queue is on
            another group of a cluster, it is written before, and a worker that dies in between writes it twice
Park        the key is recorded on the server, and its events are set aside until it is resumed
Pause       the partition is recorded on the server and stops; the event stays pending
Halt        the same for all partitions of the processor
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from uuid import uuid4

import redis

from tidelog.client.steps import arun
from tidelog.operating.errortexts import summary_of
from tidelog.topics import TopicError, deadletters
from tidelog.topics.deadletterwriter import DeadLetterWriter
from tidelog.topics.failureactions import DeadLetter, Halt, Park, Pause, Skip
from tidelog.topics.groupreader import Row, entry_of
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.connections import WorkerConnection
from tidelog.workers.coordination.messages import message
from tidelog.workers.coordination.workergroups import WorkerGroups
from tidelog.workers.declare.policy import FinalAction, RetryAfter
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.attempts import StartCounter
from tidelog.workers.execution.outputs import OutputEntry
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.transactions import PartialCommitError

K = TypeVar("K")
log = logs.get(__name__)
REFUSED: Final = 5.0  # seconds until a final action that the server rejected is retried
ASIDE_MS: Final = 86_400_000  # a parked event becomes due after a day, and is then set aside again


class FailureHandler:
    """Handles the failures of one processor in one worker. ``connection`` is for small, urgent calls."""

    def __init__(
        self, declared: Processor, worker: str, connection: WorkerConnection, groups: WorkerGroups, stats: Stats,
        pause: Callable[[ActivePartition | None], None], check_pauses: Callable[[], None],
    ) -> None:  # fmt: skip
        self._declared = declared
        self._worker = worker
        self._connection = connection
        self._groups = groups
        self._stats = stats
        self._stop = pause  # stops consuming one partition, or all, until they are resumed on the server
        self._check_pauses = check_pauses  # checks the pauses on the server while something is paused
        self._tasks: dict[asyncio.Task[None], ActivePartition] = {}  # final actions after a rejected commit
        self.starts = StartCounter(declared, connection, groups.tag)
        self._writers: dict[str, DeadLetterWriter] = {}  # by dead-letter queue

    async def settle(self, partition: ActivePartition, rows: list[Row], error: Exception, attempt: int) -> float | None:
        """Handle a failed attempt. Returns the seconds until the next attempt, or None if the events are settled.

        If the server rejects the final action, it is repeated after another attempt. ``rows`` is empty if an
        ``app.processor`` call failed without an event. Raises StoppedError if the events must not be retried here.
        """
        if isinstance(error, StoppedError):
            raise error
        self._stats.failed += 1
        decision = self._declared.policy.decide(error, attempt)
        names = f"processor {self._declared.name}: {partition.buffer.stream} {rows[0][0].decode() if rows else ''}"
        if len(rows) > 1:
            names += f" and {len(rows) - 1} more"
        where = {"processor": self._declared.name, "partition": partition.number}
        if isinstance(decision, RetryAfter):
            self._stats.retried += 1
            log.warning(
                "%s: attempt %d failed: %s; again in %.3g s",
                names,
                attempt,
                summary_of(error),
                decision.delay,
                extra=where,
            )
            return decision.delay
        final = type(decision).__name__
        log.error("%s: given up after attempt %d: %s", names, attempt, final, exc_info=error, extra=where)
        partition.actions.begin([row[0] for row in rows])  # discard the records of the failed attempt
        try:
            await self._end(decision, partition, rows, error, attempt)
        except (redis.ResponseError, TopicError) as refused:
            log.error("%s: the server rejects %s: %s; retrying in %g s", names, final, refused, REFUSED, extra=where)
            return REFUSED
        return None

    def commit(self, partition: ActivePartition, rows: list[Row]) -> None:
        """Commit the records of finished events and their acknowledgements soon."""
        ids = [row[0] for row in rows]
        future = partition.committer.commit(partition, partition.actions.taken(ids), ids)

        def refused(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, redis.ResponseError):
                task = asyncio.get_running_loop().create_task(self._refused(partition, rows, error))
                self._tasks[task] = partition
                task.add_done_callback(self._tasks.pop)

        future.add_done_callback(refused)

    async def settled(self, partition: ActivePartition) -> None:
        """Wait until the final actions after rejected commits of this partition are done."""
        await asyncio.sleep(0)  # the callback of a commit that just ended first creates its task
        tasks = [task for task, whose in self._tasks.items() if whose is partition]
        if tasks:
            await asyncio.wait(tasks)

    async def _refused(self, partition: ActivePartition, rows: list[Row], error: redis.ResponseError) -> None:
        """Apply the final action to events whose records the server rejects permanently."""
        self._stats.failed += 1
        log.error("processor %s: the server rejects the records of an event: %s", self._declared.name, error)
        final = self._declared.policy.final
        last = isinstance(error, PartialCommitError) and not isinstance(final, Skip)  # they are not pending any more
        letter = final if isinstance(final, DeadLetter) else DeadLetter()
        try:
            while True:
                try:
                    if last:
                        await self._deadletter(letter, partition, rows, error, 1, pending=False)
                    else:
                        await self._end(final, partition, rows, error, 1)
                except (redis.ResponseError, TopicError) as refused:
                    name = type(letter if last else final).__name__
                    log.error("processor %s: the server rejects %s: %s", self._declared.name, name, refused)
                    if last and partition.held:
                        await asyncio.sleep(REFUSED)  # continues while the partition is being released
                    else:
                        await partition.rest(REFUSED)
                else:
                    return
        except (StoppedError, asyncio.CancelledError) as ended:
            if last:
                names = ", ".join(row[0].decode() for row in rows)
                log.error("processor %s: %s of %s: some records were lost, and no dead letter could be written",
                          self._declared.name, names, partition.buffer.stream)  # fmt: skip
            if isinstance(ended, asyncio.CancelledError):
                raise

    async def _end(
        self, final: FinalAction, partition: ActivePartition, rows: list[Row], error: Exception, attempt: int
    ) -> None:  # fmt: skip
        if isinstance(final, Skip | DeadLetter | Park) and not rows:
            return
        if isinstance(final, Skip):
            self._stats.skipped += len(rows)
            if self._declared.ack != "before":
                partition.acks.add_all([row[0] for row in rows])
        elif isinstance(final, DeadLetter):
            await self._deadletter(final, partition, rows, error, attempt)
        elif isinstance(final, Park):
            await self._park(partition, rows, error, attempt)
        elif isinstance(final, Pause):
            await self._pause(partition, str(partition.number), rows, error)
        elif isinstance(final, Halt):
            await self._pause(None, pauses.ALL, rows, error)
            raise StoppedError

    async def _deadletter(
        self, final: DeadLetter, partition: ActivePartition, rows: list[Row], error: Exception, attempt: int,
        pending: bool = True,
    ) -> None:  # fmt: skip
        """Write dead letters. ``pending``: acknowledge the events in the same transaction.

        From the pending list, the committer determines whether a commit without a reply was executed, so events that
        are acknowledged already must not be among its IDs.
        """
        declared = self._declared
        name = final.target(declared.topic.name)
        writer = self._writers.setdefault(name, DeadLetterWriter(name))
        origin = deadletters.home(declared.topic.name)
        await self._listed(partition, lambda: arun(self._connection, writer.ready([origin])))
        written = []
        for row in rows:
            key = self._key(partition, row, declared.topic.key)  # it determines where a replay goes
            written.append(deadletters.fields_of(
                declared.topic.name, partition.number, entry_of(row), key, declared.group,
                error, attempt, self._worker, _now(),
            ))  # fmt: skip
        queue = deadletters.stream_of(name)
        outputs = [OutputEntry(queue, [field for field, _ in each], [value for _, value in each]) for each in written]
        ids = [row[0] for row in rows] if pending and self._declared.ack != "before" else []
        if not self._groups.together(partition.buffer.stream, queue):
            producer = f"{self._worker}:{uuid4().hex}"  # a repetition after a lost reply is no further dead letter
            letters = [
                deadletters.once(deadletters.append(name, each), f"{producer}:{at // deadletters.PAGE}", str(at))
                for at, each in enumerate(written)
            ]
            await self._listed(partition, lambda: self._connection.ask(*letters))
            outputs = []
        await partition.committer.commit(partition, outputs, ids)
        self._stats.deadlettered += len(rows)

    def _key(self, partition: ActivePartition, row: Row, key_of: Callable[[Any], K]) -> K | None:
        try:
            return key_of(partition.record(row))
        except Exception:  # noqa: BLE001 - an entry that is no record, or a record without a key
            return None

    async def _park(self, partition: ActivePartition, rows: list[Row], error: Exception, attempt: int) -> None:
        for row in rows:
            key = self._key(partition, row, self._declared.key_of)
            if key is None:  # without a key, only the event itself could be retained
                await self._deadletter(DeadLetter(), partition, [row], error, attempt)
                continue
            name = pauses.shown_key(key)
            details = {"id": row[0].decode(), "error": _shown(error), "time": _now()}
            tag = self._groups.tag(partition.buffer.stream)
            where = pauses.parked_key(self._declared.app, self._declared.name, partition.number, tag)
            await self._listed(partition, lambda: arun(self._connection, pauses.add(where, name, details)))  # noqa: B023
            partition.parked.add(name)
            self._check_pauses()
            await self.set_aside(partition, [row])

    async def set_aside(self, partition: ActivePartition, rows: list[Row]) -> None:
        """Set events of parked keys aside: they stay pending and become due much later."""
        ids = [row[0] for row in rows]
        self._stats.parked += len(ids)
        if partition.held:
            await self._listed(partition, lambda: self._connection.ask(partition.buffer.touch(ids, ASIDE_MS)))
        partition.buffer.forget(ids)

    async def _pause(self, partition: ActivePartition | None, name: str, rows: list[Row], error: Exception) -> None:
        reason = _shown(error) + (f" at {rows[0][0].decode()}" if rows else "")
        details = {"reason": reason, "time": _now(), "worker": self._worker}
        where = pauses.paused_key(self._declared.app, self._declared.name)
        await self._listed(partition, lambda: arun(self._connection, pauses.add(where, name, details)))
        notification = message(self._declared.app, "paused", self._worker, self._declared.name, None)
        await self._listed(partition, lambda: self._connection.ask(notification))
        self._stop(partition)
        raise StoppedError

    async def _listed(self, partition: ActivePartition | None, write: Callable[[], Awaitable[Any]]) -> None:
        """Write to the server; retries until there is a reply. Raises StoppedError if the partition is lost."""
        while True:
            try:
                await write()
            except LostError:
                if partition is not None and not partition.held:
                    raise StoppedError from None
            except redis.ResponseError:
                log.exception("processor %s: the server rejects the change of its pauses", self._declared.name)
                return
            else:
                return


def _shown(error: Exception) -> str:
    return summary_of(error)[:500]


def _now() -> int:
    return int(time.time() * 1000)
