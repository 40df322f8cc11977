"""``ProcessorSink``: carries out what events are asked to do: acknowledge, give back, keep, send.

With transactional=True, what an event sends is kept here until the processor is through with it, and then committed
together with its acknowledgement. A failed attempt's outputs are thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import arun
from tidelog.coordination import Claim
from tidelog.topics import Topic
from tidelog.transport.call import Call
from tidelog.workers.coordination.connections import Line
from tidelog.workers.declare.events import Event
from tidelog.workers.declare.processor import Declared
from tidelog.workers.execution.acks import Acks
from tidelog.workers.execution.buffers import Buffer
from tidelog.workers.execution.outputs import Output

T = TypeVar("T")


class ProcessorSink:
    """Of one partition. ``line``: where small and urgent calls leave; ``reads``: the line of the TREADs."""

    def __init__(
        self, declared: Declared, buffer: Buffer, acks: Acks, claim: Claim, line: Line, reads: Line,
        failed: Callable[[asyncio.Task[Any]], None],
    ) -> None:  # fmt: skip
        self.app = declared.app
        self.processor = declared.name
        self.manual = declared.ack == "manual"
        self._transactional = declared.transactional
        self._group = declared.group
        self._buffer = buffer
        self._acks = acks
        self._claim = claim
        self._line = line
        self._reads = reads
        self._failed = failed
        self.settled: Callable[[bytes, bool], None] = lambda _, __: None  # an ID; whether it was acknowledged
        self._outputs: dict[bytes, list[Output]] = {}  # by the ID of the event
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def waiting(self) -> int:
        """Events that have sent what is not committed yet."""
        return len(self._outputs)

    def ack(self, event: Event[Any]) -> None:
        """Acknowledge the event with the next flush."""
        self._acks.add(raw_id(event))
        self.settled(raw_id(event), True)

    def nack(self, event: Event[Any], delay: float) -> None:
        """Give the event back. It is not in hand any more at once: with the TREADs behind this it may come again."""
        entry_id = raw_id(event)
        made = calls.tnack(self._buffer.stream, self._group, entry_id, delay=round(delay * 1000))
        self._buffer.given_back(entry_id)
        self.settled(entry_id, False)
        self._spawn(self._ask(self._reads, made))

    def touch(self, event: Event[Any], seconds: float) -> None:
        """Keep the event for so much longer."""
        made = calls.ttouch(self._buffer.stream, self._group, max(1, round(seconds * 1000)), raw_id(event))
        self._spawn(self._ask(self._line, made))

    async def send(self, event: Event[Any], topic: Topic[Any], record: Any) -> StreamId | None:
        """Send a record: in a transaction with the acknowledgement (then None), or at once."""
        if not self._transactional:
            return await topic.send(record)
        if not topic.agreed:
            await topic.ready()
        sender = topic.sender()
        at = sender.keyed.partition(record, len(sender.streams))
        if sender.retention.hard_limit is not None:
            await arun(self._line, sender.room([at]))
        fields, values = sender.codec.encode(record)
        kept = sender.retention
        made = Output(sender.streams[at], fields, values, sender if kept.drops or kept.hard_limit else None, at)
        self._outputs.setdefault(raw_id(event), []).append(made)
        return None

    def kept(self, event: Event[Any]) -> int:
        """How many records the event has sent that are to be committed with it."""
        return len(self._outputs.get(raw_id(event), ()))

    def drop(self, event: Event[Any], start: int, stop: int) -> None:
        """Of these, throw away those from ``start`` to before ``stop``."""
        del self._outputs.get(raw_id(event), [])[start:stop]

    async def run(self, call: Call[T]) -> T:
        """Send a call to the server."""
        (result,) = await self._line.ask(call)
        done: T = result
        return done

    def begin(self, ids: Sequence[bytes]) -> None:
        """An attempt begins: what the one before has sent is thrown away."""
        if self._outputs:
            for entry_id in ids:
                self._outputs.pop(entry_id, None)

    def taken(self, ids: Sequence[bytes]) -> list[Output]:
        """What these events have sent."""
        pop = self._outputs.pop
        return [output for entry_id in ids for output in pop(entry_id, ())]

    async def _ask(self, line: Line, made: Call[int]) -> None:
        if self._claim.held:
            await line.ask(made)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._failed)


def raw_id(event: Event[Any]) -> bytes:
    """The ID of an event as the server writes it."""
    return str(event.entry.id).encode()
