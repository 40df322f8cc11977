"""``Failures``: carries out what the failure policy of a processor decides.

Again       the caller waits, and tries again in place
Skip        acknowledged
DeadLetter  appended to the dead letters and acknowledged, in one transaction
Park        the key is listed on the server, and its events are set aside until it is resumed
Pause       the partition is listed on the server and stops; the event stays pending
Halt        the same for all partitions of the processor
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import redis

from tidelog.client import calls
from tidelog.client.steps import arun
from tidelog.operating.errortexts import summary_of
from tidelog.topics import TopicError, deadletters
from tidelog.topics.partition import Key
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination import pauses
from tidelog.workers.coordination.connections import Line
from tidelog.workers.coordination.control_stream import message
from tidelog.workers.declare.policy import Again, DeadLetter, Ending, Halt, Park, Pause, Skip
from tidelog.workers.declare.processor import Declared
from tidelog.workers.execution.attempts import Starts
from tidelog.workers.execution.buffers import Row
from tidelog.workers.execution.outputs import Output
from tidelog.workers.execution.partition import Partition, StoppedError, entry_of
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.transactions import Committer, PartlyError

log = logs.get(__name__)
REFUSED: Final = 5.0  # seconds until an ending that the server refuses is tried again
ASIDE_MS: Final = 86_400_000  # a parked event is due again after a day, and is then set aside again


class Stopping(Protocol):
    """What can be paused. The executor implements it."""

    def pause(self, partition: Partition | None) -> None:
        """Stop consuming one partition, or all, until it is resumed on the server."""

    def look(self) -> None:
        """Something is held back: look now and then whether it still is."""


class Failures:
    """Of one processor in one worker. ``line``: where small and urgent calls leave."""

    def __init__(
        self, declared: Declared, worker: str, line: Line, committer: Committer, executor: Stopping, stats: Stats
    ) -> None:
        self._declared = declared
        self._worker = worker
        self._line = line
        self._committer = committer
        self._executor = executor
        self._stats = stats
        self._tasks: dict[asyncio.Task[None], Partition] = {}  # endings of what the server has refused
        self.starts = Starts(declared, line)
        self._letters: set[str] = set()  # topics for dead letters that are known to be there

    async def settle(self, partition: Partition, rows: list[Row], error: Exception, attempt: int) -> float | None:
        """After the attempt of this number failed: seconds until the next one; None if the events are finished. A call
        of the generator form may fail without one. An ending that the server refuses is due again with another attempt.

        StoppedError if they are not to be tried again here.
        """
        if isinstance(error, StoppedError):
            raise error
        self._stats.failed += 1
        decision = self._declared.policy.decide(error, attempt)
        names = f"processor {self._declared.name}: {partition.buffer.stream} {rows[0][0].decode() if rows else ''}"
        if len(rows) > 1:
            names += f" and {len(rows) - 1} more"
        where = {"processor": self._declared.name, "partition": partition.number}
        if isinstance(decision, Again):
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
        ending = type(decision).__name__
        log.error("%s: given up after attempt %d: %s", names, attempt, ending, exc_info=error, extra=where)
        partition.sink.begin([row[0] for row in rows])  # what the failed attempt has sent is thrown away
        try:
            await self._end(decision, partition, rows, error, attempt)
        except (redis.ResponseError, TopicError) as refused:
            log.error("%s: %s is refused: %s; trying again in %g s", names, ending, refused, REFUSED, extra=where)
            return REFUSED
        return None

    def commit(self, partition: Partition, rows: list[Row]) -> None:
        """Commit what finished events have sent, with their acknowledgements, soon."""
        ids = [row[0] for row in rows]
        future = self._committer.commit(partition, partition.sink.taken(ids), ids)

        def refused(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if isinstance(error, redis.ResponseError):
                task = asyncio.get_running_loop().create_task(self._refused(partition, rows, error))
                self._tasks[task] = partition
                task.add_done_callback(self._tasks.pop)

        future.add_done_callback(refused)

    async def settled(self, partition: Partition) -> None:
        """Wait until what the server has refused of this partition has got its ending."""
        await asyncio.sleep(0)  # what a commit has just told makes its task first
        tasks = [task for task, whose in self._tasks.items() if whose is partition]
        if tasks:
            await asyncio.wait(tasks)

    async def _refused(self, partition: Partition, rows: list[Row], error: redis.ResponseError) -> None:
        """The server refuses what events have sent, and will again: they get the policy's ending."""
        self._stats.failed += 1
        log.error("processor %s: the server refuses what was sent: %s", self._declared.name, error)
        ending = self._declared.policy.ending
        last = isinstance(error, PartlyError) and not isinstance(ending, Skip)  # they are not pending any more
        letter = ending if isinstance(ending, DeadLetter) else DeadLetter()
        try:
            while True:
                try:
                    if last:
                        await self._deadletter(letter, partition, rows, error, 1, pending=False)
                    else:
                        await self._end(ending, partition, rows, error, 1)
                except (redis.ResponseError, TopicError) as refused:
                    name = type(letter if last else ending).__name__
                    log.error("processor %s: %s is refused: %s", self._declared.name, name, refused)
                    if last and partition.held:
                        await asyncio.sleep(REFUSED)  # also while the partition is being released
                    else:
                        await partition.rest(REFUSED)
                else:
                    return
        except (StoppedError, asyncio.CancelledError) as ended:
            if last:
                names = ", ".join(row[0].decode() for row in rows)
                log.error("processor %s: %s of %s: what they sent is lost in part, and no dead letter could be written",
                          self._declared.name, names, partition.buffer.stream)  # fmt: skip
            if isinstance(ended, asyncio.CancelledError):
                raise

    async def _end(
        self, ending: Ending, partition: Partition, rows: list[Row], error: Exception, attempt: int
    ) -> None:  # fmt: skip
        if isinstance(ending, Skip | DeadLetter | Park) and not rows:
            return
        if isinstance(ending, Skip):
            self._stats.skipped += len(rows)
            if self._declared.ack != "before":
                partition.acks.add_all([row[0] for row in rows])
        elif isinstance(ending, DeadLetter):
            await self._deadletter(ending, partition, rows, error, attempt)
        elif isinstance(ending, Park):
            await self._park(partition, rows, error, attempt)
        elif isinstance(ending, Pause):
            await self._pause(partition, str(partition.number), rows, error)
        elif isinstance(ending, Halt):
            await self._pause(None, pauses.ALL, rows, error)
            raise StoppedError

    async def _deadletter(
        self, ending: DeadLetter, partition: Partition, rows: list[Row], error: Exception, attempt: int,
        pending: bool = True,
    ) -> None:  # fmt: skip
        """``pending``: the events are to be acknowledged with it. The pending list tells the committer whether a commit
        without a reply was carried out, so those that are acknowledged already must not be among its IDs."""
        declared = self._declared
        name = ending.target(declared.topic.name)
        if name not in self._letters:
            source = deadletters.home(declared.topic.name)
            await self._listed(partition, lambda: arun(self._line, deadletters.ready(name, source)))
            self._letters.add(name)
        outputs = []
        for row in rows:
            pairs = deadletters.fields_of(
                declared.topic.name, partition.number, entry_of(row), self._topic_key(partition, row), declared.group,
                error, attempt, self._worker, _now(),
            )  # fmt: skip
            outputs.append(
                Output(deadletters.stream_of(name), [field for field, _ in pairs], [value for _, value in pairs])
            )
        ids = [row[0] for row in rows] if pending and self._declared.ack != "before" else []
        await self._committer.commit(partition, outputs, ids)
        self._stats.deadlettered += len(rows)

    def _topic_key(self, partition: Partition, row: Row) -> Key | None:
        """The key that decided the event's partition, where it has one: it decides where a replay goes, too."""
        try:
            return self._declared.topic.key(partition.record(row))
        except Exception:  # noqa: BLE001 - an entry that is no record, or a record without a key
            return None

    def _key(self, partition: Partition, row: Row) -> bytes | None:
        """The key by which the processor orders, where the event has one that can be told."""
        try:
            return self._declared.key_of(partition.record(row))
        except Exception:  # noqa: BLE001 - an entry that is no record, or a record without a key
            return None

    async def _park(self, partition: Partition, rows: list[Row], error: Exception, attempt: int) -> None:
        for row in rows:
            key = self._key(partition, row)
            if key is None:  # there is nothing to hold back but the event itself
                await self._deadletter(DeadLetter(), partition, [row], error, attempt)
                continue
            name = pauses.shown_key(key)
            facts = {"id": row[0].decode(), "error": _shown(error), "time": _now()}
            where = pauses.parked_key(self._declared.app, self._declared.name, partition.number)
            await self._listed(partition, lambda: arun(self._line, pauses.add(where, name, facts)))  # noqa: B023
            partition.parked.add(name)
            self._executor.look()
            await self.set_aside(partition, [row])

    async def set_aside(self, partition: Partition, rows: list[Row]) -> None:
        """Events of parked keys: they stay pending, and out of the way."""
        ids = [row[0] for row in rows]
        self._stats.parked += len(ids)
        if partition.held:
            touch = calls.ttouch(partition.buffer.stream, self._declared.group, ASIDE_MS, *ids)
            await self._listed(partition, lambda: self._line.ask(touch))
        partition.buffer.forget(ids)

    async def _pause(self, partition: Partition | None, name: str, rows: list[Row], error: Exception) -> None:
        reason = _shown(error) + (f" at {rows[0][0].decode()}" if rows else "")
        facts = {"reason": reason, "time": _now(), "worker": self._worker}
        where = pauses.paused_key(self._declared.app, self._declared.name)
        await self._listed(partition, lambda: arun(self._line, pauses.add(where, name, facts)))
        told = message(self._declared.app, "paused", self._worker, self._declared.name, None)
        await self._listed(partition, lambda: self._line.ask(told))
        self._executor.pause(partition)
        raise StoppedError

    async def _listed(self, partition: Partition | None, write: Callable[[], Awaitable[Any]]) -> None:
        """Write to the server, again while it does not answer. StoppedError if the partition is lost meanwhile."""
        while True:
            try:
                await write()
            except LostError:
                if partition is not None and not partition.held:
                    raise StoppedError from None
            except redis.ResponseError:
                log.exception("processor %s: the server refuses to write what is held back", self._declared.name)
                return
            else:
                return


def _shown(error: Exception) -> str:
    return summary_of(error)[:500]


def _now() -> int:
    return int(time.time() * 1000)
