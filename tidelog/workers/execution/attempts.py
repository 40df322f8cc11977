"""Counts how often an event was begun before, by processes that died and by calls that returned it.

    app:shop:tried:bill:3:<id> = {"starts": 2, "returned": 1}       for KEPT_MS after the last change

An event that ends its process (a crash in C, no memory left, ``os._exit``) can't be counted by that process. So an
event that is redelivered after the death of its worker is begun with care: this key is written first. If the process
dies again, the key remains, and after the policy's number of attempts the failure policy handles the event.

Rule 1: an event that is delivered for the first time costs nothing: no key is read or written. When a partition is
        taken over, its pending events are looked up together; with ordering "none", events that were delivered before.
Rule 2: ``starts`` counts starts without an end. Success and an ending delete the key; returning the event properly
        subtracts its start.
Rule 3: events that were begun with care before are begun one at a time, so that the event that kills the process can be
        identified. The next death does not count for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import redis

from tidelog.client import strings
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call
from tidelog.workers import keys, logs
from tidelog.workers.coordination.connections import Line
from tidelog.workers.declare.processor import Declared
from tidelog.workers.execution.buffers import Row
from tidelog.workers.execution.partition import Partition

log = logs.get(__name__)
KEPT_MS: Final = 7 * 86_400_000
PAGE: Final = 1000  # keys of one command


class Tried(msgspec.Struct, frozen=True):
    """What is known of an event."""

    starts: int = 0  # that have not ended, as far as anybody knows
    returned: int = 0  # attempts after which it was given back

    @property
    def attempts(self) -> int:
        return self.starts + self.returned


class DiedError(Exception):
    """The processes that had this event have died."""


class Starts:
    """Of one processor in one worker. ``line``: where small and urgent calls leave."""

    def __init__(self, declared: Declared, line: Line) -> None:
        self._declared = declared
        self._line = line
        self._alone = asyncio.Lock()  # Rule 3
        self._trouble = FailureLog(log)
        retry = declared.policy.retry
        self._most = max(1, retry.n if retry is not None else 0)  # starts that may have ended with a death
        self._tasks: set[asyncio.Task[None]] = set()

    async def look_up(self, partition: Partition, ids: Sequence[bytes], died: bool) -> None:
        """These are pending in a partition that is taken over. ``died``: the worker that had them has."""
        if self._declared.ack == "before":
            return
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            for entry_id, text in zip(page, await self._read(partition, page), strict=True):
                if text is not None:
                    partition.tried[entry_id] = _decoded(text)
                if died or text is not None:
                    partition.doubtful.add(entry_id)

    async def _read(self, partition: Partition, ids: Sequence[bytes]) -> Sequence[bytes | None]:
        try:
            (texts,) = await self._line.ask(strings.mget(*[self._key(partition, each) for each in ids]))
        except redis.ResponseError as error:
            self._trouble.warn(f"processor {self._declared.name}: attempts are not counted: {text_of(error)}")
            return [None] * len(ids)
        found: Sequence[bytes | None] = texts
        return found

    def before(self, partition: Partition, entry_id: bytes) -> int:
        """Attempts before the current one, as far as they are known."""
        tried: Tried | None = partition.tried.get(entry_id)
        return 0 if tried is None else tried.attempts - (entry_id in partition.begun)

    async def begin(self, partition: Partition, rows: Sequence[Row]) -> tuple[list[Row], bool]:
        """Before events are given to the function. Returns those that have had their starts, and whether the others are
        begun alone, so that ``end`` is to be called.
        """
        doubtful = [row[0] for row in rows if row[0] in partition.doubtful]
        if not doubtful:
            return [], False
        partition.doubtful.difference_update(doubtful)
        over = {each for each in doubtful if partition.tried.get(each, Tried()).starts >= self._most}
        begun = [each for each in doubtful if each not in over]
        alone = any(partition.tried.get(each, Tried()).starts for each in begun)
        if alone:
            await self._alone.acquire()
        try:
            for each in begun:
                before = partition.tried.get(each, Tried())
                partition.tried[each] = Tried(before.starts + 1, before.returned)
                partition.begun.add(each)
            await self._write(partition, begun)
        except BaseException:
            self.end(alone)
            raise
        return [row for row in rows if row[0] in over], alone

    def end(self, alone: bool) -> None:
        """The call has come to an end, whatever it was."""
        if alone:
            self._alone.release()

    def died(self, partition: Partition, row: Row) -> tuple[DiedError, int]:
        """The error of an event that has had its starts, and which attempt the last one was."""
        starts = partition.tried[row[0]].starts + 1  # the first one was not counted
        error = DiedError(f"the process that had this event has died {starts} times before the event was finished")
        return error, max(starts, self._most + 1)

    def over(self, partition: Partition, ids: Iterable[bytes]) -> None:
        """These are settled: the key goes."""
        gone = [(each, tried) for each in ids if (tried := partition.tried.pop(each, None)) is not None]
        partition.begun.difference_update(each for each, _ in gone)
        if gone:
            self._spawn([strings.delete_equal(self._key(partition, each), _text(tried)) for each, tried in gone])

    async def given_back(self, partition: Partition, ids: Iterable[bytes], *, attempt: bool = False) -> None:
        """These come again, and nobody has died. ``attempt``: it counts as one."""
        changed = []
        for each in ids:
            before = partition.tried.get(each, Tried())
            started = each in partition.begun
            after = Tried(before.starts - started, before.returned + attempt)
            partition.begun.discard(each)
            if after != before:
                partition.tried[each] = after
                changed.append(each)
        await self._write(partition, changed)
        if self._declared.ordering == "none":  # whoever gets them reads the key
            for each in changed:
                partition.tried.pop(each, None)

    def returned(self, partition: Partition, entry_id: bytes) -> None:
        """As ``given_back`` of one attempt, without waiting."""
        task = asyncio.get_running_loop().create_task(self.given_back(partition, [entry_id], attempt=True))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, partition: Partition, ids: Sequence[bytes]) -> None:
        if not ids:
            return
        made = [
            Call(("SET", self._key(partition, each), _text(partition.tried[each]), "PX", KEPT_MS), bool) for each in ids
        ]
        try:
            await self._line.ask(*made)
        except redis.ResponseError as error:  # it is begun all the same
            self._trouble.warn(f"processor {self._declared.name}: attempts are not counted: {text_of(error)}")
        except LostError:  # the line was closed
            return

    def _spawn(self, made: list[Call[bool]]) -> None:
        async def send() -> None:
            try:
                await self._line.send(made)
            except LostError:
                return  # what stays ends by its time

        task = asyncio.get_running_loop().create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _key(self, partition: Partition, entry_id: bytes) -> str:
        return keys.tried(self._declared.app, self._declared.name, partition.number, entry_id.decode())


def _text(tried: Tried) -> bytes:
    return msgspec.json.encode(tried)


def _decoded(text: bytes) -> Tried:
    try:
        found = msgspec.json.decode(text, type=Tried)
    except (ValueError, RecursionError):
        return Tried()
    return found if 0 <= found.starts <= 1 << 31 and 0 <= found.returned <= 1 << 31 else Tried()
