"""Counts how often an event was started before, in processes that died and in attempts that returned it.

    app:shop:tried:bill:3:<id> = {"starts": 2, "returned": 1}       for KEPT_MS after the last change
    app:shop:tried:bill:{orders:3}:<id>                             in a cluster, in the slot of the partition

A process that an event kills (by a crash in C, lack of memory, ``os._exit``) can't count that. Therefore an event that
is redelivered after the death of its worker is recorded in this key before it is started. If the process dies again,
the key remains, and after as many attempts as the policy allows, the failure policy handles the event.

Rule 1: an event that is delivered for the first time costs nothing: no key is read or written. When a partition is
        taken over, its pending events are looked up together; with ordering "none", events that were delivered before.
Rule 2: ``starts`` counts starts without an end. Success and a final action delete the key; returning the event properly
        subtracts its start.
Rule 3: events with recorded starts are started one at a time, so that the event that kills the process can be
        identified. The next death does not count for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import redis

from tidelog.client import strings
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.operating.tasks import BackgroundTasks
from tidelog.topics.groupreader import Row
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import keys, logs
from tidelog.workers.coordination.connections import WorkerConnection
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.partition import ActivePartition

log = logs.get(__name__)
KEPT_MS: Final = 7 * 86_400_000
PAGE: Final = 1000  # keys per command


class StartCounts(msgspec.Struct, frozen=True):
    """The recorded attempts of an event."""

    starts: int = 0  # starts without a recorded end
    returned: int = 0  # attempts that returned the event

    @property
    def attempts(self) -> int:
        return self.starts + self.returned


class DiedError(Exception):
    """The processes that handled this event have died."""


class StartCounter:
    """Counts the starts of events for one processor in one worker. ``connection`` is for small, urgent calls.

    ``tag`` returns the hash tag of keys that belong to a stream.
    """

    def __init__(self, declared: Processor, connection: WorkerConnection, tag: Callable[[str], str]) -> None:
        self._declared = declared
        self._tag = tag
        self._connection = connection
        self._alone = asyncio.Lock()  # Rule 3
        self._trouble = FailureLog(log)
        retry = declared.policy.retry
        self._most = max(1, retry.attempts if retry is not None else 0)  # allowed starts that ended with a death
        self._running = BackgroundTasks()

    async def look_up(self, partition: ActivePartition, ids: Sequence[bytes], died: bool) -> None:
        """Look up events that are pending in a partition that was taken over. ``died``: their worker has died."""
        if self._declared.ack == "before":
            return
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            for entry_id, text in zip(page, await self._read(partition, page), strict=True):
                if text is not None:
                    partition.start_counts[entry_id] = _decoded(text)
                if died or text is not None:
                    partition.suspects.add(entry_id)

    async def _read(self, partition: ActivePartition, ids: Sequence[bytes]) -> Sequence[bytes | None]:
        try:
            (texts,) = await self._connection.ask(strings.mget(*[self._key(partition, each) for each in ids]))
        except redis.ResponseError as error:
            self._trouble.warn(f"processor {self._declared.name}: attempts are not counted: {text_of(error)}")
            return [None] * len(ids)
        found: Sequence[bytes | None] = texts
        return found

    def before(self, partition: ActivePartition, entry_id: bytes) -> int:
        """Return the number of recorded attempts before the current one."""
        start_counts: StartCounts | None = partition.start_counts.get(entry_id)
        return 0 if start_counts is None else start_counts.attempts - (entry_id in partition.started)

    def most_before(self, partition: ActivePartition, ids: Sequence[bytes]) -> int:
        """Return the maximum of ``before`` for these events."""
        return max((self.before(partition, each) for each in ids), default=0) if partition.start_counts else 0

    async def begin(self, partition: ActivePartition, rows: Sequence[Row]) -> tuple[list[Row], bool]:
        """Record the start of events. Returns those that have used up their starts, and whether the others must be
        processed alone; then call ``end``.
        """
        suspects = [row[0] for row in rows if row[0] in partition.suspects]
        if not suspects:
            return [], False
        partition.suspects.difference_update(suspects)
        over = {each for each in suspects if partition.start_counts.get(each, StartCounts()).starts >= self._most}
        begun = [each for each in suspects if each not in over]
        alone = any(partition.start_counts.get(each, StartCounts()).starts for each in begun)
        if alone:
            await self._alone.acquire()
        try:
            for each in begun:
                before = partition.start_counts.get(each, StartCounts())
                partition.start_counts[each] = StartCounts(before.starts + 1, before.returned)
                partition.started.add(each)
            await self._write(partition, begun)
        except BaseException:
            self.end(alone)
            raise
        return [row for row in rows if row[0] in over], alone

    def end(self, alone: bool) -> None:
        """Release the lock that ``begin`` may hold. Must be called after the function, regardless of its outcome."""
        if alone:
            self._alone.release()

    def died(self, partition: ActivePartition, row: Row) -> tuple[DiedError, int]:
        """Return the error for an event that has used up its starts, and the number of its last attempt."""
        starts = partition.start_counts[row[0]].starts + 1  # the first one was not counted
        error = DiedError(f"the process that had this event has died {starts} times before the event was finished")
        return error, max(starts, self._most + 1)

    def over(self, partition: ActivePartition, ids: Iterable[bytes]) -> None:
        """Delete the keys of settled events."""
        pop = partition.start_counts.pop
        gone = [(each, counts) for each in ids if (counts := pop(each, None)) is not None]
        partition.started.difference_update(each for each, _ in gone)
        if gone:
            deletions = [strings.delete_equal(self._key(partition, each), _text(counts)) for each, counts in gone]
            self._running.spawn(self._delete(deletions))

    async def returned_now(self, partition: ActivePartition, ids: Iterable[bytes], *, attempt: bool = False) -> None:
        """Record that these events were returned and no process has died. ``attempt``: this counts as an attempt."""
        changed = []
        for each in ids:
            before = partition.start_counts.get(each, StartCounts())
            started = each in partition.started
            after = StartCounts(before.starts - started, before.returned + attempt)
            partition.started.discard(each)
            if after != before:
                partition.start_counts[each] = after
                changed.append(each)
        await self._write(partition, changed)
        if self._declared.ordering == "none":  # the next worker reads the key
            for each in changed:
                partition.start_counts.pop(each, None)

    def returned(self, partition: ActivePartition, entry_id: bytes) -> None:
        """Record one returned attempt, without waiting."""
        self._running.spawn(self.returned_now(partition, [entry_id], attempt=True))

    async def _write(self, partition: ActivePartition, ids: Sequence[bytes]) -> None:
        if not ids:
            return
        to_send = [
            Call(("SET", self._key(partition, each), _text(partition.start_counts[each]), "PX", KEPT_MS), bool)
            for each in ids
        ]
        try:
            await self._connection.ask(*to_send)
        except redis.ResponseError as error:  # the event is started anyway
            self._trouble.warn(f"processor {self._declared.name}: attempts are not counted: {text_of(error)}")
        except LostError:  # the connection was closed
            return

    async def _delete(self, deletions: list[Call[bool]]) -> None:
        with suppress(LostError):  # the keys expire
            await self._connection.send(deletions)

    def _key(self, partition: ActivePartition, entry_id: bytes) -> str:
        tag = self._tag(partition.buffer.stream)
        return keys.starts(self._declared.app, self._declared.name, partition.number, entry_id.decode(), tag)


def _text(start_counts: StartCounts) -> bytes:
    return msgspec.json.encode(start_counts)


def _decoded(text: bytes) -> StartCounts:
    try:
        found = msgspec.json.decode(text, type=StartCounts)
    except (ValueError, RecursionError):
        return StartCounts()
    return found if 0 <= found.starts <= 1 << 31 and 0 <= found.returned <= 1 << 31 else StartCounts()
