"""``EventsConsumer``: the user's function requests the events of the partition itself, in one call.

A failed call is repeated. It first receives the events that were in flight, unless the failure policy has settled them.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Any, Final

from tidelog.codecs import UndecodableError
from tidelog.topics.groupreader import Row
from tidelog.workers.declare.events import Event, Events
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.user_errors import as_failure
from tidelog.workers.execution.consumer import SLICE, PartitionConsumer
from tidelog.workers.execution.event_actions import raw_id
from tidelog.workers.execution.failures import FailureHandler
from tidelog.workers.execution.partition import ActivePartition, StoppedError
from tidelog.workers.execution.stats import Stats

NOTHING_IN_FLIGHT: Final = 60.0  # seconds until a call that fails before its first event is repeated


class EventsConsumer(PartitionConsumer):
    """Consumes one partition. It is the ``EventFeed`` of its calls."""

    def __init__(self, declared: Processor, partition: ActivePartition, failures: FailureHandler, stats: Stats) -> None:
        super().__init__(declared, partition, failures, stats)
        self._passed: dict[bytes, Row] = {}  # by ID: passed to the function and not finished
        self._attempt = 1  # of the last failed call
        self._failed: set[bytes] = set()  # the IDs that the last failure concerns
        self._until = time.monotonic() + SLICE

    async def run(self) -> None:
        """Call the function until the partition is stopped, or until the function is done."""
        partition = self.partition
        self.stats.busy += 1
        self.task = asyncio.current_task()
        try:
            while partition.held and not partition.stopping.is_set():
                events: Events[Any] = Events(self.declared.topic, partition.number, self)
                try:
                    await self.declared.invoke_events(events)
                except BaseException as error:  # noqa: BLE001 - the policy sees every error
                    await self._settle([raw_id(event) for event in events.in_flight], as_failure(error, self.task))
                else:
                    events.settle()
                    if events.is_done:
                        return
                self._requeue()
        except StoppedError:
            pass
        finally:
            self.stats.busy -= 1

    # -- EventFeed -------------------------------------------------------------------------------------------
    async def next(self, count: int, within: float) -> list[Event[Any]]:
        """See ``EventFeed.next``."""
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
        again = sum(row[0] in self._failed for row in islice(self.rows, count))  # failed events come first
        rows = [self.rows.popleft() for _ in range(min(again or count, len(self.rows)))]
        ids = [row[0] for row in rows]
        if self._before:
            partition.acks.add_all(ids)
            await partition.acks.flush()
        elif partition.suspects:
            rows = await self._begun(rows)
            if not rows:
                return await self.next(count, within)
            ids = [row[0] for row in rows]
        self._passed.update(zip(ids, rows, strict=True))
        partition.actions.begin(ids)
        return [self.event(row, self._attempt + 1 if row[0] in self._failed else 1) for row in rows]

    async def _begun(self, rows: list[Row]) -> list[Row]:
        """Return the entries that may be passed to the function: see ``attempts``.

        They are not started alone, because the function may keep them for any time.
        """
        begun: list[Row] = []

        async def call(left: list[Row]) -> None:
            begun.extend(left)

        await self.carefully(rows, call)
        return begun

    def finished(self, events: Any) -> None:
        """See ``EventFeed.finished``."""
        rows = [row for event in events if (row := self._passed.pop(raw_id(event), None)) is not None]
        if rows:
            self.finish(rows)

    # -- failures --------------------------------------------------------------------------------------------
    async def _settle(self, ids: list[bytes], error: Exception) -> None:
        """Apply the failure policy to the events in flight. Raises StoppedError if the partition must stop."""
        rows = [self._passed[entry_id] for entry_id in ids if entry_id in self._passed]
        if len(rows) > 1 and isinstance(error, UndecodableError):
            good = await self.records_of(rows)
            if len(good) < len(rows):  # the undecodable ones are settled; the others are passed on again
                for row in rows:
                    if row not in good:
                        self._passed.pop(row[0], None)
                return
        same = bool(self._failed) and self._failed == set(ids)
        self._attempt = self._attempt + 1 if same or not ids else 1
        self._failed = set(ids)
        starts, start_counts = self.failures.starts, self.partition.start_counts
        before = starts.most_before(self.partition, ids)
        delay = await self.failures.settle(self.partition, rows, error, before + self._attempt)
        if delay is not None:
            await self.partition.rest(delay)
            return
        for entry_id in ids:
            self._passed.pop(entry_id, None)
        if start_counts:
            starts.over(self.partition, ids)
        self._failed = set()
        if not rows:
            await self.partition.rest(NOTHING_IN_FLIGHT)

    def _requeue(self) -> None:
        """Put unfinished events back in front."""
        self.rows.extendleft(reversed(self._passed.values()))
        self._passed.clear()
