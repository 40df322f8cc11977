"""``EventsConsumer``: the user's function takes the events of the partition itself, in one call.

A call that fails is begun again. What it had in hand is the first thing that the next call gets, unless the policy has
settled it.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Any, Final

from tidelog.codecs import UndecodableError
from tidelog.workers.declare.events import Event, Events
from tidelog.workers.declare.processor import Declared
from tidelog.workers.declare.user_errors import failure
from tidelog.workers.execution.buffers import Row
from tidelog.workers.execution.consumer import SLICE, Consumer
from tidelog.workers.execution.event_actions import raw_id
from tidelog.workers.execution.failures import Failures
from tidelog.workers.execution.partition import Partition, StoppedError
from tidelog.workers.execution.stats import Stats

NOTHING_IN_HAND: Final = 60.0  # seconds until a call that always fails before its first event is begun again


class EventsConsumer(Consumer):
    """Of one partition. It is the ``Feed`` of its calls."""

    def __init__(self, declared: Declared, partition: Partition, failures: Failures, stats: Stats) -> None:
        super().__init__(declared, partition, failures, stats)
        self._given: dict[bytes, Row] = {}  # by ID: handed out, not finished
        self._attempt = 1  # of what failed last
        self._failed: set[bytes] = set()  # the IDs of that
        self._until = time.monotonic() + SLICE

    async def run(self) -> None:
        """Call the function until told to stop, or until it says that it is done."""
        partition = self.partition
        self.stats.busy += 1
        self.task = asyncio.current_task()
        try:
            while partition.held and not partition.stopping.is_set():
                events: Events[Any] = Events(self.declared.topic, partition.number, self)
                try:
                    await self.declared.invoke_events(events)
                except BaseException as error:  # noqa: BLE001 - the policy sees every error
                    await self._settle([raw_id(event) for event in events.in_hand], failure(error, self.task))
                else:
                    events.settle()
                    if events.is_done:
                        return
                self._give_again()
        except StoppedError:
            pass
        finally:
            self.stats.busy -= 1

    # -- Feed ------------------------------------------------------------------------------------------------
    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``Feed.next``."""
        partition = self.partition
        if time.monotonic() > self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + SLICE
        if not self.rows:
            partition.acks.soon()
            await partition.filled()
            self._until = time.monotonic() + SLICE
        if count > 1 and self.rows and self.rows[0][0] not in self._failed:
            await self.gathered(count, within)
        if partition.stopping.is_set() or not partition.held:
            return []
        again = sum(row[0] in self._failed for row in islice(self.rows, count))  # they are the first ones
        rows = [self.rows.popleft() for _ in range(min(again or count, len(self.rows)))]
        ids = [row[0] for row in rows]
        if self._before:
            partition.acks.add_all(ids)
            await partition.acks.flush()
        elif partition.doubtful:
            rows = await self._begun(rows)
            if not rows:
                return await self.next(count, within)
            ids = [row[0] for row in rows]
        self._given.update(zip(ids, rows, strict=True))
        partition.sink.begin(ids)
        return [self.event(row, self._attempt + 1 if row[0] in self._failed else 1) for row in rows]

    async def _begun(self, rows: list[Row]) -> list[Row]:
        """Those that may be given to the function: see ``tried``. It holds them for as long as it likes, so they are
        not begun alone.
        """
        begun: list[Row] = []

        async def call(left: list[Row]) -> None:
            begun.extend(left)

        await self.carefully(rows, call)
        return begun

    def finished(self, events: Any) -> None:
        """See ``Feed.finished``."""
        rows = [row for event in events if (row := self._given.pop(raw_id(event), None)) is not None]
        if rows:
            self.finish(rows)

    # -- failures --------------------------------------------------------------------------------------------
    async def _settle(self, ids: list[bytes], error: Exception) -> None:
        """What the policy says about the events in hand. StoppedError if the partition is to stop."""
        rows = [self._given[entry_id] for entry_id in ids if entry_id in self._given]
        if len(rows) > 1 and isinstance(error, UndecodableError):
            good = await self.records_of(rows)
            if len(good) < len(rows):  # the others were settled; these are handed out again
                for row in rows:
                    if row not in good:
                        self._given.pop(row[0], None)
                return
        same = bool(self._failed) and self._failed == set(ids)
        self._attempt = self._attempt + 1 if same or not ids else 1
        self._failed = set(ids)
        starts, tried = self.failures.starts, self.partition.tried
        before = max((starts.before(self.partition, each) for each in ids), default=0) if tried else 0
        delay = await self.failures.settle(self.partition, rows, error, before + self._attempt)
        if delay is not None:
            await self.partition.rest(delay)
            return
        for entry_id in ids:
            self._given.pop(entry_id, None)
        if tried:
            starts.over(self.partition, ids)
        self._failed = set()
        if not rows:
            await self.partition.rest(NOTHING_IN_HAND)

    def _give_again(self) -> None:
        """What was handed out and not finished comes first."""
        self.rows.extendleft(reversed(self._given.values()))
        self._given.clear()
