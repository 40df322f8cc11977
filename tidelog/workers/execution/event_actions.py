"""``PartitionEventActions``: performs the operations of events: ack, nack, touch, send.

With transactional=True, records that are sent while an event is processed are buffered here until the processor is done
with the event, and then committed together with its acknowledgement. The records of a failed attempt are discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidelog.client.entries import StreamId
from tidelog.client.steps import arun
from tidelog.coordination import Claim
from tidelog.operating.tasks import BackgroundTasks
from tidelog.topics import Topic
from tidelog.transport.call import Call
from tidelog.workers.coordination.connections import WorkerConnection
from tidelog.workers.coordination.workergroups import WorkerGroups
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.outputs import OutputEntry
from tidelog.workers.execution.placement import different_groups

T = TypeVar("T")


class PartitionEventActions:
    """The operations of one partition. ``connection``: for small, urgent calls; ``reads``: the one used for TREADs.

    ``rejected`` ends the worker with this text, and returns the error to raise.
    """

    def __init__(
        self, declared: Processor, buffer: Buffer, acks: Acks, claim: Claim, connection: WorkerConnection,
        reads: WorkerConnection, groups: WorkerGroups, failed: Callable[[asyncio.Task[Any]], None],
        rejected: Callable[[str], Exception],
    ) -> None:  # fmt: skip
        self.app = declared.app
        self.processor = declared.name
        self.manual = declared.ack == "manual"
        self._transactional = declared.transactional
        self._sends = None if declared.sends is None else {each.name for each in declared.sends}
        self._buffer = buffer
        self._acks = acks
        self._claim = claim
        self._connection = connection
        self._reads = reads
        self._groups = groups
        self._rejected = rejected
        self.settled: Callable[[bytes, bool], None] = lambda _, __: None  # called with an ID and whether it was acked
        self._outputs: dict[bytes, list[OutputEntry]] = {}  # by the ID of the event
        self._running = BackgroundTasks(failed)

    @property
    def waiting(self) -> int:
        """The number of events with records that are not committed yet."""
        return len(self._outputs)

    def ack(self, event: Event[Any]) -> None:
        """See ``EventActions.ack``."""
        self._acks.add(raw_id(event))
        self.settled(raw_id(event), True)

    def nack(self, event: Event[Any], delay: float) -> None:
        """See ``EventActions.nack``. The entry is removed from the buffer first: the next TREAD may redeliver it."""
        entry_id = raw_id(event)
        call = self._buffer.nack([entry_id], round(delay * 1000))
        self._buffer.returned_now(entry_id)
        self.settled(entry_id, False)
        self._running.spawn(self._ask(self._reads, call))

    def touch(self, event: Event[Any], seconds: float) -> None:
        """See ``EventActions.touch``."""
        call = self._buffer.touch([raw_id(event)], max(1, round(seconds * 1000)))
        self._running.spawn(self._ask(self._connection, call))

    async def send(self, event: Event[Any], topic: Topic[Any], record: Any) -> StreamId | None:
        """See ``EventActions.send``."""
        if not self._transactional:
            return await topic.send(record)
        if self._sends is not None and topic.name not in self._sends:
            raise self._rejected(
                f"processor {self.processor!r} sends to topic {topic.name!r}, which is not in its option sends: add it"
            )
        if not topic.agreed:
            await topic.ready()
        sender = topic.sender()
        at = sender.keyed.partition(record, len(sender.streams))
        stream, output_stream = self._buffer.stream, sender.streams[at]
        groups = self._groups
        if not groups.together(stream, output_stream) and not await groups.found_together(stream, output_stream):
            raise self._rejected(different_groups(self.processor, stream, output_stream))
        if sender.retention.hard_limit is not None:
            await arun(self._connection, sender.room([at]))
        fields, values = sender.encode(record)
        limited = sender if sender.retention.hard_limit is not None else None
        output = OutputEntry(output_stream, fields, values, limited, at)
        self._outputs.setdefault(raw_id(event), []).append(output)
        return None

    def sent_count(self, event: Event[Any]) -> int:
        """See ``EventActions.sent_count``."""
        return len(self._outputs.get(raw_id(event), ()))

    def discard_sent(self, event: Event[Any], start: int, stop: int) -> None:
        """See ``EventActions.discard_sent``."""
        del self._outputs.get(raw_id(event), [])[start:stop]

    async def run(self, call: Call[T]) -> T:
        """See ``EventActions.run``."""
        (result,) = await self._connection.ask(call)
        done: T = result
        return done

    def begin(self, ids: Sequence[bytes]) -> None:
        """Begin an attempt: discard the records of the previous one."""
        if self._outputs:
            for entry_id in ids:
                self._outputs.pop(entry_id, None)

    def taken(self, ids: Sequence[bytes]) -> list[OutputEntry]:
        """Remove and return the records that these events have sent."""
        pop = self._outputs.pop
        return [output for entry_id in ids for output in pop(entry_id, ())]

    async def _ask(self, connection: WorkerConnection, call: Call[int]) -> None:
        if self._claim.held:
            await connection.ask(call)


def raw_id(event: Event[Any]) -> bytes:
    """Return the ID of an event as the server sends it."""
    return str(event.entry.id).encode()
